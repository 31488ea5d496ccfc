//! Stories of several managers and one object, each a row of requests and what came of it.

#![expect(clippy::needless_pass_by_value, reason = "stories read better with values")]

use serde_json::{Value, json};

use super::{Applied, ApplyError, FieldSet, Force, Kind, Writer, apply, update};
use crate::schema::Schema;

fn schema() -> Schema {
    let text = json!({"type": "string"});
    let port = json!({"type": "object", "properties": {
        "containerPort": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}, "name": text}});
    let container = json!({"type": "object", "properties": {
        "name": text, "image": text,
        "args": {"type": "array", "items": text},
        "ports": {"type": "array", "items": port, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["containerPort", "protocol"]},
        "env": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "properties": {"name": text, "value": text}}}}});
    Schema::custom_resource(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "replicas": {"type": "integer"}, "paused": {"type": "boolean"},
            "containers": {"type": "array", "items": container, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
            "set": {"type": "array", "items": text, "x-kubernetes-list-type": "set"},
            "list": {"type": "array", "items": text},
            "map": {"type": "object", "additionalProperties": text},
            "atomic": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": text, "b": text}},
            "nested": {"type": "object", "properties": {"deep": {"type": "object", "properties": {"x": text, "y": text}}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }},
        "status": {"type": "object", "properties": {"phase": text}},
    }}))
    .unwrap()
}

/// An object under several managers.
struct Story {
    schema: Schema,
    empty: Value,
    object: Option<Value>,
    minute: u32,
    reset: FieldSet,
    subresource: &'static str,
}

impl Story {
    fn new() -> Self {
        let empty = json!({"apiVersion": "e/v1", "kind": "K"});
        Self {
            schema: schema(),
            empty,
            object: None,
            minute: 0,
            reset: FieldSet::new(),
            subresource: "",
        }
    }

    fn object_with(spec: Value) -> Value {
        json!({"apiVersion": "e/v1", "kind": "K", "metadata": {"name": "n", "namespace": "ns"}, "spec": spec})
    }

    fn write<T>(&mut self, manager: &str, act: impl FnOnce(Option<&Value>, &Writer<'_>, &Kind<'_>) -> T) -> T {
        self.minute += 1;
        let now = format!("2024-01-01T00:{:02}:00Z", self.minute);
        let writer = Writer {
            manager,
            api_version: "e/v1",
            subresource: self.subresource,
            now: &now,
            reset: &self.reset,
        };
        let kind = Kind {
            schema: &self.schema,
            empty: &self.empty,
        };
        act(self.object.as_ref(), &writer, &kind)
    }

    fn try_apply(&mut self, manager: &str, applied: &Value, force: Force) -> Result<bool, ApplyError> {
        match self.write(manager, |live, writer, kind| apply(live, applied, force, writer, kind))? {
            Applied::Unchanged => Ok(false),
            Applied::Changed(object) => {
                self.object = Some(object);
                Ok(true)
            }
        }
    }

    fn apply(&mut self, manager: &str, spec: Value) -> bool {
        self.try_apply(manager, &Self::object_with(spec), Force::No).unwrap()
    }

    fn force(&mut self, manager: &str, spec: Value) -> bool {
        self.try_apply(manager, &Self::object_with(spec), Force::Yes).unwrap()
    }

    fn refused(&mut self, manager: &str, spec: Value) -> String {
        self.try_apply(manager, &Self::object_with(spec), Force::No)
            .unwrap_err()
            .to_string()
    }

    /// Replaces the spec, as a client does who read the object before.
    fn update(&mut self, manager: &str, spec: Value) {
        let mut new = self.object.clone().unwrap_or_else(|| Self::object_with(json!({})));
        new["metadata"]["uid"] = json!("u");
        new["spec"] = spec;
        self.put(manager, new);
    }

    fn put(&mut self, manager: &str, mut new: Value) {
        self.write(manager, |old, writer, kind| update(old, &mut new, writer, kind));
        self.object = Some(new);
    }

    fn spec(&self) -> Value {
        self.object.as_ref().unwrap()["spec"].clone()
    }

    /// What a manager owns of the spec.
    fn owned(&self, manager: &str) -> Value {
        let all = self.object.as_ref().unwrap()["metadata"]["managedFields"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let entry = all
            .into_iter()
            .find(|entry| entry["manager"] == manager)
            .unwrap_or_default();
        entry["fieldsV1"].get("f:spec").cloned().unwrap_or_default()
    }

    fn managers(&self) -> Vec<String> {
        let all = self.object.as_ref().unwrap()["metadata"]["managedFields"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        all.iter()
            .map(|e| {
                format!(
                    "{} {}",
                    e["manager"].as_str().unwrap(),
                    e["operation"].as_str().unwrap()
                )
            })
            .collect()
    }
}

#[test]
fn an_apply_creates_and_owns_what_it_says() {
    let mut story = Story::new();
    assert!(story.apply("a", json!({"replicas": 1, "map": {"k": "v"}, "set": ["x"], "list": ["y"], "containers": [{"name": "c", "image": "i"}]})));
    assert_eq!(
        story.object.as_ref().unwrap()["metadata"]["managedFields"],
        json!([{"manager": "a", "operation": "Apply", "apiVersion": "e/v1", "time": "2024-01-01T00:01:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {
                "f:replicas": {}, "f:map": {"f:k": {}}, "f:set": {"v:\"x\"": {}}, "f:list": {},
                "f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:name": {}, "f:image": {}}}}}}])
    );
}

#[test]
fn applying_the_same_again_changes_nothing() {
    let mut story = Story::new();
    let spec = json!({"replicas": 1, "containers": [{"name": "c", "ports": [{"containerPort": 80}]}]});
    assert!(story.apply("a", spec.clone()));
    let before = story.object.clone();
    assert!(!story.apply("a", spec));
    assert_eq!(story.object, before);
}

#[test]
fn a_field_that_is_no_longer_applied_goes_unless_others_own_it() {
    let mut story = Story::new();
    story.apply("a", json!({"replicas": 1, "paused": true, "map": {"x": "1", "y": "2"}, "set": ["s", "t"], "list": ["l"], "atomic": {"a": "1"}}));
    story.apply("b", json!({"paused": true, "map": {"y": "2"}, "set": ["t"]}));
    story.apply("a", json!({"replicas": 1}));
    assert_eq!(
        story.spec(),
        json!({"replicas": 1, "paused": true, "map": {"y": "2"}, "set": ["t"]})
    );
    assert_eq!(story.owned("a"), json!({"f:replicas": {}}));
}

#[test]
fn what_an_updater_owns_survives_an_applier() {
    let mut story = Story::new();
    story.apply("a", json!({"replicas": 1, "map": {"x": "1"}}));
    story.update(
        "u",
        json!({"replicas": 1, "map": {"x": "1", "y": "2"}, "paused": false}),
    );
    assert_eq!(story.owned("u"), json!({"f:paused": {}, "f:map": {"f:y": {}}}));
    story.apply("a", json!({"replicas": 1}));
    assert_eq!(story.spec(), json!({"replicas": 1, "map": {"y": "2"}, "paused": false}));
}

#[test]
fn items_of_map_lists_are_owned_and_go_one_by_one() {
    let mut story = Story::new();
    story.apply(
        "a",
        json!({"containers": [{"name": "x", "image": "1"}, {"name": "y", "image": "1"}]}),
    );
    story.apply(
        "b",
        json!({"containers": [{"name": "z", "image": "2"}, {"name": "x", "args": ["-v"]}]}),
    );
    assert_eq!(
        story.spec(),
        json!({"containers": [{"name": "z", "image": "2"}, {"name": "x", "image": "1", "args": ["-v"]}, {"name": "y", "image": "1"}]})
    );
    story.apply("a", json!({"containers": [{"name": "y", "image": "1"}]}));
    assert_eq!(
        story.spec(),
        json!({"containers": [{"name": "z", "image": "2"}, {"name": "x", "args": ["-v"]}, {"name": "y", "image": "1"}]})
    );
    story.apply("b", json!({}));
    assert_eq!(story.spec(), json!({"containers": [{"name": "y", "image": "1"}]}));
    assert_eq!(story.owned("b"), json!({}));
}

#[test]
fn a_key_that_is_left_out_has_its_default() {
    let mut story = Story::new();
    story.apply(
        "a",
        json!({"containers": [{"name": "c", "ports": [{"containerPort": 80}]}]}),
    );
    assert_eq!(
        story.owned("a")["f:containers"]["k:{\"name\":\"c\"}"]["f:ports"],
        json!({"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}})
    );
    // The server fills in defaults after the apply; the next apply meets the item by its full key.
    let mut object = story.object.clone().unwrap();
    story.schema.apply_defaults(&mut object);
    story.object = Some(object);
    assert!(!story.apply(
        "a",
        json!({"containers": [{"name": "c", "ports": [{"containerPort": 80}]}]})
    ));
    story.apply(
        "b",
        json!({"containers": [{"name": "c", "ports": [{"containerPort": 80, "protocol": "UDP"}]}]}),
    );
    assert_eq!(story.spec()["containers"][0]["ports"].as_array().unwrap().len(), 2);
}

#[test]
fn a_changed_field_of_another_manager_is_a_conflict_until_forced() {
    let mut story = Story::new();
    story.apply("a", json!({"replicas": 1, "list": ["x"], "atomic": {"a": "1"}}));
    assert_eq!(
        story.refused("b", json!({"replicas": 2})),
        "Apply failed with 1 conflict: conflict with \"a\": .spec.replicas"
    );
    assert_eq!(
        story.refused("b", json!({"replicas": 2, "list": ["x", "y"], "atomic": {"b": "1"}})),
        "Apply failed with 3 conflicts: conflicts with \"a\":\n- .spec.atomic\n- .spec.list\n- .spec.replicas"
    );
    story.force("b", json!({"replicas": 2}));
    assert_eq!(story.spec()["replicas"], 2);
    assert_eq!(story.owned("a"), json!({"f:list": {}, "f:atomic": {}}));
    assert_eq!(story.owned("b"), json!({"f:replicas": {}}));
}

#[test]
fn a_conflict_names_updaters_with_their_version_and_subresource() {
    let mut story = Story::new();
    story.update("kubectl-client-side-apply", json!({"replicas": 1}));
    assert_eq!(
        story.refused("a", json!({"replicas": 2})),
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using e/v1: .spec.replicas"
    );
    story.subresource = "scale";
    story.update("s", json!({"replicas": 3}));
    story.subresource = "";
    let error = story
        .try_apply("a", &Story::object_with(json!({"replicas": 2})), Force::No)
        .unwrap_err();
    let ApplyError::Conflicts(conflicts) = &error else {
        panic!("{error}")
    };
    let causes: Vec<_> = conflicts
        .iter()
        .map(|conflict| (conflict.message(), conflict.field()))
        .collect();
    let message = "conflict with \"s\" with subresource \"scale\" using e/v1".to_owned();
    assert_eq!(causes, [(message, ".spec.replicas".to_owned())]);
    assert_eq!(error.code(), 409);
}

#[test]
fn the_same_value_is_shared_and_not_a_conflict() {
    let mut story = Story::new();
    story.apply("a", json!({"replicas": 1}));
    story.apply("b", json!({"replicas": 1}));
    assert_eq!(
        (story.owned("a"), story.owned("b")),
        (json!({"f:replicas": {}}), json!({"f:replicas": {}}))
    );
    story.apply("a", json!({}));
    assert_eq!(story.spec(), json!({"replicas": 1}));
    story.apply("b", json!({}));
    assert_eq!(story.spec(), json!({}));
}

#[test]
fn an_update_takes_what_it_changes_from_everybody() {
    let mut story = Story::new();
    story.apply("a", json!({"replicas": 1, "paused": true}));
    story.update("u", json!({"replicas": 2, "paused": true}));
    assert_eq!(story.owned("a"), json!({"f:paused": {}}));
    assert_eq!(story.owned("u"), json!({"f:replicas": {}}));
    story.update("v", json!({"paused": true}));
    assert_eq!(story.managers(), ["a Apply"]);
}

#[test]
fn a_new_object_belongs_to_its_creator_containers_included() {
    let mut story = Story::new();
    story.put(
        "c",
        Story::object_with(json!({"replicas": 1, "map": {"k": "v"}, "nested": {"deep": {"x": "1"}}})),
    );
    assert_eq!(
        story.owned("c"),
        json!({".": {}, "f:replicas": {}, "f:map": {".": {}, "f:k": {}}, "f:nested": {".": {}, "f:deep": {".": {}, "f:x": {}}}})
    );
    let mut always = Story::new();
    always.empty = json!({"apiVersion": "e/v1", "kind": "K", "metadata": {}, "spec": {}});
    always.put("c", Story::object_with(json!({"replicas": 1})));
    assert_eq!(always.owned("c"), json!({"f:replicas": {}}));
}

#[test]
fn an_update_that_changes_nothing_keeps_its_time() {
    let mut story = Story::new();
    story.update("u", json!({"replicas": 1}));
    let before = story.object.clone();
    story.update("u", json!({"replicas": 1}));
    assert_eq!(story.object, before);
    story.update("u", json!({"replicas": 2}));
    assert_eq!(
        story.object.as_ref().unwrap()["metadata"]["managedFields"][0]["time"],
        "2024-01-01T00:03:00Z"
    );
}

#[test]
fn fields_that_identify_an_object_belong_to_nobody() {
    let mut story = Story::new();
    let mut object = Story::object_with(json!({}));
    object["metadata"]["labels"] = json!({"l": "1"});
    story.try_apply("a", &object, Force::No).unwrap();
    let fields = &story.object.as_ref().unwrap()["metadata"]["managedFields"][0]["fieldsV1"];
    assert_eq!(*fields, json!({"f:metadata": {"f:labels": {"f:l": {}}}, "f:spec": {}}));
}

#[test]
fn an_object_without_owners_is_taken_as_written_before_the_first_apply() {
    let mut story = Story::new();
    let mut object = Story::object_with(json!({"replicas": 1, "paused": true}));
    object["metadata"]["uid"] = json!("u");
    story.object = Some(object);
    assert_eq!(
        story.refused("a", json!({"replicas": 2})),
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using e/v1: .spec.replicas"
    );
    story.force("a", json!({"replicas": 2}));
    assert_eq!(story.managers(), ["a Apply", "before-first-apply Update"]);
    assert_eq!(story.owned("before-first-apply"), json!({".": {}, "f:paused": {}}));
}

#[test]
fn an_object_stored_without_owners_stays_so_under_updates() {
    let mut story = Story::new();
    let mut object = Story::object_with(json!({"replicas": 1}));
    object["metadata"]["uid"] = json!("u");
    story.object = Some(object);
    story.update("u", json!({"replicas": 2}));
    assert!(story.managers().is_empty());
}

#[test]
fn the_status_door_and_the_main_door_do_not_meet() {
    let mut story = Story::new();
    story.reset = FieldSet::of_fields(["status"]);
    let mut object = Story::object_with(json!({"replicas": 1}));
    object["status"] = json!({"phase": "no"});
    story.try_apply("a", &object, Force::No).unwrap();
    assert_eq!(story.object.as_ref().unwrap().get("status"), None);
    assert_eq!(story.owned("a"), json!({"f:replicas": {}}));

    story.reset = FieldSet::of_fields(["spec"]);
    story.subresource = "status";
    let mut new = story.object.clone().unwrap();
    new["status"] = json!({"phase": "up"});
    story.put("controller", new);
    let entries = &story.object.as_ref().unwrap()["metadata"]["managedFields"];
    assert_eq!(entries[1]["subresource"], "status");
    assert_eq!(entries[1]["fieldsV1"], json!({"f:status": {".": {}, "f:phase": {}}}));

    story.reset = FieldSet::of_fields(["status"]);
    story.subresource = "";
    assert!(story.apply("a", json!({"replicas": 2})));
    assert_eq!(story.object.as_ref().unwrap()["status"], json!({"phase": "up"}));
}

#[test]
fn the_oldest_updaters_are_merged_when_there_are_too_many() {
    let mut story = Story::new();
    let mut map = serde_json::Map::new();
    for index in 0..13 {
        map.insert(format!("k{index:02}"), json!("v"));
        story.update(&format!("u{index:02}"), json!({"map": map}));
    }
    let managers = story.managers();
    assert_eq!(managers.len(), 10);
    assert!(managers.contains(&"ancient-changes Update".to_owned()));
    let ancient = story.owned("ancient-changes");
    assert_eq!(
        ancient["f:map"],
        json!({".": {}, "f:k00": {}, "f:k01": {}, "f:k02": {}, "f:k03": {}})
    );
}

#[test]
fn duplicates_are_refused_when_applied_and_tolerated_when_stored() {
    let mut story = Story::new();
    let twice =
        json!({"containers": [{"name": "c", "env": [{"name": "E", "value": "1"}, {"name": "E", "value": "2"}]}]});
    assert_eq!(
        story.refused("a", twice.clone()),
        "failed to create typed patch object (ns/n; e/v1, Kind=K): .spec.containers[name=\"c\"].env: duplicate entries for key [name=\"E\"]"
    );
    assert!(
        story
            .refused("a", json!({"set": ["x", "x"]}))
            .ends_with(".spec.set: duplicate entries for key [=\"x\"]")
    );
    story.update("u", twice);
    story.apply("a", json!({"containers": [{"name": "c", "image": "i"}]}));
    assert_eq!(story.spec()["containers"][0]["env"].as_array().unwrap().len(), 2);
    story.force(
        "a",
        json!({"containers": [{"name": "c", "image": "i", "env": [{"name": "E", "value": "3"}]}]}),
    );
    assert_eq!(
        story.spec()["containers"][0]["env"],
        json!([{"name": "E", "value": "3"}])
    );
}

#[test]
fn what_cannot_be_read_through_the_schema_is_refused() {
    let mut story = Story::new();
    for (spec, reason) in [
        (json!({"nope": 1}), ".spec.nope: field not declared in schema"),
        (
            json!({"replicas": "x"}),
            ".spec.replicas: expected numeric (int or float), got string",
        ),
        (
            json!({"containers": [{"image": "i"}]}),
            ".spec.containers: element 0: associative list with keys has an element that omits all key fields [\"name\"] (and doesn't have default values for any key fields)",
        ),
        (
            json!({"nope": 1, "paused": "x"}),
            ".spec.nope: field not declared in schema",
        ),
        (
            json!({"paused": "x", "replicas": true}),
            "errors:\n  .spec.paused: expected boolean, got \"x\"\n  .spec.replicas: expected numeric (int or float), got bool",
        ),
    ] {
        assert_eq!(
            story.refused("a", spec),
            format!("failed to create typed patch object (ns/n; e/v1, Kind=K): {reason}")
        );
    }
    let mut object = Story::object_with(json!({}));
    object["metadata"]["managedFields"] = json!([{}]);
    let error = story.try_apply("a", &object, Force::No).unwrap_err();
    assert_eq!(
        (error.code(), error.to_string().as_str()),
        (400, "metadata.managedFields must be nil")
    );
}

#[test]
fn maps_of_unknown_fields_are_owned_key_by_key_and_their_lists_as_a_whole() {
    let mut story = Story::new();
    story.apply("a", json!({"free": {"x": {"y": 1, "l": [1]}}}));
    story.apply("b", json!({"free": {"x": {"z": 2}}}));
    assert_eq!(story.spec(), json!({"free": {"x": {"y": 1, "l": [1], "z": 2}}}));
    assert_eq!(
        story.owned("a"),
        json!({"f:free": {"f:x": {".": {}, "f:y": {}, "f:l": {}}}})
    );
    assert!(
        story
            .refused("b", json!({"free": {"x": {"z": 2, "l": [2]}}}))
            .contains(".spec.free.x.l")
    );
    story.apply("a", json!({}));
    assert_eq!(story.spec(), json!({"free": {"x": {"z": 2}}}));
}

#[test]
fn clients_may_edit_entries_and_start_anew() {
    let mut story = Story::new();
    story.apply("a", json!({"replicas": 1}));
    story.object.as_mut().unwrap()["metadata"]["uid"] = json!("u");
    let mut edited = story.object.clone().unwrap();
    edited["metadata"]["managedFields"][0]["manager"] = json!("renamed");
    story.put("editor", edited);
    assert_eq!(story.managers(), ["renamed Apply"]);
    let mut missing = story.object.clone().unwrap();
    missing["metadata"].as_object_mut().unwrap().remove("managedFields");
    story.put("careless", missing);
    assert_eq!(story.managers(), ["renamed Apply"]);
    let mut anew = story.object.clone().unwrap();
    anew["metadata"]["managedFields"] = json!([]);
    story.put("resetter", anew);
    assert!(story.managers().is_empty());
}

#[test]
fn kubectl_takes_over_from_its_client_side_self() {
    let mut story = Story::new();
    let mut object = Story::object_with(json!({"replicas": 1, "paused": true}));
    object["metadata"]["annotations"] =
        json!({super::LAST_APPLIED: Story::object_with(json!({"replicas": 1, "paused": false})).to_string()});
    story.put("kubectl-client-side-apply", object);
    assert_eq!(
        story.refused("kubectl", json!({"replicas": 2, "paused": false})),
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using e/v1: .spec.paused"
    );
    assert!(
        story
            .refused("other", json!({"replicas": 2}))
            .contains(".spec.replicas")
    );
    assert!(story.apply("kubectl", json!({"replicas": 2})));
    assert_eq!(story.spec(), json!({"replicas": 2, "paused": true}));
    let annotation = story.object.as_ref().unwrap()["metadata"]["annotations"][super::LAST_APPLIED]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(annotation, format!("{}\n", Story::object_with(json!({"replicas": 2}))));
}

#[test]
fn the_order_of_items_is_the_appliers_where_it_says_one() {
    for (live, applied, expected) in [
        (vec!["a", "b"], vec!["b", "a"], vec!["b", "a"]),
        (vec!["a", "b", "c"], vec!["c", "a"], vec!["b", "c", "a"]),
        (vec!["a", "b"], vec!["c"], vec!["a", "b", "c"]),
        (vec!["a", "b", "c"], vec!["a", "x", "c"], vec!["a", "b", "x", "c"]),
        (vec!["a"], vec!["x", "a"], vec!["x", "a"]),
        (vec![], vec!["x"], vec!["x"]),
    ] {
        let mut story = Story::new();
        story.update("u", json!({"set": live}));
        story.force("a", json!({"set": applied}));
        assert_eq!(story.spec()["set"], json!(expected), "{live:?} with {applied:?}");
    }
}

#[test]
fn a_list_that_became_atomic_is_owned_as_a_whole() {
    let mut story = Story::new();
    story.apply("a", json!({"list": ["x"]}));
    let entry = &mut story.object.as_mut().unwrap()["metadata"]["managedFields"][0]["fieldsV1"];
    *entry = json!({"f:spec": {"f:list": {"v:\"x\"": {}}}});
    assert!(story.refused("b", json!({"list": ["y"]})).contains(".spec.list"));
    story.update("u", json!({"list": ["x"], "replicas": 1}));
    assert_eq!(story.owned("a"), json!({"f:list": {}}));
}

#[test]
fn broken_entries_keep_an_apply_from_guessing() {
    let mut story = Story::new();
    story.apply("a", json!({"replicas": 1}));
    story.object.as_mut().unwrap()["metadata"]["managedFields"][0]["operation"] = json!("Fly");
    let error = story.refused("a", json!({"replicas": 2}));
    assert_eq!(
        error,
        "failed to decode managed fields: operation must be `Apply` or `Update`"
    );
}
