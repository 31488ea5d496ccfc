//! Where two canonical answers differ.

use std::fmt;

use serde_json::Value;

/// One place where two answers do not agree.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// A JSON pointer into the answer.
    pub place: String,
    /// What our server says there, if anything.
    pub ours: Option<Value>,
    /// What the real one says there, if anything.
    pub theirs: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}\n    ours:   {}\n    theirs: {}",
            self.place,
            text(self.ours.as_ref()),
            text(self.theirs.as_ref())
        )
    }
}

/// How a value is written in a report and in the table of accepted differences.
pub fn text(value: Option<&Value>) -> String {
    match value {
        None => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    }
}

/// All differences, in the order of the places.
pub fn differences(ours: &Value, theirs: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    walk("", Some(ours), Some(theirs), &mut found);
    found
}

fn walk(place: &str, ours: Option<&Value>, theirs: Option<&Value>, found: &mut Vec<Difference>) {
    match (ours, theirs) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let mut keys: Vec<&String> = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))).collect();
            keys.sort_unstable();
            for key in keys {
                let step = key.replace('~', "~0").replace('/', "~1");
                walk(&format!("{place}/{step}"), a.get(key), b.get(key), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) if a.len() != b.len() && named(a) && named(b) => {
            // One that is missing must not make all that follow it differ.
            for item in a {
                let other = b.iter().find(|other| name(other) == name(item));
                walk(&format!("{place}/{}", name(item)), Some(item), other, found);
            }
            for item in b.iter().filter(|item| !a.iter().any(|other| name(other) == name(item))) {
                walk(&format!("{place}/{}", name(item)), None, Some(item), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for index in 0..a.len().max(b.len()) {
                walk(&format!("{place}/{index}"), a.get(index), b.get(index), found);
            }
        }
        (a, b) if a == b => {}
        (a, b) => found.push(Difference {
            place: place.to_owned(),
            ours: a.cloned(),
            theirs: b.cloned(),
        }),
    }
}

fn name(item: &Value) -> &str {
    let name = item.get("name").or_else(|| item.pointer("/metadata/name"));
    name.or_else(|| item.get("resource"))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn named(items: &[Value]) -> bool {
    items.iter().all(|item| !name(item).is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn items_with_names_are_compared_by_them_where_one_is_missing() {
        let found = differences(&json!([{"name": "b"}]), &json!([{"name": "a"}, {"name": "b"}]));
        let places: Vec<&str> = found.iter().map(|difference| difference.place.as_str()).collect();
        assert_eq!(places, ["/a"]);
    }

    #[test]
    fn a_difference_is_told_at_its_own_place() {
        let found = differences(
            &json!({"a": [1, 2], "b": "x"}),
            &json!({"a": [1], "b": "y", "c/d": null}),
        );
        let places: Vec<&str> = found.iter().map(|difference| difference.place.as_str()).collect();
        assert_eq!(places, ["/a/1", "/b", "/c~1d"]);
    }
}
