//! The versions of a kind: their schemas, subresources, columns and selectable fields.

use std::collections::HashSet;

use moorline_machinery::{
    field::{ErrorKind, FieldError, quote},
    names::dns1035_label,
    schema::check_structural,
};
use serde_json::Value;

use super::{invalid, list, required, text};

/// The most fields that objects of a version can be selected by.
pub(super) const MOST_SELECTABLE: usize = 8;
const COLUMN_TYPES: &str = "boolean,date,integer,number,string";
const COLUMN_FORMATS: &str = "byte,date,date-time,double,float,int32,int64,password";

/// What all versions have in common, and so counts as said once, above them.
pub(super) struct Shared<'d> {
    schema: Part<'d>,
    subresources: Part<'d>,
    columns: Part<'d>,
    fields: Part<'d>,
}

/// One part of the versions.
#[derive(Clone, Copy)]
enum Part<'d> {
    /// The same in all of them; null where none has it.
    Same(&'d Value),
    /// Different in some.
    Different,
}

const NOTHING: &Value = &Value::Null;

impl<'d> Shared<'d> {
    pub(super) fn of(spec: &'d Value) -> Self {
        let versions = list(spec, "versions");
        let part = |key: &str| {
            let of = |version: &'d Value| version.get(key).unwrap_or(NOTHING);
            let first = versions.first().map_or(NOTHING, of);
            if versions.iter().all(|version| of(version) == first) {
                Part::Same(first)
            } else {
                Part::Different
            }
        };
        Self {
            schema: part("schema"),
            subresources: part("subresources"),
            columns: part("additionalPrinterColumns"),
            fields: part("selectableFields"),
        }
    }
}

impl<'d> Part<'d> {
    /// What stands above the versions.
    fn above(self) -> &'d Value {
        match self {
            Self::Same(part) => part,
            Self::Different => NOTHING,
        }
    }

    /// What stands in a version.
    fn within<'v>(self, version: &'v Value, key: &str) -> &'v Value {
        match self {
            Self::Same(_) => NOTHING,
            Self::Different => version.get(key).unwrap_or(NOTHING),
        }
    }
}

/// Checks the list of versions, and of each what it does not share with all others.
pub(super) fn check_all(spec: &Value, shared: &Shared<'_>, crowded: &[String], errors: &mut Vec<FieldError>) {
    let versions = list(spec, "versions");
    for (index, version) in versions.iter().enumerate() {
        if !version["schema"]["openAPIV3Schema"].is_object() {
            errors.push(required(format!("spec.versions[{index}].schema.openAPIV3Schema"), ""));
        }
    }
    let defaulted = versions
        .iter()
        .any(|version| has_defaults(&version["schema"]["openAPIV3Schema"]));
    if defaulted && spec["preserveUnknownFields"] == true {
        let detail = "must be false in order to use defaults in the schema";
        errors.push(invalid("spec.preserveUnknownFields", true, detail));
    }
    let mut names = HashSet::new();
    let mut unique = true;
    for (index, version) in versions.iter().enumerate() {
        let at = format!("spec.versions[{index}]");
        let name = text(version, "name");
        unique &= names.insert(name);
        let complaints = dns1035_label(name);
        if !complaints.is_empty() {
            errors.push(invalid(format!("{at}.name"), name, complaints.join(",")));
        }
        check_deprecation(version, &at, errors);
        let has_status = !version["subresources"]["status"].is_null();
        let schema = shared.schema.within(version, "schema");
        check_schema(schema, has_status, &format!("{at}.schema"), errors);
        let subresources = shared.subresources.within(version, "subresources");
        check_subresources(subresources, &format!("{at}.subresources"), errors);
        let columns = shared.columns.within(version, "additionalPrinterColumns");
        check_columns(columns, &format!("{at}.additionalPrinterColumns"), errors);
        let fields = shared.fields.within(version, "selectableFields");
        let at = format!("{at}.selectableFields");
        if fields.as_array().is_some_and(|fields| !fields.is_empty()) {
            // The words say the opposite of what is meant, in Kubernetes too.
            if schema["openAPIV3Schema"].is_object() {
                let crowded = crowded.iter().any(|crowded| crowded == name);
                check_selectable(fields, &schema["openAPIV3Schema"], crowded, &at, errors);
            } else {
                let detail = "may only be set when `version.schema.openAPIV3Schema` is not included";
                errors.push(invalid(at, "", detail));
            }
        }
    }
    if !unique {
        errors.push(about_versions(spec, shared, "must contain unique version names"));
    }
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.push(about_versions(spec, shared, detail));
    }
    // The first version once had a place of its own.
    let first = versions.first().map_or("", |version| text(version, "name"));
    let complaints = dns1035_label(first);
    if !first.is_empty() && !complaints.is_empty() {
        errors.push(invalid("spec.version", first, complaints.join(",")));
    }
}

/// Checks what all versions share.
pub(super) fn check_shared(spec: &Value, shared: &Shared<'_>, crowded: &[String], errors: &mut Vec<FieldError>) {
    let versions = list(spec, "versions");
    let has_status = versions
        .iter()
        .any(|version| !version["subresources"]["status"].is_null());
    let schema = shared.schema.above();
    check_schema(schema, has_status, "spec.validation", errors);
    check_subresources(shared.subresources.above(), "spec.subresources", errors);
    check_columns(shared.columns.above(), "spec.additionalPrinterColumns", errors);
    let fields = shared.fields.above();
    if fields.as_array().is_some_and(|fields| !fields.is_empty()) {
        if schema.is_null() {
            let detail = "may only be set when validations.schema is included";
            errors.push(invalid("spec.selectableFields", "", detail));
        } else {
            let crowded = crowded.len() == versions.len();
            check_selectable(
                fields,
                &schema["openAPIV3Schema"],
                crowded,
                "spec.selectableFields",
                errors,
            );
        }
    }
}

/// An error that shows all versions, in the order in which Kubernetes' own types have their fields.
fn about_versions(spec: &Value, shared: &Shared<'_>, detail: &str) -> FieldError {
    let shown = list(spec, "versions").iter().map(|version| {
        let schema = shared.schema.within(version, "schema");
        format!(
            "{{\"Name\":{},\"Served\":{},\"Storage\":{},\"Deprecated\":{},\"DeprecationWarning\":{},\"Schema\":{},\
             \"Subresources\":{},\"AdditionalPrinterColumns\":{},\"SelectableFields\":{}}}",
            quote(text(version, "name")),
            version["served"] == true,
            version["storage"] == true,
            version["deprecated"] == true,
            version["deprecationWarning"],
            schema,
            shared.subresources.within(version, "subresources"),
            shared.columns.within(version, "additionalPrinterColumns"),
            shared.fields.within(version, "selectableFields"),
        )
    });
    let shown = if spec["versions"].is_array() {
        format!("[{}]", shown.collect::<Vec<_>>().join(","))
    } else {
        "null".to_owned()
    };
    FieldError {
        kind: ErrorKind::Invalid,
        field: "spec.versions".to_owned(),
        value: None,
        detail: format!("{shown}: {detail}"),
    }
}

fn check_deprecation(version: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let Some(warning) = version["deprecationWarning"].as_str() else {
        return;
    };
    let mut refuse = |detail: String| errors.push(invalid(format!("{at}.deprecationWarning"), warning, detail));
    if version["deprecated"] != true {
        refuse("can only be set for deprecated versions".to_owned());
        return;
    }
    if warning.len() > 256 {
        refuse("must be <= 256 characters long".to_owned());
    }
    if warning.is_empty() {
        refuse("must not be an empty string".to_owned());
    }
    let unprintable = |c: &char| c.is_control() || (c.is_whitespace() && *c != ' ');
    if let Some((index, _)) = warning.char_indices().find(|(_, c)| unprintable(c)) {
        refuse(format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {index}"
        ));
    }
}

fn check_schema(schema: &Value, has_status: bool, at: &str, errors: &mut Vec<FieldError>) {
    let Some(schema) = schema.get("openAPIV3Schema").filter(|schema| schema.is_object()) else {
        return;
    };
    let at = format!("{at}.openAPIV3Schema");
    if has_status {
        check_root(schema, &at, errors);
    }
    errors.extend(check_structural(schema, &at));
}

/// Keys that may stand at the root of a schema beside a status of its own, by Kubernetes' names for them.
const AT_ROOT: [(&str, &str); 22] = [
    ("description", "Description"),
    ("type", "Type"),
    ("format", "Format"),
    ("title", "Title"),
    ("maximum", "Maximum"),
    ("exclusiveMaximum", "ExclusiveMaximum"),
    ("minimum", "Minimum"),
    ("exclusiveMinimum", "ExclusiveMinimum"),
    ("maxLength", "MaxLength"),
    ("minLength", "MinLength"),
    ("pattern", "Pattern"),
    ("maxItems", "MaxItems"),
    ("minItems", "MinItems"),
    ("uniqueItems", "UniqueItems"),
    ("multipleOf", "MultipleOf"),
    ("required", "Required"),
    ("items", "Items"),
    ("properties", "Properties"),
    ("externalDocs", "ExternalDocs"),
    ("example", "Example"),
    ("x-kubernetes-preserve-unknown-fields", "XPreserveUnknownFields"),
    ("x-kubernetes-validations", "XValidations"),
];

/// The schema of the status is taken out of the whole, so nothing may tie the two together.
fn check_root(schema: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let kind = text(schema, "type");
    if !kind.is_empty() && kind != "object" {
        let detail =
            "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        errors.push(invalid(format!("{at}.type"), kind, detail));
        return;
    }
    let unset = |value: &Value| value.is_null() || *value == false || *value == "";
    let keys = schema
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, value)| !unset(value));
    let foreign = keys
        .map(|(key, _)| key)
        .find(|key| AT_ROOT.iter().all(|(allowed, _)| allowed != key));
    if foreign.is_some() {
        let allowed: Vec<&str> = AT_ROOT.iter().map(|(_, name)| *name).collect();
        let detail = format!(
            "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
            allowed.join(" ")
        );
        errors.push(invalid(at, schema.clone(), detail));
    }
}

fn has_defaults(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.iter().any(|(key, value)| match key.as_str() {
            "default" => !value.is_null(),
            // Names of fields are no keywords.
            "properties" => value
                .as_object()
                .into_iter()
                .flatten()
                .any(|(_, schema)| has_defaults(schema)),
            "enum" | "example" => false,
            _ => has_defaults(value),
        }),
        Value::Array(schemas) => schemas.iter().any(has_defaults),
        _ => false,
    }
}

fn check_subresources(subresources: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let scale = &subresources["scale"];
    if !scale.is_object() {
        return;
    }
    for (key, root) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
        let (path, at) = (text(scale, key), format!("{at}.scale.{key}"));
        if path.is_empty() {
            errors.push(required(at, ""));
        } else if !check_path(path, &at, errors) && !path.starts_with(root) {
            let detail = format!("should be a json path under {}", root.trim_end_matches('.'));
            errors.push(invalid(at, path, detail));
        }
    }
    let (path, at) = (
        text(scale, "labelSelectorPath"),
        format!("{at}.scale.labelSelectorPath"),
    );
    if !path.is_empty()
        && !check_path(path, &at, errors)
        && ![".spec.", ".status."].iter().any(|root| path.starts_with(root))
    {
        errors.push(invalid(at, path, "should be a json path under either .spec or .status"));
    }
}

/// Complains about a path that does not begin at the object; whether it did.
fn check_path(path: &str, at: &str, errors: &mut Vec<FieldError>) -> bool {
    if path.starts_with('.') {
        return false;
    }
    errors.push(invalid(at, path, "must be a simple json path starting with ."));
    true
}

fn check_columns(columns: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for (index, column) in columns.as_array().into_iter().flatten().enumerate() {
        let at = format!("{at}[{index}]");
        if text(column, "name").is_empty() {
            errors.push(required(format!("{at}.name"), ""));
        }
        let kind = text(column, "type");
        let detail = format!("must be one of {COLUMN_TYPES}");
        if kind.is_empty() {
            errors.push(required(format!("{at}.type"), detail));
        } else if !COLUMN_TYPES.split(',').any(|known| known == kind) {
            errors.push(invalid(format!("{at}.type"), kind, detail));
        }
        let format = text(column, "format");
        if !format.is_empty() && !COLUMN_FORMATS.split(',').any(|known| known == format) {
            errors.push(invalid(
                format!("{at}.format"),
                format,
                format!("must be one of {COLUMN_FORMATS}"),
            ));
        }
        let path = text(column, "jsonPath");
        if path.is_empty() {
            errors.push(required(format!("{at}.JSONPath"), ""));
        } else {
            check_path(path, &format!("{at}.JSONPath"), errors);
        }
    }
}

fn check_selectable(fields: &Value, schema: &Value, crowded: bool, at: &str, errors: &mut Vec<FieldError>) {
    let mut unique = HashSet::new();
    for (index, field) in fields.as_array().into_iter().flatten().enumerate() {
        let (path, at) = (text(field, "jsonPath"), format!("{at}[{index}].jsonPath"));
        if path.is_empty() {
            errors.push(required(at, ""));
            continue;
        }
        let found = match follow(path, schema) {
            Ok(found) => found,
            Err(reason) => {
                errors.push(invalid(at, path, format!("is an invalid path: {reason}")));
                continue;
            }
        };
        if path == ".metadata" || path.starts_with(".metadata.") {
            errors.push(invalid(&at, path, "must not point to fields in metadata"));
        }
        if !matches!(text(found, "type"), "string" | "boolean" | "integer") {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with \
                          formats are allowed.";
            errors.push(invalid(&at, path, detail));
        }
        if !unique.insert(path) {
            errors.push(FieldError {
                kind: ErrorKind::Duplicate,
                field: at,
                value: Some(path.into()),
                detail: String::new(),
            });
        }
    }
    if unique.len() > MOST_SELECTABLE && !crowded {
        errors.push(FieldError {
            kind: ErrorKind::TooMany,
            field: at.to_owned(),
            value: Some(unique.len().into()),
            detail: format!("must have at most {MOST_SELECTABLE} items"),
        });
    }
}

/// The schema of the field that a path such as `.spec.color` leads to.
fn follow<'s>(path: &str, schema: &'s Value) -> Result<&'s Value, String> {
    let mut here = schema;
    let mut rest = path;
    while !rest.is_empty() {
        let Some(after) = rest.strip_prefix('.') else {
            let token = &rest[..rest.find('.').unwrap_or(rest.len())];
            return Err(match rest.as_bytes()[0] {
                b'[' => "array notation is not allowed".to_owned(),
                _ => format!("expected [ or . but got: {token}"),
            });
        };
        let end = match after.bytes().next() {
            None => return Err("unexpected end of JSON path".to_owned()),
            Some(b'.' | b'[' | b']') => 1,
            Some(_) => after.find(['.', '[', ']']).unwrap_or(after.len()),
        };
        let name = &after[..end];
        rest = &after[end..];
        let unknown = || "does not refer to a valid field".to_owned();
        here = match (
            here.get("properties").filter(|p| p.is_object()),
            here.get("additionalProperties"),
        ) {
            (Some(properties), _) => properties.get(name).ok_or_else(unknown)?,
            (None, Some(additional)) if additional.is_object() => additional,
            _ => return Err(unknown()),
        };
    }
    Ok(here)
}
