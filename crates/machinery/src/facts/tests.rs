use super::*;

const BUILTIN: &str = include_str!("../../../apiserver/facts/builtin.txt");

fn builtin() -> Facts {
    Facts::parse(BUILTIN).unwrap()
}

#[test]
fn a_kind_is_found_by_version_and_by_definition() {
    let facts = builtin();
    let pod = facts.kind("v1", "Pod").unwrap();
    assert_eq!(facts.definition("io.k8s.api.core.v1.Pod"), Some(pod));
    assert_eq!(facts.definition_name(pod), "io.k8s.api.core.v1.Pod");
    assert_eq!(facts.kind("v1", "PodSpec"), None);
    assert_eq!(facts.kind("v2", "Pod"), None);
    assert!(facts.kinds().count() > 100);
}

#[test]
fn options_belong_to_every_version() {
    let facts = builtin();
    let options = facts.definition("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions");
    assert!(options.is_some());
    for api_version in ["v1", "apps/v1", "meta.k8s.io/v1", "example.com/v1"] {
        assert_eq!(facts.kind(api_version, "DeleteOptions"), options);
    }
}

#[test]
fn merging_is_known_for_the_lists_of_a_pod() {
    let facts = builtin();
    let spec = facts.definition("io.k8s.api.core.v1.PodSpec").unwrap();
    let containers = facts.field(spec, "containers").unwrap();
    assert_eq!((containers.number, containers.cardinality), (2, Cardinality::List));
    assert_eq!(containers.structure.map_keys().collect::<Vec<_>>(), ["name"]);
    assert_eq!(
        containers.patch,
        Some(PatchStrategy {
            merge: true,
            retain_keys: false,
            merge_key: Some("name")
        })
    );
    let volumes = facts.field(spec, "volumes").unwrap().patch.unwrap();
    assert!(volumes.merge && volumes.retain_keys);
    let ports = facts
        .definition("io.k8s.api.core.v1.Container")
        .and_then(|id| facts.field(id, "ports"))
        .unwrap();
    assert_eq!(
        ports.structure.map_keys().collect::<Vec<_>>(),
        ["containerPort", "protocol"]
    );
    let port = facts.definition("io.k8s.api.core.v1.ContainerPort").unwrap();
    assert_eq!(facts.field(port, "protocol").unwrap().default, Some("\"TCP\""));
    let selector = facts
        .definition("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector")
        .unwrap();
    assert_eq!(facts.message(selector).structure, Structure::Atomic);
}

#[test]
fn inlined_fields_are_found_in_the_object_around_them() {
    let facts = builtin();
    let volume = facts.definition("io.k8s.api.core.v1.Volume").unwrap();
    assert!(facts.field(volume, "emptyDir").is_some());
    assert!(facts.field(volume, "").is_some_and(|inlined| inlined.number == 2));
}

#[test]
fn a_text_that_holds_no_facts_is_refused_with_its_line() {
    for (text, error) in [
        ("Pod", "cannot read line 1 of the facts: there is no package yet"),
        (
            "package a b\n1 x s",
            "cannot read line 2 of the facts: there is no message yet",
        ),
        (
            "package a b\nM\n1 x Nope",
            "cannot read line 3 of the facts: there is no message of this name",
        ),
        (
            "package a b\nM\n1 x s ?",
            "cannot read line 3 of the facts: unknown word about a field",
        ),
        (
            "package a b\nM as:odd",
            "cannot read line 2 of the facts: unknown form of a message",
        ),
    ] {
        assert_eq!(Facts::parse(text).unwrap_err().to_string(), error);
    }
}
