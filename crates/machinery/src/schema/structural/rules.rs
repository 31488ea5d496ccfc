//! The CEL rules of a schema: complete, compilable, and about the old value only where it can be found.

use serde_json::Value;

use super::{additional_schema, list, present, properties, text};
use crate::cel::{Fault, Rule};
use crate::field::FieldError;
use crate::schema::Schema;
use crate::schema::fault;

const REASONS: [&str; 4] = [
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
];

pub(super) fn check(schema: &Value, field: &str, errors: &mut Vec<FieldError>) {
    node(schema, None, field, errors);
}

/// `adrift` is the outermost list or map above whose items cannot be matched with their old selves.
fn node(schema: &Value, adrift: Option<&str>, at: &str, errors: &mut Vec<FieldError>) {
    for (name, property) in properties(schema) {
        let atomic = text(schema, "x-kubernetes-map-type") == "atomic";
        node(
            property,
            adrift.or(atomic.then_some(at)),
            &format!("{at}.properties[{name}]"),
            errors,
        );
    }
    if let Some(additional) = additional_schema(schema) {
        node(additional, adrift, &format!("{at}.additionalProperties"), errors);
    }
    if let Some(items) = present(schema, "items") {
        let correlated = text(schema, "x-kubernetes-list-type") == "map";
        node(
            items,
            adrift.or((!correlated).then_some(at)),
            &format!("{at}.items"),
            errors,
        );
    }
    for (index, json) in list(schema, "x-kubernetes-validations").iter().enumerate() {
        let at = format!("{at}.x-kubernetes-validations[{index}]");
        if texts(json, schema, &at, errors) {
            expressions(json, schema, adrift, &at, errors);
        }
    }
}

/// Whether the texts of a rule are in order, so that it can be compiled.
fn texts(json: &Value, schema: &Value, at: &str, errors: &mut Vec<FieldError>) -> bool {
    let before = errors.len();
    let multiline = |text: &str| text.trim().contains(['\n', '\r']);
    let (rule, message) = (text(json, "rule"), text(json, "message"));
    if rule.trim().is_empty() {
        errors.push(fault::required(format!("{at}.rule"), "rule is not specified"));
    } else if !message.is_empty() && message.trim().is_empty() {
        errors.push(fault::invalid(
            format!("{at}.message"),
            message,
            "must be non-empty if specified",
        ));
    } else if multiline(message) {
        errors.push(fault::invalid(
            format!("{at}.message"),
            message,
            "must not contain line breaks",
        ));
    } else if multiline(rule) && message.trim().is_empty() {
        let detail = "message must be specified if rule contains line breaks";
        errors.push(fault::required(format!("{at}.message"), detail));
    }
    let expression = text(json, "messageExpression");
    if !expression.is_empty() && expression.trim().is_empty() {
        let detail = "messageExpression must be non-empty if specified";
        errors.push(fault::required(format!("{at}.messageExpression"), detail));
    }
    let reason = text(json, "reason");
    if !reason.is_empty() && !REASONS.contains(&reason) {
        errors.push(fault::not_supported(format!("{at}.reason"), reason, REASONS));
    }
    let path = text(json, "fieldPath");
    let field = || format!("{at}.fieldPath");
    if !path.is_empty() && path.trim().is_empty() {
        errors.push(fault::invalid(field(), path, "must be non-empty if specified"));
    } else if path.contains(['\n', '\r']) {
        errors.push(fault::invalid(field(), path, "must not contain line breaks"));
    } else if !path.is_empty() && !leads_somewhere(path, schema) {
        errors.push(fault::invalid(field(), path, "must be a valid path"));
    }
    errors.len() == before
}

/// Whether a path such as `.spec['a.b'].c` names a field of `schema`.
fn leads_somewhere(path: &str, schema: &Value) -> bool {
    let Some(segments) = crate::cel::field_path(path) else {
        return false;
    };
    let mut here = schema;
    for segment in segments {
        let property = here.get("properties").and_then(|properties| properties.get(&segment));
        match property.or_else(|| additional_schema(here)) {
            Some(next) => here = next,
            None => return false,
        }
    }
    true
}

fn expressions(json: &Value, schema: &Value, adrift: Option<&str>, at: &str, errors: &mut Vec<FieldError>) {
    let rule = Rule::new(json);
    let misfit = || {
        // At the root the fields that every object has count too; elsewhere they do no harm.
        let schema = Schema::custom_resource(schema).ok()?;
        rule.misfit(schema.place())
    };
    match rule.fault().or_else(misfit) {
        Some(Fault::Rule(detail)) => {
            errors.push(fault::invalid(format!("{at}.rule"), json.clone(), detail));
        }
        Some(Fault::MessageExpression(detail)) => {
            errors.push(fault::invalid(format!("{at}.messageExpression"), json.clone(), detail));
        }
        None => {}
    }
    if rule.uses_old_self() {
        if let Some(path) = adrift {
            let detail = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {path}");
            errors.push(fault::invalid(format!("{at}.rule"), text(json, "rule"), detail));
        }
    } else if let Some(set) = present(json, "optionalOldSelf") {
        let detail = "may not be set if oldSelf is not used in rule";
        errors.push(fault::invalid(format!("{at}.optionalOldSelf"), set.clone(), detail));
    }
}
