//! How long things take. The bounds are wide; the numbers are printed.

use std::time::{Duration, Instant};

use moorline_network::{Endpoint, ServiceRules};

use crate::harness::{Instance, attachment, pod, tcp_port};

#[test]
fn attaching_a_pod_takes_milliseconds() {
    let Some(instance) = Instance::new() else { return };
    let mut attached: Vec<Duration> = (0..60)
        .map(|number| {
            let begin = Instant::now();
            instance.attach(&pod(&format!("p{number}")), &attachment("n1")).unwrap();
            begin.elapsed()
        })
        .collect();
    let mut detached: Vec<Duration> = (0..60)
        .map(|number| {
            let begin = Instant::now();
            instance.detach(&pod(&format!("p{number}"))).unwrap();
            begin.elapsed()
        })
        .collect();
    attached.sort();
    detached.sort();
    eprintln!(
        "attach fastest {:?} p50 {:?} p95 {:?}; detach p50 {:?}",
        attached[0], attached[30], attached[57], detached[30]
    );
    // On a machine that does nothing else they are alike; on a busy one, the fastest tells what the work is.
    assert!(attached[0] < Duration::from_millis(20), "{attached:?}");
}

#[test]
fn a_thousand_services_are_set_and_one_of_them_is_changed_in_a_moment() {
    let Some(instance) = Instance::new() else { return };
    let a = instance.server("a", "n1");
    let [x, y, ..] = instance.ranges().services().network().octets();
    let mut services: Vec<ServiceRules> = (0..1000_u16)
        .map(|number| {
            let [third, fourth] = (256 + number).to_be_bytes();
            let endpoints = (0..3)
                .map(|port| Endpoint {
                    port: 80 + port,
                    ..a.clone()
                })
                .collect();
            ServiceRules::new(
                format!("default/s{number}"),
                [x, y, third, fourth].into(),
                vec![tcp_port(80, endpoints)],
            )
        })
        .collect();
    let begin = Instant::now();
    instance.set_services(services.clone()).unwrap();
    let all = begin.elapsed();
    services[500].ports[0].endpoints.truncate(1);
    let begin = Instant::now();
    instance.set_services(services.clone()).unwrap();
    let one = begin.elapsed();
    let begin = Instant::now();
    instance.set_services(services.clone()).unwrap();
    let none = begin.elapsed();
    assert!(
        crate::harness::ask_from_machine((services[500].addresses[0], 80))
            .unwrap()
            .starts_with("a hears")
    );
    let begin = Instant::now();
    instance.set_services(vec![]).unwrap();
    eprintln!(
        "1,000 services: set {all:?}, one changed {one:?}, none changed {none:?}, removed {:?}",
        begin.elapsed()
    );
    assert!(
        all < Duration::from_secs(5) && one < Duration::from_secs(2),
        "{all:?} {one:?}"
    );
}

#[test]
fn fifty_pods_at_once_do_not_stand_in_each_others_way() {
    let Some(instance) = Instance::new() else { return };
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for number in 0..50 {
            let instance = &instance;
            scope.spawn(move || instance.attach(&pod(&format!("p{number}")), &attachment("n1")).unwrap());
        }
    });
    let attached = begin.elapsed();
    assert_eq!(instance.pods().len(), 50);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for number in 0..50 {
            let instance = &instance;
            scope.spawn(move || instance.detach(&pod(&format!("p{number}"))).unwrap());
        }
    });
    eprintln!(
        "50 pods at once: attached in {attached:?}, detached in {:?}",
        begin.elapsed()
    );
    assert!(instance.pods().is_empty());
    assert!(attached < Duration::from_secs(5), "{attached:?}");
}
