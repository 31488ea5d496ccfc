//! How connections are encrypted.

use std::{fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use rustls::{ServerConfig, pki_types::CertificateDer};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::{
    auth::certificate::{ClientCertificate, ClientCertificates},
    certificates::Certificates,
};

/// The server's end of TLS: as whom it speaks, and whose certificates it believes.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    clients: ClientCertificates,
}

impl Tls {
    /// TLS with these certificates.
    pub fn new(certificates: &Certificates) -> Result<Self, rustls::Error> {
        let clients = ClientCertificates::signed_by(certificates.authority.certificate())?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients.during_handshake())
            .with_single_cert(
                vec![certificates.server.certificate().clone()],
                certificates.server.key(),
            )?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            clients,
        })
    }

    /// Shakes hands; nothing if the client cannot or does not in time.
    pub(super) async fn accept(&self, stream: TcpStream, limit: Duration) -> Option<TlsStream<TcpStream>> {
        match timeout(limit, self.acceptor.accept(stream)).await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a client could not shake hands");
                None
            }
            Err(_) => None,
        }
    }

    /// What the client's certificates are worth.
    pub(super) fn judge(&self, chain: Option<&[CertificateDer<'static>]>) -> ClientCertificate {
        chain.map_or(ClientCertificate::None, |chain| {
            self.clients.judge(chain, Timestamp::now())
        })
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}
