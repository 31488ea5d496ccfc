//! Starting, signalling, ending, logging, removing.

use std::{fs, time::Duration};

use moorline_container::{Error, Event, LogOptions, Network, PodId, PodSpec, Processes, State, TerminationMessage};

use crate::support::{Bench, PATIENCE, left_behind, needs_containers};

#[tokio::test]
async fn a_container_runs_and_its_output_and_exit_code_are_kept() {
    needs_containers!();
    let bench = Bench::new("run").await;
    let pod = bench.pod("web").await;
    let script = "echo to out; echo to err >&2; printf unfinished; exit 7";
    let id = bench.start(&pod, bench.script("main", script)).await;
    let exit = bench.exit(&pod, &id).await;
    assert_eq!((exit.code, exit.signal, exit.oom_kills), (7, None, 0));
    assert!(exit.finished_at >= exit.started_at);
    let mut lines: Vec<_> = bench.log(&pod, &id).await.lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["to err", "to out", "unfinished"]);
    let raw = fs::read_to_string(bench.dir.path().join("logs/main.log")).unwrap();
    assert!(
        raw.contains(" stderr F to err\n") && raw.contains(" stdout P unfinished\n"),
        "{raw}"
    );
    bench.purge().await;
}

#[tokio::test]
async fn a_container_has_its_signals_whatever_is_ignored_by_whoever_starts_it() {
    needs_containers!();
    let bench = Bench::new("ignored").await;
    // As `nohup` does, or a script with what it runs in the background; the shim is started by it.
    let program = bench.dir.path().join("ignoring");
    let shim = env!("CARGO_BIN_EXE_moorline-shim");
    std::fs::write(
        &program,
        format!("#!/bin/sh\ntrap '' INT HUP QUIT\nexec {shim} \"$@\"\n"),
    )
    .unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut config = Bench::config(&bench.dir.path().join("other"), &format!("{}-i", bench.instance));
    config.program = Some(program);
    let runtime = moorline_container::Runtime::open(config).await.unwrap();
    let pod: moorline_container::PodId = "p".parse().unwrap();
    let spec = moorline_container::PodSpec::new(pod.clone(), moorline_container::Network::Isolated);
    runtime.create_pod(spec).await.unwrap();
    let spec = bench.script("c", "kill -INT $$; echo it was ignored");
    let id = spec.id.clone();
    runtime.create_container(&pod, spec).await.unwrap();
    runtime.start(&pod, &id).await.unwrap();
    let moorline_container::State::Exited(exit) = runtime.wait(&pod, &id, PATIENCE).await.unwrap() else {
        panic!("it has not ended");
    };
    assert_eq!(exit.code, 130, "{exit:?}");
    runtime.purge().await.unwrap();
    bench.purge().await;
}

#[tokio::test]
async fn a_signal_reaches_the_first_process_and_shows_in_the_exit() {
    needs_containers!();
    let bench = Bench::new("signal").await;
    let pod = bench.pod("p").await;
    let id = bench
        .start(
            &pod,
            bench.script(
                "trap",
                "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.01; done",
            ),
        )
        .await;
    bench.has_said(&pod, &id, "ready").await;
    bench.runtime().signal(&pod, &id, 15).await.unwrap();
    assert_eq!(bench.exit(&pod, &id).await.code, 3);
    assert!(bench.log(&pod, &id).await.contains("caught"));

    let id = bench.start(&pod, bench.script("killed", "sleep 1000")).await;
    bench.runtime().kill(&pod, &id).await.unwrap();
    let exit = bench.exit(&pod, &id).await;
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    bench.runtime().signal(&pod, &id, 15).await.unwrap();
    assert!(matches!(
        bench.runtime().signal(&pod, &id, 4711).await,
        Err(Error::Signal(4711))
    ));
    bench.purge().await;
}

#[tokio::test]
async fn an_end_is_told_to_those_who_listen() {
    needs_containers!();
    let bench = Bench::new("events").await;
    let pod = bench.pod("p").await;
    let mut events = bench.runtime().events();
    let id = bench.start(&pod, bench.script("c", "exit 5")).await;
    let event = tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap();
    let Event::Exited { container, exit, .. } = event else {
        panic!("{event:?}")
    };
    assert_eq!((container, exit.code), (id, 5));
    bench.purge().await;
}

#[tokio::test]
async fn an_end_that_is_quicker_than_the_news_of_its_start_is_told_once() {
    needs_containers!();
    let bench = Bench::new("quick").await;
    let pod = bench.pod("p").await;
    let mut events = bench.runtime().events();
    let mut started = std::collections::BTreeSet::new();
    for number in 0..8 {
        started.insert(bench.start(&pod, bench.script(&format!("c{number}"), "exit 0")).await);
    }
    while !started.is_empty() {
        let event = tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap();
        let Event::Exited { container, .. } = event else {
            panic!("{event:?}")
        };
        assert!(started.remove(&container), "{container} was told twice");
    }
    bench.purge().await;
}

#[tokio::test]
async fn a_command_that_does_not_exist_is_an_error_and_leaves_nothing_running() {
    needs_containers!();
    let bench = Bench::new("nocmd").await;
    let pod = bench.pod("p").await;
    for (name, command) in [
        ("a", "/no/such/command"),
        ("b", "nosuch"),
        ("c", "/etc/passwd"),
        ("d", "/tmp"),
    ] {
        let mut spec = bench.script(name, "");
        spec.args = vec![command.to_owned()];
        let id = spec.id.clone();
        bench.runtime().create_container(&pod, spec).await.unwrap();
        let error = bench.runtime().start(&pod, &id).await.unwrap_err();
        assert!(
            matches!(&error, Error::Start { reason, .. } if reason.contains(command)),
            "{error}"
        );
        assert_eq!(bench.runtime().container(&pod, &id).unwrap().state, State::Created);
        bench.runtime().remove(&pod, &id).await.unwrap();
    }
    bench.purge().await;
}

#[tokio::test]
async fn a_start_that_failed_can_be_tried_again() {
    needs_containers!();
    let bench = Bench::new("again").await;
    let pod = bench.pod("p").await;
    let mut spec = bench.script("c", "");
    spec.args = vec!["/tool/run".to_owned()];
    let tool = bench.dir.path().join("tool");
    fs::create_dir(&tool).unwrap();
    spec.mounts.push(moorline_container::Mount {
        target: "/tool".into(),
        source: moorline_container::MountSource::Bind {
            path: tool.clone(),
            subpath: None,
        },
        read_only: true,
        propagation: moorline_container::Propagation::Private,
    });
    let id = spec.id.clone();
    bench.runtime().create_container(&pod, spec).await.unwrap();
    assert!(bench.runtime().start(&pod, &id).await.is_err());
    fs::write(tool.join("run"), "#!/bin/sh\nexit 12\n").unwrap();
    fs::set_permissions(tool.join("run"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    bench.runtime().start(&pod, &id).await.unwrap();
    assert_eq!(bench.exit(&pod, &id).await.code, 12);
    bench.purge().await;
}

#[tokio::test]
async fn many_pods_at_once_all_run() {
    needs_containers!();
    let bench = std::sync::Arc::new(Bench::new("many").await);
    let start = std::time::Instant::now();
    let pods: Vec<_> = (0..20)
        .map(|number| {
            let bench = bench.clone();
            tokio::spawn(async move {
                let pod = bench.pod(&format!("p{number}")).await;
                bench
                    .start(&pod, bench.script(&format!("c{number}"), "sleep 1000"))
                    .await;
            })
        })
        .collect();
    for pod in pods {
        pod.await.unwrap();
    }
    eprintln!("20 pods at once: {:?}", start.elapsed());
    let running = |pod: &moorline_container::PodStatus| matches!(pod.containers[0].state, State::Running { .. });
    assert_eq!(bench.runtime().list().iter().filter(|pod| running(pod)).count(), 20);
    std::sync::Arc::into_inner(bench).unwrap().purge().await;
}

#[tokio::test]
async fn a_layer_or_a_mount_that_is_missing_is_named() {
    needs_containers!();
    let bench = Bench::new("missing").await;
    let pod = bench.pod("p").await;
    let mut spec = bench.script("layer", "true");
    spec.root.layers.push("/no/such/layer".into());
    bench.runtime().create_container(&pod, spec).await.unwrap();
    let error = bench
        .runtime()
        .start(&pod, &"layer".parse().unwrap())
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("/no/such/layer"), "{error}");
    bench.purge().await;
}

#[tokio::test]
async fn a_pipe_that_nobody_reads_ends_its_writer() {
    needs_containers!();
    let bench = Bench::new("sigpipe").await;
    let pod = bench.pod("p").await;
    // Ignoring SIGPIPE is inherited; `yes` would then end with an error of its own instead of the signal.
    let id = bench
        .start(
            &pod,
            bench.script("c", "(yes; echo $? >/tmp/code) | head -n 1; sleep 0.05; cat /tmp/code"),
        )
        .await;
    assert_eq!(bench.exit(&pod, &id).await.code, 0);
    assert_eq!(bench.log(&pod, &id).await, "y\n141\n");
    bench.purge().await;
}

#[tokio::test]
async fn the_last_word_of_a_container_is_kept_with_its_exit() {
    needs_containers!();
    let bench = Bench::new("message").await;
    let pod = bench.pod("p").await;
    let mut spec = bench.script("c", "echo because >/dev/termination-log; exit 1");
    spec.termination_message = Some(TerminationMessage {
        path: "/dev/termination-log".into(),
        max_bytes: 5,
    });
    spec.user.uid = 65534;
    let id = bench.start(&pod, spec).await;
    assert_eq!(bench.exit(&pod, &id).await.message, "becau");
    bench.purge().await;
}

#[tokio::test]
async fn one_who_follows_a_log_sees_it_grow_and_end() {
    needs_containers!();
    let bench = Bench::new("follow").await;
    let pod = bench.pod("p").await;
    let id = bench
        .start(&pod, bench.script("c", "for i in 1 2 3; do echo $i; sleep 0.05; done"))
        .await;
    let log = bench.log_with(
        &pod,
        &id,
        LogOptions {
            follow: true,
            ..LogOptions::default()
        },
    );
    assert_eq!(tokio::time::timeout(PATIENCE, log).await.unwrap(), "1\n2\n3\n");
    bench.purge().await;
}

#[tokio::test]
async fn a_running_container_is_not_removed_and_a_removed_one_is_gone() {
    needs_containers!();
    let bench = Bench::new("remove").await;
    let pod = bench.pod("p").await;
    let id = bench.start(&pod, bench.script("c", "sleep 1000")).await;
    assert!(matches!(
        bench.runtime().remove(&pod, &id).await,
        Err(Error::WrongState { .. })
    ));
    bench.runtime().kill(&pod, &id).await.unwrap();
    bench.exit(&pod, &id).await;
    bench.runtime().remove(&pod, &id).await.unwrap();
    assert!(matches!(
        bench.runtime().container(&pod, &id),
        Err(Error::NoContainer(..))
    ));
    bench.start(&pod, bench.script("c", "true")).await;
    bench.purge().await;
}

#[tokio::test]
async fn removing_a_pod_leaves_nothing_of_it() {
    needs_containers!();
    let bench = Bench::new("gone").await;
    let pod = bench.pod("p").await;
    let other = bench.pod("other").await;
    bench.start(&pod, bench.script("a", "sleep 1000")).await;
    bench
        .start(&pod, bench.script("b", "trap '' TERM; while :; do sleep 1; done"))
        .await;
    let kept = bench.start(&other, bench.script("c", "sleep 1000")).await;
    bench.runtime().remove_pod(&pod).await.unwrap();
    bench.runtime().remove_pod(&pod).await.unwrap();
    let left = left_behind(&bench.instance, bench.dir.path());
    assert!(!left.iter().any(|what| what.ends_with("/p")), "{left:?}");
    assert!(matches!(
        bench.runtime().container(&other, &kept).unwrap().state,
        State::Running { .. }
    ));
    bench.purge().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_removes_a_pod_at_the_same_time_removes_it_once() {
    needs_containers!();
    let bench = Bench::new("twice").await;
    for _ in 0..10 {
        let pod = bench.pod("p").await;
        bench.start(&pod, bench.script("a", "sleep 1000")).await;
        let runtime = bench.runtime();
        let (first, second) = tokio::join!(runtime.remove_pod(&pod), runtime.remove_pod(&pod));
        first.unwrap();
        second.unwrap();
    }
    bench.purge().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_removed_while_it_is_made_leaves_nothing() {
    needs_containers!();
    let bench = Bench::new("early").await;
    let id: PodId = "p".parse().unwrap();
    for round in 0..20 {
        let runtime = bench.runtime();
        let remove = async {
            // Each time at another moment of the making.
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            runtime.remove_pod(&id).await
        };
        let making = runtime.create_pod(PodSpec::new(id.clone(), Network::Isolated));
        let (made, removed) = tokio::join!(making, remove);
        removed.unwrap();
        // The removal may have come before there was anything to remove.
        if made.is_ok() {
            runtime.remove_pod(&id).await.unwrap();
        }
        let left = left_behind(&bench.instance, bench.dir.path());
        assert!(!left.iter().any(|what| what.ends_with("/p")), "{left:?}");
    }
    bench.purge().await;
}

#[tokio::test]
async fn a_pod_whose_network_does_not_exist_is_refused_and_leaves_nothing() {
    needs_containers!();
    let bench = Bench::new("nonet").await;
    let spec = PodSpec::new(
        "p".parse().unwrap(),
        Network::Namespace("/run/netns/no-such-namespace".into()),
    );
    let error = bench.runtime().create_pod(spec).await.unwrap_err().to_string();
    assert!(error.contains("no-such-namespace"), "{error}");
    assert!(bench.runtime().list().is_empty());
    bench.purge().await;
}

#[tokio::test]
async fn a_name_is_taken_once() {
    needs_containers!();
    let bench = Bench::new("twice").await;
    let pod = bench.pod("p").await;
    let again = bench
        .runtime()
        .create_pod(PodSpec::new(pod.clone(), Network::Isolated))
        .await;
    assert!(matches!(again, Err(Error::PodExists(_))));
    bench
        .runtime()
        .create_container(&pod, bench.script("c", "true"))
        .await
        .unwrap();
    let again = bench.runtime().create_container(&pod, bench.script("c", "true")).await;
    assert!(matches!(again, Err(Error::ContainerExists(..))));
    bench.purge().await;
}

#[tokio::test]
async fn containers_that_share_processes_see_each_other_and_end_alone() {
    needs_containers!();
    let bench = Bench::new("sharepid").await;
    let mut spec = PodSpec::new("p".parse().unwrap(), Network::Isolated);
    spec.processes = Processes::Pod;
    let pod = spec.id.clone();
    bench.runtime().create_pod(spec).await.unwrap();
    let first = bench
        .start(&pod, bench.script("first", "sleep 4711 & echo ready; sleep 1000"))
        .await;
    bench.has_said(&pod, &first, "ready").await;
    let second = bench.script("second", "ps | grep -c '[s]leep 4711'; test $$ != 1");
    assert_eq!(bench.output_of(&pod, second).await, "1\n");
    bench.runtime().signal(&pod, &first, 9).await.unwrap();
    bench.exit(&pod, &first).await;
    let third = bench.script("third", "ps | grep -c '[s]leep 4711' || true");
    assert_eq!(bench.output_of(&pod, third).await, "0\n");
    bench.purge().await;
}

#[tokio::test]
async fn waiting_ends_at_its_deadline() {
    needs_containers!();
    let bench = Bench::new("deadline").await;
    let pod = bench.pod("p").await;
    let id = bench.start(&pod, bench.script("c", "sleep 1000")).await;
    let waited = bench.runtime().wait(&pod, &id, Duration::from_millis(20)).await;
    assert!(matches!(waited, Err(Error::Deadline { .. })));
    bench.purge().await;
}
