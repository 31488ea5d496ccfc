//! One rule of a schema: compiled when first needed, and what it says when it is broken.

use std::sync::OnceLock;

use serde_json::Value;

use super::environment;
use super::expression::Expression;
use super::value::to_cel;
use crate::field::{ErrorKind, FieldError};
use crate::schema::fault;
use crate::schema::node::{Place, Type};
use crate::schema::path::Path;

/// A rule of `x-kubernetes-validations`.
#[derive(Debug)]
pub(crate) struct Rule {
    source: String,
    message: Option<String>,
    message_expression: Option<String>,
    kind: ErrorKind,
    field_path: Vec<String>,
    optional_old_self: bool,
    compiled: OnceLock<Result<Compiled, Fault>>,
}

#[derive(Debug)]
struct Compiled {
    rule: Expression,
    message: Option<Expression>,
}

/// Why a rule cannot be compiled.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    Rule(String),
    MessageExpression(String),
}

impl Rule {
    pub(crate) fn new(json: &Value) -> Self {
        let text = |key: &str| {
            let text = json.get(key).and_then(Value::as_str).map(str::trim).unwrap_or_default();
            Some(text).filter(|text| !text.is_empty()).map(ToOwned::to_owned)
        };
        Self {
            source: text("rule").unwrap_or_default(),
            message: text("message"),
            message_expression: text("messageExpression"),
            kind: match text("reason").as_deref() {
                Some("FieldValueForbidden") => ErrorKind::Forbidden,
                Some("FieldValueRequired") => ErrorKind::Required,
                Some("FieldValueDuplicate") => ErrorKind::Duplicate,
                _ => ErrorKind::Invalid,
            },
            field_path: text("fieldPath").and_then(|path| field_path(&path)).unwrap_or_default(),
            optional_old_self: json.get("optionalOldSelf").and_then(Value::as_bool).unwrap_or(false),
            compiled: OnceLock::new(),
        }
    }

    /// Why the rule cannot be compiled, if so.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.compiled().as_ref().err().cloned()
    }

    /// What the rule gets wrong about the schema it stands in: fields that are not there, a result that is no bool.
    pub(crate) fn misfit(&self, place: Place<'_>) -> Option<Fault> {
        let compiled = self.compiled().as_ref().ok()?;
        let old_self = if self.optional_old_self { None } else { Some(place) };
        let scope = [("self", Some(place)), ("oldSelf", old_self)];
        let rule = compiled
            .rule
            .misfit(&scope, Type::Boolean)
            .map(|reason| Fault::Rule(failed(&reason)));
        rule.or_else(|| {
            let reason = compiled.message.as_ref()?.misfit(&scope, Type::String)?;
            Some(Fault::MessageExpression(format!(
                "messageExpression {}",
                failed(&reason)
            )))
        })
    }

    pub(crate) fn uses_old_self(&self) -> bool {
        self.compiled()
            .as_ref()
            .is_ok_and(|compiled| compiled.rule.mentions("oldSelf"))
    }

    fn compiled(&self) -> &Result<Compiled, Fault> {
        self.compiled.get_or_init(|| {
            let names = ["self", "oldSelf"];
            let rule = Expression::compile(&self.source, &names).map_err(|reason| Fault::Rule(failed(&reason)))?;
            let message = self.message_expression.as_deref().map(|source| {
                Expression::compile(source, &names)
                    .map_err(|reason| Fault::MessageExpression(format!("messageExpression {}", failed(&reason))))
            });
            Ok(Compiled {
                rule,
                message: message.transpose()?,
            })
        })
    }

    fn named(&self) -> String {
        match &self.message {
            Some(message) => message.clone(),
            None => format!("failed rule: {}", self.source),
        }
    }
}

fn failed(reason: &str) -> String {
    format!("compilation failed: ERROR: {reason}")
}

/// Runs `rules` on `value`. What did not change is not held against rules that look at nothing else.
pub(super) fn evaluate(
    rules: &[Rule],
    value: &Value,
    old: Option<&Value>,
    unchanged: bool,
    place: Place<'_>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    if rules.is_empty() {
        return;
    }
    let kind = place.node.kind.map_or("", Type::name);
    let this = to_cel(value, Some(place));
    let old_self = old.map(|old| to_cel(old, Some(place)));
    for rule in rules {
        let compiled = match rule.compiled() {
            Ok(compiled) => compiled,
            Err(Fault::Rule(reason) | Fault::MessageExpression(reason)) => {
                let detail = format!("rule compile error: {reason}");
                errors.push(fault::invalid(path.brackets(), kind, detail));
                continue;
            }
        };
        let compares = compiled.rule.mentions("oldSelf");
        if compares && old_self.is_none() && !rule.optional_old_self {
            continue;
        }
        let old_self = if rule.optional_old_self {
            Some(environment::optional(old_self.clone()))
        } else {
            old_self.clone()
        };
        let mut context = environment::scope();
        context.add_variable_from_value("self", this.clone());
        if let Some(old_self) = old_self {
            context.add_variable_from_value("oldSelf", old_self);
        }
        match compiled.rule.evaluate_bool(&context) {
            Ok(true) => {}
            Err(reason) => {
                let detail = format!("{reason} evaluating rule: {}", rule.named());
                errors.push(fault::invalid(path.brackets(), kind, detail));
            }
            Ok(false) if unchanged && !compares => {}
            Ok(false) => {
                let message = compiled
                    .message
                    .as_ref()
                    .and_then(|message| message.evaluate_text(&context));
                let detail = message.unwrap_or_else(|| rule.named());
                let shown = if matches!(value, Value::Object(_) | Value::Array(_)) {
                    None
                } else {
                    Some(value.clone())
                };
                let detail = if rule.kind == ErrorKind::Duplicate {
                    String::new()
                } else {
                    detail
                };
                let mut field = path.brackets();
                for segment in &rule.field_path {
                    append(&mut field, segment);
                }
                errors.push(fault::new(rule.kind, field, shown, detail));
            }
        }
    }
}

fn append(field: &mut String, segment: &str) {
    let plain = segment.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if plain {
        if !field.is_empty() {
            field.push('.');
        }
        field.push_str(segment);
    } else {
        field.push('[');
        field.push_str(segment);
        field.push(']');
    }
}

/// The names in a path such as `.spec.labels['a.b/c']`.
pub(crate) fn field_path(path: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            names.push(after[..end].to_owned());
            rest = &after[end..];
        } else {
            let quoted = rest.strip_prefix("['")?;
            let mut name = String::new();
            let mut chars = quoted.char_indices();
            loop {
                match chars.next()? {
                    (_, '\\') => name.push(chars.next()?.1),
                    (at, '\'') => {
                        rest = quoted[at + 1..].strip_prefix(']')?;
                        break;
                    }
                    (_, c) => name.push(c),
                }
            }
            names.push(name);
        }
        if names.last().is_some_and(String::is_empty) {
            return None;
        }
    }
    if names.is_empty() { None } else { Some(names) }
}
