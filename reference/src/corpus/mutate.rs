//! Valid objects with something wrong put into them: what is refused, in which words, and what is quietly accepted.

use fastrand::Rng;
use serde_json::{Map, Value, json};

use super::{Place, objects::KINDS, pick};
use crate::step::Step;

pub(super) fn steps(rng: &mut Rng, place: &Place) -> Vec<Step> {
    (0..8)
        .map(|_| {
            let kind = pick(rng, &KINDS);
            let mut object = kind.object("mutant");
            for _ in 0..rng.usize(1..3) {
                mutate(rng, &mut object);
            }
            let validation = *pick(
                rng,
                &[
                    "",
                    "&fieldValidation=Strict",
                    "&fieldValidation=Ignore",
                    "&fieldValidation=Warn",
                ],
            );
            Step::post(
                format!("{}?dryRun=All{validation}", kind.collection(&place.namespace)),
                &object,
            )
        })
        .collect()
}

/// Changes one random place below the type and the name.
fn mutate(rng: &mut Rng, object: &mut Value) {
    let mut places = Vec::new();
    gather("", object, &mut places);
    places.retain(|place| {
        !matches!(
            place.as_str(),
            "" | "/apiVersion" | "/kind" | "/metadata" | "/metadata/name"
        )
    });
    let Some(place) = (!places.is_empty()).then(|| pick(rng, &places).clone()) else {
        return;
    };
    let (parent, last) = place.rsplit_once('/').unwrap_or(("", &place));
    let choice = rng.u8(0..10);
    let strange = strange(rng);
    match object.pointer_mut(parent) {
        Some(Value::Object(map)) => match choice {
            0 | 1 => {
                map.remove(last);
            }
            2 => {
                map.insert(
                    (*pick(rng, &["unknownField", "metadata", "Spec", "name", ""])).to_owned(),
                    strange,
                );
            }
            3 => empty(map, last),
            _ => {
                map.insert(last.to_owned(), strange);
            }
        },
        Some(Value::Array(items)) => match choice {
            0 | 1 => items.clear(),
            2..=4 => {
                let first = items[0].clone();
                items.push(first);
            }
            _ => items[0] = strange,
        },
        _ => {}
    }
}

fn empty(map: &mut Map<String, Value>, key: &str) {
    if let Some(value) = map.get_mut(key) {
        *value = match value {
            Value::Object(_) => json!({}),
            Value::Array(_) => json!([]),
            Value::String(_) => json!(""),
            Value::Number(_) => json!(0),
            _ => Value::Null,
        };
    }
}

fn strange(rng: &mut Rng) -> Value {
    let long = "x".repeat(300);
    pick(
        rng,
        &[
            json!(null),
            json!(""),
            json!("x"),
            json!("Not_Valid!"),
            json!("-leading"),
            json!("example.com/ok"),
            json!("10%"),
            json!("-5"),
            json!("1Gi"),
            json!("2020-01-01T00:00:00Z"),
            json!(0),
            json!(-1),
            json!(1),
            json!(70000),
            json!(4_294_967_296_i64),
            json!(1.5),
            json!(true),
            json!([]),
            json!({}),
            json!(["a"]),
            json!([{}]),
            json!({"a": "b"}),
            json!({"matchLabels": {"app": "other"}}),
            json!(long),
        ],
    )
    .clone()
}

fn gather(place: &str, value: &Value, places: &mut Vec<String>) {
    places.push(place.to_owned());
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                gather(&format!("{place}/{key}"), value, places);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                gather(&format!("{place}/{index}"), value, places);
            }
        }
        _ => {}
    }
}
