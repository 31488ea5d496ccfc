//! From a request to the user it is answered as.

use http::HeaderMap;
use jiff::Timestamp;
use moorline_machinery::status::ApiError;

use super::{
    authentication::{Authenticator, remove_credentials},
    certificate::ClientCertificate,
    impersonation,
    rbac::RoleIndex,
    user::User,
};

/// Finds out as whom a request is to be answered, and takes the proofs out of its headers.
///
/// What fails is told to the log without the proofs, and to the client in no detail at all.
pub fn admit(
    authenticator: &Authenticator,
    roles: &RoleIndex,
    certificate: &ClientCertificate,
    headers: &mut HeaderMap,
    path: &str,
    now: Timestamp,
) -> Result<User, ApiError> {
    let found = authenticator
        .authenticate(certificate, headers, path, now)
        .map_err(|refusal| {
            tracing::debug!(%refusal, path, "nobody is believed");
            ApiError::from(refusal)
        })?;
    let user = impersonation::acting_as(found.user, headers, roles)?;
    remove_credentials(headers);
    impersonation::remove_headers(headers);
    Ok(user)
}

#[cfg(test)]
mod tests {
    use http::header;

    use super::*;
    use crate::auth::authentication::tests::authenticator;

    fn admit_with(pairs: &[(&'static str, &str)]) -> (Result<User, ApiError>, HeaderMap) {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (header::HeaderName::from_static(name), value.parse().unwrap()));
        let mut headers = pairs.collect::<HeaderMap>();
        let (roles, now) = (RoleIndex::new(), Timestamp::UNIX_EPOCH);
        let user = admit(
            &authenticator(),
            &roles,
            &ClientCertificate::None,
            &mut headers,
            "/api",
            now,
        );
        (user, headers)
    }

    #[test]
    fn proofs_go_no_further_than_the_gate() {
        let (user, headers) = admit_with(&[("authorization", "Bearer jane-token"), ("accept", "*/*")]);
        assert_eq!(user.unwrap().name, "jane");
        assert_eq!(headers.keys().collect::<Vec<_>>(), [&header::ACCEPT]);
    }

    #[test]
    fn whom_one_may_not_impersonate_one_does_not_become() {
        let as_root = ("impersonate-user", "root");
        let (user, _) = admit_with(&[("authorization", "Bearer jane-token"), as_root]);
        assert_eq!(user.unwrap_err().code(), 403);
        let (user, _) = admit_with(&[as_root]);
        assert_eq!(user.unwrap_err().code(), 401);
    }
}
