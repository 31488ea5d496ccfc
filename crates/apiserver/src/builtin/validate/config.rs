//! Config maps and secrets.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use moorline_machinery::field::{FieldError, Path};
use serde_json::Value;

use super::{
    at::{At, Errors, dig, same},
    text,
};

/// The most that either may hold.
const SIZE_MAX: usize = 1024 * 1024;
const SEALED: &str = "field is immutable when `immutable` is set";

/// A config map.
pub(super) fn config_map(object: &At<'_>, errors: &mut Errors) {
    let (data, binary) = (object.at("data"), object.at("binaryData"));
    let mut size = 0;
    data.each_entry(|key, value| {
        keys(key, value, errors);
        if binary.value.get(key).is_some() {
            value.invalid_as(errors, key, "duplicate of key present in binaryData");
        }
        size += value.text().len();
    });
    binary.each_entry(|key, value| {
        keys(key, value, errors);
        size += decoded_size(value.text());
    });
    if size > SIZE_MAX {
        // Kubernetes names no field here.
        errors.push(FieldError::too_long(&Path::root("[]"), SIZE_MAX));
    }
}

fn keys(key: &str, value: &At<'_>, errors: &mut Errors) {
    for complaint in text::config_key(key) {
        value.invalid_as(errors, key, complaint);
    }
}

fn decoded_size(encoded: &str) -> usize {
    encoded.len() / 4 * 3 - encoded.bytes().rev().take_while(|byte| *byte == b'=').count().min(2)
}

/// A change of a config map: a sealed one keeps what it holds.
pub(super) fn config_map_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    sealed(new, old, &["data", "binaryData"], errors);
}

fn sealed(new: &At<'_>, old: &Value, fields: &[&str], errors: &mut Errors) {
    if dig(old, &["immutable"]) != &Value::Bool(true) {
        return;
    }
    if !new.at("immutable").flag() {
        new.at("immutable").forbidden(errors, SEALED);
    }
    for field in fields {
        if !same(new.at(field).value, dig(old, &[field])) {
            new.at(field).forbidden(errors, SEALED);
        }
    }
}

/// A secret.
pub(super) fn secret(object: &At<'_>, errors: &mut Errors) {
    let data = object.at("data");
    let mut size = 0;
    data.each_entry(|key, value| {
        keys(key, value, errors);
        size += decoded_size(value.text());
    });
    if size > SIZE_MAX {
        errors.push(FieldError::too_long(&data.path, SIZE_MAX));
    }
    match object.at("type").text() {
        "kubernetes.io/service-account-token" => {
            let metadata = object.at("metadata");
            let annotations = metadata.at("annotations");
            let name = "kubernetes.io/service-account.name";
            if annotations
                .value
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .is_empty()
            {
                errors.push(FieldError::required(&annotations.path.key(name), ""));
            }
        }
        "kubernetes.io/dockercfg" => json(&data, ".dockercfg", errors),
        "kubernetes.io/dockerconfigjson" => json(&data, ".dockerconfigjson", errors),
        "kubernetes.io/basic-auth" if lacks(&data, "username") && lacks(&data, "password") => {
            required(&data, &["username", "password"], errors);
        }
        "kubernetes.io/ssh-auth" if data.at("ssh-privatekey").is_empty() => {
            required(&data, &["ssh-privatekey"], errors);
        }
        "kubernetes.io/tls" => {
            let missing = |key: &&&str| data.value.get(**key).is_none();
            let keys: Vec<&str> = ["tls.crt", "tls.key"].iter().filter(missing).copied().collect();
            required(&data, &keys, errors);
        }
        _ => {}
    }
}

fn lacks(data: &At<'_>, key: &str) -> bool {
    data.value.get(key).is_none()
}

fn required(data: &At<'_>, keys: &[&str], errors: &mut Errors) {
    errors.extend(keys.iter().map(|key| FieldError::required(&data.path.key(key), "")));
}

fn json(data: &At<'_>, key: &str, errors: &mut Errors) {
    let path = data.path.key(key);
    let Some(encoded) = data.value.get(key).and_then(Value::as_str) else {
        errors.push(FieldError::required(&path, ""));
        return;
    };
    let bytes = STANDARD.decode(encoded).unwrap_or_default();
    if let Err(error) = serde_json::from_slice::<serde_json::Map<String, Value>>(&bytes) {
        let why = match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(first) if !b"{[\"-0123456789tfn".contains(first) => {
                format!(
                    "invalid character '{}' looking for beginning of value",
                    char::from(*first)
                )
            }
            None => "unexpected end of JSON input".to_owned(),
            Some(_) => error.to_string(),
        };
        errors.push(FieldError::invalid(&path, "<secret contents redacted>", why));
    }
}

/// A change of a secret: it keeps its type, and a sealed one all it holds.
pub(super) fn secret_change(new: &At<'_>, old: &Value, errors: &mut Errors) {
    new.at("type").unchanged(errors, dig(old, &["type"]));
    sealed(new, old, &["data"], errors);
}
