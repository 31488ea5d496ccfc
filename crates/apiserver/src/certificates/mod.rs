//! Keys and certificates: whom this server trusts, and as whom it speaks.
//!
//! One ECDSA P-256 authority signs the server's certificate and those of clients. Another key signs service-account
//! tokens. All of it is made on the first start, in memory or in a folder, and found again on the next.
//!
//! Guarantees: private keys are never world- or group-readable, not even for a moment; files appear whole or not at
//! all; a lost authority key is an error, never a silent new authority; nothing here prints a key.
//! Assumes: one process at a time uses the folder.
//!
//! ```text
//!   ca.crt ca.key ──┬──► apiserver.crt apiserver.key   renewed near expiry, or for other names
//!                   ├──► admin.crt admin.key           kubernetes-admin of system:masters ──► kubeconfig
//!                   └──► whatever else is asked of the Authority
//!   sa.key ─────────────► service-account tokens
//! ```

mod authority;
mod files;
mod kubeconfig;

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

pub use authority::{Authority, ClientName, Identity};
pub use files::write_private;
use jiff::{SignedDuration, Timestamp};
pub use kubeconfig::Kubeconfig;
use rcgen::KeyPair;

/// The name in the administrator's certificate.
pub const ADMIN: &str = "kubernetes-admin";
/// How long a certificate of the authority itself is good for.
const AUTHORITY_LASTS: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);
/// How long the certificates are good for that the authority signs for this server and its administrator.
const IDENTITY_LASTS: SignedDuration = SignedDuration::from_hours(365 * 24);
/// A certificate that has less left is made anew on start.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(90 * 24);
/// Names that the server always answers to.
const OWN_NAMES: [&str; 5] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// All keys and certificates of a server.
#[derive(Debug)]
pub struct Certificates {
    /// Who signs.
    pub authority: Authority,
    /// As whom the server speaks.
    pub server: Identity,
    /// As whom the administrator speaks.
    pub admin: Identity,
    /// What signs service-account tokens.
    pub service_account_key: ServiceAccountKey,
}

/// The private key that signs service-account tokens, in PKCS #8.
pub struct ServiceAccountKey(Vec<u8>);

/// A name in a server's certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerName {
    /// A DNS name.
    Dns(String),
    /// An address.
    Address(IpAddr),
}

/// Why keys or certificates could not be made or found.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The certificate could not be built or signed.
    #[error("cannot make the certificate of {subject}")]
    Make {
        /// Whose.
        subject: String,
        /// Why.
        #[source]
        source: rcgen::Error,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {path}")]
    File {
        /// What was attempted.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file does not hold what it should.
    #[error("{path} is unusable: {why}")]
    Unusable {
        /// Which file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A signing request is not one that can be signed.
    #[error("cannot sign the request: {0}")]
    Request(String),
}

impl Certificates {
    /// Makes all of it, in memory.
    pub fn ephemeral(names: &[ServerName], now: Timestamp) -> Result<Self, CertificateError> {
        let authority = Authority::new(now, now + AUTHORITY_LASTS)?;
        let server = authority.server(&with_own_names(names), now, now + IDENTITY_LASTS)?;
        let admin = admin(&authority, now)?;
        let service_account_key = ServiceAccountKey::new()?;
        Ok(Self {
            authority,
            server,
            admin,
            service_account_key,
        })
    }

    /// Finds all of it in a folder, making what is missing and renewing what is about to expire. A server certificate
    /// with other names than these is made anew.
    pub fn open(folder: &Path, names: &[ServerName], now: Timestamp) -> Result<Self, CertificateError> {
        files::private_folder(folder)?;
        let authority = if let Some((certificate, key)) = files::read_pair(folder, "ca")? {
            let path = folder.join("ca.crt");
            let unusable = |why| CertificateError::Unusable { path, why };
            Authority::load(&certificate, &key, now).map_err(unusable)?
        } else {
            let authority = Authority::new(now, now + AUTHORITY_LASTS)?;
            files::write_pair(folder, "ca", authority.certificate_pem(), authority.key_pem())?;
            authority
        };
        let names = with_own_names(names);
        let identity = |stem: &str, wanted: &dyn Fn(&Identity) -> bool, make: &dyn Fn() -> Result<Identity, _>| {
            // What the authority has signed it can sign again: unlike its own, a lost key here is no loss.
            let found = match files::read_pair(folder, stem) {
                Err(CertificateError::Unusable { .. }) => None,
                read => read?,
            };
            let found = found.and_then(|(certificate, key)| Identity::load(&certificate, &key).ok());
            if let Some(found) = found
                && found.expires() > now + RENEW_BEFORE
                && authority.signed(&found, now)
                && wanted(&found)
            {
                return Ok(found);
            }
            let made = make()?;
            files::write_pair(folder, stem, made.certificate_pem(), made.key_pem())?;
            Ok(made)
        };
        let server = identity("apiserver", &|found| found.names() == names, &|| {
            authority.server(&names, now, now + IDENTITY_LASTS)
        })?;
        let admin = identity("admin", &|_| true, &|| admin(&authority, now))?;
        let key_path = folder.join("sa.key");
        let service_account_key = if let Some(pem) = files::read_private(&key_path)? {
            ServiceAccountKey::load(&pem).map_err(|why| CertificateError::Unusable { path: key_path, why })?
        } else {
            let pair = key_pair("the service-account tokens")?;
            files::write_private(&key_path, pair.serialize_pem().as_bytes())?;
            ServiceAccountKey(pair.serialize_der())
        };
        Ok(Self {
            authority,
            server,
            admin,
            service_account_key,
        })
    }
}

fn admin(authority: &Authority, now: Timestamp) -> Result<Identity, CertificateError> {
    let name = ClientName {
        user: ADMIN.to_owned(),
        group: Some("system:masters".to_owned()),
    };
    authority.client(&name, now, now + IDENTITY_LASTS)
}

fn with_own_names(names: &[ServerName]) -> Vec<ServerName> {
    let own = OWN_NAMES.into_iter().map(|name| ServerName::Dns(name.to_owned()));
    let loopback = [[127, 0, 0, 1].into(), std::net::Ipv6Addr::LOCALHOST.into()].map(ServerName::Address);
    let mut all: Vec<ServerName> = own.chain(loopback).chain(names.iter().cloned()).collect();
    all.sort();
    all.dedup();
    all
}

fn key_pair(owner: &str) -> Result<KeyPair, CertificateError> {
    KeyPair::generate().map_err(|source| CertificateError::Make {
        subject: owner.to_owned(),
        source,
    })
}

impl ServiceAccountKey {
    /// A new key.
    pub fn new() -> Result<Self, CertificateError> {
        Ok(Self(key_pair("the service-account tokens")?.serialize_der()))
    }

    fn load(pem: &str) -> Result<Self, String> {
        KeyPair::from_pem(pem)
            .map(|pair| Self(pair.serialize_der()))
            .map_err(|error| error.to_string())
    }

    /// The key in PKCS #8.
    pub fn pkcs8(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for ServiceAccountKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServiceAccountKey(..)")
    }
}

impl From<&str> for ServerName {
    /// An address where the text is one, else a DNS name.
    fn from(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Dns(text.to_owned()), Self::Address)
    }
}

#[cfg(test)]
mod tests;
