//! Client certificates: who the other end of a connection is.
//!
//! During the handshake a client proves that it has the key of its certificate. Whether the certificate is worth
//! anything is decided afterwards, so that a client with a worthless one is told so in an answer that it can read,
//! `401 Unauthorized`, and may still prove itself by a token. Certificates of X.509 version 1 do not get that far: the
//! TLS library takes version 3 only and ends the handshake.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use jiff::Timestamp;
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, UnixTime},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};

use super::user::User;

/// What the certificate of a client says, once it has been looked at.
#[derive(Clone, Debug, Default)]
pub enum ClientCertificate {
    /// There is none.
    #[default]
    None,
    /// It was signed by the cluster's authority.
    Trusted {
        /// Whom it is about, without the group of the authenticated.
        user: Arc<User>,
        /// Until when; connections outlive certificates.
        expires: Timestamp,
    },
    /// It is worth nothing.
    Refused {
        /// Why.
        why: Arc<str>,
    },
}

/// Judges client certificates by the cluster's authority.
#[derive(Clone, Debug)]
pub struct ClientCertificates {
    by_authority: Arc<dyn ClientCertVerifier>,
}

impl ClientCertificates {
    /// Trusts what this authority has signed.
    pub fn signed_by(authority: &CertificateDer<'static>) -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let by_authority = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .allow_unauthenticated()
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        Ok(Self { by_authority })
    }

    /// What a handshake asks of a client: possession of the key, nothing more.
    pub fn during_handshake(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::new(PossessionOnly(Arc::clone(&self.by_authority)))
    }

    /// What the certificates of a finished handshake are worth now.
    pub fn judge(&self, chain: &[CertificateDer<'static>], now: Timestamp) -> ClientCertificate {
        let Some((own, intermediates)) = chain.split_first() else {
            return ClientCertificate::None;
        };
        let refused = |why: String| ClientCertificate::Refused { why: why.into() };
        let seconds = u64::try_from(now.as_second()).unwrap_or_default();
        let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        if let Err(error) = self.by_authority.verify_client_cert(own, intermediates, at) {
            return refused(format!("x509: {error}"));
        }
        match read(own) {
            Ok(Some((user, expires))) => ClientCertificate::Trusted {
                user: Arc::new(user),
                expires,
            },
            // Signed for somebody without a name: nobody.
            Ok(None) => ClientCertificate::None,
            Err(why) => refused(why),
        }
    }
}

/// The user that a certificate is about, and until when.
fn read(certificate: &CertificateDer<'_>) -> Result<Option<(User, Timestamp)>, String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).map_err(|error| error.to_string())?;
    let expires = Timestamp::from_second(parsed.validity().not_after.timestamp()).map_err(|error| error.to_string())?;
    let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
        attribute.as_str().map(str::to_owned).map_err(|error| error.to_string())
    };
    // Where a name is given twice, the last one counts.
    let Some(name) = parsed
        .subject()
        .iter_common_name()
        .last()
        .map(text)
        .transpose()?
        .filter(|n| !n.is_empty())
    else {
        return Ok(None);
    };
    let groups = parsed
        .subject()
        .iter_organization()
        .map(text)
        .collect::<Result<_, _>>()?;
    let mut digest = String::from("X509SHA256=");
    for byte in ring::digest::digest(&ring::digest::SHA256, certificate).as_ref() {
        let _ = write!(digest, "{byte:02x}");
    }
    let extra = BTreeMap::from([("authentication.kubernetes.io/credential-id".to_owned(), vec![digest])]);
    Ok(Some((
        User {
            name,
            uid: String::new(),
            groups,
            extra,
        },
        expires,
    )))
}

/// Asks for a certificate and for proof of its key, and leaves the judgement for later.
#[derive(Debug)]
struct PossessionOnly(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for PossessionOnly {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::certificates::{Certificates, ClientName};

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    #[test]
    fn a_certificate_of_the_authority_names_its_user() {
        let now = Timestamp::now();
        let certificates = Certificates::ephemeral(&[], now).unwrap();
        let judge = ClientCertificates::signed_by(certificates.authority.certificate()).unwrap();
        let ClientCertificate::Trusted { user, expires } =
            judge.judge(&[certificates.admin.certificate().clone()], now)
        else {
            panic!("the administrator is trusted")
        };
        assert_eq!(
            (user.name.as_str(), user.groups.as_slice()),
            ("kubernetes-admin", &["system:masters".to_owned()][..])
        );
        assert_eq!(expires, certificates.admin.expires());
        let credential = &user.extra["authentication.kubernetes.io/credential-id"][0];
        assert!(
            credential.starts_with("X509SHA256=") && credential.len() == 11 + 64,
            "{credential}"
        );
    }

    #[test]
    fn a_foreign_an_expired_and_a_server_certificate_are_refused() {
        let now = Timestamp::now();
        let own = Certificates::ephemeral(&[], now).unwrap();
        let foreign = Certificates::ephemeral(&[], now).unwrap();
        let judge = ClientCertificates::signed_by(own.authority.certificate()).unwrap();
        let short = ClientName {
            user: "u".to_owned(),
            group: None,
        };
        let short = own.authority.client(&short, now, now + HOUR).unwrap();
        for (certificate, at) in [
            (foreign.admin.certificate(), now),
            (short.certificate(), now + HOUR + HOUR),
            (short.certificate(), now - HOUR),
            (own.server.certificate(), now),
        ] {
            let judged = judge.judge(std::slice::from_ref(certificate), at);
            assert!(matches!(judged, ClientCertificate::Refused { .. }), "{judged:?}");
        }
        assert!(matches!(judge.judge(&[], now), ClientCertificate::None));
        let garbage = CertificateDer::from(vec![1, 2, 3]);
        assert!(matches!(
            judge.judge(&[garbage], now),
            ClientCertificate::Refused { .. }
        ));
    }
}
