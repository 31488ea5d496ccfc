//! From JSON to CEL values, as the schema sees them.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::{Key, Map};
use serde_json::Value;

use crate::schema::node::{Additional, Place, Type};

/// The CEL value of `value`: numbers by the type of the schema, times and bytes by its format, names of fields escaped
/// and keys of maps as they are. Without a schema everything is taken as it looks.
pub(super) fn to_cel(value: &Value, place: Option<Place<'_>>) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(bool) => Cel::Bool(*bool),
        Value::Number(number) => {
            let float = number.as_f64().unwrap_or(f64::NAN);
            match place.and_then(|place| place.node.kind) {
                Some(Type::Number) => Cel::Float(float),
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "a whole number that the schema calls an integer"
                )]
                Some(Type::Integer) => Cel::Int(number.as_i64().unwrap_or(float as i64)),
                _ => number.as_i64().map_or(Cel::Float(float), Cel::Int),
            }
        }
        Value::String(text) => text_to_cel(text, place),
        Value::Array(items) => {
            let inside = place.and_then(Place::items);
            Cel::List(Arc::new(items.iter().map(|item| to_cel(item, inside)).collect()))
        }
        Value::Object(map) => {
            let is_map = place.is_none_or(|place| !matches!(place.node.additional, Additional::Unspecified));
            let mut out = HashMap::with_capacity(map.len());
            for (key, value) in map {
                let name = if is_map { key.clone() } else { escaped(key) };
                let child = place.and_then(|place| place.child(key));
                out.insert(Key::String(Arc::new(name)), to_cel(value, child));
            }
            Cel::Map(Map { map: Arc::new(out) })
        }
    }
}

/// The JSON of a value, or why it has none.
pub(super) fn from_cel(value: &Cel) -> Result<Value, String> {
    Ok(match value {
        Cel::Null => Value::Null,
        Cel::Bool(bool) => (*bool).into(),
        Cel::Int(number) => (*number).into(),
        Cel::UInt(number) => (*number).into(),
        Cel::Float(number) => (*number).into(),
        Cel::String(text) => text.as_str().into(),
        Cel::Bytes(bytes) => base64::engine::general_purpose::STANDARD.encode(&**bytes).into(),
        Cel::Timestamp(time) => time.to_rfc3339().into(),
        Cel::List(items) => Value::Array(items.iter().map(from_cel).collect::<Result<_, _>>()?),
        Cel::Map(map) => {
            let entries = map.map.iter().map(|(key, value)| {
                let name = match key {
                    Key::String(name) => name.to_string(),
                    Key::Int(number) => number.to_string(),
                    Key::Uint(number) => number.to_string(),
                    Key::Bool(bool) => bool.to_string(),
                };
                Ok((name, from_cel(value)?))
            });
            Value::Object(entries.collect::<Result<_, String>>()?)
        }
        other => return Err(format!("a {} has no JSON", other.type_of())),
    })
}

fn text_to_cel(text: &str, place: Option<Place<'_>>) -> Cel {
    let format = place
        .and_then(|place| place.node.checks.as_deref())
        .and_then(|checks| checks.format.as_deref());
    let typed = match format {
        Some("date-time" | "datetime") => chrono::DateTime::parse_from_rfc3339(text).ok().map(Cel::Timestamp),
        Some("date") => chrono::NaiveDate::parse_from_str(text, "%Y-%m-%d")
            .ok()
            .and_then(|date| date.and_hms_opt(0, 0, 0))
            .map(|time| Cel::Timestamp(time.and_utc().fixed_offset())),
        Some("duration") => duration(text).map(Cel::Duration),
        Some("byte") => base64::engine::general_purpose::STANDARD
            .decode(text)
            .ok()
            .map(|bytes| Cel::Bytes(Arc::new(bytes))),
        _ => None,
    };
    typed.unwrap_or_else(|| Cel::String(Arc::new(text.to_owned())))
}

/// `1h30m`, `1.5s`, `-3ms`.
fn duration(text: &str) -> Option<chrono::Duration> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(chrono::Duration::zero());
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let unit = rest[number..]
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .map_or(rest.len(), |at| number + at);
        let scale = match &rest[number..unit] {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 6e10,
            "h" => 3.6e12,
            _ => return None,
        };
        total += rest[..number].parse::<f64>().ok()? * scale;
        rest = &rest[unit..];
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "durations that overflow are as good as infinite"
    )]
    let nanoseconds = total.round() as i64;
    Some(chrono::Duration::nanoseconds(if negative {
        -nanoseconds
    } else {
        nanoseconds
    }))
}

const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The CEL identifier that stands for a field.
pub(super) fn escaped(name: &str) -> String {
    if RESERVED.contains(&name) {
        return format!("__{name}__");
    }
    if !name.contains(['.', '-', '/']) && !name.contains("__") {
        return name.to_owned();
    }
    name.replace("__", "__underscores__")
        .replace('.', "__dot__")
        .replace('-', "__dash__")
        .replace('/', "__slash__")
}
