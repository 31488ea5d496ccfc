//! The part of Kubernetes' `JSONPath` that columns of custom kinds are written in.
//!
//! ```text
//!   .spec.replicas                                     fields, with `\.` for a dot in a name
//!   .metadata.labels['example.com/app']                names in quotes
//!   .spec.ports[0].port   .items[-1]   .items[*].name  elements
//!   .status.conditions[?(@.type=="Ready")].status      elements for which something holds
//! ```
//!
//! RFC 9535 differs where it hurts: it has no escaped dots and no paths without a `$`, and these stand in published
//! definitions.

use std::{cmp::Ordering, str::FromStr};

use serde_json::Value;

/// A path that has been read.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

/// A path that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unrecognized column definition {}", crate::field::quote(.0))]
pub struct ParseJsonPathError(String);

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    /// From the end where negative.
    Index(i64),
    All,
    Filter(Box<Filter>),
}

#[derive(Debug, Clone, PartialEq)]
struct Filter {
    path: JsonPath,
    /// Without one, being there is enough.
    test: Option<(Comparison, Value)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl JsonPath {
    /// The first value at the path.
    pub fn first<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        first(&self.steps, value)
    }
}

fn first<'a>(steps: &[Step], value: &'a Value) -> Option<&'a Value> {
    let Some((step, rest)) = steps.split_first() else {
        return Some(value);
    };
    match step {
        Step::Field(name) => first(rest, value.get(name)?),
        Step::Index(index) => {
            let items = value.as_array()?;
            let index = if *index < 0 {
                index + i64::try_from(items.len()).ok()?
            } else {
                *index
            };
            first(rest, items.get(usize::try_from(index).ok()?)?)
        }
        Step::All => match value {
            Value::Array(items) => items.iter().find_map(|item| first(rest, item)),
            Value::Object(entries) => entries.values().find_map(|entry| first(rest, entry)),
            _ => None,
        },
        Step::Filter(filter) => value
            .as_array()?
            .iter()
            .filter(|item| filter.holds(item))
            .find_map(|item| first(rest, item)),
    }
}

impl Filter {
    fn holds(&self, item: &Value) -> bool {
        let found = self.path.first(item);
        let Some((comparison, wanted)) = &self.test else {
            return found.is_some();
        };
        let Some(order) = found.and_then(|found| compare(found, wanted)) else {
            return false;
        };
        match comparison {
            Comparison::Equal => order == Ordering::Equal,
            Comparison::NotEqual => order != Ordering::Equal,
            Comparison::Less => order == Ordering::Less,
            Comparison::LessOrEqual => order != Ordering::Greater,
            Comparison::Greater => order == Ordering::Greater,
            Comparison::GreaterOrEqual => order != Ordering::Less,
        }
    }
}

/// Values of different types do not compare.
fn compare(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
        (Value::Number(left), Value::Number(right)) => left.as_f64()?.partial_cmp(&right.as_f64()?),
        (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
        _ => None,
    }
}

impl FromStr for JsonPath {
    type Err = ParseJsonPathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseJsonPathError(text.to_owned());
        let path = text
            .strip_prefix('{')
            .and_then(|text| text.strip_suffix('}'))
            .unwrap_or(text);
        let mut rest = path.trim();
        rest = rest.strip_prefix('$').unwrap_or(rest);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            let (step, after) = step(rest).ok_or_else(wrong)?;
            steps.extend(step);
            rest = after;
        }
        Ok(JsonPath { steps })
    }
}

/// The first step of a path, if it is one, and the rest.
fn step(text: &str) -> Option<(Option<Step>, &str)> {
    if let Some(inside) = text.strip_prefix('[') {
        return bracket(inside).map(|(step, rest)| (Some(step), rest));
    }
    let text = text.strip_prefix('.')?;
    if let Some(rest) = text.strip_prefix('*') {
        return Some((Some(Step::All), rest));
    }
    let (mut name, mut escaped, mut end) = (String::new(), false, text.len());
    for (at, character) in text.char_indices() {
        match character {
            '\\' if !escaped => {
                escaped = true;
                continue;
            }
            '.' | '[' if !escaped => {
                end = at;
                break;
            }
            // A path ends where one of these could only belong to something that is not supported.
            ' ' | '(' | ')' | '|' | '{' | '}' if !escaped => return None,
            _ => name.push(character),
        }
        escaped = false;
    }
    let rest = &text[end..];
    match (name.is_empty(), rest) {
        (false, _) => Some((Some(Step::Field(name)), rest)),
        // A dot before a bracket, or the object itself.
        (true, rest) if rest.is_empty() || rest.starts_with('[') => Some((None, rest)),
        (true, _) => None,
    }
}

fn bracket(inside: &str) -> Option<(Step, &str)> {
    if let Some(filter) = inside.strip_prefix("?(") {
        let end = unquoted(filter, ")]")?;
        return Some((Step::Filter(Box::new(read_filter(&filter[..end])?)), &filter[end + 2..]));
    }
    let end = unquoted(inside, "]")?;
    let (content, rest) = (inside[..end].trim(), &inside[end + 1..]);
    let step = match content {
        "*" => Step::All,
        _ => match unquote(content) {
            Some(name) => Step::Field(name),
            None => Step::Index(content.parse().ok()?),
        },
    };
    Some((step, rest))
}

fn read_filter(text: &str) -> Option<Filter> {
    const COMPARISONS: [(&str, Comparison); 6] = [
        ("==", Comparison::Equal),
        ("!=", Comparison::NotEqual),
        ("<=", Comparison::LessOrEqual),
        (">=", Comparison::GreaterOrEqual),
        ("<", Comparison::Less),
        (">", Comparison::Greater),
    ];
    let found = COMPARISONS
        .iter()
        .filter_map(|(symbol, comparison)| Some((unquoted(text, symbol)?, *symbol, *comparison)))
        .min_by_key(|(at, symbol, _)| (*at, std::cmp::Reverse(symbol.len())));
    let path = |text: &str| text.trim().strip_prefix('@')?.parse::<JsonPath>().ok();
    match found {
        None => Some(Filter {
            path: path(text)?,
            test: None,
        }),
        Some((at, symbol, comparison)) => {
            let wanted = text[at + symbol.len()..].trim();
            let wanted = match unquote(wanted) {
                Some(text) => Value::String(text),
                None => serde_json::from_str(wanted).ok()?,
            };
            Some(Filter {
                path: path(&text[..at])?,
                test: Some((comparison, wanted)),
            })
        }
    }
}

/// Where a text first stands outside of quotes.
fn unquoted(text: &str, wanted: &str) -> Option<usize> {
    let mut quote = None;
    for (at, character) in text.char_indices() {
        match quote {
            Some(open) if character == open => quote = None,
            None if text[at..].starts_with(wanted) => return Some(at),
            None if matches!(character, '"' | '\'') => quote = Some(character),
            Some(_) | None => {}
        }
    }
    None
}

fn unquote(text: &str) -> Option<String> {
    let inside = ['"', '\'']
        .iter()
        .find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote))?;
    Some(inside.replace("\\.", "."))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_lead_to_their_values() {
        let object = json!({
            "metadata": {"labels": {"example.com/app": "db"}, "annotations": {"a.b/c": "d"}},
            "spec": {"replicas": 3, "ports": [{"port": 1}, {"port": 2, "name": "x]"}]},
            "status": {"conditions": [
                {"type": "Progressing", "status": "False", "weight": 1},
                {"type": "Ready", "status": "True", "weight": 5},
            ]},
        });
        for (path, value) in [
            (".spec.replicas", json!(3)),
            ("{.spec.replicas}", json!(3)),
            ("$.spec.replicas", json!(3)),
            (r".metadata.labels.example\.com/app", json!("db")),
            (".metadata.labels['example.com/app']", json!("db")),
            (r".metadata.annotations['a\.b/c']", json!("d")),
            (".spec.ports[0].port", json!(1)),
            (".spec.ports[-1].port", json!(2)),
            (".spec.ports[*].name", json!("x]")),
            (".spec.ports[?(@.name==\"x]\")].port", json!(2)),
            (".spec.ports[?(@.name)].port", json!(2)),
            (".status.conditions[?(@.type=='Ready')].status", json!("True")),
            (".status.conditions[?(@.type == \"Ready\")].status", json!("True")),
            (".status.conditions[?(@.type!='Ready')].status", json!("False")),
            (".status.conditions[?(@.weight>=5)].type", json!("Ready")),
            (".status.conditions[?(@.weight<5)].type", json!("Progressing")),
        ] {
            assert_eq!(path.parse::<JsonPath>().unwrap().first(&object), Some(&value), "{path}");
        }
        for path in [
            ".spec.nope",
            ".spec.ports[7].port",
            ".spec.replicas.x",
            ".status.conditions[?(@.type=='No')].status",
        ] {
            assert_eq!(path.parse::<JsonPath>().unwrap().first(&object), None, "{path}");
        }
        assert_eq!(".".parse::<JsonPath>().unwrap().first(&object), Some(&object));
    }

    #[test]
    fn other_paths_are_refused() {
        for path in [
            "spec",
            ".a..b",
            ".a[",
            ".a[x]",
            ".a[?(b)]",
            ".a[?(@.b==x)]",
            ".a b",
            "{.a}{.b}",
        ] {
            assert_eq!(path.parse::<JsonPath>(), Err(ParseJsonPathError(path.to_owned())));
        }
    }

    proptest! {
        #[test]
        fn no_path_makes_the_reader_panic(text in "[.a\\[\\]?()@='\"\\\\*0-9<é -]{0,30}") {
            let _ = text.parse::<JsonPath>();
        }
    }
}
