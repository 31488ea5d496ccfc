//! Pods that outlive the process that made them.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use moorline_container::{Error, Event, Network, PodId, PodSpec, Runtime, State};

use crate::support::{Bench, PATIENCE, needs_containers, script_in};

const DIR: &str = "MOORLINE_TEST_ADOPTION_DIR";
const INSTANCE: &str = "MOORLINE_TEST_ADOPTION_INSTANCE";

/// Not a test: what the next one runs as a process of its own and kills.
#[tokio::test]
#[ignore = "the victim of another test"]
async fn victim() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else {
        return;
    };
    let runtime = Bench::open(&dir, &std::env::var(INSTANCE).unwrap()).await.unwrap();
    let pod: PodId = "p".parse().unwrap();
    runtime
        .create_pod(PodSpec::new(pod.clone(), Network::Isolated))
        .await
        .unwrap();
    let scripts = [
        (
            "runs",
            "echo begun; while ! test -e /tmp/stop; do sleep 0.01; done; echo finished; exit 21",
        ),
        (
            "ends",
            "echo begun; while ! test -e /shared/killed; do sleep 0.01; done; echo alone; exit 22",
        ),
    ];
    for (name, script) in scripts {
        let mut spec = script_in(&dir, name, script);
        spec.mounts.push(moorline_container::Mount {
            target: "/shared".into(),
            source: moorline_container::MountSource::Bind {
                path: dir.join("shared"),
                subpath: None,
            },
            read_only: false,
            propagation: moorline_container::Propagation::Private,
        });
        let id = spec.id.clone();
        runtime.create_container(&pod, spec).await.unwrap();
        runtime.start(&pod, &id).await.unwrap();
    }
    fs::write(dir.join("shared/made"), "").unwrap();
    std::future::pending::<()>().await;
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "{what}");
}

#[tokio::test]
async fn pods_of_a_process_that_was_killed_are_taken_over() {
    needs_containers!();
    let mut bench = Bench::new("adopt").await;
    drop(bench.runtime.take());
    fs::create_dir(bench.dir.path().join("shared")).unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "adoption::victim", "--nocapture"])
        .env(DIR, bench.dir.path())
        .env(INSTANCE, &bench.instance)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let made = bench.dir.path().join("shared/made");
    eventually("the victim makes its pod", || made.exists()).await;
    assert!(matches!(
        Bench::open(bench.dir.path(), &bench.instance).await,
        Err(Error::InUse(_))
    ));
    victim.kill().unwrap();
    victim.wait().unwrap();
    // One container ends while nobody is there to see it.
    fs::write(bench.dir.path().join("shared/killed"), "").unwrap();
    let exit = bench.dir.path().join("run/pods/p/containers/ends/exit.json");
    eventually("the exit is written", || exit.exists()).await;

    bench.runtime = Some(Bench::open(bench.dir.path(), &bench.instance).await.unwrap());
    let pod: PodId = "p".parse().unwrap();
    let (runs, ends) = ("runs".parse().unwrap(), "ends".parse().unwrap());
    assert!(!bench.runtime().pod(&pod).unwrap().lost);
    assert_eq!(bench.exit(&pod, &ends).await.code, 22);
    assert_eq!(bench.log(&pod, &ends).await, "begun\nalone\n");
    assert!(matches!(
        bench.runtime().container(&pod, &runs).unwrap().state,
        State::Running { .. }
    ));
    // Its own end may come before that of this process, whose code then says so.
    bench.run(&pod, &runs, &["touch", "/tmp/stop"]).await;
    assert_eq!(bench.exit(&pod, &runs).await.code, 21);
    assert_eq!(bench.log(&pod, &runs).await, "begun\nfinished\n");
    bench.purge().await;
}

#[tokio::test]
async fn containers_of_a_shim_that_was_killed_are_lost_and_cleaned_up() {
    needs_containers!();
    let bench = Bench::new("lost").await;
    let pod = bench.pod("p").await;
    let id = bench.start(&pod, bench.script("c", "sleep 1000")).await;
    let ended = bench.start(&pod, bench.script("ended", "exit 3")).await;
    bench.exit(&pod, &ended).await;
    let State::Running { pid, .. } = bench.runtime().container(&pod, &id).unwrap().state else {
        panic!()
    };
    let mut events = bench.runtime().events();
    kill_shim(&bench);
    assert_eq!(bench.runtime().wait(&pod, &id, PATIENCE).await.unwrap(), State::Lost);
    assert!(matches!(events.next().await, Some(Event::Lost { .. })));
    assert_eq!(events.next().await, Some(Event::PodLost { pod: pod.clone() }));
    assert_eq!(bench.exit(&pod, &ended).await.code, 3);
    eventually("the container is killed", || {
        !std::path::Path::new(&format!("/proc/{pid}")).exists()
    })
    .await;
    assert!(bench.runtime().pod(&pod).unwrap().lost);
    assert!(matches!(
        bench.runtime().create_container(&pod, bench.script("d", "true")).await,
        Err(Error::PodLost(_))
    ));
    bench.purge().await;
}

#[tokio::test]
async fn the_first_process_of_a_pod_does_not_outlive_its_shim() {
    needs_containers!();
    let bench = Bench::new("lostpause").await;
    let mut spec = PodSpec::new("p".parse().unwrap(), Network::Isolated);
    spec.processes = moorline_container::Processes::Pod;
    bench.runtime().create_pod(spec).await.unwrap();
    let mut events = bench.runtime().events();
    kill_shim(&bench);
    assert!(matches!(events.next().await, Some(Event::PodLost { .. })));
    // Nobody but the purge below would find it.
    bench.purge().await;
}

#[tokio::test]
async fn a_shim_that_died_while_nobody_watched_is_found_out() {
    needs_containers!();
    let mut bench = Bench::new("lost2").await;
    let pod = bench.pod("p").await;
    let id = bench.start(&pod, bench.script("c", "sleep 1000")).await;
    drop(bench.runtime.take());
    kill_shim(&bench);
    bench.runtime = Some(reopen(&bench, Duration::from_secs(30)).await);
    assert_eq!(bench.runtime().container(&pod, &id).unwrap().state, State::Lost);
    bench.purge().await;
}

#[tokio::test]
async fn a_shim_that_does_not_answer_is_ended_and_keeps_nobody_waiting() {
    needs_containers!();
    let mut bench = Bench::new("hung").await;
    let pod = bench.pod("p").await;
    let other = bench.pod("other").await;
    let id = bench.start(&pod, bench.script("c", "sleep 1000")).await;
    let kept = bench.start(&other, bench.script("d", "sleep 1000")).await;
    drop(bench.runtime.take());
    signal_shim(&bench, rustix::process::Signal::STOP);
    bench.runtime = Some(reopen(&bench, Duration::from_secs(1)).await);
    assert_eq!(bench.runtime().container(&pod, &id).unwrap().state, State::Lost);
    assert!(matches!(
        bench.runtime().container(&other, &kept).unwrap().state,
        State::Running { .. }
    ));
    bench.purge().await;
}

/// The directory is free once the tasks of the runtime before have ended.
async fn reopen(bench: &Bench, patience: Duration) -> Runtime {
    let opening = async {
        loop {
            let mut config = Bench::config(bench.dir.path(), &bench.instance);
            config.patience = patience;
            match Runtime::open(config).await {
                Err(Error::InUse(_)) => tokio::time::sleep(Duration::from_millis(2)).await,
                other => return other.unwrap(),
            }
        }
    };
    tokio::time::timeout(PATIENCE, opening).await.unwrap()
}

fn kill_shim(bench: &Bench) {
    signal_shim(bench, rustix::process::Signal::KILL);
}

fn signal_shim(bench: &Bench, signal: rustix::process::Signal) {
    let lock = fs::read_to_string(bench.dir.path().join("run/pods/p/lock")).unwrap();
    let pid = rustix::process::Pid::from_raw(lock.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}
