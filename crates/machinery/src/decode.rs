//! JSON and YAML bodies to values, within bounds, with what strict field validation wants to know.
//!
//! Names are case-sensitive, the last of several equal names wins, numbers are whole within 64 bits and floating-point
//! beyond: as Kubernetes reads them. Deeper nesting than [`Limits::depth`], longer bodies than [`Limits::bytes`] and
//! YAML that multiplies itself by aliases are refused.

mod fields;
mod lenient;
mod strict;
mod value;

use std::fmt::Write as _;

use fields::FieldsSeed;
use serde::de::DeserializeSeed as _;
use serde_json::{Value, error::Category};
pub use strict::{FieldValidation, StrictError, StrictProblem};
use value::{Names, ValueSeed};

use crate::{field::Path, gvk::GroupVersionKind, status::ApiError};

/// How much a body may ask of the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The length of the body.
    pub bytes: usize,
    /// How deep lists and maps may nest; at most 127.
    pub depth: usize,
}

impl Default for Limits {
    /// What a Kubernetes API server takes: three mebibytes.
    fn default() -> Self {
        Limits {
            bytes: 3 * 1024 * 1024,
            depth: 120,
        }
    }
}

/// A value and the names that occurred in it more than once.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The value.
    pub value: Value,
    /// One problem for each repeated name, in the order of the text.
    pub duplicates: Vec<StrictProblem>,
}

/// A body that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The body is too long.
    #[error("request body is longer than {limit} bytes")]
    TooLong {
        /// [`Limits::bytes`]
        limit: usize,
    },
    /// It nests too deep.
    #[error("exceeded max depth of {limit}")]
    TooDeep {
        /// [`Limits::depth`]
        limit: usize,
    },
    /// It is not JSON. The words are Go's.
    #[error("{0}")]
    Json(String),
    /// It is not YAML, or too much of it.
    #[error("yaml: {0}")]
    Yaml(String),
}

/// Reads JSON, as leniently as Go does.
pub fn json(body: &[u8], limits: &Limits) -> Result<Decoded, DecodeError> {
    check_length(body, limits)?;
    match strictly(body, limits) {
        Err(DecodeError::Json(_)) if let Some(repaired) = lenient::repaired(body) => strictly(&repaired, limits),
        read => read,
    }
}

fn strictly(body: &[u8], limits: &Limits) -> Result<Decoded, DecodeError> {
    let mut duplicates = Vec::new();
    let mut reader = serde_json::Deserializer::from_slice(body);
    let seed = ValueSeed::new(&Path::OBJECT, limits.depth, Names::Plain, &mut duplicates);
    let value = seed
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value));
    match value {
        Ok(value) => Ok(Decoded { value, duplicates }),
        Err(error) if is_depth(&error.to_string()) => Err(DecodeError::TooDeep { limit: limits.depth }),
        Err(error) => Err(DecodeError::Json(go_words(&error, body))),
    }
}

/// Brings problems into the order in which what they are about stands in a JSON text, as a reader would meet them.
pub fn in_text_order(body: &[u8], problems: &mut [StrictProblem]) {
    let mut fields = Vec::new();
    let mut reader = serde_json::Deserializer::from_slice(body);
    // Where reading ends early, what was met until then is still in order.
    let _ = FieldsSeed::new(&Path::OBJECT, &mut fields).deserialize(&mut reader);
    let met = |path: &str, time: usize| {
        let mut times = fields.iter().enumerate().filter(|(_, field)| *field == path);
        times.nth(time).map_or(usize::MAX, |(place, _)| place)
    };
    problems.sort_by_cached_key(|problem| match problem {
        StrictProblem::UnknownField(path) => met(path, 0),
        StrictProblem::DuplicateField(path) | StrictProblem::DuplicatePatchField(path) => met(path, 1),
        StrictProblem::RepeatedName { .. } => 0,
    });
}

/// Reads one YAML document.
pub fn yaml(body: &[u8], limits: &Limits) -> Result<Decoded, DecodeError> {
    check_length(body, limits)?;
    let text = std::str::from_utf8(body).map_err(|_| DecodeError::Yaml("invalid UTF-8".to_owned()))?;
    let mut duplicates = Vec::new();
    let value = serde_saphyr::with_deserializer_from_str_with_options(text, yaml_options(limits), |reader| {
        ValueSeed::new(&Path::OBJECT, limits.depth, Names::Located, &mut duplicates).deserialize(reader)
    });
    match value {
        Ok(value) => Ok(Decoded { value, duplicates }),
        Err(error) => {
            let words = error.without_snippet().to_string();
            Err(if is_depth(&words) {
                DecodeError::TooDeep { limit: limits.depth }
            } else {
                DecodeError::Yaml(words)
            })
        }
    }
}

/// What a server answers to a body that is no object of any kind.
pub fn unrecognized(expected_kind: &str, why: impl std::fmt::Display, body: &[u8]) -> ApiError {
    ApiError::bad_request(format!(
        "the object provided is unrecognized (must be of type {expected_kind}): {why} ({})",
        summary(body)
    ))
}

/// Why the type of an object cannot be read, in Go's words: it is no object, or its type is no text. What does not name
/// its type at all is fine.
pub fn type_fault(object: &Value) -> Option<String> {
    let mismatch = |found: &Value, wanted: &str| {
        format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go {wanted}",
            json_type(found)
        )
    };
    let fields = match object {
        Value::Object(fields) => fields,
        Value::Null => return None,
        other => {
            return Some(mismatch(
                other,
                "value of type struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \
                 \"json:\\\"kind,omitempty\\\"\" }",
            ));
        }
    };
    for name in ["apiVersion", "kind"] {
        match fields.get(name) {
            None | Some(Value::Null | Value::String(_)) => {}
            Some(other) => return Some(mismatch(other, &format!("struct field .{name} of type string"))),
        }
    }
    let version = fields.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    (version.matches('/').count() > 1).then(|| format!("unexpected GroupVersion string: {version}"))
}

/// The word that Go's reader has for a kind of value.
pub fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// What a server answers to an object that says its kind but cannot be taken as it.
pub fn cannot_be_handled(given: &GroupVersionKind, expected_kind: &str, why: impl std::fmt::Display) -> ApiError {
    let version = crate::field::quote(&given.version);
    ApiError::bad_request(format!(
        "{} in version {version} cannot be handled as a {expected_kind}: {why}",
        given.kind
    ))
}

/// The beginning of a body, as text if it looks like JSON, else in hexadecimal digits.
fn summary(body: &[u8]) -> String {
    const LENGTH: usize = 30;
    let (start, more) = if body.len() > LENGTH {
        (&body[..LENGTH], " ...")
    } else {
        (body, "")
    };
    match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(start)),
        Some(_) => {
            let digits = start.iter().fold(String::new(), |mut digits, byte| {
                write!(digits, "{byte:02x}").expect("writing to a string cannot fail");
                digits
            });
            digits + more
        }
    }
}

fn check_length(body: &[u8], limits: &Limits) -> Result<(), DecodeError> {
    if body.len() > limits.bytes {
        Err(DecodeError::TooLong { limit: limits.bytes })
    } else {
        Ok(())
    }
}

fn is_depth(message: &str) -> bool {
    message.starts_with(value::TOO_DEEP) || message.starts_with("recursion limit exceeded")
}

fn yaml_options(limits: &Limits) -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: limits.depth,
            flow_nesting_limit: limits.depth,
            max_documents: 1,
            max_total_scalar_bytes: limits.bytes,
            max_recorded_anchor_bytes: limits.bytes,
            // No node is written in less than a byte; an alias, however, writes many.
            max_nodes: limits.bytes,
            max_events: limits.bytes * 2,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 100_000,
            max_replay_stack_depth: limits.depth,
        },
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
        legacy_octal_numbers: true,
        with_snippet: false,
    }
}

/// The message Go's reader has for the same mistake, where there is one.
fn go_words(error: &serde_json::Error, body: &[u8]) -> String {
    if error.classify() == Category::Eof {
        return "unexpected end of JSON input".to_owned();
    }
    let message = error.to_string();
    let place = [
        ("expected value", "looking for beginning of value"),
        ("expected ident", "in literal"),
        ("expected `,` or `}`", "after object key:value pair"),
        ("expected `,` or `]`", "after array element"),
        ("expected `:`", "after object key"),
        ("key must be a string", "looking for beginning of object key string"),
        ("trailing comma", "looking for beginning of object key string"),
        ("trailing characters", "after top-level value"),
        ("control character", "in string literal"),
        ("invalid escape", "in string escape code"),
        ("invalid number", "in numeric literal"),
    ];
    let place = place.iter().find(|(ours, _)| message.starts_with(ours));
    match (place, character_at(body, error.line(), error.column())) {
        (Some((_, place)), Some(character)) => format!("invalid character {} {place}", go_character(character)),
        _ => message,
    }
}

/// What a reader stopped at. Go goes by bytes, not by characters.
fn character_at(body: &[u8], line: usize, column: usize) -> Option<char> {
    let line = body.split(|byte| *byte == b'\n').nth(line.checked_sub(1)?)?;
    line.get(column.checked_sub(1)?).map(|byte| char::from(*byte))
}

fn go_character(character: char) -> String {
    match character {
        '\'' => r"'\''".to_owned(),
        '"' => "'\"'".to_owned(),
        _ => format!("'{}'", crate::field::quote(&character.to_string()).trim_matches('"')),
    }
}

#[cfg(test)]
mod tests;
