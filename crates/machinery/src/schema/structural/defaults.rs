//! A default must itself be valid, and hold nothing that would be pruned.

use serde_json::Value;

use super::{additional_schema, present, properties};
use crate::field::FieldError;
use crate::schema::Schema;
use crate::schema::definitions::Definitions;
use crate::schema::fault;
use crate::schema::path::Path;
use crate::schema::{list_types, validate};

pub(super) fn check(schema: &Value, at: &str, errors: &mut Vec<FieldError>) {
    if let Some(default) = present(schema, "default") {
        check_one(schema, default, &format!("{at}.default"), errors);
    }
    if let Some(items) = present(schema, "items") {
        check(items, &format!("{at}.items"), errors);
    }
    for (name, property) in properties(schema) {
        check(property, &format!("{at}.properties[{name}]"), errors);
    }
    if let Some(additional) = additional_schema(schema) {
        check(additional, &format!("{at}.additionalProperties"), errors);
    }
}

fn check_one(schema: &Value, default: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let Ok(schema) = Schema::new(schema, &Definitions::default()) else {
        return;
    };
    let mut pruned = default.clone();
    schema.prune(&mut pruned);
    if pruned != *default {
        errors.push(fault::invalid(at, default.clone(), "must not have unknown fields"));
    }
    let mut faults = validate::check(default, None, schema.place(), &Path::Root);
    // The texts of value checks name the path inside of the default; only the field is told in full.
    for fault in &mut faults {
        if fault.field == "<nil>" {
            at.clone_into(&mut fault.field);
        } else {
            fault.field = format!("{at}.{}", fault.field);
        }
    }
    let unsound = !faults.is_empty();
    errors.append(&mut faults);
    list_types::check(default, schema.place(), &Path::Base(at), errors);
    if !unsound {
        errors.extend(crate::cel::check(&schema, default, Some(default), &Path::Base(at)));
        errors.extend(crate::cel::check(&schema, default, None, &Path::Base(at)));
    }
}
