//! What is wrong with which field of an object.
//!
//! A [`Path`] is a chain of borrowed segments, so walking an object costs nothing; it becomes text only when there is
//! something to report. A [`FieldError`] prints as Kubernetes prints it, and its [`ErrorKind`] is the `reason` of a
//! cause in a `Status`.

use std::fmt::{self, Write as _};

use serde_json::{Number, Value};

/// Where in an object a value stands, as a chain to the root kept on the caller's stack.
///
/// ```
/// use moorline_machinery::field::Path;
/// let root = Path::root("spec");
/// let containers = root.child("containers");
/// let second = containers.index(1);
/// assert_eq!(second.child("image").to_string(), "spec.containers[1].image");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    segment: Segment<'a>,
}

/// One step of a [`Path`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment<'a> {
    /// The object itself; takes no room in the text.
    Object,
    /// A named field.
    Field(&'a str),
    /// An element of a list.
    Index(usize),
    /// An entry of a map.
    Key(&'a str),
}

impl<'a> Path<'a> {
    /// The whole object: children print without a leading dot, and the path itself as `<nil>`, as in Kubernetes.
    pub const OBJECT: Path<'static> = Path {
        parent: None,
        segment: Segment::Object,
    };

    /// A top-level field.
    pub const fn root(field: &'a str) -> Self {
        Path {
            parent: None,
            segment: Segment::Field(field),
        }
    }

    /// A field of the value at this path.
    #[must_use]
    pub const fn child(&'a self, field: &'a str) -> Self {
        Path {
            parent: Some(self),
            segment: Segment::Field(field),
        }
    }

    /// An element of the list at this path.
    #[must_use]
    pub const fn index(&'a self, index: usize) -> Self {
        Path {
            parent: Some(self),
            segment: Segment::Index(index),
        }
    }

    /// An entry of the map at this path.
    #[must_use]
    pub const fn key(&'a self, key: &'a str) -> Self {
        Path {
            parent: Some(self),
            segment: Segment::Key(key),
        }
    }

    /// The path one step up.
    pub const fn parent(&self) -> Option<&'a Path<'a>> {
        self.parent
    }

    /// The last step.
    pub const fn segment(&self) -> Segment<'a> {
        self.segment
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.write(f)?;
        }
        match self.segment {
            Segment::Object => Ok(()),
            Segment::Field(name) => {
                if self.parent.is_some_and(|parent| parent.segment != Segment::Object) {
                    f.write_char('.')?;
                }
                f.write_str(name)
            }
            Segment::Index(index) => write!(f, "[{index}]"),
            Segment::Key(key) => write!(f, "[{key}]"),
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.parent.is_none() && self.segment == Segment::Object {
            f.write_str("<nil>")
        } else {
            self.write(f)
        }
    }
}

/// In which way a value is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The value names something that is not there.
    NotFound,
    /// A value must be given.
    Required,
    /// The value must be unique among its siblings and is not.
    Duplicate,
    /// The value breaks a rule.
    Invalid,
    /// The value has the wrong JSON type.
    TypeInvalid,
    /// The value is not one of the allowed ones.
    NotSupported,
    /// The value may not be set here.
    Forbidden,
    /// The value is longer than allowed.
    TooLong,
    /// The value is shorter than allowed.
    TooShort,
    /// The list or map has more entries than allowed.
    TooMany,
    /// The list or map has fewer entries than allowed.
    TooFew,
    /// The check itself failed.
    Internal,
}

impl ErrorKind {
    /// The `reason` of the cause in a `Status`.
    pub const fn reason(self) -> &'static str {
        match self {
            ErrorKind::NotFound => "FieldValueNotFound",
            ErrorKind::Required => "FieldValueRequired",
            ErrorKind::Duplicate => "FieldValueDuplicate",
            ErrorKind::Invalid => "FieldValueInvalid",
            ErrorKind::TypeInvalid => "FieldValueTypeInvalid",
            ErrorKind::NotSupported => "FieldValueNotSupported",
            ErrorKind::Forbidden => "FieldValueForbidden",
            ErrorKind::TooLong => "FieldValueTooLong",
            ErrorKind::TooShort => "FieldValueTooShort",
            ErrorKind::TooMany => "FieldValueTooMany",
            ErrorKind::TooFew => "FieldValueTooFew",
            ErrorKind::Internal => "InternalError",
        }
    }

    const fn words(self) -> &'static str {
        match self {
            ErrorKind::NotFound => "Not found",
            ErrorKind::Required => "Required value",
            ErrorKind::Duplicate => "Duplicate value",
            ErrorKind::Invalid | ErrorKind::TypeInvalid => "Invalid value",
            ErrorKind::NotSupported => "Unsupported value",
            ErrorKind::Forbidden => "Forbidden",
            ErrorKind::TooLong => "Too long",
            ErrorKind::TooShort => "Too short",
            ErrorKind::TooMany => "Too many",
            ErrorKind::TooFew => "Too few",
            ErrorKind::Internal => "Internal error",
        }
    }

    const fn shows_value(self) -> bool {
        !matches!(
            self,
            ErrorKind::Required | ErrorKind::Forbidden | ErrorKind::TooLong | ErrorKind::TooShort | ErrorKind::Internal
        )
    }
}

/// One thing that is wrong with one field.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{field}: {}", self.body())]
pub struct FieldError {
    /// In which way.
    pub kind: ErrorKind,
    /// The path as text.
    pub field: String,
    /// The offending value, where showing it helps. `None` leaves it out of the text.
    pub value: Option<Value>,
    /// What would be right, or why it is wrong; may be empty.
    pub detail: String,
}

impl FieldError {
    fn new(kind: ErrorKind, path: &Path<'_>, value: Option<Value>, detail: impl Into<String>) -> Self {
        FieldError {
            kind,
            field: path.to_string(),
            value,
            detail: detail.into(),
        }
    }

    /// A reference to something that does not exist.
    pub fn not_found(path: &Path<'_>, value: impl Into<Value>) -> Self {
        Self::new(ErrorKind::NotFound, path, Some(value.into()), "")
    }

    /// A missing value.
    pub fn required(path: &Path<'_>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Required, path, None, detail)
    }

    /// A value that must be unique and is not.
    pub fn duplicate(path: &Path<'_>, value: impl Into<Value>) -> Self {
        Self::new(ErrorKind::Duplicate, path, Some(value.into()), "")
    }

    /// A value that breaks the rule told in `detail`.
    pub fn invalid(path: &Path<'_>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, path, Some(value.into()), detail)
    }

    /// A value of the wrong JSON type.
    pub fn type_invalid(path: &Path<'_>, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::TypeInvalid, path, Some(value.into()), detail)
    }

    /// A value outside of the enumerated ones. `supported` is listed in the order given.
    pub fn not_supported<S: AsRef<str>>(
        path: &Path<'_>,
        value: impl Into<Value>,
        supported: impl IntoIterator<Item = S>,
    ) -> Self {
        let mut detail = String::new();
        for value in supported {
            detail.push_str(if detail.is_empty() { "supported values: " } else { ", " });
            detail.push_str(&quote(value.as_ref()));
        }
        Self::new(ErrorKind::NotSupported, path, Some(value.into()), detail)
    }

    /// A value that may not be set here.
    pub fn forbidden(path: &Path<'_>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Forbidden, path, None, detail)
    }

    /// Text longer than `max` bytes. The text itself is never shown.
    pub fn too_long(path: &Path<'_>, max: usize) -> Self {
        let unit = if max == 1 { "byte" } else { "bytes" };
        Self::new(
            ErrorKind::TooLong,
            path,
            None,
            format!("may not be more than {max} {unit}"),
        )
    }

    /// A list or map of `actual` entries where at most `max` are allowed.
    pub fn too_many(path: &Path<'_>, actual: usize, max: usize) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        Self::new(
            ErrorKind::TooMany,
            path,
            Some(actual.into()),
            format!("must have at most {max} {unit}"),
        )
    }

    /// The check itself failed.
    pub fn internal(path: &Path<'_>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, path, None, detail)
    }

    /// The text without the field: the `message` of a cause in a `Status`.
    pub fn body(&self) -> String {
        let mut text = self.kind.words().to_owned();
        if self.kind.shows_value()
            && let Some(value) = &self.value
        {
            text.push_str(": ");
            match value {
                Value::String(string) => text.push_str(&quote(string)),
                Value::Number(number) => text.push_str(&number_text(number)),
                other => text.push_str(&other.to_string()),
            }
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

/// Several errors as one text: bare when there is one, bracketed and without repetitions when there are more.
pub fn aggregate(errors: &[FieldError]) -> String {
    let mut seen: Vec<String> = Vec::with_capacity(errors.len());
    for error in errors {
        let text = error.to_string();
        if !seen.contains(&text) {
            seen.push(text);
        }
    }
    if seen.len() == 1 {
        seen.remove(0)
    } else {
        format!("[{}]", seen.join(", "))
    }
}

/// Text in double quotes, escaped as Go's `%q` does, which is what Kubernetes' messages carry.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            ' '..='~' => quoted.push(character),
            '\0'..='\u{7f}' => write_escape(&mut quoted, 'x', 2, character),
            _ if prints(character) => quoted.push(character),
            '\0'..='\u{ffff}' => write_escape(&mut quoted, 'u', 4, character),
            _ => write_escape(&mut quoted, 'U', 8, character),
        }
    }
    quoted.push('"');
    quoted
}

/// Whether Go takes a character outside of ASCII to be printable. The standard library knows that through its own
/// escaping only, which hides combining marks at the start of text; hence the letter before it.
fn prints(character: char) -> bool {
    !character.is_whitespace() && format!("a{character}").escape_debug().count() == 2
}

fn write_escape(into: &mut String, letter: char, width: usize, character: char) {
    write!(into, "\\{letter}{:0width$x}", u32::from(character)).expect("writing to a string cannot fail");
}

/// A number as Go prints it with `%v`: floats in the shortest form, with an exponent from 10^6 on or below 10^-4.
pub fn number_text(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => float_text(float),
        _ => number.to_string(),
    }
}

fn float_text(float: f64) -> String {
    let scientific = format!("{float:e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("the e format always has an exponent");
    let exponent: i32 = exponent.parse().expect("the e format has a whole exponent");
    if (-4..6).contains(&exponent) {
        return format!("{float}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_prints_dots_indexes_and_keys() {
        let metadata = Path::root("metadata");
        let labels = metadata.child("labels");
        assert_eq!(labels.key("a/b").to_string(), "metadata.labels[a/b]");
        let list = Path::OBJECT.child("items");
        assert_eq!(list.index(0).child("name").to_string(), "items[0].name");
        assert_eq!(Path::OBJECT.to_string(), "<nil>");
    }

    #[test]
    fn errors_read_as_kubernetes_writes_them() {
        let path = Path::root("spec");
        let path = path.child("replicas");
        let cases = [
            (FieldError::required(&path, ""), "spec.replicas: Required value"),
            (
                FieldError::required(&path, "say how many"),
                "spec.replicas: Required value: say how many",
            ),
            (
                FieldError::invalid(&path, "A", "must be small"),
                "spec.replicas: Invalid value: \"A\": must be small",
            ),
            (
                FieldError::invalid(&path, -1, "must be positive"),
                "spec.replicas: Invalid value: -1: must be positive",
            ),
            (FieldError::invalid(&path, 1.5, ""), "spec.replicas: Invalid value: 1.5"),
            (
                FieldError::type_invalid(&path, json!({"a": 1}), "no"),
                "spec.replicas: Invalid value: {\"a\":1}: no",
            ),
            (
                FieldError::not_supported(&path, "x", ["a", "b"]),
                "spec.replicas: Unsupported value: \"x\": supported values: \"a\", \"b\"",
            ),
            (
                FieldError::duplicate(&path, "x"),
                "spec.replicas: Duplicate value: \"x\"",
            ),
            (FieldError::not_found(&path, "x"), "spec.replicas: Not found: \"x\""),
            (
                FieldError::forbidden(&path, "not here"),
                "spec.replicas: Forbidden: not here",
            ),
            (
                FieldError::too_long(&path, 63),
                "spec.replicas: Too long: may not be more than 63 bytes",
            ),
            (
                FieldError::too_many(&path, 3, 1),
                "spec.replicas: Too many: 3: must have at most 1 item",
            ),
            (
                FieldError::internal(&path, "broken"),
                "spec.replicas: Internal error: broken",
            ),
        ];
        for (error, text) in cases {
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn an_aggregate_has_brackets_only_for_several_and_says_nothing_twice() {
        let path = Path::root("a");
        let one = FieldError::required(&path, "");
        let two = FieldError::invalid(&path, 1, "no");
        assert_eq!(aggregate(&[one.clone(), one.clone()]), "a: Required value");
        assert_eq!(aggregate(&[one, two]), "[a: Required value, a: Invalid value: 1: no]");
    }

    #[test]
    fn quoting_follows_go() {
        for (text, quoted) in [
            ("a\"b\\", r#""a\"b\\""#),
            ("\u{0}\u{7f}\n\t\u{7}", r#""\x00\x7f\n\t\a""#),
            ("Māori", "\"Māori\""),
            ("e\u{301}\u{200b}\u{ad}\u{a0}", "\"e\u{301}\\u200b\\u00ad\\u00a0\""),
            ("\u{e0001}", r#""\U000e0001""#),
        ] {
            assert_eq!(quote(text), quoted);
        }
    }

    #[test]
    fn floats_take_an_exponent_only_when_far_from_one() {
        for (float, text) in [(1.0, "1"), (123_456.5, "123456.5"), (1e6, "1e+06"), (1.5e-7, "1.5e-07")] {
            assert_eq!(float_text(float), text);
        }
    }
}
