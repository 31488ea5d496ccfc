//! `metav1.Status`: how an API server says no, and sometimes yes.
//!
//! [`ApiError`] is the failing half: each constructor carries the code, reason, message and details of the Kubernetes
//! answer it is named after; clients decide by reason and cause, people read the message, and both must find what they
//! know.

mod error;

pub use error::{ApiError, Attempt};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::gvk::GroupResource;

/// The answer itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Always `Status`.
    #[serde(default = "status_kind")]
    kind: String,
    /// Always `v1`.
    #[serde(default = "status_api_version")]
    api_version: String,
    /// List metadata; only an expired list says something here.
    #[serde(default)]
    pub metadata: StatusMetadata,
    /// Success or failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Outcome>,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// For programs.
    #[serde(default, skip_serializing_if = "Reason::is_unknown")]
    pub reason: Reason,
    /// What it is about, and the single causes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Box<Details>>,
    /// The HTTP status code.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub code: u16,
}

/// The list metadata of a [`Status`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusMetadata {
    /// Where an expired list may go on, inconsistently.
    #[serde(default, rename = "continue", skip_serializing_if = "String::is_empty")]
    pub continue_token: String,
    /// The revision of the store, where told.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
}

/// Whether what was asked for was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It was.
    Success,
    /// It was not.
    Failure,
}

/// What a [`Status`] is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    /// The object's name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The API group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The resource, or, for invalid objects, the kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The object's uid.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The single things that are wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// When to try again.
    #[serde(default, skip_serializing_if = "is_zero_seconds")]
    pub retry_after_seconds: u32,
}

/// One thing that is wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// For programs, such as `FieldValueInvalid` or `FieldManagerConflict`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The path of the field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// Why, in one word that clients act on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are Kubernetes' own and say all there is")]
pub enum Reason {
    Unauthorized,
    Forbidden,
    NotFound,
    AlreadyExists,
    Conflict,
    Gone,
    Invalid,
    ServerTimeout,
    StoreReadError,
    Timeout,
    TooManyRequests,
    BadRequest,
    MethodNotAllowed,
    NotAcceptable,
    RequestEntityTooLarge,
    UnsupportedMediaType,
    InternalError,
    Expired,
    ServiceUnavailable,
    /// No reason is given; not written at all, and what an unknown one is read as.
    #[default]
    #[serde(rename = "", other)]
    Unknown,
}

impl Reason {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_unknown(&self) -> bool {
        *self == Reason::Unknown
    }
}

impl Status {
    /// A success, such as the answer to a delete that left nothing behind.
    pub fn success(details: Option<Details>) -> Self {
        Status {
            kind: status_kind(),
            api_version: status_api_version(),
            metadata: StatusMetadata::default(),
            status: Some(Outcome::Success),
            message: String::new(),
            reason: Reason::Unknown,
            details: details.map(Box::new),
            code: 0,
        }
    }

    /// The answer to a delete: which object is gone.
    pub fn deleted(resource: &GroupResource, name: &str, uid: &str) -> Self {
        Status::success(Some(Details {
            uid: uid.to_owned(),
            ..Details::of(resource, name)
        }))
    }

    /// As a JSON object.
    pub fn to_value(&self) -> Value {
        serde_json::to_value(self).expect("a status holds nothing that JSON cannot")
    }
}

impl Details {
    fn of(resource: &GroupResource, name: &str) -> Self {
        Details {
            name: name.to_owned(),
            group: resource.group.to_string(),
            kind: resource.resource.to_string(),
            ..Details::default()
        }
    }
}

fn status_kind() -> String {
    "Status".to_owned()
}

fn status_api_version() -> String {
    "v1".to_owned()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(code: &u16) -> bool {
    *code == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero_seconds(seconds: &u32) -> bool {
    *seconds == 0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config_maps() -> GroupResource {
        GroupResource::from("configmaps")
    }

    #[test]
    fn a_delete_answers_with_what_is_gone() {
        assert_eq!(
            Status::deleted(&config_maps(), "c", "u-1").to_value(),
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                "details": {"name": "c", "kind": "configmaps", "uid": "u-1"},
            })
        );
    }

    #[test]
    fn a_status_survives_json_even_with_a_reason_of_another_time() {
        let error = ApiError::namespace_terminating(&config_maps(), "c", "n");
        let parsed: Status = serde_json::from_value(error.status().to_value()).unwrap();
        assert_eq!(&parsed, error.status());
        assert!(error.has_cause("NamespaceTerminating"));
        let odd: Status = serde_json::from_value(json!({"status": "Failure", "reason": "Later", "code": 418})).unwrap();
        assert_eq!(odd.reason, Reason::Unknown);
    }
}
