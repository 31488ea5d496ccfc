//! Who is asking: by certificate, by token, or nobody.

use std::{collections::HashMap, fmt, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, header};
use jiff::Timestamp;
use moorline_machinery::status::ApiError;
use ring::digest::{SHA256, digest};

use super::{
    certificate::ClientCertificate,
    token::{Holder, Lookup, ServiceAccountTokens},
    user::{AUTHENTICATED, UNAUTHENTICATED, User},
};

/// How a browser passes a token when it opens a WebSocket, where it cannot set the usual header.
const SUBPROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";
/// What anyone may ask for, besides what lies below.
const HEALTH: [&str; 4] = ["/healthz", "/livez", "/readyz", "/version"];

/// Finds out who asks.
pub struct Authenticator {
    tokens: Arc<ServiceAccountTokens>,
    lookup: Arc<dyn Lookup>,
    /// By the digest of the token, so that looking one up takes the same time whatever is tried.
    given: HashMap<[u8; 32], User>,
}

/// Someone who has proved who they are, or nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authenticated {
    /// Who.
    pub user: User,
    /// Whom their proof is meant for; empty for proofs that are meant for nobody in particular.
    pub audiences: Vec<String>,
}

/// Why nobody is believed to be anybody.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no proof, and the path is not for everyone.
    #[error("no credentials")]
    NoCredentials,
    /// There is proof, and none of it holds.
    #[error("{0}")]
    BadCredentials(String),
}

impl From<Refusal> for ApiError {
    /// What was wrong is for our log, not for whoever tries.
    fn from(_: Refusal) -> Self {
        ApiError::unauthorized()
    }
}

impl Authenticator {
    /// Believes certificates and the tokens of service accounts, as far as what they are bound to is there.
    pub fn new(tokens: Arc<ServiceAccountTokens>, lookup: Arc<dyn Lookup>) -> Self {
        Self {
            tokens,
            lookup,
            given: HashMap::new(),
        }
    }

    /// Believes this token too.
    #[must_use]
    pub fn with_token(mut self, token: &str, user: User) -> Self {
        self.given.insert(fingerprint(token), user);
        self
    }

    /// Who makes a request. A certificate that is worth nothing does not matter to one who has a token that is.
    pub fn authenticate(
        &self,
        certificate: &ClientCertificate,
        headers: &HeaderMap,
        path: &str,
        now: Timestamp,
    ) -> Result<Authenticated, Refusal> {
        let mut why = Vec::new();
        match certificate {
            ClientCertificate::Trusted { user, expires } if now <= *expires => {
                return Ok(Authenticated::new(User::clone(user), Vec::new()));
            }
            ClientCertificate::Trusted { .. } => why.push("the client certificate has expired".to_owned()),
            ClientCertificate::Refused { why: refused } => why.push(refused.to_string()),
            ClientCertificate::None => {}
        }
        for token in [bearer(headers), subprotocol_token(headers)].into_iter().flatten() {
            match self.check(&token, self.tokens.audiences(), now) {
                Ok(found) => return Ok(found),
                Err(error) => why.push(error),
            }
        }
        if !why.is_empty() {
            return Err(Refusal::BadCredentials(why.join(", ")));
        }
        if is_health(path) {
            return Ok(Authenticated {
                user: User::anonymous(),
                audiences: Vec::new(),
            });
        }
        Err(Refusal::NoCredentials)
    }

    /// Who holds a token that is meant for one of these audiences.
    pub(super) fn check(&self, token: &str, audiences: &[String], now: Timestamp) -> Result<Authenticated, String> {
        if let Some(user) = self.given.get(&fingerprint(token)) {
            return Ok(Authenticated::new(user.clone(), self.tokens.audiences().to_vec()));
        }
        let holder = self
            .tokens
            .check(token, audiences, now, &*self.lookup)
            .map_err(|error| error.to_string())?;
        let Holder { user, audiences } = holder;
        Ok(Authenticated::new(user, audiences))
    }

    /// What issues and checks the tokens of service accounts.
    pub fn tokens(&self) -> &ServiceAccountTokens {
        &self.tokens
    }

    /// The objects that tokens are bound to.
    pub(super) fn lookup(&self) -> &dyn Lookup {
        &*self.lookup
    }
}

impl Authenticated {
    fn new(mut user: User, audiences: Vec<String>) -> Self {
        if !user.is_in(AUTHENTICATED) && !user.is_in(UNAUTHENTICATED) {
            user.groups.push(AUTHENTICATED.to_owned());
        }
        Self { user, audiences }
    }
}

/// Whether a path is about the server's health, which is everyone's to see.
pub fn is_health(path: &str) -> bool {
    HEALTH.iter().any(|open| {
        path.strip_prefix(open)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Takes the proofs out of a request, once they have been looked at: nothing further on should see them.
pub fn remove_credentials(headers: &mut HeaderMap) {
    headers.remove(header::AUTHORIZATION);
    let protocols: Vec<String> = protocols(headers).map(str::to_owned).collect();
    if protocols.iter().any(|protocol| protocol.starts_with(SUBPROTOCOL)) {
        let kept: Vec<String> = protocols
            .into_iter()
            .filter(|protocol| !protocol.starts_with(SUBPROTOCOL))
            .collect();
        match kept.join(", ").parse() {
            Ok(value) if !kept.is_empty() => drop(headers.insert(header::SEC_WEBSOCKET_PROTOCOL, value)),
            _ => drop(headers.remove(header::SEC_WEBSOCKET_PROTOCOL)),
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, token) = value.split_once(' ')?;
    let token = token.split(' ').next().unwrap_or_default();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned())
}

fn subprotocol_token(headers: &HeaderMap) -> Option<String> {
    let mut encoded = protocols(headers).filter_map(|protocol| protocol.strip_prefix(SUBPROTOCOL));
    let token = URL_SAFE_NO_PAD.decode(encoded.next()?).ok()?;
    // Beside the token there must be a protocol to speak.
    protocols(headers)
        .any(|protocol| !protocol.starts_with(SUBPROTOCOL))
        .then(|| String::from_utf8(token).ok())?
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

fn fingerprint(token: &str) -> [u8; 32] {
    digest(&SHA256, token.as_bytes())
        .as_ref()
        .try_into()
        .expect("SHA-256 has 32 bytes")
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticator")
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;
    use crate::auth::token::{
        Bound, Reference,
        tests::{Objects, tokens},
    };

    pub(in crate::auth) fn authenticator() -> Authenticator {
        let objects = Objects::default().with("serviceaccounts", "n", "a", json!({"metadata": {"uid": "u-a"}}));
        let jane = User {
            name: "jane".to_owned(),
            ..User::default()
        };
        Authenticator::new(Arc::new(tokens()), Arc::new(objects)).with_token("jane-token", jane)
    }

    fn account_token(authenticator: &Authenticator, audiences: &[String]) -> String {
        let serviceaccount = Reference {
            name: "a".to_owned(),
            uid: "u-a".to_owned(),
        };
        let bound = Bound {
            namespace: "n".to_owned(),
            serviceaccount,
            ..Bound::default()
        };
        authenticator.tokens().issue(bound, audiences, at(0), at(3600), "i")
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn headers(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    fn with(token: &str) -> HeaderMap {
        headers(header::AUTHORIZATION, &format!("Bearer {token}"))
    }

    fn who(
        authenticator: &Authenticator,
        certificate: &ClientCertificate,
        headers: &HeaderMap,
    ) -> Result<String, Refusal> {
        authenticator
            .authenticate(certificate, headers, "/api", at(60))
            .map(|found| found.user.name)
    }

    fn trusted(expires: i64) -> ClientCertificate {
        let user = User {
            name: "admin".to_owned(),
            groups: vec!["system:masters".to_owned()],
            ..User::default()
        };
        ClientCertificate::Trusted {
            user: Arc::new(user),
            expires: at(expires),
        }
    }

    #[test]
    fn certificates_and_tokens_tell_who_asks() {
        let authenticator = authenticator();
        let none = ClientCertificate::None;
        assert_eq!(who(&authenticator, &trusted(60), &HeaderMap::new()).unwrap(), "admin");
        assert_eq!(who(&authenticator, &none, &with("jane-token")).unwrap(), "jane");
        let token = account_token(&authenticator, authenticator.tokens().audiences());
        assert_eq!(
            who(&authenticator, &none, &with(&token)).unwrap(),
            "system:serviceaccount:n:a"
        );
        let found = authenticator
            .authenticate(&none, &with(&token), "/api", at(60))
            .unwrap();
        let groups = [
            "system:serviceaccounts",
            "system:serviceaccounts:n",
            "system:authenticated",
        ];
        assert_eq!(found.user.groups, groups);
        let lower = headers(header::AUTHORIZATION, "bearer   jane-token");
        assert!(
            who(&authenticator, &none, &lower).is_err(),
            "an empty token is no token"
        );
        let lower = headers(header::AUTHORIZATION, "bearer jane-token");
        assert_eq!(who(&authenticator, &none, &lower).unwrap(), "jane");
    }

    #[test]
    fn bad_proof_is_refused_where_no_proof_is_needed_too() {
        let authenticator = authenticator();
        let refused = ClientCertificate::Refused {
            why: "x509: unknown".into(),
        };
        let audience = [String::from("vault")];
        let token = account_token(&authenticator, &audience);
        for (certificate, headers) in [
            (&refused, HeaderMap::new()),
            (&trusted(59), HeaderMap::new()),
            (&ClientCertificate::None, with("nonsense")),
            (&ClientCertificate::None, with(&token)),
        ] {
            for path in ["/api", "/healthz"] {
                let refusal = authenticator
                    .authenticate(certificate, &headers, path, at(60))
                    .unwrap_err();
                assert!(matches!(refusal, Refusal::BadCredentials(_)), "{refusal:?}");
                let answer = ApiError::from(refusal);
                assert_eq!((answer.code(), answer.to_string().as_str()), (401, "Unauthorized"));
            }
        }
        assert_eq!(who(&authenticator, &refused, &with("jane-token")).unwrap(), "jane");
    }

    #[test]
    fn nobody_sees_the_server_s_health_and_no_more() {
        let authenticator = authenticator();
        let ask = |path| authenticator.authenticate(&ClientCertificate::None, &HeaderMap::new(), path, at(0));
        for path in ["/healthz", "/livez", "/readyz", "/readyz/ping", "/version", "/version/"] {
            assert_eq!(ask(path).unwrap().user, User::anonymous(), "{path}");
        }
        for path in [
            "/",
            "/api",
            "/apis",
            "/healthzz",
            "/metrics",
            "/api/v1/namespaces/healthz",
            "",
        ] {
            assert_eq!(ask(path).unwrap_err(), Refusal::NoCredentials, "{path}");
        }
    }

    #[test]
    fn a_web_socket_may_carry_its_token_among_its_protocols() {
        let authenticator = authenticator();
        let protocol = format!("{SUBPROTOCOL}{}", URL_SAFE_NO_PAD.encode("jane-token"));
        let mut both = headers(
            header::SEC_WEBSOCKET_PROTOCOL,
            &format!("v5.channel.k8s.io, {protocol}"),
        );
        assert_eq!(who(&authenticator, &ClientCertificate::None, &both).unwrap(), "jane");
        let alone = headers(header::SEC_WEBSOCKET_PROTOCOL, &protocol);
        assert_eq!(
            who(&authenticator, &ClientCertificate::None, &alone).unwrap_err(),
            Refusal::NoCredentials
        );
        both.insert(header::AUTHORIZATION, "Bearer x".parse().unwrap());
        remove_credentials(&mut both);
        assert_eq!(both, headers(header::SEC_WEBSOCKET_PROTOCOL, "v5.channel.k8s.io"));
    }

    #[test]
    fn nothing_secret_is_printed() {
        assert!(!format!("{:?}", authenticator()).contains("jane"));
        let refusal = who(&authenticator(), &ClientCertificate::None, &with("secret-token")).unwrap_err();
        assert!(!format!("{refusal:?} {refusal}").contains("secret-token"));
    }
}
