//! A real kube-apiserver with its etcd, started for one run and ended with it.

use std::{
    fs::{self, File},
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use moorline_apiserver::certificates::{CertificateError, Certificates, Kubeconfig};
use tempfile::TempDir;

use crate::client::Client;

/// The release that ours is held against; `scripts/reference` builds the same.
pub const VERSION: &str = "1.36.4";

/// How long it may take to be ready; two to three seconds on an idle machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// The programs that `make reference` builds.
#[derive(Clone, Debug)]
pub struct Programs {
    folder: PathBuf,
}

/// Whether every write of etcd reaches the disk before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// As it is run in earnest: what a measurement needs.
    Synced,
    /// What a comparison of answers can do without.
    Unsynced,
}

/// A running pair of etcd and kube-apiserver. Dropped, both are ended and what they stored is gone.
pub struct RealServer {
    client: Client,
    address: SocketAddr,
    ready_after: Duration,
    // Ended in this order, the folder last.
    apiserver: Running,
    etcd: Running,
    folder: TempDir,
}

/// Why the real server does not run.
#[derive(Debug, thiserror::Error)]
pub enum RealError {
    /// Nobody has built it.
    #[error("there is no kube-apiserver {VERSION} and etcd in {0}; `make reference` builds them")]
    Missing(PathBuf),
    /// A file or a process could not be made.
    #[error("cannot {attempt}")]
    Io {
        /// What was attempted.
        attempt: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// Its certificates could not be made.
    #[error("cannot make the certificates of the real server")]
    Certificates(#[from] CertificateError),
    /// It was started and did not become ready.
    #[error("the real server did not become ready; the end of its log:\n{log}")]
    NotReady {
        /// The last lines that it wrote.
        log: String,
    },
}

/// Finds what `make reference` has built.
pub fn find() -> Result<Programs, RealError> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
        .unwrap_or_else(|| PathBuf::from("."));
    let folder = cache.join(format!("moorline/reference-{VERSION}"));
    let there = |name| folder.join(name).is_file();
    if there("kube-apiserver") && there("etcd") {
        Ok(Programs { folder })
    } else {
        Err(RealError::Missing(folder))
    }
}

impl Programs {
    /// Starts both and waits until the server says that it is ready.
    pub async fn start(&self, durability: Durability) -> Result<RealServer, RealError> {
        let io = |attempt| move |source| RealError::Io { attempt, source };
        let folder = TempDir::new().map_err(io("make a folder for the real server"))?;
        let pki = folder.path().join("pki");
        let certificates = Certificates::open(&pki, &[], Timestamp::now())?;
        let [etcd_client, etcd_peer, secure] = free_ports().map_err(io("find free ports"))?;
        let started = Instant::now();
        let etcd = self
            .etcd(folder.path(), etcd_client, etcd_peer, durability)
            .map_err(io("start etcd"))?;
        let mut apiserver = self
            .apiserver(folder.path(), &pki, etcd_client, secure)
            .map_err(io("start kube-apiserver"))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, secure));
        let client = Client::new(address, &certificates);
        Kubeconfig {
            name: "reference",
            server: &format!("https://{address}"),
            authority: &certificates.authority,
            identity: &certificates.admin,
        }
        .write(&folder.path().join("kubeconfig"))?;
        while !is_ready(&client).await {
            if apiserver.has_ended() || started.elapsed() > PATIENCE {
                let log = fs::read_to_string(folder.path().join("kube-apiserver.log")).unwrap_or_default();
                let lines: Vec<&str> = log.lines().rev().take(20).collect();
                let log = lines.into_iter().rev().collect::<Vec<_>>().join("\n");
                return Err(RealError::NotReady { log });
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(RealServer {
            client,
            address,
            ready_after: started.elapsed(),
            apiserver,
            etcd,
            folder,
        })
    }

    fn etcd(&self, folder: &Path, client: u16, peer: u16, durability: Durability) -> io::Result<Running> {
        let mut command = Command::new(self.folder.join("etcd"));
        let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        command
            .arg("--name=reference")
            .arg(format!("--data-dir={}", folder.join("etcd").display()))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=reference={peer}"));
        if durability == Durability::Unsynced {
            command.arg("--unsafe-no-fsync");
        }
        Running::start(command, &folder.join("etcd.log"))
    }

    fn apiserver(&self, folder: &Path, pki: &Path, etcd: u16, secure: u16) -> io::Result<Running> {
        let authentication = folder.join("authentication.yaml");
        fs::write(&authentication, AUTHENTICATION)?;
        let file = |name: &str| pki.join(name).display().to_string();
        let mut command = Command::new(self.folder.join("kube-apiserver"));
        command
            .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
            .arg(format!("--secure-port={secure}"))
            .arg(format!("--etcd-servers=http://127.0.0.1:{etcd}"))
            .arg("--service-cluster-ip-range=10.96.0.0/16")
            .arg(format!("--client-ca-file={}", file("ca.crt")))
            .arg(format!("--tls-cert-file={}", file("apiserver.crt")))
            .arg(format!("--tls-private-key-file={}", file("apiserver.key")))
            .arg("--service-account-issuer=https://kubernetes.default.svc.cluster.local")
            // It reads a public key out of a certificate, but not out of a private key in PKCS #8, which sa.key is.
            .arg(format!("--service-account-key-file={}", file("apiserver.crt")))
            .arg(format!("--service-account-signing-key-file={}", file("apiserver.key")))
            .arg(format!("--authentication-config={}", authentication.display()))
            .args(["--authorization-mode=RBAC", "--allow-privileged"])
            .arg("--endpoint-reconciler-type=none");
        Running::start(command, &folder.join("kube-apiserver.log"))
    }
}

/// Nobody is let in without a name but to ask for its health, as with ours.
const AUTHENTICATION: &str = "\
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions: [{path: /livez}, {path: /readyz}, {path: /healthz}]
";

impl RealServer {
    /// A file by which clients reach it, for as long as it runs.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Its administrator.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How long it took from the start of both processes until it was ready.
    pub fn ready_after(&self) -> Duration {
        self.ready_after
    }

    /// The process ids of kube-apiserver and etcd.
    pub fn processes(&self) -> [u32; 2] {
        [self.apiserver.0.id(), self.etcd.0.id()]
    }
}

async fn is_ready(client: &Client) -> bool {
    let answer = client.send(Method::GET, "/readyz", &[], Bytes::new()).await;
    answer.is_ok_and(|answer| answer.status.is_success())
}

/// Three different ports that were free a moment ago.
fn free_ports() -> io::Result<[u16; 3]> {
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let held = [listen()?, listen()?, listen()?];
    let port = |listener: &TcpListener| Ok::<_, io::Error>(listener.local_addr()?.port());
    Ok([port(&held[0])?, port(&held[1])?, port(&held[2])?])
}

/// A process that ends with its owner.
struct Running(Child);

impl Running {
    fn start(mut command: Command, log: &Path) -> io::Result<Self> {
        let log = File::create(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(Self(command.spawn()?))
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
