use super::super::records::{HeadlessEndpoint, NamedPort, ServiceAddresses};
use super::*;
use crate::Protocol;

fn names() -> Names {
    Names::new(
        "Cluster.Local.",
        ["10.64.0.0/16".parse().unwrap(), "10.65.0.0/16".parse().unwrap()],
    )
}

fn service(name: &str, addresses: ServiceAddresses) -> ServiceNames {
    ServiceNames {
        namespace: "shop".into(),
        name: name.into(),
        addresses,
    }
}

fn postgres() -> NamedPort {
    NamedPort {
        name: "postgres".into(),
        protocol: Protocol::Tcp,
        port: 5432,
    }
}

fn cluster(address: &str) -> ServiceAddresses {
    ServiceAddresses::Cluster {
        addresses: vec![address.parse().unwrap()],
        ports: vec![postgres()],
    }
}

fn headless() -> ServiceAddresses {
    let endpoint = |address: &str, hostname: Option<&str>| HeadlessEndpoint {
        address: address.parse().unwrap(),
        hostname: hostname.map(Into::into),
        ports: vec![postgres()],
    };
    ServiceAddresses::Headless(vec![endpoint("10.64.1.2", Some("db-0")), endpoint("10.64.1.3", None)])
}

/// What is found, as sorted texts.
fn ask(names: &Names, asked: &str, kind: RecordType) -> Result<Vec<String>, Found> {
    match names.look_up(&name(asked).unwrap(), kind) {
        Found::Records(records) | Found::Elsewhere(records, _) => {
            let mut texts: Vec<String> = records.iter().map(|record| record.data.to_string()).collect();
            texts.sort();
            Ok(texts)
        }
        other => Err(other),
    }
}

#[test]
fn a_service_has_its_address_its_ports_and_its_way_back() {
    let names = names();
    names.set_service(&service("db", cluster("10.65.0.7")));
    assert_eq!(
        ask(&names, "db.shop.svc.cluster.local", RecordType::A).unwrap(),
        ["10.65.0.7"]
    );
    assert_eq!(
        ask(&names, "DB.Shop.SVC.cluster.local", RecordType::A).unwrap(),
        ["10.65.0.7"]
    );
    assert_eq!(
        ask(&names, "_postgres._tcp.db.shop.svc.cluster.local", RecordType::SRV).unwrap(),
        ["0 100 5432 db.shop.svc.cluster.local."]
    );
    assert_eq!(
        ask(&names, "7.0.65.10.in-addr.arpa", RecordType::PTR).unwrap(),
        ["db.shop.svc.cluster.local."]
    );
}

#[test]
fn an_empty_answer_is_told_from_a_name_that_is_not_there() {
    let names = names();
    names.set_service(&service("db", cluster("10.65.0.7")));
    let there = [
        "db.shop.svc.cluster.local",
        "shop.svc.cluster.local",
        "svc.cluster.local",
        "cluster.local",
        "_tcp.db.shop.svc.cluster.local",
    ];
    for name in there {
        assert_eq!(ask(&names, name, RecordType::AAAA), Err(Found::Nothing), "{name}");
    }
    let not_there = [
        "x.shop.svc.cluster.local",
        "db.bazaar.svc.cluster.local",
        "x.db.shop.svc.cluster.local",
    ];
    for name in not_there {
        assert_eq!(ask(&names, name, RecordType::A), Err(Found::NoName), "{name}");
    }
    assert_eq!(
        ask(&names, "8.0.65.10.in-addr.arpa", RecordType::PTR),
        Err(Found::NoName)
    );
    for name in ["example.org", "notcluster.local", "8.8.8.8.in-addr.arpa", "local"] {
        assert_eq!(ask(&names, name, RecordType::A), Err(Found::NotOurs), "{name}");
    }
}

#[test]
fn a_headless_service_has_every_endpoint_by_itself() {
    let names = names();
    names.set_service(&service("db", headless()));
    let own = "db.shop.svc.cluster.local";
    assert_eq!(ask(&names, own, RecordType::A).unwrap(), ["10.64.1.2", "10.64.1.3"]);
    assert_eq!(
        ask(&names, &format!("db-0.{own}"), RecordType::A).unwrap(),
        ["10.64.1.2"]
    );
    assert_eq!(
        ask(&names, &format!("10-64-1-3.{own}"), RecordType::A).unwrap(),
        ["10.64.1.3"]
    );
    assert_eq!(
        ask(&names, &format!("_postgres._tcp.{own}"), RecordType::SRV).unwrap(),
        [
            format!("0 100 5432 10-64-1-3.{own}."),
            format!("0 100 5432 db-0.{own}.")
        ]
    );
    assert_eq!(
        ask(&names, "2.1.64.10.in-addr.arpa", RecordType::PTR).unwrap(),
        [format!("db-0.{own}.")]
    );
}

#[test]
fn an_alias_is_followed_while_it_stays_here() {
    let names = names();
    names.set_service(&service("db", cluster("10.65.0.7")));
    names.set_service(&service(
        "here",
        ServiceAddresses::External("db.shop.svc.cluster.local".into()),
    ));
    names.set_service(&service("there", ServiceAddresses::External("db.example.org".into())));
    names.set_service(&service(
        "circle",
        ServiceAddresses::External("circle.shop.svc.cluster.local".into()),
    ));
    assert_eq!(
        ask(&names, "here.shop.svc.cluster.local", RecordType::A).unwrap(),
        ["10.65.0.7", "db.shop.svc.cluster.local."]
    );
    let asked = name("there.shop.svc.cluster.local").unwrap();
    let elsewhere = names.look_up(&asked, RecordType::A);
    assert!(matches!(&elsewhere, Found::Elsewhere(_, target) if *target == name("db.example.org").unwrap()));
    assert_eq!(
        ask(&names, "there.shop.svc.cluster.local", RecordType::CNAME).unwrap(),
        ["db.example.org."]
    );
    assert!(matches!(
        names.look_up(&name("circle.shop.svc.cluster.local").unwrap(), RecordType::A),
        Found::Records(records) if records.len() == MOST_ALIASES
    ));
}

#[test]
fn a_change_takes_away_all_that_was_and_nothing_else() {
    let names = names();
    names.set_service(&service("db", headless()));
    names.set_service(&service("web", cluster("10.65.0.8")));
    names.set_service(&service("db", cluster("10.65.0.7")));
    assert_eq!(
        ask(&names, "db.shop.svc.cluster.local", RecordType::A).unwrap(),
        ["10.65.0.7"]
    );
    assert_eq!(
        ask(&names, "db-0.db.shop.svc.cluster.local", RecordType::A),
        Err(Found::NoName)
    );
    assert_eq!(
        ask(&names, "2.1.64.10.in-addr.arpa", RecordType::PTR),
        Err(Found::NoName)
    );
    names.remove_service("shop", "db");
    assert_eq!(
        ask(&names, "db.shop.svc.cluster.local", RecordType::A),
        Err(Found::NoName)
    );
    assert_eq!(
        ask(&names, "web.shop.svc.cluster.local", RecordType::A).unwrap(),
        ["10.65.0.8"]
    );
    names.set_services([&service("db", headless())]);
    assert_eq!(
        ask(&names, "web.shop.svc.cluster.local", RecordType::A),
        Err(Found::NoName)
    );
    assert_eq!(
        ask(&names, "db-0.db.shop.svc.cluster.local", RecordType::A).unwrap(),
        ["10.64.1.2"]
    );
    names.set_services([]);
    assert_eq!(ask(&names, "shop.svc.cluster.local", RecordType::A), Err(Found::NoName));
}

#[test]
fn pods_have_names_by_their_addresses() {
    let names = names();
    assert_eq!(
        ask(&names, "10-64-3-9.shop.pod.cluster.local", RecordType::A).unwrap(),
        ["10.64.3.9"]
    );
    assert_eq!(
        ask(&names, "10-64-3-9.shop.pod.cluster.local", RecordType::AAAA),
        Err(Found::Nothing)
    );
    assert_eq!(
        ask(&names, "8-8-8-8.shop.pod.cluster.local", RecordType::A),
        Err(Found::NoName)
    );
    assert_eq!(
        ask(&names, "x.shop.pod.cluster.local", RecordType::A),
        Err(Found::NoName)
    );
}
