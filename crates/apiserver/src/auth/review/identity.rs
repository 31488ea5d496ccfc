//! Who someone is.

use jiff::Timestamp;
use moorline_machinery::{status::ApiError, time};
use serde_json::{Map, Value, json};

use super::{answered, field, text};
use crate::auth::{authentication::Authenticator, user::User};

/// `SelfSubjectReview`: who am I?
pub fn self_review(review: &Value, user: &User, now: Timestamp) -> Value {
    json!({
        "apiVersion": review.get("apiVersion"), "kind": review.get("kind"),
        "metadata": { "creationTimestamp": time::format(now) },
        "status": { "userInfo": user.to_value() },
    })
}

/// `TokenReview`: whose token is this?
pub fn token_review(review: Value, authenticator: &Authenticator, now: Timestamp) -> Result<Value, ApiError> {
    let spec = review.get("spec").unwrap_or(&Value::Null);
    let token = text(spec, "token");
    if token.is_empty() {
        return Err(ApiError::bad_request(
            "token is required for TokenReview in authentication",
        ));
    }
    let wanted = field(spec, "audiences").and_then(Value::as_array).into_iter().flatten();
    let mut wanted: Vec<String> = wanted.filter_map(Value::as_str).map(str::to_owned).collect();
    if wanted.is_empty() {
        wanted = authenticator.tokens().audiences().to_vec();
    }
    let found = authenticator.check(token, &wanted, now).and_then(|found| {
        let audiences: Vec<&String> = found
            .audiences
            .iter()
            .filter(|audience| wanted.contains(audience))
            .collect();
        match audiences.as_slice() {
            [] => Err("token is meant for other audiences".to_owned()),
            audiences => Ok(json!({ "authenticated": true, "user": found.user.to_value(), "audiences": audiences })),
        }
    });
    let status = found.unwrap_or_else(|error| json!({ "user": Map::new(), "error": error }));
    Ok(answered(review, status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::authentication::tests::authenticator;

    fn review(spec: &Value) -> Result<Value, ApiError> {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec});
        token_review(review, &authenticator(), Timestamp::UNIX_EPOCH).map(|review| review["status"].clone())
    }

    #[test]
    fn i_learn_who_i_am() {
        let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        assert_eq!(
            self_review(&asked, &User::anonymous(), Timestamp::UNIX_EPOCH),
            json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
                "metadata": {"creationTimestamp": "1970-01-01T00:00:00Z"},
                "status": {"userInfo": {"username": "system:anonymous", "groups": ["system:unauthenticated"]}},
            })
        );
    }

    #[test]
    fn a_token_is_traced_to_its_holder() {
        let status = review(&json!({"token": "jane-token"})).unwrap();
        assert_eq!(status["authenticated"], true);
        assert_eq!(
            status["user"],
            json!({"username": "jane", "groups": ["system:authenticated"]})
        );
        assert_eq!(status["audiences"], json!(authenticator().tokens().audiences()));
    }

    #[test]
    fn a_token_that_is_worth_nothing_says_why() {
        let refused = json!({"user": {}, "error": "invalid bearer token"});
        assert_eq!(review(&json!({"token": "nonsense"})).unwrap(), refused);
        let elsewhere = review(&json!({"token": "jane-token", "audiences": ["vault"]})).unwrap();
        assert_eq!(elsewhere.get("authenticated"), None);
        let error = review(&json!({})).unwrap_err();
        assert_eq!(
            (error.code(), error.to_string().as_str()),
            (400, "token is required for TokenReview in authentication")
        );
    }
}
