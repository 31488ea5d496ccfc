//! An instance for one test, and things that listen and speak in its pods.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use moorline_network::{
    Attachment, Config, Endpoint, HostPort, InstanceName, Network, NodeName, Outside, PodId, PodNetwork, Protocol,
    Ranges, ServicePort,
};

/// How long a packet that should arrive may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait for one that should not. The kernel sends the first again after a second.
const IMPATIENCE: Duration = Duration::from_millis(300);

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// An instance of the network that is removed at the end, however that comes.
pub(crate) struct Instance {
    network: Option<Network>,
    pub(crate) config: Config,
    directory: tempfile::TempDir,
}

impl Instance {
    /// A new instance with nodes `n1` and `n2`; nothing where the machine does not allow it, which is said.
    pub(crate) fn new() -> Option<Self> {
        Self::with(Outside::Closed)
    }

    pub(crate) fn with(outside: Outside) -> Option<Self> {
        Self::made(outside, None)
    }

    /// An instance whose ranges no other test takes over when it is gone: `10.<number>` and the next.
    pub(crate) fn alone_at(number: u8, outside: Outside) -> Option<Self> {
        let range = |number: u8| format!("10.{number}.0.0/16").parse().unwrap();
        Self::made(outside, Some(Ranges::new(range(number), range(number + 1)).unwrap()))
    }

    fn made(outside: Outside, ranges: Option<Ranges>) -> Option<Self> {
        if let Some(reason) = missing() {
            eprintln!("SKIPPED: {reason}");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let name = format!("test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let config = Config {
            instance: InstanceName::new(name).unwrap(),
            directory: directory.path().join("network"),
            ranges,
            outside,
        };
        let mut instance = Self {
            network: None,
            config,
            directory,
        };
        instance.reopen();
        instance.add_node(&node("n1")).unwrap();
        instance.add_node(&node("n2")).unwrap();
        Some(instance)
    }

    /// Closes and opens it again, as a restart of the process does.
    pub(crate) fn reopen(&mut self) {
        self.network = None;
        self.network = Some(Network::open(self.config.clone()).unwrap());
    }

    /// Closes it, leaving everything in place.
    pub(crate) fn close(&mut self) {
        self.network = None;
    }

    pub(crate) fn purge(&mut self) {
        self.network.take().unwrap().purge().unwrap();
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn pod(&self, name: &str, on: &str) -> PodNetwork {
        self.attach(&pod(name), &attachment(on)).unwrap()
    }

    pub(crate) fn pod_with_port(&self, name: &str, on: &str, port: HostPort) -> PodNetwork {
        self.attach(
            &pod(name),
            &Attachment {
                host_ports: vec![port],
                ..attachment(on)
            },
        )
        .unwrap()
    }

    /// A listener in a pod that says the pod's name to everybody.
    pub(crate) fn serve_tcp(&self, name: &str, port: u16) {
        let listener = self
            .inside(&pod(name), || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
            .unwrap()
            .unwrap();
        say_over_tcp(listener, name);
    }

    /// The same by UDP.
    pub(crate) fn serve_udp(&self, name: &str, port: u16) {
        let socket = self
            .inside(&pod(name), || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)))
            .unwrap()
            .unwrap();
        say_over_udp(socket, name);
    }

    /// A pod that serves TCP on port 80, as an endpoint.
    pub(crate) fn server(&self, name: &str, on: &str) -> Endpoint {
        let network = self.pod(name, on);
        self.serve_tcp(name, 80);
        Endpoint {
            address: network.address,
            port: 80,
            node: Some(node(on)),
        }
    }

    /// What a pod hears when it connects.
    pub(crate) fn ask_from(&self, name: &str, target: (Ipv4Addr, u16)) -> io::Result<String> {
        self.inside(&pod(name), || ask(target, PATIENCE)).unwrap()
    }

    /// Whether a pod gets an answer soon.
    pub(crate) fn reaches(&self, name: &str, target: (Ipv4Addr, u16)) -> bool {
        self.inside(&pod(name), || ask(target, IMPATIENCE)).unwrap().is_ok()
    }

    pub(crate) fn service_address(&self, number: u8) -> Ipv4Addr {
        let [a, b, ..] = self.ranges().services().network().octets();
        Ipv4Addr::new(a, b, 1, number)
    }

    pub(crate) fn table(&self) -> String {
        format!("moorline_{}", self.config.instance)
    }
}

impl Deref for Instance {
    type Target = Network;

    fn deref(&self) -> &Network {
        self.network.as_ref().expect("the test has not closed it")
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.network = None;
        if let Err(error) = Network::purge_closed(&self.config.instance, &self.config.directory) {
            eprintln!("{} was not removed: {error:?}", self.config.instance);
        }
    }
}

/// What the machine, outside of every pod, hears when it connects.
pub(crate) fn ask_from_machine(target: (Ipv4Addr, u16)) -> io::Result<String> {
    ask(target, PATIENCE)
}

pub(crate) fn machine_reaches(target: (Ipv4Addr, u16)) -> bool {
    ask(target, IMPATIENCE).is_ok()
}

fn ask(target: (Ipv4Addr, u16), patience: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from(target), patience)?;
    stream.set_read_timeout(Some(patience))?;
    let mut heard = String::new();
    stream.read_to_string(&mut heard)?;
    Ok(heard)
}

/// Sends from a socket and returns what comes back.
pub(crate) fn exchange(socket: &UdpSocket, target: (Ipv4Addr, u16)) -> io::Result<String> {
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send_to(b"?", SocketAddr::from(target))?;
    let mut buffer = [0; 64];
    let (length, _) = socket.recv_from(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// Says `name` and who is asking to everybody who connects. Ends with the process.
pub(crate) fn say_over_tcp(listener: TcpListener, name: &str) {
    let name = name.to_owned();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let from = stream.peer_addr().map_or(IpAddr::from([0; 4]), |peer| peer.ip());
            let _ = write!(stream, "{name} hears {from}");
        }
    });
}

fn say_over_udp(socket: UdpSocket, name: &str) {
    let name = name.to_owned();
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(name.as_bytes(), from);
        }
    });
}

pub(crate) fn pod(name: &str) -> PodId {
    PodId::new(name).unwrap()
}

pub(crate) fn node(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

pub(crate) fn attachment(on: &str) -> Attachment {
    Attachment {
        node: node(on),
        host_ports: Vec::new(),
        sysctls: Vec::new(),
    }
}

pub(crate) fn tcp_port(port: u16, endpoints: Vec<Endpoint>) -> ServicePort {
    ServicePort {
        protocol: Protocol::Tcp,
        port,
        node_port: None,
        endpoints,
    }
}

/// A program's output, for looking at what the kernel has.
pub(crate) fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The mounts of this process that lie below a directory.
pub(crate) fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let points = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .map(PathBuf::from);
    points.filter(|point| point.starts_with(directory)).collect()
}

/// What this machine lacks for these tests.
pub(crate) fn missing() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() {
        return Some("making network namespaces and links needs root");
    }
    let nft = Command::new("nft").arg("--version").output();
    nft.is_err()
        .then_some("the program nft is missing: apt-get install nftables")
}
