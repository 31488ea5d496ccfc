//! Pods, the machine and each other.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};

use moorline_network::{Attachment, Error, HostPort, Outside, Protocol};

use crate::harness::{Instance, ask_from_machine, attachment, machine_reaches, node, output, pod, say_over_tcp};

#[test]
fn pods_reach_each_other_under_their_own_addresses() {
    let Some(instance) = Instance::new() else { return };
    let (a, b) = (instance.pod("a", "n1"), instance.pod("b", "n2"));
    instance.serve_tcp("a", 80);
    instance.serve_tcp("b", 80);
    assert_eq!(
        instance.ask_from("a", (b.address, 80)).unwrap(),
        format!("b hears {}", a.address)
    );
    assert_eq!(
        instance.ask_from("b", (a.address, 80)).unwrap(),
        format!("a hears {}", b.address)
    );
    assert_eq!(
        instance.ask_from("a", (a.address, 80)).unwrap(),
        format!("a hears {}", a.address)
    );
    assert_eq!(
        instance.ask_from("a", (Ipv4Addr::LOCALHOST, 80)).unwrap(),
        "a hears 127.0.0.1"
    );
}

#[test]
fn the_machine_reaches_pods_as_their_node_and_pods_reach_the_machine() {
    let Some(instance) = Instance::new() else { return };
    let a = instance.pod("a", "n1");
    instance.serve_tcp("a", 80);
    assert_eq!(
        ask_from_machine((a.address, 80)).unwrap(),
        format!("a hears {}", a.node_address)
    );

    let host = instance.ranges().host_address();
    let listener = TcpListener::bind((host, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    say_over_tcp(listener, "machine");
    assert_eq!(
        instance.ask_from("a", (host, port)).unwrap(),
        format!("machine hears {}", a.address)
    );
}

#[test]
fn a_pod_that_is_gone_is_unreachable_at_once_for_everybody() {
    let Some(instance) = Instance::new() else { return };
    let (a, _b) = (instance.pod("a", "n1"), instance.pod("b", "n2"));
    instance.detach(&pod("a")).unwrap();
    let from_machine = ask_from_machine((a.address, 80)).unwrap_err();
    assert_eq!(from_machine.kind(), ErrorKind::HostUnreachable, "{from_machine}");
    let from_pod = instance.ask_from("b", (a.address, 80)).unwrap_err();
    assert_eq!(from_pod.kind(), ErrorKind::HostUnreachable, "{from_pod}");
}

#[test]
fn a_closed_instance_tells_its_pods_that_the_world_is_out_of_reach() {
    let Some(instance) = Instance::new() else { return };
    instance.pod("a", "n1");
    let refused = instance.ask_from("a", (Ipv4Addr::new(203, 0, 113, 9), 80)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::HostUnreachable, "{refused}");
}

#[test]
fn an_open_instance_masquerades_in_its_own_table_alone() {
    let Some(instance) = Instance::with(Outside::Open) else {
        return;
    };
    instance.pod("a", "n1");
    let table = output("nft", &["list", "table", "inet", &instance.table()]);
    assert!(table.contains("masquerade"), "{table}");
    let closed = Instance::new().unwrap();
    let table = output("nft", &["list", "table", "inet", &closed.table()]);
    assert!(
        !table.contains("masquerade") && table.contains("chain leaving"),
        "{table}"
    );
}

#[test]
fn a_pod_cannot_borrow_an_address_or_reach_the_machines_loopback() {
    let Some(instance) = Instance::new() else { return };
    let (a, b) = (instance.pod("a", "n1"), instance.pod("b", "n1"));
    let namespace = a.namespace.to_str().unwrap();
    let inside = |command: &str| output("nsenter", &[&format!("--net={namespace}"), "sh", "-c", command]);
    inside(&format!("ip addr add {}/32 dev lo", b.address));
    let receiver = UdpSocket::bind((instance.ranges().host_address(), 0)).unwrap();
    receiver
        .set_read_timeout(Some(std::time::Duration::from_millis(300)))
        .unwrap();
    let target = receiver.local_addr().unwrap();
    let send_as = |address: Ipv4Addr| {
        instance
            .inside(&pod("a"), || {
                UdpSocket::bind((address, 0)).unwrap().send_to(b"x", target)
            })
            .unwrap()
            .unwrap();
        receiver.recv(&mut [0; 8])
    };
    assert!(send_as(a.address).is_ok());
    assert!(send_as(b.address).is_err(), "a spoke as b");

    let loopback = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = loopback.local_addr().unwrap().port();
    say_over_tcp(loopback, "loopback");
    inside(
        "ip addr del 127.0.0.1/8 dev lo; ip route del local 127.0.0.0/8 table local; \
            echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet; ip route add 127.0.0.0/8 via 169.254.1.1 dev eth0",
    );
    assert!(!instance.reaches("a", (Ipv4Addr::LOCALHOST, port)));
}

#[test]
fn a_port_forward_finds_what_listens_on_a_pods_loopback_only() {
    let Some(instance) = Instance::new() else { return };
    instance.pod("a", "n1");
    let listener = instance
        .inside(&pod("a"), || TcpListener::bind((Ipv4Addr::LOCALHOST, 5432)))
        .unwrap()
        .unwrap();
    say_over_tcp(listener, "database");
    let mut heard = String::new();
    instance
        .dial(&pod("a"), 5432)
        .unwrap()
        .read_to_string(&mut heard)
        .unwrap();
    assert_eq!(heard, "database hears 127.0.0.1");
    let refused = instance.dial(&pod("a"), 5433).unwrap_err();
    assert_eq!(refused.to_string(), "cannot connect to port 5433 in pod a");
    assert!(matches!(instance.dial(&pod("nobody"), 1), Err(Error::UnknownPod(_))));
}

#[test]
fn a_port_forward_falls_back_to_the_pods_address() {
    let Some(instance) = Instance::new() else { return };
    let a = instance.pod("a", "n1");
    let listener = instance
        .inside(&pod("a"), || TcpListener::bind((a.address, 5432)))
        .unwrap()
        .unwrap();
    say_over_tcp(listener, "database");
    let mut heard = String::new();
    instance
        .dial(&pod("a"), 5432)
        .unwrap()
        .read_to_string(&mut heard)
        .unwrap();
    assert!(heard.starts_with("database"), "{heard}");
}

#[test]
fn a_host_port_is_open_where_it_was_asked_for() {
    let Some(instance) = Instance::new() else { return };
    let port = 20000 + fastrand::Rng::with_seed(u64::from(std::process::id())).u16(0..10000);
    let everywhere = HostPort {
        address: None,
        port,
        protocol: Protocol::Tcp,
        pod_port: 80,
    };
    let a = instance.pod_with_port("a", "n1", everywhere.clone());
    instance.serve_tcp("a", 80);
    let c = instance.pod("c", "n2");
    assert!(ask_from_machine((a.node_address, port)).unwrap().starts_with("a hears"));
    assert!(
        ask_from_machine((Ipv4Addr::LOCALHOST, port))
            .unwrap()
            .starts_with("a hears")
    );
    assert_eq!(
        instance.ask_from("c", (a.node_address, port)).unwrap(),
        format!("a hears {}", c.address)
    );
    assert!(
        instance
            .ask_from("a", (a.node_address, port))
            .unwrap()
            .starts_with("a hears"),
        "to itself"
    );
    assert!(
        !machine_reaches((c.node_address, port)),
        "open at a node that the pod is not on"
    );

    let b = instance.pod_with_port("b", "n2", everywhere.clone());
    instance.serve_tcp("b", 80);
    assert!(ask_from_machine((b.node_address, port)).unwrap().starts_with("b hears"));
    assert!(
        ask_from_machine((Ipv4Addr::LOCALHOST, port))
            .unwrap()
            .starts_with("a hears")
    );

    let taken = instance.attach(
        &pod("d"),
        &Attachment {
            host_ports: vec![everywhere],
            ..attachment("n1")
        },
    );
    assert!(matches!(taken, Err(Error::HostPortTaken { .. })), "{taken:?}");
    instance.detach(&pod("a")).unwrap();
    assert!(!machine_reaches((a.node_address, port)));
    assert!(
        ask_from_machine((Ipv4Addr::LOCALHOST, port))
            .unwrap()
            .starts_with("b hears"),
        "b inherits the rest"
    );
}

#[test]
fn a_host_port_on_the_machines_loopback_is_there_only() {
    let Some(instance) = Instance::new() else { return };
    let port = 31000 + fastrand::Rng::with_seed(u64::from(std::process::id())).u16(0..1000);
    let loopback = HostPort {
        address: Some(Ipv4Addr::LOCALHOST),
        port,
        protocol: Protocol::Tcp,
        pod_port: 80,
    };
    let a = instance.pod_with_port("a", "n1", loopback);
    instance.serve_tcp("a", 80);
    assert!(
        ask_from_machine((Ipv4Addr::LOCALHOST, port))
            .unwrap()
            .starts_with("a hears")
    );
    assert!(!machine_reaches((a.node_address, port)));
}

#[test]
fn settings_reach_the_pod_and_those_of_the_machine_are_refused() {
    let Some(instance) = Instance::new() else { return };
    let sysctl = |name: &str, value: &str| Attachment {
        sysctls: vec![(name.into(), value.into())],
        ..attachment("n1")
    };
    instance
        .attach(&pod("a"), &sysctl("net.ipv4.ip_local_port_range", "2000 2010"))
        .unwrap();
    let read = || std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    assert_eq!(
        instance
            .inside(&pod("a"), read)
            .unwrap()
            .split_whitespace()
            .collect::<Vec<_>>(),
        ["2000", "2010"]
    );
    assert_ne!(read().split_whitespace().next(), Some("2000"));
    for bad in [
        "kernel.hostname",
        "net.../../kernel/hostname",
        "net.ipv4.no_such_setting",
    ] {
        let refused = instance.attach(&pod("b"), &sysctl(bad, "x"));
        assert!(matches!(refused, Err(Error::Sysctl { .. })), "{bad}: {refused:?}");
    }
    assert!(
        matches!((*instance).pod(&pod("b")), Err(Error::UnknownPod(_))),
        "a failed attach left something"
    );
    instance
        .inside(&pod("a"), || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80)))
        .unwrap()
        .unwrap();
}

#[test]
fn a_firewall_that_drops_our_packets_is_told_with_what_to_allow() {
    let Some(instance) = Instance::new() else { return };
    instance.verify(&node("n1")).unwrap();
    assert!(instance.pods().is_empty());
    let prefix = instance.link_prefix();
    // As Docker and ufw do, but for nobody else's packets.
    let foreign = Foreign::table(&format!("foreign_{prefix}"));
    for (hook, chain) in [("forward", "FORWARD"), ("input", "INPUT")] {
        foreign.drop_at(hook, &prefix);
        let blocked = instance.verify(&node("n1")).unwrap_err();
        let rule = format!("iptables -I {chain} -i {prefix}+ -j ACCEPT");
        assert!(blocked.to_string().contains(&rule), "{blocked}");
        foreign.flush();
    }
    assert!(instance.pods().is_empty());
    instance.verify(&node("n1")).unwrap();
}

/// A table that is not ours, removed at the end.
struct Foreign(String);

impl Foreign {
    fn table(name: &str) -> Self {
        output("nft", &["add", "table", "inet", name]);
        Self(name.into())
    }

    fn drop_at(&self, hook: &str, prefix: &str) {
        let chain = format!(
            "add chain inet {} {hook} {{ type filter hook {hook} priority 0; }}",
            self.0
        );
        output("nft", &[&chain]);
        output(
            "nft",
            &[&format!("add rule inet {} {hook} iifname \"{prefix}*\" drop", self.0)],
        );
    }

    fn flush(&self) {
        output("nft", &["flush", "table", "inet", &self.0]);
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        output("nft", &["delete", "table", "inet", &self.0]);
    }
}
