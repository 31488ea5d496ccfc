use super::*;

fn addresses() -> ServiceAddresses {
    ServiceAddresses::new("10.96.0.0/24").unwrap()
}

fn service(spec: &Value) -> Value {
    let mut service = json!({ "spec": { "selector": { "a": "b" }, "ports": [{ "port": 80, "protocol": "TCP" }] } });
    for (name, value) in spec.as_object().unwrap() {
        service["spec"][name] = value.clone();
    }
    service
}

fn assigned(addresses: &ServiceAddresses, spec: &Value) -> Value {
    let mut service = service(spec);
    addresses.assign(&mut service, None).unwrap().keep();
    service
}

fn refusal(addresses: &ServiceAddresses, spec: &Value) -> String {
    match addresses.assign(&mut service(spec), None) {
        Err(AssignError::Invalid(errors)) => errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        Err(AssignError::Exhausted(why)) => why.to_owned(),
        Ok(_) => "no refusal".to_owned(),
    }
}

#[test]
fn a_service_gets_an_address_and_is_told_its_family() {
    let service = assigned(&addresses(), &json!({}));
    assert_eq!(
        service["spec"],
        json!({
            "selector": { "a": "b" }, "ports": [{ "port": 80, "protocol": "TCP" }],
            "clusterIP": "10.96.0.16", "clusterIPs": ["10.96.0.16"],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
        })
    );
}

#[test]
fn a_headless_service_gets_none_and_may_be_of_both_families_without_a_selector() {
    let addresses = addresses();
    let headless = assigned(&addresses, &json!({ "clusterIP": "None" }));
    assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
    assert_eq!(headless["spec"]["ipFamilies"], json!(["IPv4"]));
    let open = assigned(&addresses, &json!({ "clusterIP": "None", "selector": null }));
    assert_eq!(open["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(open["spec"]["ipFamilyPolicy"], "RequireDualStack");
}

#[test]
fn what_cannot_be_had_is_refused_in_the_words_of_a_real_server() {
    let addresses = addresses();
    assigned(
        &addresses,
        &json!({ "clusterIP": "10.96.0.9", "type": "NodePort", "ports": [{ "port": 1, "nodePort": 30005 }] }),
    );
    for (spec, why) in [
        (
            json!({ "clusterIP": "10.96.0.9" }),
            "spec.clusterIPs: Invalid value: [\"10.96.0.9\"]: failed to allocate IP 10.96.0.9: provided IP is already \
             allocated",
        ),
        (
            json!({ "clusterIP": "10.96.0.255" }),
            "spec.clusterIPs: Invalid value: [\"10.96.0.255\"]: failed to allocate IP 10.96.0.255: the provided network \
             does not match the current range",
        ),
        (
            json!({ "clusterIP": "fd00::1" }),
            "spec.clusterIPs[0]: Invalid value: [\"fd00::1\"]: IPv6 is not configured on this cluster",
        ),
        (
            json!({ "ipFamilies": ["IPv6"] }),
            "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster",
        ),
        (
            json!({ "ipFamilyPolicy": "RequireDualStack" }),
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack \
             services",
        ),
        (
            json!({ "type": "NodePort", "ports": [{ "port": 1, "nodePort": 30005 }] }),
            "spec.ports[0].nodePort: Invalid value: 30005: provided port is already allocated",
        ),
        (
            json!({ "type": "NodePort", "ports": [{ "port": 1, "nodePort": 40 }] }),
            "spec.ports[0].nodePort: Invalid value: 40: provided port is not in the valid range. The range of valid ports \
             is 30000-32767",
        ),
    ] {
        assert_eq!(refusal(&addresses, &spec), why);
    }
}

#[test]
fn a_refused_or_dropped_assignment_leaves_nothing_taken() {
    let addresses = addresses();
    assigned(
        &addresses,
        &json!({ "type": "NodePort", "ports": [{ "port": 1, "nodePort": 30005 }] }),
    );
    let spec = json!({ "clusterIP": "10.96.0.9", "type": "NodePort", "ports": [{ "port": 1, "nodePort": 30005 }] });
    assert!(refusal(&addresses, &spec).contains("already allocated"));
    let dry_run = addresses.assign(&mut service(&json!({ "clusterIP": "10.96.0.9" })), None);
    drop(dry_run);
    assigned(&addresses, &json!({ "clusterIP": "10.96.0.9" }));
}

#[test]
fn a_port_of_two_protocols_has_one_node_port() {
    let ports = json!([{ "port": 53, "protocol": "TCP" }, { "port": 53, "protocol": "UDP" }, { "port": 54, "protocol": "TCP" }]);
    let service = assigned(&addresses(), &json!({ "type": "NodePort", "ports": ports }));
    let port = |position: usize| service["spec"]["ports"][position]["nodePort"].as_u64().unwrap();
    assert_eq!(port(0), port(1));
    assert_ne!(port(0), port(2));
}

#[test]
fn a_local_load_balancer_gets_a_port_for_its_health_check() {
    let addresses = addresses();
    let service = assigned(
        &addresses,
        &json!({ "type": "LoadBalancer", "externalTrafficPolicy": "Local" }),
    );
    let check = service["spec"]["healthCheckNodePort"].as_u64().unwrap();
    assert_ne!(service["spec"]["ports"][0]["nodePort"].as_u64().unwrap(), check);
    let without = assigned(
        &addresses,
        &json!({ "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false }),
    );
    assert!(without["spec"]["ports"][0]["nodePort"].is_null());
}

#[test]
fn a_change_of_type_takes_and_frees_what_the_type_needs() {
    let addresses = addresses();
    let first = assigned(&addresses, &json!({ "clusterIP": "10.96.0.9" }));
    let mut second = first.clone();
    second["spec"]["type"] = json!("NodePort");
    second["spec"]["ports"][0]["nodePort"] = json!(30007);
    addresses.assign(&mut second, Some(&first)).unwrap().keep();
    assert_eq!(second["spec"]["clusterIP"], "10.96.0.9");
    let mut third = json!({ "spec": { "type": "ExternalName", "externalName": "a.b" } });
    addresses.assign(&mut third, Some(&second)).unwrap().keep();
    let ports = json!([{ "port": 1, "nodePort": 30007 }]);
    assigned(
        &addresses,
        &json!({ "clusterIP": "10.96.0.9", "type": "NodePort", "ports": ports }),
    );
}

#[test]
fn what_stored_services_hold_is_known_again_after_a_restart() {
    let stored = assigned(&addresses(), &json!({ "clusterIP": "10.96.0.9" }));
    let restarted = addresses();
    restarted.rebuild([&stored]);
    assert!(refusal(&restarted, &json!({ "clusterIP": "10.96.0.9" })).contains("already allocated"));
    restarted.release(&stored);
    assigned(&restarted, &json!({ "clusterIP": "10.96.0.9" }));
}

#[test]
fn every_address_is_given_out_once_and_then_there_are_none() {
    let addresses = ServiceAddresses::new("10.0.0.0/28").unwrap();
    let mut given: Vec<String> = (0..14)
        .map(|_| {
            assigned(&addresses, &json!({}))["spec"]["clusterIP"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    given.sort();
    given.dedup();
    assert_eq!(given.len(), 14);
    assert_eq!(
        refusal(&addresses, &json!({})),
        "failed to allocate a serviceIP: range is full"
    );
}

#[test]
fn threads_never_get_the_same_address() {
    let addresses = ServiceAddresses::new("10.0.0.0/16").unwrap();
    let mut given: Vec<Value> = std::thread::scope(|scope| {
        let take = || {
            (0..200)
                .map(|_| assigned(&addresses, &json!({}))["spec"]["clusterIP"].clone())
                .collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    given.sort_by_key(ToString::to_string);
    given.dedup();
    assert_eq!(given.len(), 800);
}

#[test]
fn a_range_must_be_an_aligned_one_of_ipv4() {
    for range in [
        "10.96.0.0",
        "10.96.0.1/16",
        "fd00::/112",
        "10.0.0.0/31",
        "10.0.0.0/4",
        "x/16",
    ] {
        assert!(ServiceAddresses::new(range).is_err(), "{range}");
    }
}
