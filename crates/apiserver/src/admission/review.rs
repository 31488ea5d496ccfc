//! The question that a webhook is sent, and what its answer means. Nothing here calls anybody.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use moorline_machinery::{
    field::quote,
    gvk::{GroupVersionKind, GroupVersionResource, split_api_version},
    status::{ApiError, Status},
};
use serde_json::{Map, Value, json};

use super::{matching::Invocation, roster::ReviewVersion, subject::Subject};
use crate::resource::ResourceType;

const GROUP: &str = "admission.k8s.io";

/// What a webhook is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Mutating,
    Validating,
}

/// What a webhook answered.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) warnings: Vec<String>,
    pub(super) decision: Decision,
}

/// What a webhook wants to become of a write.
#[derive(Debug, PartialEq)]
pub(super) enum Decision {
    Allowed,
    /// Allowed, once the object is changed by this JSON patch.
    Patched(Vec<u8>),
    Denied(ApiError),
}

/// The request within a review, without the objects.
pub(super) fn request(subject: &Subject<'_>, resource: &ResourceType, kind: &GroupVersionKind, uid: &str) -> Value {
    let attributes = subject.attributes;
    let mut request = json!({
        "uid": uid,
        "kind": kind_value(kind),
        "resource": resource_value(&resource.gvr),
        "requestKind": kind_value(&subject.kind),
        "requestResource": resource_value(&subject.resource().gvr),
        "operation": subject.operation,
        "userInfo": attributes.call.user.to_value(),
        "dryRun": attributes.dry_run,
        "options": subject.options,
    });
    for (field, text) in [
        ("subResource", subject.subresource),
        ("requestSubResource", subject.subresource),
        ("name", subject.name),
        ("namespace", subject.namespace),
    ] {
        if !text.is_empty() {
            request[field] = text.into();
        }
    }
    request
}

fn kind_value(kind: &GroupVersionKind) -> Value {
    json!({ "group": &*kind.group, "version": &*kind.version, "kind": &*kind.kind })
}

fn resource_value(resource: &GroupVersionResource) -> Value {
    json!({ "group": &*resource.group, "version": &*resource.version, "resource": &*resource.resource })
}

/// The review that asks a webhook.
pub(super) fn review(version: ReviewVersion, invocation: &Invocation<'_>) -> Value {
    let mut request = invocation.request.clone();
    request["object"] = (*invocation.object).clone();
    request["oldObject"] = invocation.old.as_deref().cloned().unwrap_or_default();
    let version = match version {
        ReviewVersion::V1 => "v1",
        ReviewVersion::V1Beta1 => "v1beta1",
    };
    json!({ "kind": "AdmissionReview", "apiVersion": format!("{GROUP}/{version}"), "request": request })
}

/// What an answer means, or why it means nothing.
pub(super) fn verdict(
    answer: &Value,
    version: ReviewVersion,
    uid: &str,
    role: Role,
    webhook: &str,
) -> Result<Verdict, String> {
    let response = &answer["response"];
    if !response.is_object() {
        return Err("webhook response was absent".to_owned());
    }
    // The old form of the answer was never held to its type or to the request that it is for.
    if version == ReviewVersion::V1 {
        check_identity(answer, uid)?;
    }
    let warnings = response["warnings"].as_array().into_iter().flatten();
    let warnings = warnings.filter_map(Value::as_str).map(str::to_owned).collect();
    let patch = patch(response, version, role)?;
    let decision = match (response["allowed"] == true, patch) {
        (false, _) => Decision::Denied(denial(webhook, &response["status"])),
        (true, Some(patch)) => Decision::Patched(patch),
        (true, None) => Decision::Allowed,
    };
    Ok(Verdict { warnings, decision })
}

fn check_identity(answer: &Value, uid: &str) -> Result<(), String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let found = text(&answer["response"]["uid"]);
    if found != uid {
        return Err(format!("expected response.uid={}, got {}", quote(uid), quote(&found)));
    }
    let expected = GroupVersionKind::new(GROUP, "v1", "AdmissionReview");
    let (api_version, kind) = (text(&answer["apiVersion"]), text(&answer["kind"]));
    let (group, version) = split_api_version(&api_version).unwrap_or_default();
    let found = GroupVersionKind::new(group, version, kind);
    if found != expected {
        return Err(format!("expected webhook response of {expected}, got {found}"));
    }
    Ok(())
}

fn patch(response: &Value, version: ReviewVersion, role: Role) -> Result<Option<Vec<u8>>, String> {
    let encoded = response["patch"].as_str().unwrap_or_default();
    let patch = STANDARD
        .decode(encoded)
        .map_err(|error| format!("response.patch is not base64: {error}"))?;
    let given = response["patchType"].as_str();
    match (version, role) {
        (ReviewVersion::V1Beta1, Role::Validating) => return Ok(None),
        (ReviewVersion::V1, Role::Validating) => {
            for (field, present) in [("patch", !patch.is_empty()), ("patchType", given.is_some())] {
                if present {
                    return Err(format!("validating webhook may not return response.{field}"));
                }
            }
            return Ok(None);
        }
        (ReviewVersion::V1Beta1, Role::Mutating) => {}
        (ReviewVersion::V1, Role::Mutating) => match (patch.is_empty(), given) {
            (false, None) => return Err("webhook returned response.patch but not response.patchType".to_owned()),
            (true, Some(_)) => return Err("webhook returned response.patchType but not response.patch".to_owned()),
            (false, Some("")) => return Err("webhook returned invalid response.patchType of \"\"".to_owned()),
            _ => {}
        },
    }
    match given {
        _ if patch.is_empty() => Ok(None),
        None | Some("JSONPatch") => Ok(Some(patch)),
        Some(other) => Err(format!("unsupported patch type {}", quote(other))),
    }
}

/// The refusal of a webhook in the words of the API.
fn denial(webhook: &str, result: &Value) -> ApiError {
    let text = |name: &str| result[name].as_str().filter(|text| !text.is_empty());
    let denied = format!("admission webhook {} denied the request", quote(webhook));
    let message = match text("message").or_else(|| text("reason")) {
        Some(why) => format!("{denied}: {why}"),
        None => format!("{denied} without explanation"),
    };
    let code = result["code"].as_u64().and_then(|code| u16::try_from(code).ok());
    // Whether it failed is not in question; nulls stand for what is left out.
    let given: Map<String, Value> = result
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, value)| !matches!(name.as_str(), "status" | "code") && !value.is_null())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let mut status: Status = serde_json::from_value(given.into()).unwrap_or_else(|_| Status::success(None));
    status.message = message;
    status.code = code.filter(|code| *code >= 400).unwrap_or(400);
    ApiError::from_status(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(response: &Value) -> Value {
        let mut response = response.clone();
        response["uid"] = "u".into();
        json!({ "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response })
    }

    fn judged(answer: &Value, role: Role) -> Result<Decision, String> {
        verdict(answer, ReviewVersion::V1, "u", role, "a.b.c").map(|verdict| verdict.decision)
    }

    fn denied(status: &Value) -> (u16, String) {
        let answer = answer(&json!({ "allowed": false, "status": status }));
        match judged(&answer, Role::Validating) {
            Ok(Decision::Denied(error)) => (error.code(), error.to_string()),
            other => panic!("not denied: {other:?}"),
        }
    }

    #[test]
    fn a_denial_says_as_much_as_the_webhook_did() {
        let by = "admission webhook \"a.b.c\" denied the request";
        assert_eq!(denied(&Value::Null), (400, format!("{by} without explanation")));
        assert_eq!(denied(&json!({ "message": "no" })), (400, format!("{by}: no")));
        let full = json!({ "message": null, "reason": "Forbidden", "code": 403, "status": "Success" });
        assert_eq!(denied(&full), (403, format!("{by}: Forbidden")));
        assert_eq!(denied(&json!({ "code": 200, "message": "m" })).0, 400);
    }

    #[test]
    fn an_answer_to_another_question_or_of_another_type_means_nothing() {
        assert_eq!(
            judged(&json!({}), Role::Validating),
            Err("webhook response was absent".to_owned())
        );
        let mut other = answer(&json!({ "allowed": true }));
        other["response"]["uid"] = "v".into();
        assert_eq!(
            judged(&other, Role::Validating),
            Err("expected response.uid=\"u\", got \"v\"".to_owned())
        );
        let mut odd = answer(&json!({ "allowed": true }));
        odd["kind"] = "Review".into();
        let expected = "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got \
                        admission.k8s.io/v1, Kind=Review";
        assert_eq!(judged(&odd, Role::Validating), Err(expected.to_owned()));
    }

    #[test]
    fn a_patch_comes_with_its_type_and_only_from_mutating_webhooks() {
        let patch = STANDARD.encode("[]");
        let both = answer(&json!({ "allowed": true, "patch": patch, "patchType": "JSONPatch" }));
        assert_eq!(judged(&both, Role::Mutating), Ok(Decision::Patched(b"[]".to_vec())));
        assert!(judged(&both, Role::Validating).unwrap_err().contains("may not return"));
        for (half, problem) in [
            (json!({ "patch": patch }), "but not response.patchType"),
            (json!({ "patchType": "JSONPatch" }), "but not response.patch"),
            (
                json!({ "patch": patch, "patchType": "Other" }),
                "unsupported patch type \"Other\"",
            ),
            (json!({ "patch": "?", "patchType": "JSONPatch" }), "not base64"),
        ] {
            let mut half = half;
            half["allowed"] = true.into();
            let said = judged(&answer(&half), Role::Mutating).unwrap_err();
            assert!(said.contains(problem), "{said}");
        }
    }

    #[test]
    fn the_old_form_of_an_answer_needs_no_uid() {
        let answer = json!({ "response": { "allowed": true, "patch": STANDARD.encode("[]") } });
        let verdict = verdict(&answer, ReviewVersion::V1Beta1, "u", Role::Mutating, "a.b.c").unwrap();
        assert_eq!(verdict.decision, Decision::Patched(b"[]".to_vec()));
    }
}
