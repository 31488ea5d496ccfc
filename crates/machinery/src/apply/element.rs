//! One step of a path to a field: its name, the key of an item, a value in a set, or an index.

use std::cmp::Ordering;
use std::fmt;

use serde_json::{Map, Number, Value};

/// A step from a value to one of its parts. The order is that of the wire: fields, then keys, values and indexes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathElement {
    /// A field of an object or a key of a map, `f:name`.
    Field(Box<str>),
    /// The item of a list that has these values in its key fields, `k:{"name":"x"}`. Sorted by field.
    Key(Box<[(Box<str>, Scalar)]>),
    /// The item of a set that is this value, `v:"x"`.
    Value(Scalar),
    /// The item of a list at this place, `i:3`. Read, but never made: atomic lists are owned as a whole.
    Index(i64),
}

/// A value that can identify an item.
#[derive(Clone, Debug)]
pub enum Scalar {
    /// A whole number.
    Int(i64),
    /// Any other number; never NaN, which JSON does not know.
    Float(f64),
    /// Text.
    Text(Box<str>),
    /// A truth value.
    Bool(bool),
    /// Null, which identifies an item whose key field is null.
    Null,
    /// A list or object, as compact JSON: what others wrote is kept, even if nothing of ours has such keys.
    Json(Box<str>),
}

impl Scalar {
    /// The scalar that a JSON value is.
    pub fn new(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(bool) => Self::Bool(*bool),
            Value::Number(number) => number
                .as_i64()
                .map_or_else(|| Self::Float(number.as_f64().unwrap_or_default()), Self::Int),
            Value::String(text) => Self::Text(text.as_str().into()),
            other => Self::Json(other.to_string().into()),
        }
    }

    /// The JSON value of the scalar.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Int(int) => Value::from(*int),
            Self::Float(float) => Number::from_f64(*float).map_or(Value::Null, Value::Number),
            Self::Text(text) => Value::from(&**text),
            Self::Bool(bool) => Value::from(*bool),
            Self::Null => Value::Null,
            Self::Json(json) => serde_json::from_str(json).unwrap_or_default(),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Int(_) | Self::Float(_) => 0,
            Self::Text(_) => 1,
            Self::Bool(_) => 2,
            Self::Json(_) => 3,
            Self::Null => 4,
        }
    }
}

impl Ord for Scalar {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => a.cmp(b),
            (Self::Int(a), Self::Float(b)) => (*a as f64).total_cmp(b),
            (Self::Float(a), Self::Int(b)) => a.total_cmp(&(*b as f64)),
            (Self::Float(a), Self::Float(b)) => a.total_cmp(b),
            (Self::Text(a), Self::Text(b)) | (Self::Json(a), Self::Json(b)) => a.cmp(b),
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for Scalar {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scalar {}

/// Why a key of `fieldsV1` is no path element.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parsing {0:?} as path element")]
pub struct ElementError(String);

impl PathElement {
    /// A field.
    pub fn field(name: &str) -> Self {
        Self::Field(name.into())
    }

    /// Reads `f:name`, `k:{...}`, `v:...` or `i:...`. `None` stands for a kind of element that is not known, which
    /// readers skip.
    pub fn parse(text: &str) -> Result<Option<Self>, ElementError> {
        let wrong = || ElementError(text.to_owned());
        let (kind, rest) = text
            .split_once(':')
            .filter(|(kind, _)| kind.len() == 1)
            .ok_or_else(wrong)?;
        Ok(Some(match kind {
            "f" => Self::field(rest),
            "v" => Self::Value(Scalar::new(&serde_json::from_str(rest).map_err(|_| wrong())?)),
            "i" => Self::Index(rest.parse().map_err(|_| wrong())?),
            "k" => {
                let fields: Map<String, Value> = serde_json::from_str(rest).map_err(|_| wrong())?;
                Self::Key(
                    fields
                        .iter()
                        .map(|(name, value)| (name.as_str().into(), Scalar::new(value)))
                        .collect(),
                )
            }
            _ => return Ok(None),
        }))
    }

    /// The element as it stands in `fieldsV1`.
    pub fn to_wire(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(fields) => {
                let fields: Map<_, _> = fields
                    .iter()
                    .map(|(name, value)| (name.to_string(), value.to_json()))
                    .collect();
                format!("k:{}", Value::Object(fields))
            }
            Self::Value(value) => format!("v:{}", value.to_json()),
            Self::Index(index) => format!("i:{index}"),
        }
    }
}

/// As messages show it: `.name`, `[name="x"]`, `[="x"]`, `[3]`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                f.write_str("[")?;
                for (index, (name, value)) in fields.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    write!(f, "{comma}{name}={}", value.to_json())?;
                }
                f.write_str("]")
            }
            Self::Value(value) => write!(f, "[={}]", value.to_json()),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PathElement;

    #[test]
    fn elements_read_and_write_the_wire_form() {
        for (wire, shown) in [
            ("f:spec", ".spec"),
            ("f:a:b/c", ".a:b/c"),
            (r#"k:{"name":"x"}"#, r#"[name="x"]"#),
            (
                r#"k:{"containerPort":80,"protocol":"TCP"}"#,
                r#"[containerPort=80,protocol="TCP"]"#,
            ),
            (r#"v:"a\"b""#, r#"[="a\"b"]"#),
            ("v:1.5", "[=1.5]"),
            ("v:true", "[=true]"),
            ("v:null", "[=null]"),
            ("i:3", "[3]"),
        ] {
            let element = PathElement::parse(wire).unwrap().unwrap();
            assert_eq!(element.to_wire(), wire);
            assert_eq!(element.to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_element_is_refused_and_what_is_unknown_is_skipped() {
        for wrong in ["", "f", "spec", "v:", "i:x", "k:[]", "k:{", "xx:y"] {
            assert!(PathElement::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(PathElement::parse("z:new"), Ok(None));
    }

    #[test]
    fn whole_floats_and_integers_are_the_same_value() {
        let parse = |wire: &str| PathElement::parse(wire).unwrap().unwrap();
        assert_eq!(parse("v:1"), parse("v:1.0"));
        assert!(parse("v:2") < parse("v:10"));
        assert!(parse("f:z") < parse(r#"k:{"a":1}"#));
    }
}
