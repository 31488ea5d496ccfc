//! Whether someone may do something.

use moorline_machinery::{
    field::{FieldError, Path},
    gvk::GroupKind,
    status::ApiError,
};
use serde_json::{Map, Value, json};

use super::{answered, field, text};
use crate::auth::{
    action::{Action, ResourceAction},
    rbac::{Decision, RoleIndex},
    user::User,
};

/// `SelfSubjectAccessReview`: may I?
pub fn self_access_review(review: Value, user: &User, roles: &RoleIndex) -> Result<Value, ApiError> {
    let mut errors = Vec::new();
    check_attributes(&review, &mut errors);
    check_metadata(&review, None, &mut errors);
    refuse(&errors)?;
    Ok(decided(review, user, roles))
}

/// `SubjectAccessReview`: may they?
pub fn access_review(review: Value, roles: &RoleIndex) -> Result<Value, ApiError> {
    let mut errors = Vec::new();
    check_attributes(&review, &mut errors);
    check_subject(&review, &mut errors);
    check_metadata(&review, None, &mut errors);
    refuse(&errors)?;
    let user = subject(&review);
    Ok(decided(review, &user, roles))
}

/// `LocalSubjectAccessReview`: may they, here?
pub fn local_access_review(review: Value, namespace: &str, roles: &RoleIndex) -> Result<Value, ApiError> {
    let mut errors = Vec::new();
    let given = review
        .get("metadata")
        .map_or("", |metadata| text(metadata, "namespace"));
    // One that names no namespace is about the one that it is sent to.
    let own = if given.is_empty() { namespace } else { given }.to_owned();
    check_attributes(&review, &mut errors);
    check_subject(&review, &mut errors);
    check_metadata(&review, Some("namespace"), &mut errors);
    let spec = review.get("spec").unwrap_or(&Value::Null);
    if let Some(attributes) = field(spec, "resourceAttributes").filter(|found| text(found, "namespace") != own) {
        let path = Path::root("spec.resourceAttributes.namespace");
        errors.push(FieldError::invalid(
            &path,
            text(attributes, "namespace"),
            "must match metadata.namespace",
        ));
    }
    if let Some(attributes) = field(spec, "nonResourceAttributes") {
        let path = Path::root("spec.nonResourceAttributes");
        errors.push(FieldError::invalid(
            &path,
            as_shown(attributes),
            "disallowed on this kind of request",
        ));
    }
    refuse(&errors)?;
    if own != namespace {
        let why = format!("spec.resourceAttributes.namespace must match namespace: {namespace}");
        return Err(ApiError::bad_request(why));
    }
    let user = subject(&review);
    Ok(decided(review, &user, roles))
}

/// `SelfSubjectRulesReview`: what may I, in this namespace?
pub fn self_rules_review(review: &Value, user: &User, roles: &RoleIndex) -> Result<Value, ApiError> {
    let namespace = review.get("spec").map_or("", |spec| text(spec, "namespace"));
    if namespace.is_empty() {
        return Err(ApiError::bad_request("no namespace on request"));
    }
    let found = roles.rules_of(user, namespace);
    let on_resources = found
        .rules
        .iter()
        .filter(|rule| !rule.resources.is_empty())
        .map(|rule| {
            let mut rule = rule.clone();
            rule.non_resource_urls.clear();
            rule.to_value()
        });
    let on_paths = found.rules.iter().filter(|rule| !rule.non_resource_urls.is_empty());
    let on_paths = on_paths.map(|rule| json!({ "verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls }));
    let mut status = json!({
        "resourceRules": on_resources.collect::<Vec<_>>(),
        "nonResourceRules": on_paths.collect::<Vec<_>>(),
        "incomplete": false,
    });
    match found.errors.as_slice() {
        [] => {}
        [one] => status["evaluationError"] = one.as_str().into(),
        many => status["evaluationError"] = format!("[{}]", many.join(", ")).into(),
    }
    Ok(json!({
        "apiVersion": review.get("apiVersion"), "kind": review.get("kind"), "metadata": {}, "spec": {}, "status": status,
    }))
}

fn decided(review: Value, user: &User, roles: &RoleIndex) -> Value {
    let status = match roles.decide(user, &action(&review)) {
        Decision::Allowed { why } if why.is_empty() => json!({ "allowed": true }),
        Decision::Denied { why } if why.is_empty() => json!({ "allowed": false }),
        Decision::Allowed { why } => json!({ "allowed": true, "reason": why }),
        Decision::Denied { why } => json!({ "allowed": false, "reason": why }),
    };
    answered(review, status)
}

/// What the review is about; it has been checked that it is about something.
fn action(review: &Value) -> Action {
    let spec = review.get("spec").unwrap_or(&Value::Null);
    if let Some(attributes) = field(spec, "resourceAttributes") {
        let get = |name| text(attributes, name).to_owned();
        return Action::Resource(ResourceAction {
            verb: get("verb"),
            group: get("group"),
            resource: get("resource"),
            subresource: get("subresource"),
            namespace: get("namespace"),
            name: get("name"),
        });
    }
    let attributes = field(spec, "nonResourceAttributes").unwrap_or(&Value::Null);
    Action::Path {
        verb: text(attributes, "verb").to_owned(),
        path: text(attributes, "path").to_owned(),
    }
}

/// A path and a verb as messages show them.
fn as_shown(attributes: &Value) -> Value {
    json!({"Path": text(attributes, "path"), "Verb": text(attributes, "verb")})
}

fn subject(review: &Value) -> User {
    let empty = Map::new();
    User::from_fields("user", review.get("spec").and_then(Value::as_object).unwrap_or(&empty))
}

fn check_attributes(review: &Value, errors: &mut Vec<FieldError>) {
    let spec = review.get("spec").unwrap_or(&Value::Null);
    let path = Path::root("spec");
    match (field(spec, "resourceAttributes"), field(spec, "nonResourceAttributes")) {
        (Some(_), Some(other)) => {
            let path = path.child("nonResourceAttributes");
            let why = "cannot be specified in combination with resourceAttributes";
            errors.push(FieldError::invalid(&path, as_shown(other), why));
        }
        (None, None) => {
            let path = path.child("resourceAttributes");
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.push(FieldError::invalid(&path, Value::Null, why));
        }
        _ => {}
    }
    if let Some(attributes) = field(spec, "resourceAttributes") {
        for name in ["fieldSelector", "labelSelector"] {
            if let Some(selector) = field(attributes, name) {
                check_selector(selector, name, errors);
            }
        }
    }
}

fn check_selector(selector: &Value, name: &str, errors: &mut Vec<FieldError>) {
    let root = Path::root("spec.resourceAttributes");
    let path = root.child(name);
    let raw = text(selector, "rawSelector");
    let requirements = selector
        .get("requirements")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    if !raw.is_empty() && !requirements.is_empty() {
        let why = "may not specified at the same time as requirements";
        errors.push(FieldError::invalid(&path.child("rawSelector"), raw, why));
    }
    if raw.is_empty() && requirements.is_empty() {
        let why = format!("when {path} is specified, requirements or rawSelector is required");
        errors.push(FieldError::required(&path.child("requirements"), why));
    }
    let list = path.child("requirements");
    for (index, requirement) in requirements.iter().enumerate() {
        let path = list.index(index);
        let values = requirement.get("values").and_then(Value::as_array).map_or(0, Vec::len);
        match text(requirement, "operator") {
            "In" | "NotIn" if values == 0 => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(&path.child("values"), why));
            }
            "Exists" | "DoesNotExist" if values > 0 => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(&path.child("values"), why));
            }
            _ => {}
        }
    }
}

fn check_subject(review: &Value, errors: &mut Vec<FieldError>) {
    let user = subject(review);
    if user.name.is_empty() && user.groups.is_empty() {
        let path = Path::root("spec");
        errors.push(FieldError::invalid(
            &path.child("user"),
            "",
            "at least one of user or group must be specified",
        ));
    }
}

/// A review has no metadata but what the server itself puts there, and perhaps one field.
fn check_metadata(review: &Value, but: Option<&str>, errors: &mut Vec<FieldError>) {
    let Some(metadata) = review.get("metadata") else { return };
    let empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    let fields = metadata.as_object().into_iter().flatten();
    let mut others =
        fields.filter(|(name, value)| *name != "managedFields" && Some(name.as_str()) != but && !empty(value));
    if others.next().is_some() {
        let why = if but.is_some() {
            "must be empty except for namespace"
        } else {
            "must be empty"
        };
        errors.push(FieldError::invalid(&Path::root("metadata"), metadata.clone(), why));
    }
}

/// Kubernetes has forgotten the kind of a review by the time it checks it, and says so.
fn refuse(errors: &[FieldError]) -> Result<(), ApiError> {
    match errors {
        [] => Ok(()),
        errors => Err(ApiError::invalid(
            &GroupKind::new("authorization.k8s.io", ""),
            "",
            errors,
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::rbac::tests::{binding, index, jane, role, user};

    fn roles() -> RoleIndex {
        let rules = json!([{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}]);
        index(&[
            role("", "reader", rules),
            binding("n", "b", ("ClusterRole", "reader"), jane()),
        ])
    }

    fn review(kind: &str, spec: &Value) -> Value {
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec})
    }

    fn get_pods(namespace: &str) -> Value {
        json!({"verb": "get", "resource": "pods", "namespace": namespace})
    }

    #[test]
    fn i_learn_what_i_may() {
        let ask = |attributes: Value| {
            let review = review("SelfSubjectAccessReview", &json!({"resourceAttributes": attributes}));
            self_access_review(review, &user("jane"), &roles()).unwrap()
        };
        let answer = ask(get_pods("n"));
        let why = r#"RBAC: allowed by RoleBinding "b/n" of ClusterRole "reader" to User "jane""#;
        assert_eq!(answer["status"], json!({"allowed": true, "reason": why}));
        assert_eq!(answer["metadata"], json!({}));
        assert_eq!(answer["spec"], json!({"resourceAttributes": get_pods("n")}));
        assert_eq!(ask(get_pods("m"))["status"], json!({"allowed": false}));
        let path = review(
            "SelfSubjectAccessReview",
            &json!({"nonResourceAttributes": {"verb": "get", "path": "/api"}}),
        );
        let answer = self_access_review(path, &user("jane"), &roles()).unwrap();
        assert_eq!(answer["status"]["allowed"], true);
    }

    #[test]
    fn others_are_asked_about_by_name_or_group() {
        let ask =
            |spec: Value| access_review(review("SubjectAccessReview", &spec), &roles()).map(|r| r["status"].clone());
        let spec = json!({"user": "jane", "resourceAttributes": get_pods("n")});
        assert_eq!(ask(spec).unwrap()["allowed"], true);
        let spec = json!({"groups": ["system:masters"], "resourceAttributes": get_pods("x")});
        assert_eq!(ask(spec).unwrap(), json!({"allowed": true}));
        let error = ask(json!({"resourceAttributes": get_pods("n")})).unwrap_err();
        assert_eq!(
            error.to_string(),
            ".authorization.k8s.io \"\" is invalid: spec.user: Invalid value: \"\": at least one of user or group must be \
             specified"
        );
    }

    #[test]
    fn a_local_review_stays_in_its_namespace() {
        let ask = |own: &str, attributes: &str, path: &str| {
            let mut review = review(
                "LocalSubjectAccessReview",
                &json!({"user": "jane", "resourceAttributes": get_pods(attributes)}),
            );
            review["metadata"] = json!({"namespace": own});
            local_access_review(review, path, &roles()).map(|review| review["status"]["allowed"].clone())
        };
        assert_eq!(ask("n", "n", "n").unwrap(), true);
        let error = ask("n", "m", "n").unwrap_err().to_string();
        assert!(
            error.contains("spec.resourceAttributes.namespace: Invalid value: \"m\": must match metadata.namespace")
        );
        let error = ask("m", "m", "n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "spec.resourceAttributes.namespace must match namespace: n"
        );
        let mut paths = review(
            "LocalSubjectAccessReview",
            &json!({"user": "u", "nonResourceAttributes": {"path": "/"}}),
        );
        paths["metadata"] = json!({"namespace": "n"});
        let error = local_access_review(paths, "n", &roles()).unwrap_err().to_string();
        assert!(error.contains("disallowed on this kind of request"), "{error}");
    }

    #[test]
    fn a_review_is_about_one_thing_and_has_no_metadata() {
        let ask = |review: Value| {
            self_access_review(review, &user("jane"), &roles())
                .unwrap_err()
                .to_string()
        };
        let none = ask(review("SelfSubjectAccessReview", &json!({})));
        assert_eq!(
            none,
            ".authorization.k8s.io \"\" is invalid: spec.resourceAttributes: Invalid value: null: exactly one of \
             nonResourceAttributes or resourceAttributes must be specified"
        );
        let both = json!({"resourceAttributes": {}, "nonResourceAttributes": {"path": "/"}});
        assert!(ask(review("SelfSubjectAccessReview", &both)).contains("cannot be specified in combination"));
        let mut named = review("SelfSubjectAccessReview", &json!({"resourceAttributes": {}}));
        named["metadata"] = json!({"name": "x"});
        assert!(ask(named.clone()).contains("must be empty"));
        named["metadata"] = json!({"managedFields": [{}], "creationTimestamp": null});
        assert!(self_access_review(named, &user("jane"), &roles()).is_ok());
        let selector = json!({"resourceAttributes": {"labelSelector": {}}});
        let error = ask(review("SelfSubjectAccessReview", &selector));
        assert!(
            error.contains("spec.resourceAttributes.labelSelector.requirements: Required value"),
            "{error}"
        );
    }

    #[test]
    fn i_learn_all_that_i_may_in_a_namespace() {
        let ask = |namespace: &str| {
            let review = review("SelfSubjectRulesReview", &json!({"namespace": namespace}));
            self_rules_review(&review, &user("jane"), &roles())
        };
        let answer = ask("n").unwrap();
        let status = &answer["status"];
        let pods = json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]});
        assert!(status["resourceRules"].as_array().unwrap().contains(&pods));
        assert!(
            status["nonResourceRules"]
                .as_array()
                .unwrap()
                .iter()
                .any(|rule| rule["verbs"] == json!(["get"]))
        );
        assert_eq!(status["incomplete"], false);
        assert_eq!(ask("").unwrap_err().to_string(), "no namespace on request");
        assert!(
            !ask("m").unwrap()["status"]["resourceRules"]
                .as_array()
                .unwrap()
                .contains(&pods)
        );
    }

    #[test]
    fn odd_reviews_do_not_panic() {
        for odd in [
            json!(null),
            json!([]),
            json!("x"),
            json!({"spec": 1}),
            json!({"spec": {"resourceAttributes": 1}}),
        ] {
            let _ = self_access_review(odd.clone(), &user("u"), &roles());
            let _ = access_review(odd.clone(), &roles());
            let _ = local_access_review(odd.clone(), "n", &roles());
            let _ = self_rules_review(&odd, &user("u"), &roles());
        }
    }
}
