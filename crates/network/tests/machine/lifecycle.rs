//! Beginning, going on after a crash, ending.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use moorline_network::{Config, Error, InstanceName, Network, Outside, Ranges, ServiceRules};

use crate::harness::{Instance, ask_from_machine, attachment, mounts_below, node, output, pod, tcp_port};

#[test]
fn attaching_again_changes_nothing() {
    let Some(instance) = Instance::new() else { return };
    let first = instance.pod("a", "n1");
    let index = output("ip", &["-o", "link", "show", &first.host_interface]);
    assert_eq!(instance.pod("a", "n1"), first);
    assert_eq!(output("ip", &["-o", "link", "show", &first.host_interface]), index);
    instance.detach(&pod("a")).unwrap();
    instance.detach(&pod("a")).unwrap();
    assert!(!first.namespace.exists());
    assert!(
        output("ip", &["-o", "link"])
            .lines()
            .all(|line| !line.contains(&first.host_interface))
    );
}

#[test]
fn a_restart_takes_pods_and_services_over_while_connections_go_on() {
    let Some(mut instance) = Instance::new() else { return };
    let address = instance.service_address(1);
    let endpoint = instance.server("a", "n1");
    instance
        .set_services(vec![ServiceRules::new(
            "default/web",
            address,
            vec![tcp_port(80, vec![endpoint])],
        )])
        .unwrap();
    let before = (instance.pod("a", "n1"), instance.ranges(), instance.nodes());
    instance.close();
    assert!(
        ask_from_machine((address, 80)).is_ok(),
        "nobody has it open, and it works"
    );
    instance.reopen();
    assert_eq!(instance.pods(), [pod("a")]);
    assert_eq!((instance.pod("a", "n1"), instance.ranges(), instance.nodes()), before);
    assert!(ask_from_machine((address, 80)).is_ok());
    assert_ne!(instance.pod("b", "n1").address, before.0.address);
}

#[test]
fn an_instance_is_open_once() {
    let Some(instance) = Instance::new() else { return };
    assert!(matches!(Network::open(instance.config.clone()), Err(Error::InUse(_))));
    let purged = Network::purge_closed(&instance.config.instance, &instance.config.directory);
    assert!(matches!(purged, Err(Error::InUse(_))));
}

#[test]
fn whatever_a_crash_left_is_cleaned_or_completed() {
    let Some(mut instance) = Instance::new() else { return };
    let (whole, no_link, no_namespace) = (
        instance.pod("whole", "n1"),
        instance.pod("no-link", "n1"),
        instance.pod("no-namespace", "n1"),
    );
    let half = instance.pod("half", "n1");
    instance.close();
    let directory = &instance.config.directory;
    output("ip", &["link", "del", &no_link.host_interface]);
    output("umount", &[no_namespace.namespace.to_str().unwrap()]);
    let record = directory.join("pods/half.json");
    fs::write(
        &record,
        fs::read_to_string(&record).unwrap().replace("Attached", "Unfinished"),
    )
    .unwrap();
    fs::write(directory.join("pods/new.tmp"), "{").unwrap();
    fs::write(directory.join("netns/stray"), "").unwrap();
    output("ip", &["route", "del", &format!("{}/32", whole.address)]);
    output("nft", &["delete", "table", "inet", &instance.table()]);

    instance.reopen();
    assert_eq!(instance.pods(), [pod("whole")]);
    instance.serve_tcp("whole", 80);
    assert!(ask_from_machine((whole.address, 80)).is_ok());
    let mut left: Vec<_> = fs::read_dir(instance.config.directory.join("netns"))
        .unwrap()
        .flatten()
        .collect();
    assert_eq!(left.remove(0).path(), whole.namespace);
    assert!(left.is_empty(), "{left:?}");
    let links = output("ip", &["-o", "link"]);
    for gone in [no_link, no_namespace, half] {
        assert!(!links.contains(&gone.host_interface), "{links}");
    }
}

/// What the process that is to be killed is told: the instance and its directory.
const VICTIM: &str = "MOORLINE_TEST_VICTIM";

#[test]
fn a_process_that_is_killed_at_any_moment_leaves_nothing_that_the_next_one_does_not_clean() {
    let Some(mut instance) = Instance::new() else { return };
    let mut random = fastrand::Rng::with_seed(5);
    for round in 0..12 {
        instance.close();
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "lifecycle::attaches_and_detaches_until_it_is_killed",
                "--ignored",
            ])
            .env(
                VICTIM,
                format!("{} {}", instance.config.instance, instance.config.directory.display()),
            )
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let busy = instance.config.directory.join("pods/busy-3.json");
        while !busy.exists() {
            assert!(victim.try_wait().unwrap().is_none(), "it ended by itself");
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_micros(random.u64(0..60_000)));
        victim.kill().unwrap();
        victim.wait().unwrap();

        instance.reopen();
        let pods = instance.pods();
        for pod in &pods {
            let network = (*instance).pod(pod).unwrap();
            assert!(
                instance
                    .inside(pod, || std::net::TcpListener::bind((network.address, 80)).is_ok())
                    .unwrap()
            );
        }
        let prefix = instance.link_prefix();
        let links = output("ip", &["-o", "link"])
            .lines()
            .filter(|line| line.contains(&prefix))
            .count();
        let namespaces = fs::read_dir(instance.config.directory.join("netns")).unwrap().count();
        let mounts = mounts_below(instance.directory()).len();
        assert_eq!(
            (links, namespaces, mounts),
            (pods.len(), pods.len(), pods.len()),
            "round {round}"
        );
        for pod in pods {
            instance.detach(&pod).unwrap();
        }
    }
}

#[test]
#[ignore = "only the victim of another test, which starts it"]
fn attaches_and_detaches_until_it_is_killed() {
    let told = std::env::var(VICTIM).expect("only another test starts this one");
    let (name, directory) = told.split_once(' ').unwrap();
    let config = Config {
        instance: InstanceName::new(name).unwrap(),
        directory: directory.into(),
        ranges: None,
        outside: Outside::Closed,
    };
    let network = Network::open(config).unwrap();
    for number in 0_u64.. {
        network
            .attach(&pod(&format!("busy-{number}")), &attachment("n1"))
            .unwrap();
        if number % 2 == 1 {
            network.detach(&pod(&format!("busy-{}", number - 1))).unwrap();
        }
        if number > 20 {
            network
                .detach(&pod(&format!("busy-{}", number - 16 + number % 2)))
                .unwrap();
        }
    }
}

#[test]
fn a_purge_leaves_nothing_on_the_machine() {
    let before = machine();
    let Some(mut instance) = Instance::with(Outside::Open) else {
        return;
    };
    let a = instance.pod("a", "n1");
    let web = ServiceRules::new("x/y", instance.service_address(1), vec![tcp_port(80, vec![])]);
    instance.set_services(vec![web]).unwrap();
    instance.partition(&node("n1")).unwrap();
    let ranges = instance.ranges();
    let tables = || output("nft", &["list", "tables"]);
    assert!(tables().contains(&instance.table()));
    instance.purge();

    assert!(!tables().contains(&instance.table()));
    assert!(mounts_below(instance.directory()).is_empty());
    assert!(!instance.config.directory.exists());
    assert!(!output("ip", &["-o", "link"]).contains(&a.host_interface));
    let (routes, addresses) = (output("ip", &["route"]), output("ip", &["-o", "addr"]));
    for range in [ranges.pods(), ranges.services()] {
        assert!(!routes.contains(&range.to_string()), "{routes}");
        let [first, second, ..] = range.network().octets();
        assert!(!addresses.contains(&format!(" {first}.{second}.")), "{addresses}");
    }
    assert_eq!(machine(), before, "forwarding");
}

/// Whether this machine forwards packets in general.
fn machine() -> String {
    fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap_or_default()
}

#[test]
fn a_purge_cleans_up_after_records_that_are_lost_or_damaged() {
    let Some(mut instance) = Instance::alone_at(242, Outside::Closed) else {
        return;
    };
    let a = instance.pod("a", "n1");
    let pods = instance.ranges().pods();
    instance.close();
    fs::write(instance.config.directory.join("network.json"), "{").unwrap();
    let damaged = Network::open(instance.config.clone()).unwrap_err();
    assert!(damaged.to_string().contains("network.json is damaged"), "{damaged}");
    Network::purge_closed(&instance.config.instance, &instance.config.directory).unwrap();
    assert!(!output("ip", &["-o", "link"]).contains(&a.host_interface));
    assert!(!output("ip", &["route"]).contains(&pods.to_string()));
    assert!(!output("ip", &["-o", "addr", "show", "dev", "lo"]).contains(&a.node_address.to_string()));
}

#[test]
fn two_instances_live_side_by_side_and_do_not_meet() {
    let (Some(mut one), Some(two)) = (Instance::new(), Instance::new()) else {
        return;
    };
    assert_ne!(one.ranges(), two.ranges());
    let (a, b) = (one.server("a", "n1"), two.server("b", "n1"));
    assert!(!one.reaches("a", (b.address, 80)));
    assert!(!two.reaches("b", (a.address, 80)));
    assert!(ask_from_machine((a.address, 80)).unwrap().starts_with("a hears"));
    // A node port is open at the nodes of its own instance, though all of them are addresses of one machine.
    let port = 32700 + u16::try_from(std::process::id() % 60).unwrap();
    let mut web = tcp_port(80, vec![a]);
    web.node_port = Some(port);
    one.set_services(vec![ServiceRules::new("x/web", one.service_address(1), vec![web])])
        .unwrap();
    assert!(ask_from_machine((one.nodes()[&node("n1")].address, port)).is_ok());
    assert!(ask_from_machine((two.nodes()[&node("n1")].address, port)).is_err());
    one.purge();
    assert!(
        ask_from_machine((b.address, 80)).unwrap().starts_with("b hears"),
        "the other one was touched"
    );
}

#[test]
fn ranges_in_use_are_refused_with_the_reason() {
    let Some(instance) = Instance::new() else { return };
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        instance: InstanceName::new(format!("test-{}-second", std::process::id())).unwrap(),
        directory: directory.path().to_owned(),
        ranges: Some(instance.ranges()),
        outside: Outside::Closed,
    };
    let refused = Network::open(config).unwrap_err();
    assert!(matches!(refused, Error::RangeTaken { .. }), "{refused:?}");
    assert!(
        refused
            .to_string()
            .contains(&format!("route {}", instance.ranges().pods())),
        "{refused}"
    );
    let other = Ranges::new("10.250.0.0/16".parse().unwrap(), "10.251.0.0/16".parse().unwrap()).unwrap();
    let mut changed = instance.config.clone();
    changed.ranges = Some(other);
    let mut instance = instance;
    instance.close();
    assert!(matches!(Network::open(changed), Err(Error::BadRanges { .. })));
}

#[test]
fn a_pod_on_a_node_that_is_unknown_is_refused() {
    let Some(instance) = Instance::new() else { return };
    assert!(matches!(
        instance.attach(&pod("a"), &attachment("n9")),
        Err(Error::UnknownNode(_))
    ));
    instance.remove_node(&node("n2")).unwrap();
    assert!(matches!(
        instance.attach(&pod("a"), &attachment("n2")),
        Err(Error::UnknownNode(_))
    ));
    instance.remove_node(&node("n2")).unwrap();
}

#[test]
fn changes_at_the_same_time_are_all_remembered() {
    let Some(mut instance) = Instance::new() else { return };
    let names: Vec<_> = (0..8).map(|number| node(&format!("many-{number}"))).collect();
    thread::scope(|scope| {
        for name in &names {
            let instance = &instance;
            scope.spawn(move || {
                instance.add_node(name).unwrap();
                instance.partition(name).unwrap();
            });
        }
    });
    let before = instance.nodes();
    instance.reopen();
    assert_eq!(instance.nodes(), before);
    assert!(
        names.iter().all(|name| instance.is_partitioned(name)),
        "{:?}",
        instance.nodes()
    );
}
