use serde_json::json;

use super::*;
use crate::certificates::ServiceAccountKey;

pub(in crate::auth) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

pub(in crate::auth) fn tokens() -> ServiceAccountTokens {
    ServiceAccountTokens::new(ISSUER, &[ISSUER], ServiceAccountKey::new().unwrap().pkcs8()).unwrap()
}

/// A cluster of objects, by resource, namespace and name.
#[derive(Default)]
pub(in crate::auth) struct Objects(pub BTreeMap<(String, String, String), Value>);

impl Objects {
    pub(in crate::auth) fn with(mut self, resource: &str, namespace: &str, name: &str, object: Value) -> Self {
        self.0
            .insert((resource.to_owned(), namespace.to_owned(), name.to_owned()), object);
        self
    }
}

impl Lookup for Objects {
    fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        self.0
            .get(&(resource.to_owned(), namespace.to_owned(), name.to_owned()))
            .cloned()
    }
}

fn uid(uid: &str) -> Value {
    json!({"metadata": {"uid": uid}})
}

fn reference(name: &str, uid: &str) -> Reference {
    Reference {
        name: name.to_owned(),
        uid: uid.to_owned(),
    }
}

fn bound() -> Bound {
    Bound {
        namespace: "n".to_owned(),
        serviceaccount: reference("a", "u-a"),
        ..Bound::default()
    }
}

fn account() -> Objects {
    Objects::default().with("serviceaccounts", "n", "a", uid("u-a"))
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// Issued at 1,000, for an hour.
fn issue(tokens: &ServiceAccountTokens, bound: Bound) -> String {
    tokens.issue(bound, tokens.audiences(), at(1000), at(4600), "id-1")
}

fn check(tokens: &ServiceAccountTokens, token: &str, now: i64, objects: &Objects) -> Result<Holder, String> {
    tokens
        .check(token, tokens.audiences(), at(now), objects)
        .map_err(|error| error.to_string())
}

#[test]
fn a_token_names_its_service_account_and_what_it_is_bound_to() {
    let tokens = tokens();
    let token = issue(
        &tokens,
        Bound {
            pod: Some(reference("p", "u-p")),
            node: Some(reference("h", "u-h")),
            ..bound()
        },
    );
    let objects = account().with("pods", "n", "p", uid("u-p"));
    let holder = check(&tokens, &token, 1000, &objects).unwrap();
    assert_eq!(holder.audiences, [ISSUER]);
    assert_eq!(
        holder.user.to_value(),
        json!({
            "username": "system:serviceaccount:n:a", "uid": "u-a",
            "groups": ["system:serviceaccounts", "system:serviceaccounts:n"],
            "extra": {
                "authentication.kubernetes.io/credential-id": ["JTI=id-1"],
                "authentication.kubernetes.io/pod-name": ["p"],
                "authentication.kubernetes.io/pod-uid": ["u-p"],
                "authentication.kubernetes.io/node-name": ["h"],
                "authentication.kubernetes.io/node-uid": ["u-h"],
            },
        })
    );
}

#[test]
fn claims_have_the_shape_that_kubernetes_gives_them() {
    let tokens = tokens();
    let token = issue(
        &tokens,
        Bound {
            secret: Some(reference("s", "u-s")),
            ..bound()
        },
    );
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    assert_eq!(
        serde_json::from_slice::<Value>(&claims).unwrap(),
        json!({
            "aud": [ISSUER], "exp": 4600, "iat": 1000, "iss": ISSUER, "jti": "id-1", "nbf": 1000,
            "sub": "system:serviceaccount:n:a",
            "kubernetes.io": {
                "namespace": "n",
                "secret": {"name": "s", "uid": "u-s"},
                "serviceaccount": {"name": "a", "uid": "u-a"},
            },
        })
    );
}

#[test]
fn a_token_is_good_from_its_beginning_to_its_end_give_or_take_a_minute() {
    let tokens = tokens();
    let token = issue(&tokens, bound());
    for now in [940, 1000, 4600, 4660] {
        assert!(check(&tokens, &token, now, &account()).is_ok(), "{now}");
    }
    assert_eq!(
        check(&tokens, &token, 939, &account()).unwrap_err(),
        "service account token is not valid yet"
    );
    assert_eq!(
        check(&tokens, &token, 4661, &account()).unwrap_err(),
        "service account token has expired"
    );
}

#[test]
fn a_token_ends_with_what_it_is_bound_to() {
    let tokens = tokens();
    let invalidated = "service account token has been invalidated";
    let refused =
        |bound: &Bound, objects: &Objects| check(&tokens, &issue(&tokens, bound.clone()), 2000, objects).unwrap_err();
    assert_eq!(
        refused(&bound(), &Objects::default()),
        "serviceaccounts \"a\" not found"
    );
    let another = Objects::default().with("serviceaccounts", "n", "a", uid("u-b"));
    assert_eq!(
        refused(&bound(), &another),
        "service account UID (u-b) does not match claim (u-a)"
    );
    let pod = Bound {
        pod: Some(reference("p", "u-p")),
        ..bound()
    };
    assert_eq!(refused(&pod, &account()), invalidated);
    assert_eq!(
        refused(&pod, &account().with("pods", "n", "p", uid("u-q"))),
        "pod UID (u-q) does not match service account pod ref claim (u-p)"
    );
    let secret = Bound {
        secret: Some(reference("s", "u-s")),
        ..bound()
    };
    assert_eq!(refused(&secret, &account()), invalidated);
    let node = Bound {
        node: Some(reference("h", "u-h")),
        ..bound()
    };
    assert_eq!(refused(&node, &account()), invalidated);
    check(
        &tokens,
        &issue(&tokens, node),
        2000,
        &account().with("nodes", "", "h", uid("u-h")),
    )
    .unwrap();
}

#[test]
fn what_is_being_deleted_keeps_its_tokens_for_a_minute() {
    let tokens = tokens();
    let token = issue(&tokens, bound());
    let deleted = json!({"metadata": {"uid": "u-a", "deletionTimestamp": "1970-01-01T00:30:00Z"}});
    let objects = Objects::default().with("serviceaccounts", "n", "a", deleted);
    assert!(check(&tokens, &token, 1860, &objects).is_ok());
    assert_eq!(
        check(&tokens, &token, 1861, &objects).unwrap_err(),
        "service account n/a has been deleted"
    );
}

#[test]
fn a_token_for_others_is_not_for_us() {
    let tokens = tokens();
    let token = tokens.issue(bound(), &["vault".to_owned(), "b".to_owned()], at(1000), at(4600), "i");
    let error = check(&tokens, &token, 1000, &account()).unwrap_err();
    assert!(error.contains("is invalid for the target audiences"), "{error}");
    let holder = tokens
        .check(&token, &["x".to_owned(), "vault".to_owned()], at(1000), &account())
        .unwrap();
    assert_eq!(holder.audiences, ["vault"]);
}

#[test]
fn a_token_that_was_touched_is_worth_nothing() {
    let tokens = tokens();
    let token = issue(&tokens, bound());
    let (_, signature) = token.rsplit_once('.').unwrap();
    let claims = |change: &dyn Fn(&mut Value)| {
        let mut claims: Value =
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap()).unwrap();
        change(&mut claims);
        encode(&claims)
    };
    let header = |alg: &str| encode(&json!({"alg": alg, "kid": tokens.key_id()}));
    let other = issue(&self::tokens(), bound());
    for bad in [
        format!(
            "{}.{}.{signature}",
            header("ES256"),
            claims(&|claims| claims["exp"] = 9_999_999.into())
        ),
        format!("{}.{}.", header("none"), claims(&|_| ())),
        format!("{}.{}.{signature}", header("HS256"), claims(&|_| ())),
        other,
        token[..token.len() - 1].to_owned(),
        format!("{token}A"),
        format!("{token}."),
        String::new(),
        "a".to_owned(),
        "a.b.c".to_owned(),
        "...".to_owned(),
        format!("{}{}", "x".repeat(LONGEST), token),
    ] {
        assert_eq!(
            check(&tokens, &bad, 1000, &account()).unwrap_err(),
            "invalid bearer token",
            "{bad}"
        );
    }
    assert!(check(&tokens, &token, 1000, &account()).is_ok());
}

#[test]
fn a_remembered_token_is_still_judged_by_the_hour_and_by_its_objects() {
    let tokens = tokens();
    let token = issue(&tokens, bound());
    assert!(check(&tokens, &token, 1000, &account()).is_ok());
    assert!(check(&tokens, &token, 1000, &Objects::default()).is_err());
    assert!(check(&tokens, &token, 9000, &account()).is_err());
}

#[test]
fn nothing_secret_is_printed() {
    let tokens = tokens();
    let token = issue(&tokens, bound());
    check(&tokens, &token, 1000, &account()).unwrap();
    assert_eq!(
        format!("{tokens:?}"),
        format!("ServiceAccountTokens {{ issuer: {ISSUER:?}, .. }}")
    );
}
