//! How others learn to check our tokens: the issuer's discovery document and its public keys.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::token::ServiceAccountTokens;

/// Where the discovery document is served.
pub const CONFIGURATION_PATH: &str = "/.well-known/openid-configuration";
/// The media type of the discovery document.
pub const CONFIGURATION_TYPE: &str = "application/json";
/// Where the keys are served.
pub const KEYS_PATH: &str = "/openid/v1/jwks";
/// The media type of the keys.
pub const KEYS_TYPE: &str = "application/jwk-set+json";
/// How long both may be kept.
pub const CACHE_CONTROL: &str = "public, max-age=3600";

/// The discovery document of a server that is reached at `host`, a name or address with its port.
pub fn configuration(tokens: &ServiceAccountTokens, host: &str) -> Value {
    json!({
        "issuer": tokens.issuer(),
        "jwks_uri": format!("https://{host}{KEYS_PATH}"),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    })
}

/// The public keys.
pub fn keys(tokens: &ServiceAccountTokens) -> Value {
    let (x, y) = tokens.public_point();
    json!({
        "keys": [{
            "use": "sig", "kty": "EC", "kid": tokens.key_id(), "crv": "P-256", "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        }],
    })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use ring::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

    use super::*;
    use crate::auth::token::{Bound, tests::tokens};

    #[test]
    fn the_published_key_checks_our_tokens() {
        let tokens = tokens();
        let token = tokens.issue(Bound::default(), &[], Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH, "");
        let key = &keys(&tokens)["keys"][0];
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).unwrap();
        let part = |name: &str| decode(key[name].as_str().unwrap());
        let point = [&[4][..], &part("x"), &part("y")].concat();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
        public.verify(signed.as_bytes(), &decode(signature)).unwrap();
        let header: Value = serde_json::from_slice(&decode(token.split('.').next().unwrap())).unwrap();
        assert_eq!(header, json!({"alg": "ES256", "kid": key["kid"]}));
    }

    #[test]
    fn the_document_leads_to_the_keys() {
        let document = configuration(&tokens(), "127.0.0.1:6443");
        assert_eq!(document["jwks_uri"], "https://127.0.0.1:6443/openid/v1/jwks");
        assert_eq!(document["issuer"], tokens().issuer());
    }
}
