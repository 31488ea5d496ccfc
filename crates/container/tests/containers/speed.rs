//! How long things take and how much they need. The limits leave room for a busy machine; the numbers are printed.

use std::{
    fs,
    time::{Duration, Instant},
};

use moorline_container::{Network, PodSpec};

use crate::support::{Bench, needs_containers};

#[tokio::test]
async fn a_shim_stays_small_and_a_start_is_quick() {
    needs_containers!();
    let bench = Bench::new("speed").await;
    let (mut pods, mut starts, mut ends, mut removals) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..8 {
        let id: moorline_container::PodId = format!("p{round}").parse().unwrap();
        let begin = Instant::now();
        bench
            .runtime()
            .create_pod(PodSpec::new(id.clone(), Network::Isolated))
            .await
            .unwrap();
        pods.push(begin.elapsed());
        let begin = Instant::now();
        let container = bench.start(&id, bench.script(&format!("c{round}"), "sleep 1000")).await;
        starts.push(begin.elapsed());
        assert_eq!(bench.run(&id, &container, &["true"]).await.0, 0);
        let begin = Instant::now();
        bench.runtime().kill(&id, &container).await.unwrap();
        bench.exit(&id, &container).await;
        ends.push(begin.elapsed());
        // A shim that has nothing to do makes itself small.
        tokio::time::sleep(Duration::from_millis(if round == 0 { 400 } else { 0 })).await;
        let lock = fs::read_to_string(bench.dir.path().join("run/pods").join(id.as_str()).join("lock")).unwrap();
        let status = fs::read_to_string(format!("/proc/{}/status", lock.trim())).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
        if round == 0 {
            assert!(kilobytes < 4096, "{status}");
            for line in status
                .lines()
                .filter(|line| line.starts_with("Rss") || line.starts_with("VmRSS"))
            {
                eprintln!("shim {line}");
            }
        }
        let begin = Instant::now();
        bench.runtime().remove_pod(&id).await.unwrap();
        removals.push(begin.elapsed());
    }
    for (what, times, limit) in [
        ("a pod", &mut pods, 400),
        ("a start", &mut starts, 800),
        ("an end", &mut ends, 400),
        ("a removal", &mut removals, 800),
    ] {
        times.sort();
        let median = times[times.len() / 2];
        eprintln!(
            "{what}: {:?} to {:?}, median {median:?}",
            times[0],
            times[times.len() - 1]
        );
        assert!(median < Duration::from_millis(limit), "{what} took {median:?}");
    }
    bench.purge().await;
}
