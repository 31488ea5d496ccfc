//! Field selectors: `metadata.name=db,status.phase!=Running`.

use std::{fmt, str::FromStr};

use super::{Lookup, SelectorError};

/// A conjunction of conditions on fields. Without conditions it selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

/// One condition on one field.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum FieldTerm {
    /// `field=value` or `field==value`
    Equals {
        /// The path of the field.
        field: String,
        /// The value, unescaped. A field that is not there counts as empty.
        value: String,
    },
    /// `field!=value`
    NotEquals {
        /// The path of the field.
        field: String,
        /// The value, unescaped.
        value: String,
    },
}

impl FieldTerm {
    /// The path of the field.
    pub fn field(&self) -> &str {
        match self {
            FieldTerm::Equals { field, .. } | FieldTerm::NotEquals { field, .. } => field,
        }
    }

    /// The value.
    pub fn value(&self) -> &str {
        match self {
            FieldTerm::Equals { value, .. } | FieldTerm::NotEquals { value, .. } => value,
        }
    }
}

impl FieldSelector {
    /// Whether an object with these field values is selected.
    pub fn matches(&self, fields: &(impl Lookup + ?Sized)) -> bool {
        self.matches_with(|field| fields.value_of(field))
    }

    /// Whether an object is selected whose fields are looked up by the given function.
    pub fn matches_with<'a>(&self, value_of: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.terms.iter().all(|term| match term {
            FieldTerm::Equals { field, value } => value_of(field).unwrap_or_default() == value,
            FieldTerm::NotEquals { field, value } => value_of(field).unwrap_or_default() != value,
        })
    }

    /// Whether it selects everything.
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// The single conditions.
    pub fn terms(&self) -> &[FieldTerm] {
        &self.terms
    }

    /// The one value that a field must have, if there is one.
    pub fn exact(&self, wanted: &str) -> Option<&str> {
        self.terms.iter().find_map(|term| match term {
            FieldTerm::Equals { field, value } if field == wanted => Some(value.as_str()),
            _ => None,
        })
    }
}

impl FromStr for FieldSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = split_unescaped(text);
        parts.sort_unstable();
        let mut terms = Vec::new();
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let position = part
                .char_indices()
                .find(|(at, character)| *character == '=' || part[*at..].starts_with("!="))
                .map(|(at, _)| at)
                .ok_or_else(|| SelectorError(format!("invalid selector: '{text}'; can't understand '{part}'")))?;
            let (field, rest) = part.split_at(position);
            let field = field.to_owned();
            terms.push(if let Some(value) = rest.strip_prefix("!=") {
                FieldTerm::NotEquals {
                    field,
                    value: unescape(value)?,
                }
            } else {
                let value = rest
                    .strip_prefix("==")
                    .or_else(|| rest.strip_prefix('='))
                    .unwrap_or(rest);
                FieldTerm::Equals {
                    field,
                    value: unescape(value)?,
                }
            });
        }
        Ok(FieldSelector { terms })
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, term) in self.terms.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            let operator = if matches!(term, FieldTerm::Equals { .. }) {
                "="
            } else {
                "!="
            };
            write!(f, "{}{operator}{}", term.field(), escape(term.value()))?;
        }
        Ok(())
    }
}

fn split_unescaped(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, character) in text.char_indices() {
        if escaped {
            escaped = false;
        } else if character == '\\' {
            escaped = true;
        } else if character == ',' {
            parts.push(&text[start..at]);
            start = at + 1;
        }
    }
    parts.push(&text[start..]);
    parts
}

fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for character in value.chars() {
        if matches!(character, '\\' | ',' | '=') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

fn unescape(value: &str) -> Result<String, SelectorError> {
    let mut plain = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        plain.push(match character {
            '\\' => match characters.next() {
                Some(escaped @ ('\\' | ',' | '=')) => escaped,
                other => {
                    let sequence: String = std::iter::once('\\').chain(other).collect();
                    let why = format!("invalid field selector: invalid escape sequence: {sequence}");
                    return Err(SelectorError(why));
                }
            },
            ',' | '=' => {
                // Kubernetes prints the number of the character here, not the character.
                let why = format!(
                    "invalid field selector: unescaped character in value: {}",
                    u32::from(character)
                );
                return Err(SelectorError(why));
            }
            other => other,
        });
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_are_compared_and_missing_ones_count_as_empty() {
        let fields = [("metadata.name", "db"), ("status.phase", "Running")];
        for (selector, expected) in [
            ("", true),
            ("metadata.name=db", true),
            ("metadata.name==db,status.phase=Running", true),
            ("metadata.name!=db", false),
            ("status.phase!=Failed", true),
            ("spec.nodeName=", true),
            ("spec.nodeName!=", false),
            ("spec.nodeName!=a", true),
        ] {
            let parsed: FieldSelector = selector.parse().unwrap();
            assert_eq!(parsed.matches(&fields[..]), expected, "{selector}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_told_in_kubernetes_words() {
        for (text, error) in [
            ("a", "invalid selector: 'a'; can't understand 'a'"),
            ("a=b=c", "invalid field selector: unescaped character in value: 61"),
            (r"a=\x", r"invalid field selector: invalid escape sequence: \x"),
            (r"a=b\", r"invalid field selector: invalid escape sequence: \"),
        ] {
            assert_eq!(text.parse::<FieldSelector>().unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn an_exact_value_is_known_only_for_equality() {
        let selector: FieldSelector = "metadata.name=db,status.phase!=Failed".parse().unwrap();
        assert_eq!(selector.exact("metadata.name"), Some("db"));
        assert_eq!(selector.exact("status.phase"), None);
    }

    proptest! {
        #[test]
        fn any_value_survives_escaping(value in ".{0,20}") {
            let term = FieldTerm::NotEquals { field: "a.b".into(), value };
            let selector = FieldSelector { terms: vec![term] };
            prop_assert_eq!(selector.to_string().parse::<FieldSelector>().unwrap(), selector);
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "[a=!,\\\\\u{e9}]{0,24}") {
            let _ = text.parse::<FieldSelector>();
        }
    }
}
