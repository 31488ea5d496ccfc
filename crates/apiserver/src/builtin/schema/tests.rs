use std::collections::BTreeSet;

use moorline_machinery::facts::{Cardinality, Form};
use serde_json::{Value, json};

use super::*;

fn schema_of(api_version: &str, kind: &str) -> Schema {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    schema(&GroupVersionKind::new(group, version, kind))
}

#[test]
fn every_definition_can_be_compiled() {
    definitions::all(facts()).check().unwrap();
}

#[test]
fn unknown_fields_are_found_wherever_they_are() {
    let mut deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "d", "labels": {"any": "label"}, "nickname": "x"},
        "spec": {
            "replica": 3,
            "template": {"spec": {
                "containers": [{"name": "c", "resources": {"limits": {"any.resource/at-all": 1}}, "prots": []}],
                "nodeSelector": {"any": "node"},
            }},
        },
    });
    let unknown = schema_of("apps/v1", "Deployment").prune(&mut deployment);
    let unknown: BTreeSet<&str> = unknown.iter().map(String::as_str).collect();
    let expected = [
        "metadata.nickname",
        "spec.replica",
        "spec.template.spec.containers[0].prots",
    ];
    assert_eq!(unknown, BTreeSet::from(expected));
}

#[test]
fn a_null_is_a_field_that_is_left_out() {
    let schema = schema_of("v1", "Pod");
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "creationTimestamp": null},
        "spec": {"containers": [{"name": "c", "resources": null}], "volumes": null},
    });
    assert_eq!(schema.prune(&mut pod), [""; 0]);
    schema.apply_defaults(&mut pod);
    assert_eq!(pod["metadata"], json!({"name": "p"}));
    assert_eq!(pod["spec"], json!({"containers": [{"name": "c"}]}));
}

#[test]
fn nothing_is_required_and_numbers_may_be_words_where_go_takes_both() {
    let schema = schema_of("v1", "Service");
    for port in [json!(80), json!("http")] {
        let service = json!({"spec": {"ports": [{"targetPort": port}]}});
        assert!(schema.validate(&service).is_empty(), "{:?}", schema.validate(&service));
    }
    let pod = json!({"spec": {"containers": [{"resources": {"limits": {"cpu": 1, "memory": "1Gi"}}}]}});
    assert!(schema_of("v1", "Pod").validate(&pod).is_empty());
}

#[test]
fn a_schema_within_a_definition_is_a_schema_or_its_alternative() {
    let schema = schema_of("apiextensions.k8s.io/v1", "CustomResourceDefinition");
    let mut definition = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {
        "type": "object",
        "additionalProperties": true,
        "default": {"any": ["thing"]},
        "properties": {"list": {"items": {"type": "string", "sort": 1}}, "map": {"additionalProperties": {"hue": 2}}},
    }}}]}});
    let unknown = schema.prune(&mut definition);
    let at = "spec.versions[0].schema.openAPIV3Schema.properties";
    let unknown: BTreeSet<String> = unknown.into_iter().collect();
    assert_eq!(
        unknown,
        BTreeSet::from([
            format!("{at}.list.items.sort"),
            format!("{at}.map.additionalProperties.hue")
        ])
    );
    assert_eq!(
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["additionalProperties"],
        true
    );
    assert_eq!(
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["default"],
        json!({"any": ["thing"]})
    );
}

#[test]
fn a_kind_that_nothing_is_known_of_keeps_everything() {
    let mut object = json!({"apiVersion": "g/v1", "kind": "K", "anything": {"goes": true}});
    let before = object.clone();
    assert_eq!(schema_of("g/v1", "K").prune(&mut object), [""; 0]);
    assert_eq!(object, before);
}

/// Two sources describe the same types; where they disagree, one of them is wrong.
#[test]
fn facts_and_texts_agree_on_every_field() {
    let mut collector = texts::Collector::new();
    collector.add_all();
    let definitions = collector.into_definitions();
    let mut compared = 0;
    for (name, definition) in &definitions {
        let Some(message) = facts().definition(name) else {
            continue;
        };
        if facts().message(message).form != Form::Object {
            continue;
        }
        let properties = definition["properties"].as_object().cloned().unwrap_or_default();
        for (field, property) in properties
            .iter()
            .filter(|(field, _)| !matches!(field.as_str(), "apiVersion" | "kind"))
        {
            let known = facts()
                .field(message, field)
                .unwrap_or_else(|| panic!("{name} has {field} in texts only"));
            let is_list = property["type"] == "array";
            assert_eq!(known.cardinality == Cardinality::List, is_list, "{name}.{field}");
            compared += 1;
        }
        for field in facts().fields(message).iter().filter(|field| !field.name.is_empty()) {
            assert!(
                properties.contains_key(field.name),
                "{name} has {} in facts only",
                field.name
            );
        }
    }
    assert!(compared > 1500, "{compared}");
}

#[test]
fn texts_are_published_with_the_facts_laid_over_them() {
    let mut collector = Collector::new(Dialect::V2);
    collector.add(&GroupVersionKind::new("", "v1", "Pod"));
    let definitions = collector.finish();
    let containers = &definitions["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-list-type"], "map");
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(
        containers["items"],
        json!({"$ref": "#/definitions/io.k8s.api.core.v1.Container"})
    );
    let volumes = &definitions["io.k8s.api.core.v1.PodSpec"]["properties"]["volumes"];
    assert_eq!(volumes["x-kubernetes-patch-strategy"], "merge,retainKeys");
    let quantity = &definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"];
    assert_eq!(
        (&quantity["type"], quantity.get("x-kubernetes-int-or-string")),
        (&json!("string"), None::<&Value>)
    );
    assert_eq!(
        definitions["io.k8s.api.core.v1.SecretKeySelector"]["x-kubernetes-map-type"], "atomic",
        "a reference is owned as a whole"
    );
}
