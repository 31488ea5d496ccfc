//! The whole server: store, certificates, controllers and listener, started and stopped as one.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http::{Request, Response};
use hyper::body::Incoming;
use moorline_machinery::status::ApiError;
use moorline_store::{
    Key, List, Options, Resource, Scope, Store,
    disk::{Directory, DiskOptions, OpenError, Recovery},
};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::{
    admission::Admission,
    auth::{self, Authenticator, Lookup, RoleIndex, ServiceAccountTokens, User},
    body::Body,
    builtin::{self, fields::Describer, service_addresses::ServiceAddresses},
    certificates::{CertificateError, Certificates, Kubeconfig, ServerName},
    controllers,
    core::{Core, RealWorld, World},
    custom::{self, webhook_client::WebhookClient},
    openapi::OpenApi,
    resource::Registry,
    respond,
    serve::{self, Limits, Listening, Peer, Stopped, Tls},
    service::ApiService,
    wire,
};

/// What a server is made of.
pub struct Config {
    streams::{PodAccess, Streams},
    /// Where everything is kept; in memory, and lost at the end, without a directory.
    pub directory: Option<PathBuf>,
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Time and chance.
    pub world: Arc<dyn World>,
}

impl Config {
    /// A server in memory on a free port of this machine alone.
    pub fn ephemeral() -> Self {
        Self {
            directory: None,
            listen: ([127, 0, 0, 1], 0).into(),
            world: Arc::new(RealWorld),
        }
    }
}

/// A server without a socket: what tests and simulators talk to in-process.
pub struct Embedded {
    core: Arc<Core>,
    certificates: Certificates,
    controllers: JoinSet<()>,
    recovery: Option<Recovery>,
}

/// A server that listens.
pub struct ApiServer {
    embedded: Embedded,
    listening: Listening,
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The directory cannot be used.
    #[error("cannot use the data directory {directory}")]
    Directory {
        /// Which one.
        directory: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What is stored cannot be opened.
    #[error("cannot open the store in {directory}")]
    Store {
        /// Where.
        directory: PathBuf,
        /// Why.
        source: OpenError,
    },
    /// There are no certificates to be had.
    #[error("cannot prepare the certificates")]
    Certificates(#[from] CertificateError),
    /// The certificates do not serve for TLS.
    #[error("cannot prepare TLS")]
    Tls(#[from] rustls::Error),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// Which one.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Something that the server brings along could not be written or read.
    #[error("cannot prepare the server: {0}")]
    Prepare(String),
}

impl Embedded {
    /// Starts a server in memory. Once this returns it answers, and what it brings along is there.
    pub async fn ephemeral(world: Arc<dyn World>) -> Result<Self, StartError> {
        Self::start(None, &[], world).await
    }

    async fn start(
        directory: Option<PathBuf>,
        names: &[ServerName],
        world: Arc<dyn World>,
    ) -> Result<Self, StartError> {
        let now = world.now();
        let (store, certificates, recovery) = match &directory {
            None => (
                Store::memory(Options::default(), Describer),
                Certificates::ephemeral(names, now)?,
                None,
            ),
            Some(directory) => {
                let (store, recovery) = open(directory)?;
                (
                    store,
                    Certificates::open(&directory.join("pki"), names, now)?,
                    Some(recovery),
                )
            }
        };
        let tokens = ServiceAccountTokens::new(ISSUER, &[ISSUER], certificates.service_account_key.pkcs8())
            .map_err(|error| StartError::Prepare(error.to_string()))?;
        let lookup: Arc<dyn Lookup> = Arc::new(StoreLookup(store.clone()));
        let addresses = ServiceAddresses::new(SERVICE_RANGE).map_err(|error| StartError::Prepare(error.to_string()))?;
        let services = List::all(Scope::Resource(builtin::storage("", "services")));
        let services = store.list(&services).map(|page| page.records).unwrap_or_default();
        let services: Vec<Value> = services
            .iter()
            .map(|r| wire::from_stored(r.value(), "v1", "Service"))
            .collect();
        addresses.rebuild(&services);
        let core = Arc::new(Core {
            addresses,
            registry: Registry::new(builtin::resource_types()),
            authorizer: RoleIndex::new(),
            authenticator: Authenticator::new(Arc::new(tokens), lookup),
            admission: Admission::default(),
            openapi: Arc::new(OpenApi::default()),
            authority: certificates.authority.certificate_pem().to_owned(),
            world,
            store,
        });
        let mut controllers = JoinSet::new();
        let prepare = |error: &dyn std::fmt::Display| StartError::Prepare(error.to_string());
            streams: Streams::new(),
        controllers::bootstrap::run(&core)
            .await
            .map_err(|error| prepare(&error))?;
        let client = Arc::new(WebhookClient::new(Arc::new(controllers::services::StoredServices(
            core.store.clone(),
        ))));
        core.admission.ask_webhooks(Arc::clone(&client));
        let definitions = custom::controller::Controller::start(Arc::clone(&core), client).map_err(|e| prepare(&e))?;
        controllers.spawn(definitions.run());
        controllers::spawn(&core, &mut controllers).map_err(|error| prepare(&error))?;
        Ok(Self {
            core,
            certificates,
            controllers,
            recovery,
        })
    }

    /// The server as an administrator meets it: what `kube::Client::new` sits on.
    pub fn service(&self) -> ApiService {
        ApiService::new(Arc::clone(&self.core), User::server())
    }

    /// Stops: watches end, and everything acknowledged is on disk.
    pub async fn stop(mut self) {
        self.controllers.shutdown().await;
        self.core.store.close();
    }
}
    /// From now on, pods are reached through `access`: their logs, their processes, their ports.
    pub fn set_pod_access(&self, access: Arc<dyn PodAccess>) {
        self.core.streams.set_access(access);
    }


impl ApiServer {
        self.core.streams.ended().await;
    /// Starts a server and listens. Once this returns it answers, and what it brings along is there.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let Config {
            directory,
            listen,
            world,
        } = config;
        let names = match listen.ip() {
            address if address.is_unspecified() || address.is_loopback() => Vec::new(),
            address => vec![ServerName::Address(address)],
        };
        let embedded = Embedded::start(directory, &names, world).await?;
        let handler = {
            let core = Arc::clone(&embedded.core);
            move |request: Request<Incoming>, peer: Peer| answer(Arc::clone(&core), request, peer)
        };
        let tls = Tls::new(&embedded.certificates)?;
        let listening = serve::listen(listen, tls, Limits::default(), handler)
            .await
            .map_err(|source| StartError::Listen {
                address: listen,
                source,
            })?;
        Ok(Self { embedded, listening })
    }

    /// The same server without a socket.
    pub fn service(&self) -> ApiService {
        self.embedded.service()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }

    /// What was found when the store was opened; nothing in memory.
    pub fn recovery(&self) -> Option<&Recovery> {
        self.embedded.recovery.as_ref()
    }

    /// Writes a kubeconfig of the administrator, for its owner alone to read.
    pub fn write_kubeconfig(&self, path: &Path) -> Result<(), CertificateError> {
        let address = self.address();
        let host = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => "127.0.0.1".to_owned(),
            IpAddr::V6(ip) if ip.is_unspecified() => "[::1]".to_owned(),
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        Kubeconfig {
    /// From now on, pods are reached through `access`: their logs, their processes, their ports.
    pub fn set_pod_access(&self, access: Arc<dyn PodAccess>) {
        self.embedded.set_pod_access(access);
    }

            name: "moorline",
            server: &format!("https://{host}:{}", address.port()),
            authority: &self.embedded.certificates.authority,
            identity: &self.embedded.certificates.admin,
        }
        .write(path)
    }

    /// Stops: watches end, answers under way are finished within `patience`, and everything acknowledged is on disk.
    pub async fn stop(self, patience: Duration) -> Stopped {
        let stopped = self.listening.stop(patience).await;
        self.embedded.stop().await;
        stopped
    }
}

/// Where services get their addresses from.
const SERVICE_RANGE: &str = "10.96.0.0/16";
/// Who signs the tokens of service accounts.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

fn open(directory: &Path) -> Result<(Store, Recovery), StartError> {
    let folder = directory.join("store");
    let unusable = |source| StartError::Directory {
        directory: directory.to_owned(),
        source,
    };
    std::fs::create_dir_all(&folder).map_err(unusable)?;
    let files = Directory::at(&folder).map_err(unusable)?;
    Store::open(files, DiskOptions::default(), Describer).map_err(|source| StartError::Store {
        directory: directory.to_owned(),
        source,
    })
}

/// Answers a request that came by the listener: first of all, who is it?
async fn answer(core: Arc<Core>, mut request: Request<Incoming>, peer: Peer) -> Response<Body> {
    let who = identify(&core, &mut request, &peer);
    match who {
        Ok(user) => ApiService::new(core, user).answer(request).await,
        Err(error) => respond::error(&error),
    }
}

fn identify(core: &Core, request: &mut Request<Incoming>, peer: &Peer) -> Result<User, ApiError> {
    let path = request.uri().path().to_owned();
    let now = core.world.now();
    auth::admit(
        &core.authenticator,
        &core.authorizer,
        &peer.certificate,
        request.headers_mut(),
        &path,
        now,
    )
}

/// Finds what tokens are bound to.
struct StoreLookup(Store);

impl Lookup for StoreLookup {
    fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let record = self.0.get(&Key::new(&Resource::new(resource), namespace, name))?;
        Some(wire::from_stored(record.value(), "v1", ""))
    }
}
