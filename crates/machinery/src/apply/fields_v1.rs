//! `fieldsV1`, the form in which sets of fields travel and are stored.
//!
//! A set is an object whose keys are path elements. An empty object under a key is a member; an object with keys is a
//! member too if `.` is among them.

use serde_json::{Map, Value};

use super::element::{ElementError, PathElement};
use super::set::FieldSet;

impl FieldSet {
    /// Reads a `fieldsV1` value. Kinds of elements that are not known are left out.
    pub fn from_fields_v1(json: &Value) -> Result<Self, ElementError> {
        let mut set = Self::new();
        let Some(map) = json.as_object() else { return Ok(set) };
        for (key, value) in map {
            if key == "." {
                continue;
            }
            let Some(element) = PathElement::parse(key)? else {
                continue;
            };
            let below = Self::from_fields_v1(value)?;
            let member = below.is_empty() || value.get(".").is_some();
            set.push(element, member, below);
        }
        Ok(set)
    }

    /// The set as a `fieldsV1` value.
    pub fn to_fields_v1(&self) -> Value {
        let mut map = Map::new();
        for entry in self.entries() {
            let mut below = entry.below.to_fields_v1();
            if entry.member && !entry.below.is_empty() {
                below["."] = Value::Object(Map::new());
            }
            map.insert(entry.element.to_wire(), below);
        }
        Value::Object(map)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::FieldSet;

    #[test]
    fn sets_read_and_write_the_stored_form() {
        let json = json!({"f:spec": {
            "f:replicas": {},
            "f:labels": {".": {}, "f:app": {}},
            "f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:image": {}}},
            "f:finalizers": {"v:\"x\"": {}},
        }});
        let set = FieldSet::from_fields_v1(&json).unwrap();
        assert_eq!(set.len(), 6);
        assert_eq!(set.to_fields_v1(), json);
    }

    #[test]
    fn unknown_elements_are_left_out_and_broken_ones_refused() {
        let set = FieldSet::from_fields_v1(&json!({"z:new": {"f:a": {}}, "f:b": {}})).unwrap();
        assert_eq!(set, FieldSet::of_fields(["b"]));
        assert!(FieldSet::from_fields_v1(&json!({"broken": {}})).is_err());
    }
}
