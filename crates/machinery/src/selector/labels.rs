//! Label selectors and how they match.

use std::{fmt, str::FromStr};

use super::{Lookup, SelectorError, parse};
use crate::{
    field::{FieldError, Path, aggregate},
    names,
};

/// A conjunction of requirements on labels, or nothing at all.
///
/// Prints in the query-string syntax, sorted by key, so equal selections print equally.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LabelSelector(Selection);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Selection {
    /// What a missing selector selects.
    Nothing,
    /// What meets all of these; with none, everything.
    All(Vec<Requirement>),
}

/// One condition on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Requirement {
    key: String,
    test: Test,
}

/// What a label must be like.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Test {
    /// `key=value`
    Equals(String),
    /// `key==value`, which means the same but prints as it was written.
    DoubleEquals(String),
    /// `key!=value`; an absent label qualifies.
    NotEquals(String),
    /// `key in (a,b)`, sorted.
    In(Vec<String>),
    /// `key notin (a,b)`, sorted; an absent label qualifies.
    NotIn(Vec<String>),
    /// `key`
    Exists,
    /// `!key`
    DoesNotExist,
    /// `key>1`; a label that is no whole number does not qualify.
    GreaterThan(i64),
    /// `key<1`; likewise.
    LessThan(i64),
}

impl LabelSelector {
    /// Selects every object.
    pub const EVERYTHING: LabelSelector = LabelSelector(Selection::All(Vec::new()));
    /// Selects no object.
    pub const NOTHING: LabelSelector = LabelSelector(Selection::Nothing);

    /// Selects what meets all requirements.
    pub fn all(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|left, right| left.key.cmp(&right.key));
        LabelSelector(Selection::All(requirements))
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &(impl Lookup + ?Sized)) -> bool {
        match &self.0 {
            Selection::Nothing => false,
            Selection::All(requirements) => requirements.iter().all(|requirement| requirement.matches(labels)),
        }
    }

    /// Whether it selects everything.
    pub fn is_everything(&self) -> bool {
        matches!(&self.0, Selection::All(requirements) if requirements.is_empty())
    }

    /// Whether it selects nothing, whatever the labels.
    pub fn is_nothing(&self) -> bool {
        self.0 == Selection::Nothing
    }

    /// The single conditions.
    pub fn requirements(&self) -> &[Requirement] {
        match &self.0 {
            Selection::Nothing => &[],
            Selection::All(requirements) => requirements,
        }
    }

    /// The one value that a label must have, if there is one: what an index can be asked for.
    pub fn exact(&self, key: &str) -> Option<&str> {
        let requirement = self.requirements().iter().find(|requirement| requirement.key == key)?;
        match &requirement.test {
            Test::Equals(value) | Test::DoubleEquals(value) => Some(value),
            Test::In(values) if values.len() == 1 => values.first().map(String::as_str),
            _ => None,
        }
    }
}

impl FromStr for LabelSelector {
    type Err = SelectorError;

    /// Reads the query-string syntax. Empty text selects everything.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse::requirements(text).map(LabelSelector::all)
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, requirement) in self.requirements().iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

impl Requirement {
    /// A condition on a label, once key and values are such as a label can have.
    pub fn new(key: impl Into<String>, test: Test) -> Result<Self, SelectorError> {
        let (key, mut test) = (key.into(), test);
        let mut errors = Vec::new();
        check_key(&key, &Path::OBJECT.child("key"), &mut errors);
        let values_path = Path::OBJECT.child("values");
        if let Test::In(values) | Test::NotIn(values) = &mut test {
            values.sort();
            values.dedup();
            if values.is_empty() {
                errors.push(FieldError::invalid(
                    &values_path,
                    serde_json::Value::Array(Vec::new()),
                    "for 'in', 'notin' operators, values set can't be empty",
                ));
            }
        }
        for (index, value) in test.values().iter().enumerate() {
            let complaints = names::label_value(value);
            if !complaints.is_empty() {
                let path = values_path.index(index);
                errors.push(FieldError::invalid(
                    &path.key(&key),
                    value.as_str(),
                    complaints.join("; "),
                ));
            }
        }
        if errors.is_empty() {
            Ok(Requirement { key, test })
        } else {
            Err(SelectorError(aggregate(&errors)))
        }
    }

    /// The label.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// What it must be like.
    pub fn test(&self) -> &Test {
        &self.test
    }

    fn matches(&self, labels: &(impl Lookup + ?Sized)) -> bool {
        let value = labels.value_of(&self.key);
        match &self.test {
            Test::Equals(wanted) | Test::DoubleEquals(wanted) => value == Some(wanted),
            Test::NotEquals(unwanted) => value != Some(unwanted),
            Test::In(wanted) => value.is_some_and(|value| contains(wanted, value)),
            Test::NotIn(unwanted) => !value.is_some_and(|value| contains(unwanted, value)),
            Test::Exists => value.is_some(),
            Test::DoesNotExist => value.is_none(),
            Test::GreaterThan(bound) => number(value).is_some_and(|number| number > *bound),
            Test::LessThan(bound) => number(value).is_some_and(|number| number < *bound),
        }
    }
}

impl Test {
    fn values(&self) -> &[String] {
        match self {
            Test::Equals(value) | Test::DoubleEquals(value) | Test::NotEquals(value) => std::slice::from_ref(value),
            Test::In(values) | Test::NotIn(values) => values,
            Test::Exists | Test::DoesNotExist | Test::GreaterThan(_) | Test::LessThan(_) => &[],
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match &self.test {
            Test::Equals(value) => write!(f, "{key}={value}"),
            Test::DoubleEquals(value) => write!(f, "{key}=={value}"),
            Test::NotEquals(value) => write!(f, "{key}!={value}"),
            Test::In(values) => write!(f, "{key} in ({})", values.join(",")),
            Test::NotIn(values) => write!(f, "{key} notin ({})", values.join(",")),
            Test::Exists => f.write_str(key),
            Test::DoesNotExist => write!(f, "!{key}"),
            Test::GreaterThan(bound) => write!(f, "{key}>{bound}"),
            Test::LessThan(bound) => write!(f, "{key}<{bound}"),
        }
    }
}

/// Values are sorted when a requirement is made.
fn contains(values: &[String], value: &str) -> bool {
    values
        .binary_search_by(|candidate| candidate.as_str().cmp(value))
        .is_ok()
}

fn number(value: Option<&str>) -> Option<i64> {
    value?.parse().ok()
}

pub(super) fn check_key(key: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let complaints = names::qualified_name(key);
    if !complaints.is_empty() {
        errors.push(FieldError::invalid(path, key, complaints.join("; ")));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(selector: &str, labels: &[(&str, &str)]) -> bool {
        selector.parse::<LabelSelector>().unwrap().matches(labels)
    }

    #[test]
    fn every_operator_selects_what_it_says() {
        let labels = [("app", "db"), ("tier", "3"), ("empty", "")];
        for (selector, expected) in [
            ("", true),
            ("app", true),
            ("!app", false),
            ("nope", false),
            ("!nope", true),
            ("app=db", true),
            ("app==db", true),
            ("app=web", false),
            ("app!=web", true),
            ("app!=db", false),
            ("nope!=x", true),
            ("app in (db,web)", true),
            ("app in (web)", false),
            ("nope in (web)", false),
            ("app notin (web)", true),
            ("app notin (db,web)", false),
            ("nope notin (web)", true),
            ("tier>2", true),
            ("tier>3", false),
            ("tier<4", true),
            ("app>2", false),
            ("nope<2", false),
            ("empty=", true),
            ("empty in (,a)", true),
            ("app=db,tier<2", false),
        ] {
            assert_eq!(matches(selector, &labels), expected, "{selector}");
        }
    }

    #[test]
    fn nothing_selects_nothing_and_is_not_everything() {
        assert!(!LabelSelector::NOTHING.matches(&[][..]));
        assert!(LabelSelector::NOTHING.is_nothing());
        assert!(!LabelSelector::NOTHING.is_everything());
        assert!(LabelSelector::EVERYTHING.is_everything());
    }

    #[test]
    fn selectors_print_sorted_by_key_and_value() {
        for (text, printed) in [
            ("b, a", "a,b"),
            ("x in (c,a,b,a)", "x in (a,b,c)"),
            ("z==1,y!=2,!x", "!x,y!=2,z==1"),
            ("a>1,b<2", "a>1,b<2"),
            ("in in (in,notin)", "in in (in,notin)"),
        ] {
            assert_eq!(text.parse::<LabelSelector>().unwrap().to_string(), printed);
        }
    }

    #[test]
    fn an_index_can_be_asked_only_for_exact_values() {
        let selector: LabelSelector = "a=1,b in (2),c in (3,4),d!=5".parse().unwrap();
        assert_eq!(selector.exact("a"), Some("1"));
        assert_eq!(selector.exact("b"), Some("2"));
        assert_eq!(selector.exact("c"), None);
        assert_eq!(selector.exact("d"), None);
    }

    #[test]
    fn values_that_no_label_can_have_are_refused() {
        let error = Requirement::new("a", Test::Equals("-".into())).unwrap_err().to_string();
        assert!(
            error.starts_with("values[0][a]: Invalid value: \"-\": a valid label must be"),
            "{error}"
        );
        let error = Requirement::new("a", Test::In(vec![])).unwrap_err().to_string();
        assert_eq!(
            error,
            "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty"
        );
    }

    proptest! {
        #[test]
        fn what_a_selector_prints_reads_back_as_the_same_selector(
            parts in prop::collection::vec(
                prop_oneof![
                    ("[a-z]{1,3}", "[a-z]{0,3}").prop_map(|(key, value)| format!("{key}={value}")),
                    ("[a-z]{1,3}", "[a-z]{0,3}").prop_map(|(key, value)| format!("{key}!={value}")),
                    ("[a-z]{1,3}", prop::collection::vec("[a-z]{0,3}", 1..4))
                        .prop_map(|(key, values)| format!("{key} in ({})", values.join(","))),
                    "[a-z]{1,3}".prop_map(|key| format!("!{key}")),
                    ("[a-z]{1,3}", 0i64..100).prop_map(|(key, bound)| format!("{key}<{bound}")),
                ],
                0..5,
            )
        ) {
            let selector: LabelSelector = parts.join(",").parse().unwrap();
            prop_assert_eq!(selector.to_string().parse::<LabelSelector>().unwrap(), selector);
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "[a-c=!,()<>in \\\\\u{e9}\0]{0,24}") {
            let _ = text.parse::<LabelSelector>();
        }
    }
}
