//! Nodes that are cut off.

use std::net::TcpListener;

use moorline_network::{Error, ServiceRules};

use crate::harness::{Instance, ask_from_machine, machine_reaches, node, say_over_tcp, tcp_port};

#[test]
fn a_node_that_is_cut_off_keeps_its_own_pods_and_loses_all_else_both_ways() {
    let Some(mut instance) = Instance::new() else { return };
    let (a, b) = (instance.server("a", "n1"), instance.server("b", "n1"));
    let other = instance.server("other", "n2");
    let host = instance.ranges().host_address();
    let api = TcpListener::bind((host, 0)).unwrap();
    let api_port = api.local_addr().unwrap().port();
    say_over_tcp(api, "api");
    let address = instance.service_address(1);
    let web = ServiceRules::new("default/a", address, vec![tcp_port(80, vec![a.clone()])]);
    instance.set_services(vec![web]).unwrap();

    instance.partition(&node("n1")).unwrap();
    let check_cut = |instance: &Instance| {
        assert!(instance.is_partitioned(&node("n1")));
        assert!(
            instance.reaches("a", (b.address, 80)),
            "pods of the node keep each other"
        );
        assert!(!instance.reaches("a", (host, api_port)), "the API");
        assert!(!instance.reaches("a", (other.address, 80)), "out");
        assert!(!instance.reaches("other", (a.address, 80)), "in");
        assert!(!instance.reaches("other", (address, 80)), "in, through a service");
        assert!(!machine_reaches((address, 80)), "the machine, which is not on the node");
        assert!(instance.reaches("other", (host, api_port)), "others are not concerned");
        assert!(ask_from_machine((a.address, 80)).is_ok(), "the node itself");
    };
    check_cut(&instance);
    instance.reopen();
    check_cut(&instance);

    instance.heal(&node("n1")).unwrap();
    assert!(!instance.is_partitioned(&node("n1")));
    assert!(instance.ask_from("a", (host, api_port)).is_ok());
    assert!(instance.ask_from("other", (address, 80)).is_ok());
    assert!(matches!(instance.partition(&node("n9")), Err(Error::UnknownNode(_))));
}

#[test]
fn two_nodes_that_are_cut_off_are_cut_off_from_each_other() {
    let Some(instance) = Instance::new() else { return };
    let (a, b) = (instance.server("a", "n1"), instance.server("b", "n2"));
    instance.partition(&node("n1")).unwrap();
    instance.partition(&node("n2")).unwrap();
    assert!(!instance.reaches("a", (b.address, 80)));
    assert!(!instance.reaches("b", (a.address, 80)));
    instance.heal(&node("n1")).unwrap();
    assert!(!instance.reaches("a", (b.address, 80)));
    instance.heal(&node("n2")).unwrap();
    assert!(instance.reaches("a", (b.address, 80)));
}
