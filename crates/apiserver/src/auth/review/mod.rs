//! Questions about access and identity that are asked through the API: a review goes in, the same review comes out with
//! its status. Nothing is stored.

mod access;
mod identity;
mod token_request;

pub use access::{access_review, local_access_review, self_access_review, self_rules_review};
pub use identity::{self_review, token_review};
use serde_json::{Map, Value};
pub use token_request::{TokenRequest, token_request};

/// A field of an object that may not be there.
fn field<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    value.get(name).filter(|value| !value.is_null())
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The review with its answer, and with metadata whether or not it had any.
fn answered(mut review: Value, status: Value) -> Value {
    if let Some(fields) = review.as_object_mut() {
        fields.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        fields.insert("status".to_owned(), status);
    }
    review
}
