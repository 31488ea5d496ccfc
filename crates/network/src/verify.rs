//! Trying whether packets pass.
//!
//! Every table of the machine has a say in what is forwarded, and ours can only abstain. Docker and ufw drop by default
//! what they do not know; asking all the firewalls there are whether they would is less certain than trying.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::{Attachment, Error, Network, NodeName, PodId, Result};

/// How long a packet that nobody drops may take on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(3);

impl Network {
    /// Tries whether packets pass between two pods of a node, and from a pod to the machine. If not, the error names the
    /// rule that another firewall of the machine lacks.
    pub fn verify(&self, node: &NodeName) -> Result<()> {
        let pods = [PodId::new("verify.1")?, PodId::new("verify.2")?];
        let verified = self.try_between(node, &pods);
        let [first, second] = pods.map(|pod| self.detach(&pod));
        verified.and(first).and(second)
    }

    fn try_between(&self, node: &NodeName, [one, two]: &[PodId; 2]) -> Result<()> {
        let wanted = Attachment {
            node: node.clone(),
            host_ports: Vec::new(),
            sysctls: Vec::new(),
        };
        let address = self.attach(one, &wanted)?.address;
        self.attach(two, &wanted)?;
        let in_pod = self.inside(one, || TcpListener::bind((address, 0)))?;
        self.try_from(two, in_pod, "between pods", "FORWARD")?;
        let on_machine = TcpListener::bind((self.ranges().host_address(), 0));
        self.try_from(two, on_machine, "from pods to this machine", "INPUT")
    }

    fn try_from(&self, pod: &PodId, listener: io::Result<TcpListener>, way: &'static str, chain: &str) -> Result<()> {
        let blocked = |source| Error::Blocked {
            way,
            rule: format!("iptables -I {chain} -i {}+ -j ACCEPT", self.link_prefix()),
            source,
        };
        let listener = listener.map_err(blocked)?;
        let target = listener.local_addr().map_err(blocked)?;
        debug_assert_ne!(target.ip(), Ipv4Addr::UNSPECIFIED);
        self.inside(pod, || connect(target))?.map_err(blocked)
    }
}

fn connect(target: SocketAddr) -> io::Result<()> {
    TcpStream::connect_timeout(&target, PATIENCE).map(drop)
}
