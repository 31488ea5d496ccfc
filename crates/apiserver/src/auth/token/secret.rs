//! Tokens that are kept in secrets of the type `kubernetes.io/service-account-token`: without an end, good for as long as
//! the secret holds them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};

use super::{Holder, Lookup, ServiceAccountTokens, TokenError};
use crate::auth::user::{User, split_service_account};

/// What Kubernetes calls the issuer of such tokens, whatever the issuer of the others is called.
const ISSUER: &str = "kubernetes/serviceaccount";

/// The claims of such a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SecretClaims {
    iss: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    secret: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    account: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    uid: String,
    sub: String,
}

impl ServiceAccountTokens {
    /// The token to be kept in a secret.
    pub fn issue_for_secret(&self, namespace: &str, secret: &str, account: &str, uid: &str) -> String {
        self.signed(&SecretClaims {
            iss: ISSUER.to_owned(),
            namespace: namespace.to_owned(),
            secret: secret.to_owned(),
            account: account.to_owned(),
            uid: uid.to_owned(),
            sub: User::service_account(namespace, account, "").name,
        })
    }
}

impl SecretClaims {
    pub(super) fn is_ours(&self) -> bool {
        let subject = split_service_account(&self.sub);
        self.iss == ISSUER && subject == Some((self.namespace.as_str(), self.account.as_str()))
    }

    /// Who holds the token, if the secret does.
    pub(super) fn holder(&self, token: &str, audiences: &[String], lookup: &dyn Lookup) -> Result<Holder, TokenError> {
        let refuse = |why: &str| TokenError(why.to_owned());
        let deleted = |object: &serde_json::Value| object["metadata"].get("deletionTimestamp").is_some();
        let secret = lookup
            .object("secrets", &self.namespace, &self.secret)
            .filter(|secret| !deleted(secret));
        let secret = secret.ok_or_else(|| refuse("Token has been invalidated"))?;
        let kept = secret["data"]["token"]
            .as_str()
            .and_then(|kept| STANDARD.decode(kept).ok());
        // The signature has been checked: who can tell by the time it takes how much of it fits knows it already.
        if kept.as_deref() != Some(token.as_bytes()) {
            return Err(refuse("Token does not match server's copy"));
        }
        let account = lookup.object("serviceaccounts", &self.namespace, &self.account);
        let account = account.ok_or_else(|| TokenError(format!("serviceaccounts {:?} not found", self.account)))?;
        if deleted(&account) {
            return Err(TokenError(format!(
                "ServiceAccount {}/{} has been deleted",
                self.namespace, self.account
            )));
        }
        if account["metadata"]["uid"] != *self.uid {
            let found = account["metadata"]["uid"].as_str().unwrap_or_default();
            return Err(TokenError(format!(
                "ServiceAccount UID ({found}) does not match claim ({})",
                self.uid
            )));
        }
        let user = User::service_account(&self.namespace, &self.account, &self.uid);
        Ok(Holder {
            user,
            audiences: audiences.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::auth::token::tests::{Objects, tokens};

    fn check(tokens: &ServiceAccountTokens, token: &str, objects: &Objects) -> Result<User, String> {
        let checked = tokens.check(token, tokens.audiences(), Timestamp::UNIX_EPOCH, objects);
        checked.map(|holder| holder.user).map_err(|error| error.to_string())
    }

    #[test]
    fn a_secret_s_token_is_good_for_as_long_as_the_secret_holds_it() {
        let tokens = tokens();
        let token = tokens.issue_for_secret("n", "s", "a", "u-a");
        let account = || Objects::default().with("serviceaccounts", "n", "a", json!({"metadata": {"uid": "u-a"}}));
        let holding = |token: &str| json!({"metadata": {"uid": "u-s"}, "data": {"token": STANDARD.encode(token)}});
        let user = check(&tokens, &token, &account().with("secrets", "n", "s", holding(&token))).unwrap();
        assert_eq!(user, User::service_account("n", "a", "u-a"));
        assert_eq!(
            check(&tokens, &token, &account()).unwrap_err(),
            "Token has been invalidated"
        );
        let another = account().with("secrets", "n", "s", holding("another"));
        assert_eq!(
            check(&tokens, &token, &another).unwrap_err(),
            "Token does not match server's copy"
        );
        let objects = Objects::default().with("secrets", "n", "s", holding(&token));
        assert_eq!(
            check(&tokens, &token, &objects).unwrap_err(),
            "serviceaccounts \"a\" not found"
        );
        let reborn = objects.with("serviceaccounts", "n", "a", json!({"metadata": {"uid": "u-b"}}));
        let error = check(&tokens, &token, &reborn).unwrap_err();
        assert_eq!(error, "ServiceAccount UID (u-b) does not match claim (u-a)");
    }
}
