//! The whole server: store, certificates, controllers and listener, started and stopped as one.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures_util::future::BoxFuture;
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
    quota::Ledger,
    resource::Registry,
    respond,
    serve::{self, Limits, Listening, Peer, Stopped, Tls},
    service::ApiService,
    streams::{PodAccess, Streams},
    wire,
};

pub use crate::builtin::service_addresses::SERVICE_RANGE;

/// What a server is made of.
pub struct Config {
    /// Where everything is kept; in memory, and lost at the end, without a directory.
    pub directory: Option<PathBuf>,
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// A socket that is open already, to listen at instead: for a process that has since gone where it cannot open one.
    pub listener: Option<std::net::TcpListener>,
    /// The address at which pods reach it, if that is another one: it listens there as well, on the same port, and the
    /// service `kubernetes` leads there.
    pub for_pods: Option<IpAddr>,
    /// The addresses of services; see [`SERVICE_RANGE`] for those that they have otherwise.
    pub services: String,
    /// What it does by itself.
    pub upkeep: Upkeep,
    /// Time and chance.
    pub world: Arc<dyn World>,
}

/// What a server does by itself, straight on its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upkeep {
    /// Also the work of a controller manager: garbage, namespaces that end, default accounts, the status of quotas.
    Whole,
    /// What a kube-apiserver without a controller manager does: to be held against one.
    Own,
}

impl Config {
    /// A server in memory on a free port of this machine alone.
    pub fn ephemeral() -> Self {
        Self {
            directory: None,
            listen: ([127, 0, 0, 1], 0).into(),
            listener: None,
            for_pods: None,
            services: SERVICE_RANGE.to_owned(),
            upkeep: Upkeep::Whole,
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
    /// Where pods reach it.
    for_pods: Option<Listening>,
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
    pub fn ephemeral(world: Arc<dyn World>) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(async move { Self::start(None, &[], SERVICE_RANGE, Upkeep::Whole, world).await })
    }

    async fn start(
        directory: Option<PathBuf>,
        names: &[ServerName],
        services: &str,
        upkeep: Upkeep,
        world: Arc<dyn World>,
    ) -> Result<Self, StartError> {
        let now = world.now();
        let addresses = ServiceAddresses::new(services).map_err(|error| StartError::Prepare(error.to_string()))?;
        let names: Vec<ServerName> = names
            .iter()
            .cloned()
            .chain([ServerName::Address(addresses.first().into())])
            .collect();
        let names = names.as_slice();
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
            quotas: Ledger::default(),
            openapi: Arc::new(OpenApi::default()),
            streams: Streams::new(),
            authority: certificates.authority.certificate_pem().to_owned(),
            world,
            store,
        });
        let mut controllers = JoinSet::new();
        let prepare = |error: &dyn std::fmt::Display| StartError::Prepare(error.to_string());
        controllers::bootstrap::run(&core)
            .await
            .map_err(|error| prepare(&error))?;
        let client = Arc::new(WebhookClient::new(Arc::new(controllers::services::StoredServices(
            core.store.clone(),
        ))));
        core.admission.ask_webhooks(Arc::clone(&client));
        let definitions = custom::controller::Controller::start(Arc::clone(&core), client).map_err(|e| prepare(&e))?;
        controllers.spawn(definitions.run());
        controllers::spawn(&core, upkeep, &mut controllers).map_err(|error| prepare(&error))?;
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

    /// From now on, pods are reached through `access`: their logs, their processes, their ports.
    pub fn set_pod_access(&self, access: Arc<dyn PodAccess>) {
        self.core.streams.set_access(access, &self.core.registry);
    }

    /// Stops: watches end, and everything acknowledged is on disk.
    pub fn stop(mut self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.core.streams.ended().await;
            self.controllers.shutdown().await;
            self.core.store.close();
        })
    }
}

impl ApiServer {
    /// Starts a server and listens. Once this returns it answers, and what it brings along is there.
    pub fn start(config: Config) -> BoxFuture<'static, Result<Self, StartError>> {
        Box::pin(async move {
            let Config {
                directory,
                listen,
                listener,
                for_pods,
                services,
                upkeep,
                world,
            } = config;
            let listen = match &listener {
                None => listen,
                Some(open) => open.local_addr().map_err(|source| StartError::Listen {
                    address: listen,
                    source,
                })?,
            };
            let is_known = |address: &IpAddr| address.is_unspecified() || address.is_loopback();
            let addresses = [Some(listen.ip()), for_pods].into_iter().flatten();
            let foreign = addresses.filter(|address| !is_known(address));
            let names: Vec<ServerName> = foreign.map(ServerName::Address).collect();
            let mut embedded = Embedded::start(directory, &names, &services, upkeep, world).await?;
            embedded
                .controllers
                .spawn(controllers::identity::run(Arc::clone(&embedded.core)));
            let handler = {
                let core = Arc::clone(&embedded.core);
                move |request: Request<Incoming>, peer: Peer| answer(Arc::clone(&core), request, peer)
            };
            let tls = Tls::new(&embedded.certificates)?;
            let open = async |address: SocketAddr| {
                let opened = serve::listen(address, tls.clone(), Limits::default(), handler.clone()).await;
                opened.map_err(|source| StartError::Listen { address, source })
            };
            let listening = match listener {
                None => open(listen).await?,
                Some(listener) => {
                    let opened = listener
                        .set_nonblocking(true)
                        .and_then(|()| tokio::net::TcpListener::from_std(listener))
                        .and_then(|listener| {
                            serve::listen_on(listener, tls.clone(), Limits::default(), handler.clone())
                        });
                    opened.map_err(|source| StartError::Listen {
                        address: listen,
                        source,
                    })?
                }
            };
            let for_pods = match for_pods {
                Some(address) => Some(open((address, listening.address().port()).into()).await?),
                None => None,
            };
            let server = Self {
                embedded,
                listening,
                for_pods,
            };
            let address = server.for_pods.as_ref().map_or(server.address(), Listening::address);
            // Nobody but this machine reaches the loopback, and where all addresses are listened on, which one pods reach
            // is for whoever runs them to say.
            if !address.ip().is_loopback() && !address.ip().is_unspecified() {
                let advertised = server.advertise(address).await;
                advertised.map_err(|error| StartError::Prepare(error.to_string()))?;
            }
            Ok(server)
        })
    }

    /// Says at which address pods reach the server: the endpoints of the service `kubernetes`. Not the loopback, which
    /// no pod shares.
    pub async fn advertise(&self, address: SocketAddr) -> Result<(), ApiError> {
        controllers::bootstrap::advertise(&self.embedded.core, address).await
    }

    /// The same server without a socket.
    pub fn service(&self) -> ApiService {
        self.embedded.service()
    }

    /// From now on, pods are reached through `access`: their logs, their processes, their ports.
    pub fn set_pod_access(&self, access: Arc<dyn PodAccess>) {
        self.embedded.set_pod_access(access);
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
            name: "moorline",
            server: &format!("https://{host}:{}", address.port()),
            authority: &self.embedded.certificates.authority,
            identity: &self.embedded.certificates.admin,
        }
        .write(path)
    }

    /// Stops: watches end, answers under way are finished within `patience`, and everything acknowledged is on disk.
    pub fn stop(self, patience: Duration) -> BoxFuture<'static, Stopped> {
        Box::pin(async move {
            let for_pods = async {
                match self.for_pods {
                    Some(listening) => Some(listening.stop(patience).await),
                    None => None,
                }
            };
            let (stopped, _) = tokio::join!(self.listening.stop(patience), for_pods);
            self.embedded.stop().await;
            stopped
        })
    }
}

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
    request.extensions_mut().insert(peer.address);
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
