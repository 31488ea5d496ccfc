//! `serviceaccounts/token`: a new token for a service account.

use jiff::{SignedDuration, Timestamp};
use moorline_machinery::{
    field::{FieldError, Path, quote},
    gvk::{GroupKind, GroupResource, split_api_version},
    status::ApiError,
    time,
};
use serde_json::{Value, json};

use super::{field, text};
use crate::auth::{
    authentication::Authenticator,
    token::{Bound, Reference},
};

const GROUP: &str = "authentication.k8s.io";
const KIND: &str = "TokenRequest";
const DEFAULT_SECONDS: i64 = 3600;
const LEAST_SECONDS: i64 = 600;
const MOST_SECONDS: i64 = 1 << 32;
/// What kubelets ask for; such tokens last longer than asked for, for clients that read theirs but once.
const KUBELET_SECONDS: i64 = 3607;
const EXTENDED_SECONDS: i64 = 365 * 24 * 3600;

/// Where a token is asked for.
#[derive(Clone, Copy, Debug)]
pub struct TokenRequest<'a> {
    /// The service account's namespace.
    pub namespace: &'a str,
    /// The service account's name.
    pub name: &'a str,
    /// The time.
    pub now: Timestamp,
    /// What the token is to be known by; a new uid.
    pub id: &'a str,
}

/// Issues the token that a request asks for.
pub fn token_request(asked: &TokenRequest<'_>, body: &Value, with: &Authenticator) -> Result<Value, ApiError> {
    let &TokenRequest {
        namespace,
        name,
        now,
        id,
    } = asked;
    let metadata = body.get("metadata").unwrap_or(&Value::Null);
    for (field, own, what) in [("name", name, "name"), ("namespace", namespace, "namespace")] {
        let given = text(metadata, field);
        if !given.is_empty() && given != own {
            let root = Path::root("metadata");
            let why = format!("must match the service account {what} if specified");
            let error = FieldError::invalid(&root.child(field), given, why);
            return Err(ApiError::invalid(&GroupKind::new(GROUP, KIND), name, &[error]));
        }
    }
    let account = find(with, "serviceaccounts", namespace, name)?;
    let uid = text(&account["metadata"], "uid");
    let wanted_uid = text(metadata, "uid");
    if !wanted_uid.is_empty() && wanted_uid != uid {
        let why = format_args!(
            "the UID in the token request ({wanted_uid}) does not match the UID of the service account ({uid})"
        );
        return Err(ApiError::conflict(&GroupResource::new(GROUP, KIND), name, why));
    }
    let spec = body.get("spec").unwrap_or(&Value::Null);
    let seconds = field(spec, "expirationSeconds")
        .map_or(Some(DEFAULT_SECONDS), Value::as_i64)
        .unwrap_or_default();
    check_seconds(seconds)?;
    let listed = field(spec, "audiences").and_then(Value::as_array).into_iter().flatten();
    let mut audiences: Vec<String> = listed.filter_map(Value::as_str).map(str::to_owned).collect();
    if audiences.is_empty() {
        audiences = with.tokens().audiences().to_vec();
    }
    let mut bound = Bound {
        namespace: namespace.to_owned(),
        serviceaccount: Reference {
            name: name.to_owned(),
            uid: uid.to_owned(),
        },
        ..Bound::default()
    };
    if let Some(reference) = field(spec, "boundObjectRef") {
        bind(&mut bound, reference, name, with)?;
    }
    let mut lasts = seconds;
    let for_us = audiences
        .iter()
        .all(|audience| with.tokens().audiences().contains(audience));
    if bound.pod.is_some() && seconds == KUBELET_SECONDS && for_us {
        bound.warnafter = Some(now.as_second() + seconds);
        lasts = EXTENDED_SECONDS;
    }
    let ends = |seconds| {
        now.saturating_add(SignedDuration::from_secs(seconds))
            .unwrap_or(Timestamp::MAX)
    };
    let token = with.tokens().issue(bound, &audiences, now, ends(lasts), id);
    let mut answered = json!({ "audiences": audiences, "expirationSeconds": seconds });
    // A field without a value is as good as none to clients, but they expect it there.
    answered["boundObjectRef"] = spec.get("boundObjectRef").cloned().unwrap_or(Value::Null);
    Ok(json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": KIND,
        "metadata": { "name": name, "namespace": namespace, "uid": uid, "creationTimestamp": time::format(now) },
        "spec": answered,
        "status": { "token": token, "expirationTimestamp": time::format(ends(seconds)) },
    }))
}

fn check_seconds(seconds: i64) -> Result<(), ApiError> {
    let why = if seconds < LEAST_SECONDS {
        "may not specify a duration less than 10 minutes"
    } else if seconds > MOST_SECONDS {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        return Ok(());
    };
    let spec = Path::root("spec");
    let error = FieldError::invalid(&spec.child("expirationSeconds"), seconds, why);
    Err(ApiError::invalid(&GroupKind::new(GROUP, KIND), "", &[error]))
}

fn find(with: &Authenticator, resource: &str, namespace: &str, name: &str) -> Result<Value, ApiError> {
    let found = with.lookup().object(resource, namespace, name);
    found.ok_or_else(|| ApiError::not_found(&GroupResource::from(resource), name))
}

fn bind(bound: &mut Bound, reference: &Value, account: &str, with: &Authenticator) -> Result<(), ApiError> {
    let (kind, name) = (text(reference, "kind"), text(reference, "name"));
    let (group, version) = split_api_version(text(reference, "apiVersion")).unwrap_or_default();
    let refer = |object: &Value| Reference {
        name: name.to_owned(),
        uid: text(&object["metadata"], "uid").to_owned(),
    };
    let target = match (group, kind) {
        ("", "Pod") => {
            let pod = find(with, "pods", &bound.namespace, name)?;
            let spec = pod.get("spec").unwrap_or(&Value::Null);
            if text(spec, "serviceAccountName") != account {
                return Err(ApiError::bad_request(format!(
                    "cannot bind token for serviceaccount {} to pod running with different serviceaccount name.",
                    quote(account)
                )));
            }
            let node = text(spec, "nodeName");
            if !node.is_empty() {
                let found = with.lookup().object("nodes", "", node);
                let uid = found
                    .map(|node| text(&node["metadata"], "uid").to_owned())
                    .unwrap_or_default();
                bound.node = Some(Reference {
                    name: node.to_owned(),
                    uid,
                });
            }
            bound.pod.insert(refer(&pod)).clone()
        }
        ("", "Node") => bound.node.insert(refer(&find(with, "nodes", "", name)?)).clone(),
        ("", "Secret") => bound
            .secret
            .insert(refer(&find(with, "secrets", &bound.namespace, name)?))
            .clone(),
        _ => {
            let why = format!("cannot bind token to object of type {group}/{version}, Kind={kind}");
            return Err(ApiError::bad_request(why));
        }
    };
    let wanted = text(reference, "uid");
    if !wanted.is_empty() && wanted != target.uid {
        let why = format_args!(
            "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might have been \
             deleted and then recreated"
        );
        return Err(ApiError::conflict(&GroupResource::new(group, kind), name, why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

    use super::*;
    use crate::auth::token::tests::{Objects, tokens};

    fn authenticator() -> Authenticator {
        let pod = |account: &str| json!({"metadata": {"uid": "u-p"}, "spec": {"serviceAccountName": account, "nodeName": "h"}});
        let objects = Objects::default()
            .with("serviceaccounts", "n", "a", json!({"metadata": {"uid": "u-a"}}))
            .with("pods", "n", "p", pod("a"))
            .with("pods", "n", "q", pod("other"))
            .with("nodes", "", "h", json!({"metadata": {"uid": "u-h"}}));
        Authenticator::new(Arc::new(tokens()), Arc::new(objects))
    }

    fn request(body: &Value) -> Result<Value, ApiError> {
        let now = Timestamp::from_second(1000).unwrap();
        token_request(
            &TokenRequest {
                namespace: "n",
                name: "a",
                now,
                id: "i",
            },
            body,
            &authenticator(),
        )
    }

    fn refused(body: &Value) -> String {
        request(body).unwrap_err().to_string()
    }

    fn claims(answer: &Value) -> Value {
        let token = answer["status"]["token"].as_str().unwrap();
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn a_token_lasts_an_hour_and_is_for_us_unless_told_otherwise() {
        let answer = request(&json!({})).unwrap();
        assert_eq!(answer["status"]["expirationTimestamp"], "1970-01-01T01:16:40Z");
        assert_eq!(answer["spec"]["expirationSeconds"], 3600);
        assert_eq!(answer["spec"]["audiences"], json!(authenticator().tokens().audiences()));
        assert_eq!(answer["metadata"]["name"], "a");
        assert_eq!(claims(&answer)["exp"], 4600);
        assert_eq!(
            claims(&answer)["kubernetes.io"],
            json!({
                "namespace": "n", "serviceaccount": {"name": "a", "uid": "u-a"},
            })
        );
        let vault = request(&json!({"spec": {"audiences": ["vault"], "expirationSeconds": 600}})).unwrap();
        assert_eq!(
            (&claims(&vault)["aud"], &claims(&vault)["exp"]),
            (&json!(["vault"]), &json!(1600))
        );
    }

    #[test]
    fn a_token_is_bound_to_a_pod_of_its_account() {
        let bind = |reference: Value| json!({"spec": {"boundObjectRef": reference}});
        let pod = bind(json!({"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "u-p"}));
        assert_eq!(
            claims(&request(&pod).unwrap())["kubernetes.io"],
            json!({
                "namespace": "n", "serviceaccount": {"name": "a", "uid": "u-a"},
                "pod": {"name": "p", "uid": "u-p"}, "node": {"name": "h", "uid": "u-h"},
            })
        );
        for (reference, expected) in [
            (
                json!({"kind": "Pod", "apiVersion": "v1", "name": "gone"}),
                "pods \"gone\" not found",
            ),
            (
                json!({"kind": "Pod", "apiVersion": "v1", "name": "q"}),
                "cannot bind token for serviceaccount \"a\" to pod running with different serviceaccount name.",
            ),
            (
                json!({"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "old"}),
                "Operation cannot be fulfilled on Pod \"p\": the UID in the bound object reference (old) does not match \
                 the UID in record. The object might have been deleted and then recreated",
            ),
            (
                json!({"kind": "Deployment", "apiVersion": "apps/v1", "name": "d"}),
                "cannot bind token to object of type apps/v1, Kind=Deployment",
            ),
            (
                json!({"kind": "Secret", "apiVersion": "v1", "name": "s"}),
                "secrets \"s\" not found",
            ),
        ] {
            assert_eq!(refused(&bind(reference)), expected);
        }
    }

    #[test]
    fn a_kubelet_s_token_outlasts_what_it_asked_for() {
        let reference = json!({"kind": "Pod", "apiVersion": "v1", "name": "p"});
        let answer = request(&json!({"spec": {"expirationSeconds": 3607, "boundObjectRef": reference}})).unwrap();
        assert_eq!(claims(&answer)["exp"], 1000 + 365 * 24 * 3600);
        assert_eq!(claims(&answer)["kubernetes.io"]["warnafter"], 4607);
        assert_eq!(answer["status"]["expirationTimestamp"], "1970-01-01T01:16:47Z");
    }

    #[test]
    fn bad_requests_are_refused_as_kubernetes_does() {
        for (body, expected) in [
            (
                json!({"spec": {"expirationSeconds": 599}}),
                "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 599: may not \
                 specify a duration less than 10 minutes",
            ),
            (
                json!({"spec": {"expirationSeconds": 4_294_967_297_i64}}),
                "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: 4294967297: may \
                 not specify a duration larger than 2^32 seconds",
            ),
            (
                json!({"metadata": {"name": "b"}}),
                "TokenRequest.authentication.k8s.io \"a\" is invalid: metadata.name: Invalid value: \"b\": must match the \
                 service account name if specified",
            ),
            (
                json!({"metadata": {"uid": "old"}}),
                "Operation cannot be fulfilled on TokenRequest.authentication.k8s.io \"a\": the UID in the token request \
                 (old) does not match the UID of the service account (u-a)",
            ),
        ] {
            assert_eq!(refused(&body), expected);
        }
        let unknown = TokenRequest {
            namespace: "n",
            name: "b",
            now: Timestamp::UNIX_EPOCH,
            id: "i",
        };
        let error = token_request(&unknown, &json!({}), &authenticator()).unwrap_err();
        assert_eq!(error.to_string(), "serviceaccounts \"b\" not found");
    }
}
