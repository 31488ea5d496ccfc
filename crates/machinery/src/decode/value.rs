//! Building a value while looking for repeated names.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

use super::StrictProblem;
use crate::field::Path;

/// How the error begins that depth ends in; readers pass messages through, not types.
pub(super) const TOO_DEEP: &str = "nested too deep";

/// Reads the value at a path.
pub(super) struct ValueSeed<'a, 'd> {
    path: &'a Path<'a>,
    /// How many more lists and maps may open.
    depth: usize,
    names: Names,
    duplicates: &'d mut Vec<StrictProblem>,
}

/// How the names of map entries are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    /// As they are.
    Plain,
    /// With the line that they stand in, which readers of YAML tell.
    Located,
}

impl<'a, 'd> ValueSeed<'a, 'd> {
    pub(super) fn new(path: &'a Path<'a>, depth: usize, names: Names, duplicates: &'d mut Vec<StrictProblem>) -> Self {
        ValueSeed {
            path,
            depth,
            names,
            duplicates,
        }
    }

    fn deeper<E: Error>(&self) -> Result<usize, E> {
        self.depth.checked_sub(1).ok_or_else(|| E::custom(TOO_DEEP))
    }
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        i64::try_from(value).map_or_else(|_| float(value as f64), |value| Ok(value.into()))
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<Value, E> {
        i64::try_from(value).map_or_else(|_| float(value as f64), |value| Ok(value.into()))
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<Value, E> {
        i64::try_from(value).map_or_else(|_| float(value as f64), |value| Ok(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        float(value)
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let mut items = Vec::new();
        loop {
            let path = self.path.index(items.len());
            match sequence.next_element_seed(ValueSeed::new(&path, depth, self.names, self.duplicates))? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let depth = self.deeper()?;
        let mut entries = Map::new();
        while let Some((name, line)) = self.names.next(&mut map)? {
            let path = self.path.child(&name);
            if entries.contains_key(&name) {
                self.duplicates.push(match line {
                    None => StrictProblem::DuplicateField(path.to_string()),
                    Some(line) => StrictProblem::RepeatedName {
                        line,
                        name: name.clone(),
                    },
                });
            }
            let value = map.next_value_seed(ValueSeed::new(&path, depth, self.names, self.duplicates))?;
            entries.insert(name, value);
        }
        Ok(Value::Object(entries))
    }
}

/// A floating-point number, or the whole one that Go reads where a zero has a sign.
fn float<E: Error>(value: f64) -> Result<Value, E> {
    if value == 0.0 {
        return Ok(if value.is_sign_negative() { 0.into() } else { 0.0.into() });
    }
    Number::from_f64(value)
        .map(Value::Number)
        .ok_or_else(|| E::custom("number is not finite"))
}

impl Names {
    /// The next name of a map, with its line if that is wanted.
    fn next<'de, A: MapAccess<'de>>(self, map: &mut A) -> Result<Option<(String, Option<u64>)>, A::Error> {
        Ok(match self {
            Names::Plain => map.next_key()?.map(|Name(name)| (name, None)),
            Names::Located => {
                let name: Option<Spanned<Name>> = map.next_key()?;
                name.map(|name| (name.value.0, Some(name.referenced.line())))
            }
        })
    }
}

/// The name of a map entry. YAML has others than text; they are named by how they are written.
struct Name(String);

impl<'de> serde::Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_string(NameVisitor)
    }
}

struct NameVisitor;

impl Visitor<'_> for NameVisitor {
    type Value = Name;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Name, E> {
        Ok(Name(name.to_owned()))
    }

    fn visit_string<E>(self, name: String) -> Result<Name, E> {
        Ok(Name(name))
    }
}
