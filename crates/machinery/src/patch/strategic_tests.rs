#![expect(clippy::needless_pass_by_value, reason = "tables read better with values")]

use serde_json::{Value, json};

use super::strategic_merge_patch;
use crate::schema::{Definitions, Schema};

fn schema() -> Schema {
    let text = json!({"type": "string"});
    let item = json!({"type": "object", "properties": {
        "name": text, "image": text,
        "ports": {"type": "array", "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "port",
            "items": {"type": "object", "properties": {"port": {"type": "integer"}, "name": text}}},
        "args": {"type": "array", "items": text},
    }});
    Schema::new(
        &json!({"type": "object", "properties": {
            "items": {"type": "array", "items": item, "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name"},
            "finalizers": {"type": "array", "items": text, "x-kubernetes-patch-strategy": "merge"},
            "plain": {"type": "array", "items": item},
            "strategy": {"type": "object", "x-kubernetes-patch-strategy": "retainKeys", "properties": {"type": text, "rolling": {"type": "object"}}},
            "swap": {"type": "object", "x-kubernetes-patch-strategy": "replace", "properties": {"a": text}},
            "labels": {"type": "object", "additionalProperties": text},
            "nolists": {"type": "array", "x-kubernetes-patch-strategy": "merge", "items": {"type": "object"}},
        }}),
        &Definitions::default(),
    )
    .unwrap()
}

fn patched(document: Value, patch: Value) -> Result<Value, (u16, String)> {
    strategic_merge_patch(&document, &patch, &schema()).map_err(|error| (error.code(), error.to_string()))
}

#[test]
fn every_directive_does_what_it_says() {
    for (name, document, patch, expected) in [
        (
            "maps merge, null removes",
            json!({"labels": {"a": "1", "b": "2"}}),
            json!({"labels": {"a": null, "c": "3"}}),
            json!({"labels": {"b": "2", "c": "3"}}),
        ),
        (
            "a null for what is not there does nothing",
            json!({}),
            json!({"labels": null, "x": {"y": null, "z": 1}}),
            json!({"x": {"z": 1}}),
        ),
        (
            "another type replaces",
            json!({"labels": "x"}),
            json!({"labels": {"a": "1"}}),
            json!({"labels": {"a": "1"}}),
        ),
        (
            "lists without strategy are replaced",
            json!({"plain": [{"name": "a"}]}),
            json!({"plain": [{"name": "b"}]}),
            json!({"plain": [{"name": "b"}]}),
        ),
        (
            "lists merge by key",
            json!({"items": [{"name": "a", "image": "1"}, {"name": "b"}]}),
            json!({"items": [{"name": "a", "image": "2"}]}),
            json!({"items": [{"name": "a", "image": "2"}, {"name": "b"}]}),
        ),
        (
            "new items come as the patch puts them",
            json!({"items": [{"name": "a"}]}),
            json!({"items": [{"name": "z", "image": null}, {"name": "a", "image": "1"}]}),
            json!({"items": [{"name": "z"}, {"name": "a", "image": "1"}]}),
        ),
        (
            "nested lists merge too",
            json!({"items": [{"name": "a", "ports": [{"port": 1, "name": "x"}, {"port": 2}]}]}),
            json!({"items": [{"name": "a", "ports": [{"port": 2, "name": "y"}]}]}),
            json!({"items": [{"name": "a", "ports": [{"port": 1, "name": "x"}, {"port": 2, "name": "y"}]}]}),
        ),
        (
            "$patch: delete takes an item out",
            json!({"items": [{"name": "a"}, {"name": "b"}]}),
            json!({"items": [{"name": "a", "$patch": "delete"}]}),
            json!({"items": [{"name": "b"}]}),
        ),
        (
            "$patch: delete of what is not there does nothing",
            json!({"items": [{"name": "a"}]}),
            json!({"items": [{"name": "x", "$patch": "delete"}]}),
            json!({"items": [{"name": "a"}]}),
        ),
        (
            "$patch: replace in a list replaces it",
            json!({"items": [{"name": "a"}, {"name": "b"}]}),
            json!({"items": [{"name": "c"}, {"$patch": "replace"}]}),
            json!({"items": [{"name": "c"}]}),
        ),
        (
            "$patch: replace alone empties a list",
            json!({"items": [{"name": "a"}]}),
            json!({"items": [{"$patch": "replace"}]}),
            json!({"items": []}),
        ),
        (
            "$patch: replace in a map replaces it",
            json!({"labels": {"a": "1"}}),
            json!({"labels": {"b": "2", "$patch": "replace"}}),
            json!({"labels": {"b": "2"}}),
        ),
        (
            "$patch: delete in a map empties it",
            json!({"labels": {"a": "1"}}),
            json!({"labels": {"$patch": "delete"}}),
            json!({"labels": {}}),
        ),
        (
            "a directive for what is not there leaves nothing",
            json!({}),
            json!({"labels": {"$patch": "delete"}, "items": [{"name": "a", "$patch": "delete"}, {"name": "b"}]}),
            json!({"items": [{"name": "b"}]}),
        ),
        (
            "the replace strategy of a map",
            json!({"swap": {"a": "1"}}),
            json!({"swap": {"b": "2"}}),
            json!({"swap": {"b": "2"}}),
        ),
        (
            "$retainKeys clears the rest",
            json!({"strategy": {"type": "Rolling", "rolling": {"x": 1}}}),
            json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}),
            json!({"strategy": {"type": "Recreate"}}),
        ),
        (
            "primitive lists are sets",
            json!({"finalizers": ["a", "b"]}),
            json!({"finalizers": ["b", "c"]}),
            json!({"finalizers": ["a", "b", "c"]}),
        ),
        (
            "$deleteFromPrimitiveList",
            json!({"finalizers": ["a", "b", "c"]}),
            json!({"$deleteFromPrimitiveList/finalizers": ["b", "x"]}),
            json!({"finalizers": ["a", "c"]}),
        ),
        (
            "$deleteFromPrimitiveList where there is none",
            json!({}),
            json!({"$deleteFromPrimitiveList/finalizers": ["b"]}),
            json!({}),
        ),
        (
            "deletion and addition at once",
            json!({"finalizers": ["a", "b"]}),
            json!({"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["c", "b"], "finalizers": ["c"]}),
            json!({"finalizers": ["c", "b"]}),
        ),
        (
            "$setElementOrder puts items in order",
            json!({"items": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}),
            json!({"$setElementOrder/items": [{"name": "c"}, {"name": "a"}], "items": [{"name": "a", "image": "1"}]}),
            json!({"items": [{"name": "b"}, {"name": "c"}, {"name": "a", "image": "1"}]}),
        ),
        (
            "$setElementOrder without a list",
            json!({"items": [{"name": "a"}, {"name": "b"}]}),
            json!({"$setElementOrder/items": [{"name": "b"}, {"name": "a"}]}),
            json!({"items": [{"name": "b"}, {"name": "a"}]}),
        ),
        (
            "$setElementOrder for what is not there",
            json!({}),
            json!({"$setElementOrder/items": [{"name": "b"}]}),
            json!({}),
        ),
        (
            "$setElementOrder of a new list",
            json!({}),
            json!({"$setElementOrder/items": [{"name": "b"}, {"name": "a"}], "items": [{"name": "b"}, {"name": "a"}]}),
            json!({"items": [{"name": "b"}, {"name": "a"}]}),
        ),
        (
            "server items keep their place",
            json!({"finalizers": ["s1", "a", "s2", "b"]}),
            json!({"$setElementOrder/finalizers": ["a", "b"], "finalizers": ["b"]}),
            json!({"finalizers": ["s1", "a", "s2", "b"]}),
        ),
        (
            "an item with a deletion in an ordered list",
            json!({"items": [{"name": "a"}, {"name": "b"}]}),
            json!({"$setElementOrder/items": [{"name": "b"}, {"name": "c"}], "items": [{"name": "c"}, {"name": "a", "$patch": "delete"}]}),
            json!({"items": [{"name": "b"}, {"name": "c"}]}),
        ),
    ] {
        assert_eq!(patched(document, patch), Ok(expected), "{name}");
    }
}

#[test]
fn what_cannot_be_merged_is_told_with_its_code() {
    for (document, patch, code, text) in [
        (
            json!({"items": [{"name": "a"}]}),
            json!({"items": [{"image": "x"}]}),
            500,
            "map: map[image:x] does not contain declared merge key: name",
        ),
        (
            json!({"labels": {"a": "1"}}),
            json!({"labels": {"$patch": "fly"}}),
            500,
            "unknown patch type: fly in map: map[$patch:fly]",
        ),
        (
            json!({"items": [{"name": "a"}]}),
            json!({"items": [{"name": "a", "$patch": "merge"}]}),
            500,
            "merging lists cannot yet be specified in the patch",
        ),
        (
            json!({"strategy": {"type": "a"}}),
            json!({"strategy": {"$retainKeys": ["x"], "type": "b"}}),
            400,
            "invalid patch format of retainKeys",
        ),
        (
            json!({"strategy": {"type": "a"}}),
            json!({"strategy": {"$retainKeys": "x"}}),
            400,
            "invalid patch format of retainKeys",
        ),
        (
            json!({"finalizers": [["a"]]}),
            json!({"finalizers": [["b"]]}),
            422,
            "lists of lists are not supported",
        ),
        (
            json!({"nolists": [{"a": 1}]}),
            json!({"nolists": [{"a": 1}]}),
            500,
            "cannot merge lists without merge key",
        ),
        (
            json!({"items": []}),
            json!({"$setElementOrder/items": {}}),
            500,
            "expected a slice, but received a map",
        ),
        (
            json!({"finalizers": ["a"]}),
            json!({"$setElementOrder/finalizers": ["b"], "finalizers": ["c"]}),
            500,
            "The order in patch list:\n[c]\n doesn't match $setElementOrder list:\n[b]\n",
        ),
    ] {
        assert_eq!(
            patched(document.clone(), patch.clone()),
            Err((code, text.to_owned())),
            "{document} {patch}"
        );
    }
    assert_eq!(patched(json!({}), json!([])).unwrap_err().0, 400);
}

#[test]
fn applying_a_patch_twice_is_applying_it_once() {
    let document = json!({"items": [{"name": "a"}, {"name": "b"}], "finalizers": ["x"], "labels": {"k": "v"}});
    let patch = json!({"items": [{"name": "c"}, {"name": "a", "image": "1"}, {"name": "b", "$patch": "delete"}],
        "$setElementOrder/items": [{"name": "c"}, {"name": "a"}], "finalizers": ["y"], "labels": {"k": null}});
    let once = patched(document, patch.clone()).unwrap();
    assert_eq!(patched(once.clone(), patch), Ok(once));
}
