//! Limits, counts, freezing.

use std::time::{Duration, Instant};

use moorline_container::{Error, Resources, State};

use crate::support::{Bench, PATIENCE, needs_containers};

#[tokio::test]
async fn a_container_beyond_its_memory_is_killed_and_the_reason_is_told() {
    needs_containers!();
    let bench = Bench::new("oom").await;
    let pod = bench.pod("p").await;
    let mut spec = bench.script("c", "exec tail /dev/zero");
    spec.resources.memory_limit_bytes = Some(32 << 20);
    let id = bench.start(&pod, spec).await;
    let exit = bench.exit(&pod, &id).await;
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    assert!(exit.oom_kills >= 1);
    bench.purge().await;
}

#[tokio::test]
async fn the_number_of_processes_is_limited() {
    needs_containers!();
    let bench = Bench::new("pids").await;
    let pod = bench.pod("p").await;
    let mut spec = bench.script("c", "for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done; echo all");
    spec.resources.pids_limit = Some(5);
    let id = bench.start(&pod, spec).await;
    assert_ne!(bench.exit(&pod, &id).await.code, 0);
    assert!(!bench.log(&pod, &id).await.contains("all"));
    bench.purge().await;
}

#[tokio::test]
async fn processor_time_is_limited_and_the_limit_can_be_changed_in_place() {
    needs_containers!();
    let bench = Bench::new("cpu").await;
    let pod = bench.pod("p").await;
    let mut spec = bench.script("c", "while :; do :; done");
    spec.resources = Resources {
        cpu_quota_micros: Some(5_000),
        ..Resources::default()
    };
    let id = bench.start(&pod, spec).await;
    // How much of a processor it had; a machine with other work measures for longer than it meant to.
    let share = || {
        let (bench, pod, id) = (&bench, &pod, &id);
        async move {
            let (began, before) = (Instant::now(), bench.runtime().stats(pod, id).unwrap().cpu_nanos);
            tokio::time::sleep(Duration::from_millis(400)).await;
            let used = bench.runtime().stats(pod, id).unwrap().cpu_nanos - before;
            Duration::from_nanos(used).as_secs_f64() / began.elapsed().as_secs_f64()
        }
    };
    let little = share().await;
    assert!(little < 0.15, "{little}");
    let freed = Resources {
        cpu_quota_micros: Some(100_000),
        ..Resources::default()
    };
    bench.runtime().update(&pod, &id, &freed).unwrap();
    let more = share().await;
    assert!(more > little * 2.0, "{little} {more}");
    bench.purge().await;
}

#[tokio::test]
async fn what_a_container_uses_is_counted() {
    needs_containers!();
    let bench = Bench::new("stats").await;
    let pod = bench.pod("p").await;
    let id = bench
        .start(
            &pod,
            bench.script(
                "c",
                "dd if=/dev/zero of=/dev/shm/x bs=1M count=8 2>/dev/null; sleep 1000 & echo up; wait",
            ),
        )
        .await;
    bench.has_said(&pod, &id, "up").await;
    let stats = bench.runtime().stats(&pod, &id).unwrap();
    assert!(stats.cpu_nanos > 0);
    assert!(stats.memory_working_set_bytes >= 8 << 20, "{stats:?}");
    assert_eq!(stats.pids, 2);
    assert!(bench.runtime().pod_stats(&pod).unwrap().memory_usage_bytes >= stats.memory_working_set_bytes);
    bench.purge().await;
}

#[tokio::test]
async fn a_frozen_pod_stands_still_and_goes_on_when_it_is_thawed() {
    needs_containers!();
    let bench = Bench::new("freeze").await;
    let pod = bench.pod("p").await;
    let id = bench.start(&pod, bench.script("c", "sleep 0.05; exit 8")).await;
    bench.runtime().freeze(&pod).unwrap();
    let waited = bench.runtime().wait(&pod, &id, Duration::from_millis(200)).await;
    assert!(matches!(waited, Err(Error::Deadline { .. })));
    bench.runtime().thaw(&pod).unwrap();
    assert_eq!(bench.exit(&pod, &id).await.code, 8);
    bench.purge().await;
}

#[tokio::test]
async fn a_frozen_pod_can_be_killed_and_removed() {
    needs_containers!();
    let bench = Bench::new("freezekill").await;
    let pod = bench.pod("p").await;
    let id = bench.start(&pod, bench.script("c", "sleep 1000")).await;
    bench.runtime().freeze(&pod).unwrap();
    bench.runtime().remove_pod(&pod).await.unwrap();
    assert!(bench.runtime().container(&pod, &id).is_err());
    bench.purge().await;
}

#[tokio::test]
async fn a_limit_too_small_to_start_in_is_an_error_or_an_out_of_memory_end() {
    needs_containers!();
    let bench = Bench::new("tiny").await;
    let pod = bench.pod("p").await;
    let mut spec = bench.script("c", "sleep 1000");
    spec.resources.memory_limit_bytes = Some(64 << 10);
    let id = spec.id.clone();
    bench.runtime().create_container(&pod, spec).await.unwrap();
    match bench.runtime().start(&pod, &id).await {
        Err(Error::Start { .. }) => {}
        Err(other) => panic!("{other}"),
        Ok(()) => {
            let state = bench.runtime().wait(&pod, &id, PATIENCE).await.unwrap();
            assert!(matches!(state, State::Exited(exit) if exit.oom_kills > 0));
        }
    }
    bench.purge().await;
}
