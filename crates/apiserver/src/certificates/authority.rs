//! The authority, and what it signs.

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};
use ring::rand::SecureRandom as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _};
use std::{net::IpAddr, time::SystemTime};
use x509_parser::{extensions::GeneralName, prelude::X509Certificate};

use super::{CertificateError, ServerName, key_pair};

/// How far back a certificate begins, for clocks that are behind ours.
const BACKDATED: SignedDuration = SignedDuration::from_mins(5);

/// Who signs certificates. What it has signed, the server believes.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    key_pem: String,
    expires: Timestamp,
}

/// A certificate and its private key.
pub struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
    certificate_pem: String,
    key_pem: String,
    expires: Timestamp,
    /// In order.
    names: Vec<ServerName>,
}

/// Whom a client certificate is about. One group at most: more than one of the same attribute cannot be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientName {
    /// The user, the certificate's common name.
    pub user: String,
    /// The user's group, the certificate's organization.
    pub group: Option<String>,
}

impl Authority {
    pub(super) fn new(now: Timestamp, expires: Timestamp) -> Result<Self, CertificateError> {
        let subject = "moorline-ca";
        let mut params = params(subject, None, now, expires)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
        ];
        let key = key_pair(subject)?;
        let certificate = params.self_signed(&key).map_err(|source| make(subject, source))?;
        Ok(Self {
            certificate: certificate.der().clone(),
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            issuer: Issuer::new(params, key),
            expires,
        })
    }

    pub(super) fn load(certificate_pem: &str, key_pem: &str, now: Timestamp) -> Result<Self, String> {
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes()).map_err(|e| e.to_string())?;
        let key = KeyPair::from_pem(key_pem).map_err(|error| format!("its key: {error}"))?;
        let parsed = parse(&certificate)?;
        if !parsed.is_ca() {
            return Err("the certificate may not sign others".to_owned());
        }
        if parsed.public_key().subject_public_key.data != rcgen::PublicKeyData::der_bytes(&key) {
            return Err("the key belongs to another certificate".to_owned());
        }
        let expires = expiry(&parsed)?;
        if expires <= now {
            return Err(format!("the certificate has expired at {expires}"));
        }
        drop(parsed);
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(|error| error.to_string())?;
        Ok(Self {
            issuer,
            certificate,
            certificate_pem: certificate_pem.to_owned(),
            key_pem: key_pem.to_owned(),
            expires,
        })
    }

    /// The authority's own certificate, as clients are given it.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The authority's own certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub(super) fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// A new key with a certificate for a server of these names.
    pub fn server(
        &self,
        names: &[ServerName],
        now: Timestamp,
        expires: Timestamp,
    ) -> Result<Identity, CertificateError> {
        let subject = "kube-apiserver";
        let mut params = params(subject, None, now, expires.min(self.expires))?;
        params.subject_alt_names = names
            .iter()
            .map(|name| {
                Ok(match name {
                    ServerName::Address(address) => SanType::IpAddress(*address),
                    ServerName::Dns(name) => {
                        SanType::DnsName(name.as_str().try_into().map_err(|source| make(name, source))?)
                    }
                })
            })
            .collect::<Result<_, _>>()?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.identity(subject, params)
    }

    /// A new key with a certificate for a client.
    pub fn client(&self, name: &ClientName, now: Timestamp, expires: Timestamp) -> Result<Identity, CertificateError> {
        let mut params = params(&name.user, name.group.as_deref(), now, expires.min(self.expires))?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.identity(&name.user, params)
    }

    /// Signs a request (PEM) for a client certificate. Only the subject and the public key are taken from it; what
    /// the certificate may be used for is decided here.
    pub fn sign_client(
        &self,
        request_pem: &str,
        now: Timestamp,
        expires: Timestamp,
    ) -> Result<String, CertificateError> {
        let refuse = |why: &dyn std::fmt::Display| CertificateError::Request(why.to_string());
        let mut request = CertificateSigningRequestParams::from_pem(request_pem).map_err(|error| refuse(&error))?;
        if attributes_of(request_pem)? != request.params.distinguished_name.iter().count() {
            // The library keeps one value of each attribute; dropping the others unseen would change who is meant.
            return Err(refuse(&"the subject names an attribute more than once"));
        }
        if !request.params.subject_alt_names.is_empty() {
            return Err(refuse(&"a client has no server names"));
        }
        let subject = std::mem::replace(&mut request.params.distinguished_name, DistinguishedName::new());
        let mut params = params("", None, now, expires.min(self.expires))?;
        params.distinguished_name = subject;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        request.params = params;
        Ok(request.signed_by(&self.issuer).map_err(|error| refuse(&error))?.pem())
    }

    fn identity(&self, subject: &str, mut params: CertificateParams) -> Result<Identity, CertificateError> {
        params.use_authority_key_identifier_extension = true;
        let key = key_pair(subject)?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(|source| make(subject, source))?;
        Identity::load(&certificate.pem(), &key.serialize_pem()).map_err(CertificateError::Request)
    }

    /// Whether an identity was signed by this authority and is valid now.
    pub(super) fn signed(&self, identity: &Identity, now: Timestamp) -> bool {
        let (Ok(own), Ok(other)) = (parse(&self.certificate), parse(&identity.certificate)) else {
            return false;
        };
        identity.expires > now && other.verify_signature(Some(own.public_key())).is_ok()
    }
}

impl Identity {
    pub(super) fn load(certificate_pem: &str, key_pem: &str) -> Result<Self, String> {
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes()).map_err(|e| e.to_string())?;
        let key = KeyPair::from_pem(key_pem).map_err(|error| format!("its key: {error}"))?;
        let parsed = parse(&certificate)?;
        if parsed.public_key().subject_public_key.data != rcgen::PublicKeyData::der_bytes(&key) {
            return Err("the key belongs to another certificate".to_owned());
        }
        let expires = expiry(&parsed)?;
        let mut names: Vec<ServerName> = parsed
            .subject_alternative_name()
            .ok()
            .flatten()
            .into_iter()
            .flat_map(|names| &names.value.general_names)
            .filter_map(|name| match name {
                GeneralName::DNSName(name) => Some(ServerName::Dns((*name).to_owned())),
                GeneralName::IPAddress(octets) => address(octets).map(ServerName::Address),
                _ => None,
            })
            .collect();
        names.sort();
        drop(parsed);
        Ok(Self {
            certificate,
            key: PrivatePkcs8KeyDer::from(key.serialize_der()),
            certificate_pem: certificate_pem.to_owned(),
            key_pem: key_pem.to_owned(),
            expires,
            names,
        })
    }

    /// The certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The private key.
    pub fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.key.clone_key())
    }

    /// The certificate in PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The private key in PEM.
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// When the certificate ends.
    pub fn expires(&self) -> Timestamp {
        self.expires
    }

    pub(super) fn names(&self) -> &[ServerName] {
        &self.names
    }
}

fn params(
    user: &str,
    group: Option<&str>,
    now: Timestamp,
    expires: Timestamp,
) -> Result<CertificateParams, CertificateError> {
    let mut params = CertificateParams::default();
    params.not_before = SystemTime::from(now - BACKDATED).into();
    params.not_after = SystemTime::from(expires).into();
    params.serial_number = Some(serial_number().map_err(|source| make(user, source))?);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let mut name = DistinguishedName::new();
    if let Some(group) = group {
        name.push(DnType::OrganizationName, group);
    }
    name.push(DnType::CommonName, user);
    params.distinguished_name = name;
    Ok(params)
}

/// Random, and positive as DER reads it. The library's own would repeat for a key that is certified twice.
fn serial_number() -> Result<SerialNumber, rcgen::Error> {
    let mut bytes = [0; 16];
    ring::rand::SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| rcgen::Error::RingUnspecified)?;
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

fn attributes_of(request_pem: &str) -> Result<usize, CertificateError> {
    use x509_parser::prelude::FromDer as _;
    let refuse = |why: String| CertificateError::Request(why);
    let der = rustls::pki_types::CertificateSigningRequestDer::from_pem_slice(request_pem.as_bytes())
        .map_err(|error| refuse(error.to_string()))?;
    let (_, request) = x509_parser::certification_request::X509CertificationRequest::from_der(&der)
        .map_err(|error| refuse(error.to_string()))?;
    Ok(request.certification_request_info.subject.iter_attributes().count())
}

fn parse<'c>(certificate: &'c CertificateDer<'_>) -> Result<X509Certificate<'c>, String> {
    x509_parser::parse_x509_certificate(certificate)
        .map(|(_, parsed)| parsed)
        .map_err(|error| error.to_string())
}

fn expiry(certificate: &X509Certificate<'_>) -> Result<Timestamp, String> {
    Timestamp::from_second(certificate.validity().not_after.timestamp()).map_err(|error| error.to_string())
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(octets)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from))
        .ok()
}

fn make(subject: &str, source: rcgen::Error) -> CertificateError {
    CertificateError::Make {
        subject: subject.to_owned(),
        source,
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("expires", &self.expires)
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}
