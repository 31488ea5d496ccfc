//! Service-account tokens: issued here, believed here, and by whoever reads our public key.
//!
//! A token is a compact JWS, signed by ECDSA on P-256 (`ES256`). Its claims bind it to a service account, and perhaps
//! to a pod, a secret or a node; it is worth nothing once one of these is gone or is another one of the same name.

mod secret;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Mutex,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use ring::{
    digest::{SHA256, digest},
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::secret::SecretClaims;
use super::user::User;

/// The objects that tokens are bound to, as they are now.
pub trait Lookup: Send + Sync {
    /// The object of that name among a resource of the core group: `serviceaccounts`, `pods`, `secrets`, `nodes`.
    fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Value>;
}

/// How far clocks may be apart, and how long a token outlives the deletion of what it is bound to.
const LEEWAY: SignedDuration = SignedDuration::from_mins(1);
/// How many checked signatures are remembered. Checking one costs as much as a hundred requests.
const REMEMBERED: usize = 1024;
/// Nothing longer is looked at.
const LONGEST: usize = 16 << 10;

/// Issues and checks tokens.
pub struct ServiceAccountTokens {
    issuer: String,
    audiences: Vec<String>,
    key: EcdsaKeyPair,
    key_id: String,
    random: SystemRandom,
    /// The claims of tokens whose signature has been checked, by the token's digest. Never the tokens themselves.
    checked: Mutex<HashMap<[u8; 32], Verified>>,
}

/// Why a token is worth nothing.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TokenError(pub(super) String);

/// Claims whose signature has been checked.
#[derive(Clone, Debug)]
enum Verified {
    Bound(Box<Claims>),
    InSecret(SecretClaims),
}

/// The claims of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    aud: Audiences,
    exp: i64,
    iat: i64,
    iss: String,
    jti: String,
    #[serde(rename = "kubernetes.io")]
    bound: Bound,
    nbf: i64,
    sub: String,
}

/// One audience is also written without a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Audiences {
    Many(Vec<String>),
    One(String),
}

/// What a token is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// The namespace of service account, pod and secret.
    pub namespace: String,
    /// The node that the pod is on, or that the token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
    /// The pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    /// The secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    /// The service account.
    pub serviceaccount: Reference,
    /// When the holder was to have fetched another one, where the token lasts longer than was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

/// An object that is meant, and not another one of its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    /// The name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The uid.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

/// A token that was believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Who holds it, without the group of the authenticated.
    pub user: User,
    /// Those of the wanted audiences that it is meant for.
    pub audiences: Vec<String>,
}

impl ServiceAccountTokens {
    /// Tokens of an issuer, for these audiences where none are named, signed by this key (PKCS #8).
    pub fn new(issuer: &str, audiences: &[&str], pkcs8: &[u8]) -> Result<Self, TokenError> {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8, &random)
            .map_err(|error| TokenError(format!("the key that signs tokens cannot be used: {error}")))?;
        let key_id = URL_SAFE_NO_PAD.encode(digest(&SHA256, &public_key_info(key.public_key().as_ref())));
        let audiences = audiences.iter().map(|&audience| audience.to_owned()).collect();
        Ok(Self {
            issuer: issuer.to_owned(),
            audiences,
            key,
            key_id,
            random,
            checked: Mutex::default(),
        })
    }

    /// Who issues.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The audiences that this server itself belongs to.
    pub fn audiences(&self) -> &[String] {
        &self.audiences
    }

    /// The name of the key.
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// The two coordinates of the public key.
    pub(super) fn public_point(&self) -> (&[u8], &[u8]) {
        self.key.public_key().as_ref()[1..].split_at(32)
    }

    /// Issues a token.
    pub fn issue(&self, bound: Bound, audiences: &[String], now: Timestamp, expires: Timestamp, id: &str) -> String {
        let sub = User::service_account(&bound.namespace, &bound.serviceaccount.name, "").name;
        let now = now.as_second();
        let claims = Claims {
            aud: Audiences::Many(audiences.to_vec()),
            exp: expires.as_second(),
            iat: now,
            iss: self.issuer.clone(),
            jti: id.to_owned(),
            bound,
            nbf: now,
            sub,
        };
        self.signed(&claims)
    }

    fn signed(&self, claims: &impl Serialize) -> String {
        let header = Header {
            alg: "ES256".to_owned(),
            kid: self.key_id.clone(),
        };
        let mut token = encode(&header);
        token.push('.');
        token.push_str(&encode(claims));
        let signature = self
            .key
            .sign(&self.random, token.as_bytes())
            .expect("signing fails only without randomness, which the system gives or blocks for");
        token.push('.');
        token.push_str(&URL_SAFE_NO_PAD.encode(signature));
        token
    }

    /// Who holds a token, if it is meant for one of `wanted`, in force now, and bound to what still is.
    pub fn check(
        &self,
        token: &str,
        wanted: &[String],
        now: Timestamp,
        lookup: &dyn Lookup,
    ) -> Result<Holder, TokenError> {
        let refuse = |why: &str| Err(TokenError(why.to_owned()));
        let claims = match self.checked_claims(token)? {
            Verified::Bound(claims) => claims,
            Verified::InSecret(claims) => {
                // Such tokens name no audience: they are for us.
                let ours: Vec<String> = wanted
                    .iter()
                    .filter(|&wanted| self.audiences.contains(wanted))
                    .cloned()
                    .collect();
                if ours.is_empty() && !wanted.is_empty() {
                    return refuse("token is meant for other audiences");
                }
                return claims.holder(token, &ours, lookup);
            }
        };
        let meant_for: &[String] = match &claims.aud {
            Audiences::Many(audiences) => audiences,
            Audiences::One(audience) => std::slice::from_ref(audience),
        };
        let audiences: Vec<String> = wanted
            .iter()
            .filter(|&wanted| meant_for.contains(wanted))
            .cloned()
            .collect();
        if audiences.is_empty() && !wanted.is_empty() {
            return Err(TokenError(format!(
                "token audiences {meant_for:?} is invalid for the target audiences {wanted:?}"
            )));
        }
        let (second, leeway) = (now.as_second(), LEEWAY.as_secs());
        if second - leeway > claims.exp {
            return refuse("service account token has expired");
        }
        if second + leeway < claims.nbf {
            return refuse("service account token is not valid yet");
        }
        if second + leeway < claims.iat {
            return refuse("service account token is issued in the future");
        }
        claims.bound.still_holds(now, lookup)?;
        Ok(Holder {
            user: claims.user(),
            audiences,
        })
    }

    fn checked_claims(&self, token: &str) -> Result<Verified, TokenError> {
        let name: [u8; 32] = digest(&SHA256, token.as_bytes())
            .as_ref()
            .try_into()
            .expect("SHA-256 has 32 bytes");
        if let Some(claims) = self.lock().get(&name) {
            return Ok(claims.clone());
        }
        let claims = self
            .verified_claims(token)
            .ok_or_else(|| TokenError("invalid bearer token".to_owned()))?;
        let mut checked = self.lock();
        if checked.len() >= REMEMBERED {
            checked.clear();
        }
        checked.insert(name, claims.clone());
        Ok(claims)
    }

    fn verified_claims(&self, token: &str) -> Option<Verified> {
        if token.len() > LONGEST {
            return None;
        }
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let header: Header = serde_json::from_slice(&decode(header)?).ok()?;
        // The algorithm is ours to choose, never the token's.
        if header.alg != "ES256" || (!header.kid.is_empty() && header.kid != self.key_id) {
            return None;
        }
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key().as_ref())
            .verify(signed.as_bytes(), &decode(signature)?)
            .ok()?;
        let claims = decode(claims)?;
        if let Ok(claims) = serde_json::from_slice::<Box<Claims>>(&claims) {
            return (claims.iss == self.issuer).then_some(Verified::Bound(claims));
        }
        let claims: SecretClaims = serde_json::from_slice(&claims).ok()?;
        claims.is_ours().then_some(Verified::InSecret(claims))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Verified>> {
        self.checked.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Claims {
    fn user(&self) -> User {
        let Bound {
            namespace,
            serviceaccount,
            pod,
            node,
            ..
        } = &self.bound;
        let mut user = User::service_account(namespace, &serviceaccount.name, &serviceaccount.uid);
        let mut extra = BTreeMap::new();
        let mut add = |name: &str, value: &str| {
            if !value.is_empty() {
                extra.insert(format!("authentication.kubernetes.io/{name}"), vec![value.to_owned()]);
            }
        };
        if !self.jti.is_empty() {
            add("credential-id", &format!("JTI={}", self.jti));
        }
        for (reference, name, uid) in [(pod, "pod-name", "pod-uid"), (node, "node-name", "node-uid")] {
            if let Some(reference) = reference {
                add(name, &reference.name);
                add(uid, &reference.uid);
            }
        }
        user.extra = extra;
        user
    }
}

impl Bound {
    /// Whether everything that the token is bound to is still there, the same, and not long deleted.
    fn still_holds(&self, now: Timestamp, lookup: &dyn Lookup) -> Result<(), TokenError> {
        let gone = || TokenError("service account token has been invalidated".to_owned());
        let Self {
            namespace,
            serviceaccount: account,
            ..
        } = self;
        let found = lookup
            .object("serviceaccounts", namespace, &account.name)
            .ok_or_else(|| TokenError(format!("serviceaccounts {:?} not found", account.name)))?;
        same(&found, account, "service account UID", "claim")?;
        if long_deleted(&found, now) {
            return Err(TokenError(format!(
                "service account {namespace}/{} has been deleted",
                account.name
            )));
        }
        // A pod's node is told for information; the token goes with the pod.
        let node = self.node.as_ref().filter(|_| self.pod.is_none());
        for (reference, resource, kind, namespace) in [
            (self.secret.as_ref(), "secrets", "secret", namespace.as_str()),
            (self.pod.as_ref(), "pods", "pod", namespace),
            (node, "nodes", "node", ""),
        ] {
            let Some(reference) = reference else { continue };
            let found = lookup.object(resource, namespace, &reference.name).ok_or_else(gone)?;
            same(
                &found,
                reference,
                &format!("{kind} UID"),
                &format!("service account {kind} ref claim"),
            )?;
            if long_deleted(&found, now) {
                return Err(gone());
            }
        }
        Ok(())
    }
}

fn same(found: &Value, reference: &Reference, what: &str, claim: &str) -> Result<(), TokenError> {
    match found["metadata"]["uid"].as_str().unwrap_or_default() {
        uid if uid == reference.uid => Ok(()),
        uid => Err(TokenError(format!(
            "{what} ({uid}) does not match {claim} ({})",
            reference.uid
        ))),
    }
}

fn long_deleted(object: &Value, now: Timestamp) -> bool {
    object["metadata"]["deletionTimestamp"]
        .as_str()
        .and_then(|deleted| moorline_machinery::time::parse(deleted).ok())
        .is_some_and(|deleted| deleted < now - LEEWAY)
}

fn encode(part: &impl Serialize) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(part).expect("a part of a token can be written"))
}

/// A P-256 public key as PKIX writes it: a fixed head, then the point.
fn public_key_info(point: &[u8]) -> Vec<u8> {
    const HEAD: [u8; 26] = [
        0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48,
        0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
    ];
    [&HEAD, point].concat()
}

impl fmt::Debug for ServiceAccountTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceAccountTokens")
            .field("issuer", &self.issuer)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests;
