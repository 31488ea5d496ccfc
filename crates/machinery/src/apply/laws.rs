//! Laws that hold for any objects and any sets.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Map, Value, json};

use super::typed::{compare, field_set, merge};
use super::{Applied, ApplyError, FieldSet, Force, Kind, ManagedFields, PathElement, Scalar, Writer, apply, update};
use crate::schema::Schema;

fn schema() -> Schema {
    let text = json!({"type": "string"});
    let item = json!({"type": "object", "properties": {
        "name": text, "v": {"type": "integer"}, "tags": {"type": "object", "additionalProperties": text},
        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
            "items": {"type": "object", "properties": {"port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}, "n": text}}}}});
    Schema::custom_resource(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "n": {"type": "integer"}, "m": {"type": "integer"},
        "map": {"type": "object", "additionalProperties": text},
        "set": {"type": "array", "items": text, "x-kubernetes-list-type": "set"},
        "atomic": {"type": "array", "items": text},
        "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": text, "b": text}},
        "items": {"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }}}}))
    .unwrap()
}

fn map_of(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-c]", value, 0..3)
        .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>()))
}

fn text() -> impl Strategy<Value = Value> {
    "[x-z]".prop_map(Value::from)
}

fn texts() -> impl Strategy<Value = Value> {
    prop::sample::subsequence(vec!["x", "y", "z"], 0..=3)
        .prop_shuffle()
        .prop_map(|items| json!(items))
}

fn ports() -> impl Strategy<Value = Value> {
    let protocol = prop_oneof![Just(None), Just(Some("TCP")), Just(Some("UDP"))];
    prop::collection::btree_map(1..3_i64, (protocol, text()), 0..3).prop_map(|ports| {
        let ports = ports.into_iter().map(|(port, (protocol, n))| match protocol {
            Some(protocol) => json!({"port": port, "protocol": protocol, "n": n}),
            None => json!({"port": port, "n": n}),
        });
        ports.collect()
    })
}

fn items() -> impl Strategy<Value = Value> {
    let item = (
        prop::option::of(0..3_i64),
        prop::option::of(map_of(text())),
        prop::option::of(ports()),
    );
    prop::collection::btree_map("[p-r]", item, 0..4)
        .prop_map(|items| items.into_iter().collect::<Vec<_>>())
        .prop_shuffle()
        .prop_map(|items| {
            let items = items.into_iter().map(|(name, (v, tags, ports))| {
                let fields = [("v", v.map(Value::from)), ("tags", tags), ("ports", ports)];
                let mut item = json!({"name": name});
                for (key, value) in fields {
                    if let Some(value) = value {
                        item[key] = value;
                    }
                }
                item
            });
            items.collect()
        })
}

/// A spec with any of its fields.
fn spec() -> impl Strategy<Value = Value> {
    let n = || prop::option::of((0..3_i64).prop_map(Value::from));
    let free = map_of(prop_oneof![text(), texts(), map_of(text())]);
    (
        n(),
        n(),
        prop::option::of(map_of(text())),
        prop::option::of(texts()),
        prop::option::of(texts()),
        prop::option::of(map_of(text()).prop_filter("declared", |map| map.get("c").is_none())),
        prop::option::of(items()),
        prop::option::of(free),
    )
        .prop_map(|(n, m, map, set, atomic, whole, items, free)| {
            let mut spec = Map::new();
            for (key, value) in [
                ("n", n),
                ("m", m),
                ("map", map),
                ("set", set),
                ("atomic", atomic),
                ("whole", whole),
                ("items", items),
                ("free", free),
            ] {
                if let Some(value) = value {
                    spec.insert(key.to_owned(), value);
                }
            }
            Value::Object(spec)
        })
}

/// Each manager has a label of its own, so that nobody who applied ends up owning nothing at all.
fn object(manager: &str, spec: &Value) -> Value {
    json!({"apiVersion": "e/v1", "kind": "K", "metadata": {"name": "n", "labels": {manager: "1"}}, "spec": spec})
}

/// A request of one of three managers.
#[derive(Clone, Debug)]
enum Request {
    Apply(usize, Value, Force),
    Update(usize, Value),
}

const MANAGERS: [&str; 3] = ["a", "b", "c"];

fn request() -> impl Strategy<Value = Request> {
    let force = prop_oneof![Just(Force::No), Just(Force::Yes)];
    prop_oneof![
        3 => (0..3_usize, spec(), force).prop_map(|(who, spec, force)| Request::Apply(who, spec, force)),
        1 => (0..3_usize, spec()).prop_map(|(who, spec)| Request::Update(who, spec)),
    ]
}

struct World {
    schema: Schema,
    empty: Value,
    live: Option<Value>,
}

impl World {
    fn new() -> Self {
        Self {
            schema: schema(),
            empty: json!({"apiVersion": "e/v1", "kind": "K"}),
            live: None,
        }
    }

    fn apply(&self, manager: &str, spec: &Value, force: Force) -> Result<Applied, ApplyError> {
        self.with(manager, |writer, kind| {
            apply(self.live.as_ref(), &object(manager, spec), force, writer, kind)
        })
    }

    fn with<T>(&self, manager: &str, act: impl FnOnce(&Writer<'_>, &Kind<'_>) -> T) -> T {
        let writer = Writer {
            manager,
            api_version: "e/v1",
            subresource: "",
            now: "2024-01-01T00:00:00Z",
            reset: &FieldSet::EMPTY,
        };
        act(
            &writer,
            &Kind {
                schema: &self.schema,
                empty: &self.empty,
            },
        )
    }

    fn run(&mut self, request: &Request) {
        match request {
            Request::Apply(who, spec, force) => {
                if let Ok(Applied::Changed(object)) = self.apply(MANAGERS[*who], spec, *force) {
                    self.live = Some(object);
                }
            }
            Request::Update(who, spec) => {
                let mut new = self.live.clone().unwrap_or_else(|| object(MANAGERS[*who], spec));
                new["spec"] = spec.clone();
                self.with(MANAGERS[*who], |writer, kind| {
                    update(self.live.as_ref(), &mut new, writer, kind);
                });
                self.live = Some(new);
            }
        }
    }

    fn spec(&self) -> Value {
        self.live.as_ref().map(|live| live["spec"].clone()).unwrap_or_default()
    }

    fn owners(&self) -> ManagedFields {
        self.live
            .as_ref()
            .map(|live| ManagedFields::of(live).unwrap())
            .unwrap_or_default()
    }

    /// Every field of the live object, containers included.
    fn existing(&self) -> FieldSet {
        let live = self.live.clone().unwrap_or_default();
        compare(&json!({}), &live, Some(self.schema.place())).added
    }
}

fn element() -> impl Strategy<Value = PathElement> {
    let scalar = prop_oneof![
        "[a-b]".prop_map(|text| Scalar::Text(text.into())),
        (0..2_i64).prop_map(Scalar::Int),
        any::<bool>().prop_map(Scalar::Bool),
    ];
    prop_oneof![
        4 => "[a-c]".prop_map(|name| PathElement::field(&name)),
        1 => scalar.clone().prop_map(PathElement::Value),
        1 => scalar.prop_map(|scalar| PathElement::Key(Box::new([("k".into(), scalar)]))),
        1 => (0..2_i64).prop_map(PathElement::Index),
    ]
}

fn field_sets() -> impl Strategy<Value = FieldSet> {
    prop::collection::vec(prop::collection::vec(element(), 1..4), 0..8).prop_map(|paths| {
        let mut set = FieldSet::new();
        for path in paths {
            set.insert(&path);
        }
        set
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(4),
        ..ProptestConfig::default()
    })]

    #[test]
    fn sets_obey_the_laws_of_sets(a in field_sets(), b in field_sets(), c in field_sets()) {
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
        prop_assert_eq!(a.union(&a), a.clone());
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.intersection(&b.union(&c)), a.intersection(&b).union(&a.intersection(&c)));
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert!(a.difference(&b).intersection(&b).is_empty());
        prop_assert!(a.is_subset(&a.union(&b)));
        prop_assert_eq!(a.is_subset(&b), a.difference(&b).is_empty());
        prop_assert!(a.without_subtrees(&b).is_subset(&a.difference(&b)));
        prop_assert!(a.leaves().is_subset(&a));
        let (mut less, mut pruned) = (a.clone(), a.clone());
        less.subtract(&b);
        prop_assert_eq!(less, a.difference(&b));
        pruned.subtract_subtrees(&b);
        prop_assert_eq!(pruned, a.without_subtrees(&b));
        prop_assert_eq!(a.len(), a.paths().len());
        for path in a.paths() {
            prop_assert!(a.has(&path) && a.union(&b).has(&path));
            prop_assert_eq!(a.difference(&b).has(&path), !b.has(&path));
        }
    }

    #[test]
    fn sets_survive_the_wire(a in field_sets()) {
        prop_assert_eq!(FieldSet::from_fields_v1(&a.to_fields_v1()).unwrap(), a);
    }

    #[test]
    fn comparing_is_symmetric_and_blind_to_what_is_equal(old in spec(), new in spec()) {
        let schema = schema();
        let at = Some(schema.place());
        let (old, new) = (object("a", &old), object("a", &new));
        let (there, back) = (compare(&old, &new, at), compare(&new, &old, at));
        prop_assert_eq!(&there.added, &back.removed);
        prop_assert_eq!(&there.modified, &back.modified);
        let nothing = compare(&new, &new, at);
        prop_assert!(nothing.added.is_empty() && nothing.modified.is_empty() && nothing.removed.is_empty());
    }

    #[test]
    fn merging_takes_every_leaf_of_the_upper_value(lower in spec(), upper in spec()) {
        let schema = schema();
        let at = Some(schema.place());
        let (lower, upper) = (object("a", &lower), object("b", &upper));
        let mut merged = lower.clone();
        merge(&mut merged, &upper, at);
        let merged_fields = compare(&Value::Object(Map::new()), &merged, at).added;
        prop_assert!(field_set(&upper, at).leaves().is_subset(&merged_fields));
        let once = merged.clone();
        merge(&mut merged, &upper, at);
        prop_assert_eq!(merged, once);
    }

    #[test]
    fn applying_twice_is_applying_once(story in prop::collection::vec(request(), 0..6), last in spec()) {
        let mut world = World::new();
        for request in &story {
            world.run(request);
        }
        world.run(&Request::Apply(0, last.clone(), Force::Yes));
        let before = world.live.clone();
        prop_assert_eq!(world.apply("a", &last, Force::No), Ok(Applied::Unchanged));
        prop_assert_eq!(world.live, before);
    }

    #[test]
    fn managers_own_only_what_exists(story in prop::collection::vec(request(), 1..8)) {
        let mut world = World::new();
        for request in &story {
            world.run(request);
            let existing = world.existing();
            for (manager, owned) in world.owners().iter() {
                let gone = owned.fields.difference(&existing);
                prop_assert!(gone.is_empty(), "{:?} owns {} in {}", manager, gone.to_fields_v1(), world.spec());
                prop_assert!(!owned.fields.is_empty());
            }
        }
    }

    #[test]
    fn what_only_one_applier_wanted_goes_with_it(base in spec(), extra in spec()) {
        let mut world = World::new();
        world.run(&Request::Apply(0, base, Force::Yes));
        let before = world.spec();
        if let Ok(Applied::Changed(object)) = world.apply("b", &extra, Force::No) {
            world.live = Some(object);
            world.run(&Request::Apply(1, json!({}), Force::No));
            prop_assert_eq!(without_order(world.spec()), without_order(before));
        }
    }

    #[test]
    fn an_apply_conflicts_exactly_when_it_changes_what_another_owns(
        story in prop::collection::vec(request(), 0..5), wanted in spec(),
    ) {
        let mut world = World::new();
        for request in &story {
            world.run(request);
        }
        let result = world.apply("a", &wanted, Force::No);
        let Ok(Applied::Changed(forced)) = world.apply("a", &wanted, Force::Yes) else {
            prop_assert_eq!(result, Ok(Applied::Unchanged));
            return Ok(());
        };
        let live = world.live.clone().unwrap_or_else(|| world.empty.clone());
        let changes = compare(&live, &forced, Some(world.schema.place()));
        let changed = changes.modified.union(&changes.added);
        let of_others = world.owners().iter().any(|(manager, owned)| {
            let is_a = manager.name == "a" && manager.operation == super::Operation::Apply;
            !is_a && !owned.fields.intersection(&changed).is_empty()
        });
        prop_assert_eq!(matches!(result, Err(ApplyError::Conflicts(_))), of_others);
    }
}

/// The order of what both had is the last applier's, and nobody owns an empty list.
fn without_order(value: Value) -> Value {
    match value {
        Value::Array(items) => {
            let mut items: Vec<_> = items.into_iter().map(without_order).collect();
            items.sort_by_key(Value::to_string);
            Value::Array(items)
        }
        Value::Object(map) => {
            let kept = map
                .into_iter()
                .filter(|(_, value)| value.as_array().is_none_or(|items| !items.is_empty()));
            Value::Object(kept.map(|(key, value)| (key, without_order(value))).collect())
        }
        other => other,
    }
}
