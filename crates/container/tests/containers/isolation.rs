//! What a container sees, and what it may do.

use std::{fs, os::unix::fs::symlink, path::PathBuf};

use moorline_container::{
    Capabilities, Device, MemoryVolume, Mount, MountSource, Network, PodSpec, Propagation, Rlimit, User,
};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};

use crate::support::{Bench, needs_containers};

fn bind(path: PathBuf, target: &str) -> Mount {
    Mount {
        target: target.into(),
        source: MountSource::Bind { path, subpath: None },
        read_only: false,
        propagation: Propagation::Private,
    }
}

#[tokio::test]
async fn a_container_sees_its_own_processes_root_and_host_name() {
    needs_containers!();
    let bench = Bench::new("sees").await;
    let mut spec = PodSpec::new("p".parse().unwrap(), Network::Isolated);
    spec.hostname = Some("db-0".to_owned());
    let pod = spec.id.clone();
    bench.runtime().create_pod(spec).await.unwrap();
    let mut spec = bench.script("c", "hostname; echo $$; ls /; pwd; echo $HOME $PATH; echo $X");
    spec.cwd = "/made/for/it".into();
    spec.env = vec![
        ("X".to_owned(), "first".to_owned()),
        ("X".to_owned(), "last".to_owned()),
    ];
    let log = bench.output_of(&pod, spec).await;
    let lines: Vec<_> = log.lines().collect();
    assert_eq!(lines[..2], ["db-0", "1"]);
    assert!(
        lines.contains(&"/made/for/it") && lines.contains(&"last") && lines.contains(&"made"),
        "{log}"
    );
    assert!(
        lines.contains(&"/root /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        "{log}"
    );
    bench.purge().await;
}

#[tokio::test]
async fn layers_lie_over_each_other_and_are_never_written_to() {
    needs_containers!();
    let bench = Bench::new("layers").await;
    let pod = bench.pod("p").await;
    let top = bench.dir.path().join("top, with: odd\\characters");
    fs::create_dir_all(top.join("etc")).unwrap();
    fs::write(top.join("etc/passwd"), "over\n").unwrap();
    let mut spec = bench.script(
        "c",
        "cat /etc/passwd; echo changed >/etc/passwd; echo x >/new; cat /etc/passwd",
    );
    spec.root.layers.push(top.clone());
    assert_eq!(bench.output_of(&pod, spec.clone()).await, "over\nchanged\n");
    assert_eq!(fs::read_to_string(top.join("etc/passwd")).unwrap(), "over\n");
    spec.id = "d".parse().unwrap();
    spec.log.as_mut().unwrap().path = bench.dir.path().join("logs/d.log");
    assert_eq!(bench.output_of(&pod, spec).await, "over\nchanged\n");
    bench.purge().await;
}

#[tokio::test]
async fn a_read_only_root_takes_no_writes_but_its_mounts_do() {
    needs_containers!();
    let bench = Bench::new("readonly").await;
    let pod = bench.pod("p").await;
    let mut spec = bench.script(
        "c",
        "echo x >/new && exit 1; echo x >/not/in/the/image/y && echo z >/scratch/z && echo ok",
    );
    spec.root.read_only = true;
    let volume = bench.dir.path().join("volume");
    fs::create_dir(&volume).unwrap();
    spec.mounts.push(bind(volume.clone(), "/not/in/the/image"));
    spec.mounts.push(Mount {
        target: "/scratch".into(),
        source: MountSource::Tmpfs {
            size_bytes: Some(1 << 20),
            mode: 0o1777,
        },
        read_only: false,
        propagation: Propagation::Private,
    });
    let log = bench.output_of(&pod, spec).await;
    assert!(
        log.lines().any(|line| line == "ok") && log.contains("Read-only"),
        "{log}"
    );
    assert_eq!(fs::read_to_string(volume.join("y")).unwrap(), "x\n");
    bench.purge().await;
}

#[tokio::test]
async fn a_read_only_mount_takes_no_writes() {
    needs_containers!();
    let bench = Bench::new("romount").await;
    let pod = bench.pod("p").await;
    let volume = bench.dir.path().join("volume");
    fs::create_dir(&volume).unwrap();
    let mut spec = bench.script("c", "echo x >/v/y || echo refused");
    spec.mounts.push(Mount {
        read_only: true,
        ..bind(volume, "/v")
    });
    assert!(bench.output_of(&pod, spec).await.contains("refused"));
    bench.purge().await;
}

#[tokio::test]
async fn a_subpath_is_made_and_a_link_out_of_the_volume_is_refused() {
    needs_containers!();
    let bench = Bench::new("subpath").await;
    let pod = bench.pod("p").await;
    let volume = bench.dir.path().join("volume");
    fs::create_dir(&volume).unwrap();
    fs::write(volume.join("file"), "plain\n").unwrap();
    symlink("/etc", volume.join("out")).unwrap();
    let with = |name: &str, subpath: &str, script: &str| {
        let mut spec = bench.script(name, script);
        spec.mounts.push(Mount {
            source: MountSource::Bind {
                path: volume.clone(),
                subpath: Some(subpath.into()),
            },
            ..bind(volume.clone(), "/v")
        });
        spec
    };
    bench.output_of(&pod, with("a", "deep/er", "echo x >/v/y")).await;
    assert_eq!(fs::read_to_string(volume.join("deep/er/y")).unwrap(), "x\n");
    assert_eq!(bench.output_of(&pod, with("b", "file", "cat /v")).await, "plain\n");
    for (name, subpath) in [("c", "out"), ("d", "../.."), ("e", "/etc")] {
        let spec = with(name, subpath, "ls /v");
        let id = spec.id.clone();
        bench.runtime().create_container(&pod, spec).await.unwrap();
        let error = bench.runtime().start(&pod, &id).await.unwrap_err().to_string();
        assert!(error.contains(subpath), "{error}");
    }
    bench.purge().await;
}

#[tokio::test]
async fn the_layers_of_an_image_are_mounted_together_and_only_read() {
    needs_containers!();
    let bench = Bench::new("imagevolume").await;
    let pod = bench.pod("p").await;
    let layers: Vec<_> = ["low", "high"].map(|name| bench.dir.path().join(name)).into();
    for (layer, text) in layers.iter().zip(["below", "above"]) {
        fs::create_dir_all(layer.join("dir")).unwrap();
        fs::write(layer.join("dir/both"), text).unwrap();
        fs::write(layer.join("dir").join(text), text).unwrap();
    }
    let with = |name: &str, layers: &[PathBuf], subpath: Option<&str>, script: &str| {
        let mut spec = bench.script(name, script);
        spec.mounts.push(Mount {
            source: MountSource::Layers {
                layers: layers.to_vec(),
                subpath: subpath.map(PathBuf::from),
            },
            ..bind(PathBuf::new(), "/v")
        });
        spec
    };
    let script = "cat /v/dir/both; ls /v/dir; echo x 2>&1 >/v/new || echo refused";
    let log = bench.output_of(&pod, with("a", &layers, None, script)).await;
    assert!(log.starts_with("aboveabove\nbelow\nboth\n"), "{log}");
    assert!(log.ends_with("refused\n"), "{log}");
    let one = with("b", &layers[..1], Some("dir"), "cat /v/both");
    assert_eq!(bench.output_of(&pod, one).await, "below");
    let part = with("c", &layers, Some("dir/above"), "cat /v");
    assert_eq!(bench.output_of(&pod, part).await, "above");
    let missing = with("d", &layers, Some("nowhere"), "ls /v");
    let id = missing.id.clone();
    bench.runtime().create_container(&pod, missing).await.unwrap();
    let error = bench.runtime().start(&pod, &id).await.unwrap_err().to_string();
    assert!(error.contains("find nowhere in the image"), "{error}");
    bench.purge().await;
}

#[tokio::test]
async fn mounts_pass_both_ways_where_the_host_shares_them() {
    needs_containers!();
    let bench = Bench::new("bidirectional").await;
    let pod = bench.pod("p").await;
    let volume = bench.dir.path().join("volume");
    fs::create_dir(&volume).unwrap();
    mount("tmpfs", &volume, "tmpfs", MountFlags::empty(), None).unwrap();
    mount_change(&volume, MountPropagationFlags::SHARED).unwrap();
    let mut spec = bench.script(
        "c",
        "mkdir /v/inner && mount -t tmpfs none /v/inner && echo x >/v/inner/y",
    );
    spec.privileged = true;
    spec.mounts.push(Mount {
        propagation: Propagation::Bidirectional,
        ..bind(volume.clone(), "/v")
    });
    bench.output_of(&pod, spec).await;
    let seen = fs::read_to_string(volume.join("inner/y"));
    let mut spec = bench.script(
        "d",
        "echo ready; while ! test -e /v/late/z; do sleep 0.01; done; echo z >/v/late/w",
    );
    spec.mounts.push(Mount {
        propagation: Propagation::HostToContainer,
        ..bind(volume.clone(), "/v")
    });
    let id = bench.start(&pod, spec).await;
    bench.has_said(&pod, &id, "ready").await;
    fs::create_dir(volume.join("late")).unwrap();
    mount("tmpfs", volume.join("late"), "tmpfs", MountFlags::empty(), None).unwrap();
    fs::write(volume.join("late/z"), "").unwrap();
    bench.exit(&pod, &id).await;
    let written = fs::read_to_string(volume.join("late/w"));
    for place in ["late", "inner", ""] {
        unmount(volume.join(place), UnmountFlags::DETACH).unwrap();
    }
    assert_eq!(seen.unwrap(), "x\n");
    assert_eq!(written.unwrap(), "z\n");
    bench.purge().await;
}

#[tokio::test]
async fn containers_of_a_pod_share_memory_and_nobody_else_does() {
    needs_containers!();
    let bench = Bench::new("shm").await;
    let mut spec = PodSpec::new("p".parse().unwrap(), Network::Isolated);
    spec.memory_volumes.push(MemoryVolume {
        name: "cache".parse().unwrap(),
        size_bytes: Some(1 << 20),
        mode: 0o770,
        gid: 2000,
    });
    let pod = spec.id.clone();
    bench.runtime().create_pod(spec).await.unwrap();
    let with_cache = |name: &str, script: &str| {
        let mut spec = bench.script(name, script);
        spec.mounts.push(Mount {
            target: "/cache".into(),
            source: MountSource::PodMemory {
                name: "cache".parse().unwrap(),
                subpath: None,
            },
            read_only: false,
            propagation: Propagation::Private,
        });
        spec
    };
    bench
        .output_of(&pod, with_cache("a", "echo one >/dev/shm/x; echo two >/cache/y"))
        .await;
    let log = bench
        .output_of(&pod, with_cache("b", "cat /dev/shm/x /cache/y; stat -c '%a %g' /cache"))
        .await;
    assert_eq!(log, "one\ntwo\n770 2000\n");
    let other = bench.pod("other").await;
    assert_eq!(bench.output_of(&other, bench.script("c", "ls /dev/shm")).await, "");
    bench.purge().await;
}

#[tokio::test]
async fn privileges_are_as_few_as_asked_for() {
    needs_containers!();
    let bench = Bench::new("caps").await;
    let pod = bench.pod("p").await;
    let script = "grep -E 'CapEff|NoNewPrivs' /proc/self/status | tr '\\t' ' '; id -u; id -G";
    let mut spec = bench.script("a", script);
    spec.capabilities = Capabilities {
        add: vec!["NET_BIND_SERVICE".to_owned()],
        drop: vec!["ALL".to_owned()],
    };
    spec.no_new_privileges = true;
    assert_eq!(
        bench.output_of(&pod, spec).await,
        "CapEff: 0000000000000400\nNoNewPrivs: 1\n0\n0\n"
    );
    let mut spec = bench.script("b", script);
    spec.user = User {
        uid: 1000,
        gid: 1001,
        additional_gids: vec![1002],
    };
    assert_eq!(
        bench.output_of(&pod, spec).await,
        "CapEff: 0000000000000000\nNoNewPrivs: 0\n1000\n1001 1002\n"
    );
    let mut spec = bench.script("c", "mount -t tmpfs none /tmp && echo mounted; ls /dev | wc -l");
    spec.privileged = true;
    assert!(bench.output_of(&pod, spec).await.starts_with("mounted\n"));
    let spec = bench.script("d", "mount -t tmpfs none /tmp || echo refused");
    assert!(bench.output_of(&pod, spec).await.contains("refused"));
    bench.purge().await;
}

#[tokio::test]
async fn devices_of_the_host_are_out_of_reach_unless_given() {
    needs_containers!();
    let bench = Bench::new("devices").await;
    let pod = bench.pod("p").await;
    // Making a node is allowed where the kernel guards its use, and not possible elsewhere.
    let script =
        "mknod /tmp/kmsg c 1 11; head -c 1 /tmp/kmsg >/dev/null 2>&1 || echo refused; echo x >/dev/null && echo null";
    // Without this one the kernel's log would be refused for another reason.
    let reads_log = Capabilities {
        add: vec!["SYSLOG".to_owned()],
        drop: Vec::new(),
    };
    let mut spec = bench.script("a", script);
    spec.capabilities = reads_log.clone();
    assert!(bench.output_of(&pod, spec).await.ends_with("refused\nnull\n"));
    let mut spec = bench.script(
        "b",
        "ls /dev/log-of-the-kernel && head -c 1 /dev/log-of-the-kernel >/dev/null && echo read",
    );
    spec.capabilities = reads_log;
    spec.devices.push(Device {
        host_path: "/dev/kmsg".into(),
        path: "/dev/log-of-the-kernel".into(),
        access: "rw".to_owned(),
    });
    assert!(bench.output_of(&pod, spec).await.ends_with("read\n"));
    bench.purge().await;
}

#[tokio::test]
async fn limits_of_processes_are_set_and_never_above_our_own() {
    needs_containers!();
    let bench = Bench::new("rlimits").await;
    let pod = bench.pod("p").await;
    let mut spec = bench.script("c", "ulimit -Sn; ulimit -c");
    spec.rlimits = vec![
        Rlimit {
            name: "RLIMIT_NOFILE".to_owned(),
            soft: 123,
            hard: u64::MAX,
        },
        Rlimit {
            name: "RLIMIT_CORE".to_owned(),
            soft: 0,
            hard: 0,
        },
    ];
    assert_eq!(bench.output_of(&pod, spec).await, "123\n0\n");
    bench.purge().await;
}

#[tokio::test]
async fn kernel_settings_of_the_pod_are_set_and_those_of_the_host_refused() {
    needs_containers!();
    let bench = Bench::new("sysctl").await;
    let mut spec = PodSpec::new("p".parse().unwrap(), Network::Isolated);
    spec.sysctls.insert("kernel.shm_rmid_forced".to_owned(), "1".to_owned());
    let pod = spec.id.clone();
    bench.runtime().create_pod(spec).await.unwrap();
    let log = bench
        .output_of(&pod, bench.script("c", "cat /proc/sys/kernel/shm_rmid_forced"))
        .await;
    assert_eq!(log, "1\n");
    let mut spec = PodSpec::new("q".parse().unwrap(), Network::Isolated);
    spec.sysctls.insert("vm.swappiness".to_owned(), "1".to_owned());
    let error = bench.runtime().create_pod(spec).await.unwrap_err().to_string();
    assert!(error.contains("vm.swappiness"), "{error}");
    bench.purge().await;
}

#[tokio::test]
async fn containers_see_their_own_cgroup_and_cannot_change_it() {
    needs_containers!();
    let bench = Bench::new("cgroupview").await;
    let pod = bench.pod("p").await;
    let script = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max; \
                  mkdir /sys/fs/cgroup/memory/x 2>/dev/null || echo refused";
    let mut spec = bench.script("c", script);
    spec.resources.memory_limit_bytes = Some(64 << 20);
    assert_eq!(bench.output_of(&pod, spec).await, "67108864\nrefused\n");
    bench.purge().await;
}
