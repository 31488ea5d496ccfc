//! `metav1.LabelSelector`: the same selection as an object with `matchLabels` and `matchExpressions`.

use serde_json::{Map, Value};

use super::{LabelSelector, Requirement, SelectorError, Test};
use crate::{
    field::{FieldError, Path, quote},
    names,
};

impl LabelSelector {
    /// From the JSON form. Absent or null selects nothing, an empty object everything.
    pub fn from_json(selector: Option<&Value>) -> Result<Self, SelectorError> {
        let Some(selector) = selector.and_then(Value::as_object) else {
            return Ok(LabelSelector::NOTHING);
        };
        let mut requirements = Vec::new();
        for (key, value) in match_labels(selector) {
            requirements.push(Requirement::new(key, Test::Equals(value.to_owned()))?);
        }
        for expression in match_expressions(selector) {
            let values = || expression.values().map(str::to_owned).collect::<Vec<_>>();
            let test = match expression.operator() {
                "In" => Test::In(values()),
                "NotIn" => Test::NotIn(values()),
                "Exists" | "DoesNotExist" if expression.values().next().is_some() => {
                    let path = Path::OBJECT.child("values");
                    let why = "values set must be empty for exists and does not exist";
                    return Err(SelectorError(FieldError::invalid(&path, values(), why).to_string()));
                }
                "Exists" => Test::Exists,
                "DoesNotExist" => Test::DoesNotExist,
                other => {
                    return Err(SelectorError(format!(
                        "{} is not a valid label selector operator",
                        quote(other)
                    )));
                }
            };
            requirements.push(Requirement::new(expression.key(), test)?);
        }
        Ok(LabelSelector::all(requirements))
    }
}

/// What is wrong with a selector in JSON form, at `path`.
pub fn validate_label_selector(selector: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let Some(selector) = selector.as_object() else { return };
    let labels_path = path.child("matchLabels");
    for (key, value) in match_labels(selector) {
        check(names::qualified_name(key), key, &labels_path, errors);
        check(names::label_value(value), value, &labels_path, errors);
    }
    let expressions_path = path.child("matchExpressions");
    for (index, expression) in match_expressions(selector).enumerate() {
        let path = expressions_path.index(index);
        let values_path = path.child("values");
        match (expression.operator(), expression.values().next()) {
            ("In" | "NotIn", None) => errors.push(FieldError::required(
                &values_path,
                "must be specified when `operator` is 'In' or 'NotIn'",
            )),
            ("Exists" | "DoesNotExist", Some(_)) => errors.push(FieldError::forbidden(
                &values_path,
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )),
            ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => {}
            (other, _) => {
                errors.push(FieldError::invalid(
                    &path.child("operator"),
                    other,
                    "not a valid selector operator",
                ));
            }
        }
        check(
            names::qualified_name(expression.key()),
            expression.key(),
            &path.child("key"),
            errors,
        );
        for (index, value) in expression.values().enumerate() {
            check(names::label_value(value), value, &values_path.index(index), errors);
        }
    }
}

fn check(complaints: Vec<String>, value: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    errors.extend(
        complaints
            .into_iter()
            .map(|complaint| FieldError::invalid(path, value, complaint)),
    );
}

fn match_labels(selector: &Map<String, Value>) -> impl Iterator<Item = (&str, &str)> {
    let labels = selector.get("matchLabels").and_then(Value::as_object);
    labels
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
}

fn match_expressions(selector: &Map<String, Value>) -> impl Iterator<Item = Expression<'_>> {
    selector
        .get("matchExpressions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(Expression)
}

struct Expression<'a>(&'a Value);

impl<'a> Expression<'a> {
    fn key(&self) -> &'a str {
        self.0.get("key").and_then(Value::as_str).unwrap_or_default()
    }

    fn operator(&self) -> &'a str {
        self.0.get("operator").and_then(Value::as_str).unwrap_or_default()
    }

    fn values(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.0
            .get("values")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_and_expressions_become_one_selector() {
        let selector = json!({
            "matchLabels": {"app": "db"},
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["b", "a"]},
                {"key": "old", "operator": "DoesNotExist"},
                {"key": "zone", "operator": "NotIn", "values": ["x"]},
                {"key": "new", "operator": "Exists"},
            ],
        });
        let selector = LabelSelector::from_json(Some(&selector)).unwrap();
        assert_eq!(selector.to_string(), "app=db,new,!old,tier in (a,b),zone notin (x)");
    }

    #[test]
    fn an_absent_selector_selects_nothing_and_an_empty_one_everything() {
        assert!(LabelSelector::from_json(None).unwrap().is_nothing());
        assert!(LabelSelector::from_json(Some(&Value::Null)).unwrap().is_nothing());
        assert!(LabelSelector::from_json(Some(&json!({}))).unwrap().is_everything());
    }

    #[test]
    fn expressions_that_make_no_sense_are_refused() {
        for (expression, error) in [
            (
                json!({"key": "a", "operator": "Is"}),
                "\"Is\" is not a valid label selector operator",
            ),
            (
                json!({"key": "a", "operator": "In"}),
                "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty",
            ),
            (
                json!({"key": "a", "operator": "Exists", "values": ["x"]}),
                "values: Invalid value: [\"x\"]: values set must be empty for exists and does not exist",
            ),
        ] {
            let selector = json!({"matchExpressions": [expression]});
            assert_eq!(
                LabelSelector::from_json(Some(&selector)).unwrap_err().to_string(),
                error
            );
        }
    }

    #[test]
    fn validation_names_every_wrong_field() {
        let selector = json!({
            "matchLabels": {"app": "-"},
            "matchExpressions": [
                {"key": "a", "operator": "In"},
                {"key": "a", "operator": "Exists", "values": ["x"]},
                {"key": "", "operator": "Is"},
            ],
        });
        let mut errors = Vec::new();
        validate_label_selector(&selector, &Path::root("spec").child("selector"), &mut errors);
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "spec.selector.matchLabels",
                "spec.selector.matchExpressions[0].values",
                "spec.selector.matchExpressions[1].values",
                "spec.selector.matchExpressions[2].operator",
                "spec.selector.matchExpressions[2].key",
                "spec.selector.matchExpressions[2].key",
            ]
        );
    }
}
