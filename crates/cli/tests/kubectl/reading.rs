//! `kubectl get` in every form, `describe` and `events`.

use serde_json::Value;

use crate::harness::Namespace;

fn columns(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn a_table_has_the_columns_of_its_kind_and_more_when_wide() {
    let ns = Namespace::new();
    ns.ok("create deployment web --image=nginx --replicas=2");
    let table = ns.ok("get deploy");
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(columns(lines[0]), ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]);
    // How many are up to date depends on how far the deployment has come; none runs without a node.
    assert_eq!(columns(lines[1])[..2], ["web", "0/2"]);
    assert_eq!(columns(lines[1])[3], "0");
    let wide = ns.ok("get deploy -o wide");
    assert_eq!(
        columns(wide.lines().next().unwrap())[5..],
        ["CONTAINERS", "IMAGES", "SELECTOR"]
    );
    assert_eq!(
        columns(wide.lines().nth(1).unwrap())[5..],
        ["nginx", "nginx", "app=web"]
    );
}

#[test]
fn several_kinds_are_printed_one_table_each() {
    let ns = Namespace::new();
    ns.ok("create deployment web --image=nginx");
    ns.ok("create secret generic s --from-literal=p=q");
    let tables = ns.ok("get deploy,secret");
    assert!(
        tables.contains("deployment.apps/web") && tables.contains("\n\nNAME"),
        "{tables}"
    );
    assert!(tables.contains("secret/s"), "{tables}");
}

#[test]
fn get_all_finds_what_is_in_that_category() {
    let ns = Namespace::new();
    ns.ok("create deployment web --image=nginx");
    ns.ok("create service clusterip s --tcp=80");
    ns.ok("create configmap a");
    let all = ns.ok("get all -o name");
    let all: Vec<_> = all.lines().collect();
    assert!(
        all.contains(&"service/s") && all.contains(&"deployment.apps/web"),
        "{all:?}"
    );
    assert!(!all.iter().any(|name| name.starts_with("configmap/")), "{all:?}");
}

#[test]
fn an_object_is_printed_as_json_yaml_name_and_by_path() {
    let ns = Namespace::new();
    ns.ok("create configmap a --from-literal=x=1");
    let json: Value = serde_json::from_str(&ns.ok("get cm a -o json")).unwrap();
    assert_eq!(json["kind"], "ConfigMap");
    assert_eq!(json["data"]["x"], "1");
    assert!(
        json["metadata"].get("managedFields").is_none(),
        "kubectl hides them: {json}"
    );
    let yaml = ns.ok("get cm a -o yaml");
    assert!(
        yaml.starts_with("apiVersion: v1\ndata:\n  x: \"1\"\nkind: ConfigMap\n"),
        "{yaml}"
    );
    assert_eq!(ns.ok("get cm a -o name"), "configmap/a\n");
    assert_eq!(ns.ok("get cm a -o jsonpath={.metadata.namespace}"), ns.name);
    assert_eq!(
        ns.ok("get cm a -o custom-columns=NAME:.metadata.name,X:.data.x,NONE:.data.none"),
        "NAME   X     NONE\na      1     <none>\n"
    );
    assert_eq!(ns.ok("get cm a -o go-template={{.data.x}}"), "1");
}

#[test]
fn a_list_is_printed_as_a_list_of_objects() {
    let ns = Namespace::new();
    ns.ok("create configmap a");
    ns.ok("create configmap b");
    let list: Value = serde_json::from_str(&ns.ok("get cm a b -o json")).unwrap();
    assert_eq!(list["kind"], "List");
    assert_eq!(list["items"][1]["metadata"]["name"], "b");
    assert_eq!(list["items"][1]["kind"], "ConfigMap");
}

#[test]
fn label_selectors_choose_by_value_set_and_presence() {
    let ns = Namespace::new();
    for (name, tier) in [("a", "front"), ("b", "back"), ("c", "data")] {
        ns.ok(&format!("create configmap {name}"));
        ns.ok(&format!("label cm {name} tier={tier} test=yes"));
    }
    for (selector, found) in [
        ("tier=front", "configmap/a\n"),
        ("tier!=front,test", "configmap/b\nconfigmap/c\n"),
        ("'tier in (front, data)'", "configmap/a\nconfigmap/c\n"),
        ("'tier notin (front, data),test'", "configmap/b\n"),
        ("'!tier,test'", ""),
    ] {
        assert_eq!(ns.ok(&format!("get cm -l {selector} -o name")), found, "{selector}");
    }
    let table = ns.ok("get cm a -L tier --show-labels");
    assert_eq!(
        columns(table.lines().next().unwrap()),
        ["NAME", "DATA", "AGE", "TIER", "LABELS"]
    );
    assert!(table.contains("test=yes,tier=front"), "{table}");
}

#[test]
fn field_selectors_choose_by_name_and_by_fields_of_the_kind() {
    let ns = Namespace::new();
    ns.ok("create configmap a");
    ns.ok("create configmap b");
    assert_eq!(
        ns.ok("get cm --field-selector=metadata.name=b -o name"),
        "configmap/b\n"
    );
    ns.ok("run p --image=busybox");
    assert_eq!(
        ns.ok("get pods --field-selector=status.phase=Pending -o name"),
        "pod/p\n"
    );
    assert_eq!(ns.ok("get pods --field-selector=status.phase!=Pending -o name"), "");
    let complaint = ns.fails("get cm --field-selector=data.x=1");
    assert!(
        complaint.contains("\"data.x\" is not a known field selector"),
        "{complaint}"
    );
}

#[test]
fn a_list_in_chunks_is_the_whole_list() {
    let ns = Namespace::new();
    let objects: Vec<_> = (0..25)
        .map(|number| format!("apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: n{number:02}}}\n"))
        .collect();
    ns.ok_with("create -f -", &objects.join("---\n"));
    let chunked = ns.ok("get sa --chunk-size=4 --field-selector=metadata.name!=default -o name");
    assert_eq!(chunked.lines().count(), 25, "{chunked}");
    assert_eq!(
        chunked,
        ns.ok("get sa --chunk-size=0 --field-selector=metadata.name!=default -o name")
    );
    let page: Value = serde_json::from_str(&ns.ok(&format!(
        "get --raw /api/v1/namespaces/{}/serviceaccounts?limit=4",
        ns.name
    )))
    .unwrap();
    assert_eq!(page["items"].as_array().unwrap().len(), 4);
    assert!(page["metadata"]["continue"].is_string(), "{}", page["metadata"]);
}

#[test]
fn objects_are_sorted_by_a_path() {
    let ns = Namespace::new();
    ns.ok("create configmap a --from-literal=x=2");
    ns.ok("create configmap b --from-literal=x=1");
    assert_eq!(
        ns.ok("get cm a b --sort-by={.data.x} -o name"),
        "configmap/b\nconfigmap/a\n"
    );
}

#[test]
fn all_namespaces_are_read_at_once() {
    let (one, other) = (Namespace::new(), Namespace::new());
    one.ok("create configmap everywhere");
    other.ok("create configmap everywhere");
    let all = one.ok("get cm -A --field-selector=metadata.name=everywhere");
    assert!(all.contains(&one.name) && all.contains(&other.name), "{all}");
}

#[test]
fn describe_shows_an_object_and_its_events() {
    let ns = Namespace::new();
    ns.ok("create deployment web --image=nginx --replicas=2");
    let uid = ns.ok("get deploy web -o jsonpath={.metadata.uid}");
    ns.ok_with(
        "create -f -",
        &format!(
            "apiVersion: v1\nkind: Event\nmetadata: {{name: web.1}}\ntype: Warning\nreason: Unlucky\nmessage: it rained\n\
             involvedObject: {{apiVersion: apps/v1, kind: Deployment, name: web, namespace: {}, uid: {uid}}}\n\
             firstTimestamp: 2026-01-01T00:00:00Z\nlastTimestamp: 2026-01-01T00:00:00Z\ncount: 2\n",
            ns.name
        ),
    );
    let described = ns.ok("describe deploy web");
    for part in [
        "Name:                   web",
        "Replicas:               2 desired",
        "Unlucky",
        "it rained",
    ] {
        assert!(described.contains(part), "{part} is missing: {described}");
    }
    for form in ["events", "events --for deployment/web", "get events"] {
        let events = ns.ok(form);
        assert!(
            events.contains("Unlucky") && events.contains("it rained"),
            "{form}: {events}"
        );
    }
    assert!(!ns.ok("events --types=Normal").contains("Unlucky"));
}

#[test]
fn describe_knows_every_kind_that_kubectl_knows() {
    let ns = Namespace::new();
    ns.ok("create configmap a --from-literal=x=1");
    ns.ok("create secret generic a --from-literal=x=1");
    ns.ok("create serviceaccount a");
    ns.ok("create role a --verb=get --resource=pods");
    ns.ok("create service clusterip a --tcp=80");
    ns.ok("create cronjob a --image=i --schedule='0 0 * * *'");
    ns.ok("run a --image=busybox");
    for kind in ["cm", "secret", "sa", "role", "svc", "cronjob", "pod"] {
        let described = ns.ok(&format!("describe {kind} a"));
        assert!(
            described.starts_with("Name: ") && described.contains("Labels:  "),
            "{described}"
        );
    }
    assert!(
        ns.ok(&format!("describe ns {}", ns.name))
            .contains("Status:       Active")
    );
}
