//! The server: takes questions by UDP and TCP, answers from the table or asks upstream.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, ResponseCode};
use hickory_proto::rr::{LowerName, Name, Record, RecordType};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::runtime::{Time, TokioRuntimeProvider};
use hickory_resolver::net::{DnsError, NetError};
use hickory_server::Server;
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::MessageResponseBuilder;
use ipnet::IpNet;
use tokio::net::{TcpListener, UdpSocket};

use super::table::{Found, Names};
use crate::{Error, Ranges, Result};

/// How long upstream may take for an answer: less than the five seconds after which the C library gives up on us.
const UPSTREAM_PATIENCE: Duration = Duration::from_secs(3);
/// How long a connection may be idle.
const IDLE: Duration = Duration::from_secs(10);
/// How many answers wait for a slow reader of a connection.
const ANSWERS_WAITING: usize = 32;
/// How long an answer by UDP may be when both sides can take it: what passes every link in one piece.
const LARGEST_DATAGRAM: u16 = 1232;
/// How many ports of the kernel's choice are tried for one that both protocols have free.
const PORTS_TRIED: usize = 16;

/// Where the server listens, whom it answers and whom it asks.
#[derive(Clone, Debug)]
pub struct DnsConfig {
    /// Address and port to listen on.
    pub address: SocketAddr,
    /// Who is answered; others are refused.
    pub allowed: Vec<IpNet>,
    /// Who is asked for names that are not ours. Without anybody there are no such names.
    pub upstream: Vec<SocketAddr>,
}

impl DnsConfig {
    /// What an instance with these ranges needs: its own address, its pods and this machine.
    pub fn of(ranges: &Ranges, upstream: impl IntoIterator<Item = IpAddr>) -> Self {
        let loopback = IpNet::V4(ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::new(127, 0, 0, 0), 8));
        Self {
            address: SocketAddr::new(ranges.dns_address().into(), 53),
            allowed: vec![ranges.pods().into(), ranges.services().into(), loopback],
            upstream: upstream.into_iter().map(|server| SocketAddr::new(server, 53)).collect(),
        }
    }
}

/// A running server. Dropping it ends it.
pub struct DnsServer {
    server: Server<Handler>,
    address: SocketAddr,
}

impl DnsServer {
    /// Listens, and answers from then on. Needs a tokio runtime.
    pub async fn start(config: DnsConfig, names: Arc<Names>) -> Result<Self> {
        let failed = |source| Error::DnsBind {
            address: config.address,
            source,
        };
        let (udp, tcp, address) = bind(config.address).await.map_err(failed)?;
        let upstream = upstream(&config.upstream).map_err(|error| failed(std::io::Error::other(error.to_string())))?;
        let handler = Handler {
            names,
            upstream,
            turn: AtomicUsize::new(0),
        };
        let everybody = [ipnet::Ipv4Net::default().into(), ipnet::Ipv6Net::default().into()];
        let mut server = Server::with_access(handler, everybody, config.allowed);
        server.register_socket(udp);
        server.register_listener(tcp, IDLE, ANSWERS_WAITING);
        Ok(Self { server, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops listening, after what is being answered.
    pub async fn stop(mut self) {
        if let Err(error) = self.server.shutdown_gracefully().await {
            tracing::debug!(%error, "the name server had ended before");
        }
    }
}

/// Binds both protocols to one port. A port that the kernel chose for one may be somebody else's in the other: it is
/// asked for another then.
async fn bind(wanted: SocketAddr) -> std::io::Result<(UdpSocket, TcpListener, SocketAddr)> {
    let mut attempts = if wanted.port() == 0 { PORTS_TRIED } else { 1 };
    loop {
        attempts -= 1;
        let tcp = TcpListener::bind(wanted).await?;
        let address = tcp.local_addr()?;
        match UdpSocket::bind(address).await {
            Ok(udp) => return Ok((udp, tcp, address)),
            Err(error) if attempts > 0 && error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
}

fn upstream(servers: &[SocketAddr]) -> Result<Option<TokioResolver>, NetError> {
    if servers.is_empty() {
        return Ok(None);
    }
    let with_port = |server: &SocketAddr| {
        let mut config = NameServerConfig::udp_and_tcp(server.ip());
        for connection in &mut config.connections {
            connection.port = server.port();
        }
        config
    };
    let servers = servers.iter().map(with_port).collect();
    let config = ResolverConfig::from_parts(None, Vec::new(), servers);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    let options = builder.options_mut();
    options.timeout = Duration::from_secs(1);
    options.attempts = 1;
    options.use_hosts_file = ResolveHosts::Never;
    options.preserve_intermediates = true;
    builder.build().map(Some)
}

struct Handler {
    names: Arc<Names>,
    upstream: Option<TokioResolver>,
    /// Which of several addresses comes first in the next answer.
    turn: AtomicUsize,
}

/// An answer before it is written.
struct Answer {
    code: ResponseCode,
    records: Vec<Record>,
    authority: Option<Record>,
    /// Whether we speak for the name ourselves.
    authoritative: bool,
}

impl Answer {
    fn empty(code: ResponseCode) -> Self {
        Self {
            code,
            records: Vec::new(),
            authority: None,
            authoritative: false,
        }
    }
}

impl Handler {
    async fn answer(&self, asked: &Name, kind: RecordType) -> Answer {
        let negative = |code| Answer {
            authority: Some(self.names.authority()),
            authoritative: true,
            ..Answer::empty(code)
        };
        match self.names.look_up(asked, kind) {
            Found::NoName => negative(ResponseCode::NXDomain),
            Found::Nothing => negative(ResponseCode::NoError),
            Found::Records(mut records) => {
                self.rotate(&mut records);
                Answer {
                    records,
                    authoritative: true,
                    ..Answer::empty(ResponseCode::NoError)
                }
            }
            Found::Elsewhere(mut records, target) => {
                // Where an alias leads is a service to the one who asks; that it cannot be followed is no failure.
                records.extend(self.ask_upstream(&target, kind).await.records);
                Answer {
                    records,
                    authoritative: true,
                    ..Answer::empty(ResponseCode::NoError)
                }
            }
            Found::NotOurs => self.ask_upstream(asked, kind).await,
        }
    }

    async fn ask_upstream(&self, asked: &Name, kind: RecordType) -> Answer {
        let Some(upstream) = &self.upstream else {
            return Answer::empty(ResponseCode::NXDomain);
        };
        let asking = tokio::time::timeout(UPSTREAM_PATIENCE, upstream.lookup(asked.clone(), kind));
        match asking.await.unwrap_or(Err(NetError::Timeout)) {
            Ok(lookup) => Answer {
                records: lookup.answers().to_vec(),
                ..Answer::empty(ResponseCode::NoError)
            },
            Err(NetError::Dns(DnsError::NoRecordsFound(none))) => {
                let authority = none.soa.map(|soa| soa.into_record_of_rdata());
                Answer {
                    authority,
                    ..Answer::empty(none.response_code)
                }
            }
            Err(NetError::Dns(DnsError::ResponseCode(code))) => Answer::empty(code),
            Err(error) => {
                tracing::debug!(name = %asked, %error, "the machine's name servers do not answer");
                Answer::empty(ResponseCode::ServFail)
            }
        }
    }

    /// Lets every address come first in turn, behind the aliases that lead to them.
    fn rotate(&self, records: &mut [Record]) {
        let aliases = records
            .iter()
            .take_while(|record| record.record_type() == RecordType::CNAME)
            .count();
        let rest = &mut records[aliases..];
        if rest.len() > 1 {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % rest.len();
            rest.rotate_left(turn);
        }
    }

    async fn respond(&self, request: &Request) -> Answer {
        if request.metadata.message_type != MessageType::Query || request.metadata.op_code != OpCode::Query {
            return Answer::empty(ResponseCode::NotImp);
        }
        match request.queries.queries() {
            [query] => self.answer(&original_name(query.name()), query.query_type()).await,
            _ => Answer::empty(ResponseCode::FormErr),
        }
    }
}

fn original_name(name: &LowerName) -> Name {
    let mut name = Name::from(name);
    name.set_fqdn(true);
    name
}

#[async_trait::async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(
        &self,
        request: &Request,
        mut response_handle: R,
    ) -> ResponseInfo {
        let answer = self.respond(request).await;
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.response_code = answer.code;
        metadata.authoritative = answer.authoritative;
        // Also with nobody to ask: then there are no other names, and that is an answer.
        metadata.recursion_available = true;
        let edns = request.edns.as_ref().map(|theirs| {
            let mut ours = Edns::new();
            ours.set_max_payload(theirs.max_payload().clamp(512, LARGEST_DATAGRAM));
            ours
        });
        let builder = MessageResponseBuilder::new(&request.queries, edns.as_ref());
        let response = builder.build(metadata, &answer.records, [], &answer.authority, []);
        match response_handle.send_response(response).await {
            Ok(info) => info,
            Err(error) => {
                tracing::debug!(%error, "an answer could not be sent");
                failed(request)
            }
        }
    }
}

fn failed(request: &Request) -> ResponseInfo {
    let mut message = Message::response(request.metadata.id, request.metadata.op_code);
    message.metadata.response_code = ResponseCode::ServFail;
    ResponseInfo::from(hickory_proto::op::Header {
        metadata: message.metadata,
        counts: hickory_proto::op::HeaderCounts::default(),
    })
}
