//! How a question is put: by a command in the container, over HTTP, TCP or gRPC.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use futures_util::future::BoxFuture;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{Request, body::Bytes};
use hyper_util::rt::TokioIo;
use k8s_openapi::{
    api::core::v1::{HTTPGetAction, LifecycleHandler, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use tokio::net::TcpStream;

use super::grpc;

/// What a container answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Well,
    Ill(String),
    Unknown(String),
}

/// What a command in a container did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExecOutcome {
    pub(crate) exit_code: i32,
    pub(crate) output: String,
}

/// Runs a command in a container, for so long at most; an error says why it could not be run.
pub(crate) type Exec =
    Arc<dyn Fn(Vec<String>, Duration) -> BoxFuture<'static, Result<ExecOutcome, ExecError>> + Send + Sync>;

/// Why a command in a container has no exit code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExecError {
    #[error("command timed out after {}", crate::pod::go_duration(*.0))]
    TimedOut(Duration),
    #[error("{0}")]
    Refused(String),
}

/// The container that is asked.
pub(crate) struct Target {
    pub(crate) ip: IpAddr,
    pub(crate) ports: BTreeMap<String, u16>,
    pub(crate) exec: Exec,
}

/// How much of an answer is read.
const ANSWER: usize = 10 * 1024;

/// Asks once.
pub(crate) async fn ask(probe: &Probe, target: &Target, timeout: Duration) -> Answer {
    if let Some(action) = &probe.exec {
        let command = action.command.clone().unwrap_or_default();
        return match (target.exec)(command, timeout).await {
            Ok(outcome) if outcome.exit_code == 0 => Answer::Well,
            Ok(outcome) => Answer::Ill(outcome.output),
            Err(error @ ExecError::TimedOut(_)) => Answer::Ill(error.to_string()),
            Err(ExecError::Refused(words)) => Answer::Unknown(words),
        };
    }
    let asked = async {
        if let Some(action) = &probe.http_get {
            match http(action, target).await {
                Ok((status, _)) if (200..400).contains(&status) => Answer::Well,
                Ok((status, _)) => Answer::Ill(format!("HTTP probe failed with statuscode: {status}")),
                Err(words) => Answer::Ill(words),
            }
        } else if let Some(action) = &probe.tcp_socket {
            let Some(port) = port(&action.port, target) else {
                return unknown_port(&action.port);
            };
            let address = address(action.host.as_deref(), target, port);
            match TcpStream::connect(&address).await {
                Ok(_) => Answer::Well,
                Err(error) => Answer::Ill(format!("dial tcp {address}: {error}")),
            }
        } else if let Some(action) = &probe.grpc {
            let port = u16::try_from(action.port).unwrap_or(0);
            let service = action.service.as_deref().unwrap_or("");
            grpc::check(SocketAddr::new(target.ip, port), service).await
        } else {
            Answer::Unknown("the probe asks nothing".to_owned())
        }
    };
    match tokio::time::timeout(timeout, asked).await {
        Ok(answer) => answer,
        Err(_) if probe.grpc.is_some() => Answer::Ill(format!(
            "timeout: failed to connect service within {}",
            crate::pod::go_duration(timeout)
        )),
        Err(_) => Answer::Ill("context deadline exceeded (Client.Timeout exceeded while awaiting headers)".to_owned()),
    }
}

/// Carries out a hook. An error is what the event says.
pub(crate) async fn hook(handler: &LifecycleHandler, target: &Target, limit: Duration) -> Result<(), String> {
    if let Some(action) = &handler.exec {
        let command = action.command.clone().unwrap_or_default();
        let shown = command.join(" ");
        return match (target.exec)(command, limit).await {
            Ok(outcome) if outcome.exit_code == 0 => Ok(()),
            Ok(outcome) => Err(format!(
                "command '{shown}' exited with {}: {}",
                outcome.exit_code, outcome.output
            )),
            Err(error) => Err(error.to_string()),
        };
    }
    if let Some(action) = &handler.http_get {
        return match tokio::time::timeout(limit, http(action, target)).await {
            Ok(answer) => answer.map(|_| ()),
            Err(_) => Err("the request timed out".to_owned()),
        };
    }
    if let Some(action) = &handler.tcp_socket {
        let Some(port) = port(&action.port, target) else {
            return Err("the hook's port is not known".to_owned());
        };
        let address = address(action.host.as_deref(), target, port);
        return match tokio::time::timeout(limit, TcpStream::connect(address)).await {
            Ok(connected) => connected.map(|_| ()).map_err(|error| error.to_string()),
            Err(_) => Err("the connection timed out".to_owned()),
        };
    }
    if let Some(action) = &handler.sleep {
        let asked = Duration::from_secs(u64::try_from(action.seconds).unwrap_or(0));
        tokio::time::sleep(asked.min(limit)).await;
    }
    Ok(())
}

fn unknown_port(port: &IntOrString) -> Answer {
    let name = match port {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => name.clone(),
    };
    Answer::Unknown(format!("couldn't find port: {name}"))
}

fn port(port: &IntOrString, target: &Target) -> Option<u16> {
    match port {
        IntOrString::Int(number) => u16::try_from(*number).ok(),
        IntOrString::String(name) => target.ports.get(name).copied().or_else(|| name.parse().ok()),
    }
}

fn address(host: Option<&str>, target: &Target, port: u16) -> String {
    match host.filter(|host| !host.is_empty()) {
        Some(host) => format!("{host}:{port}"),
        None => SocketAddr::new(target.ip, port).to_string(),
    }
}

/// The status and the beginning of the body of an answer.
async fn http(action: &HTTPGetAction, target: &Target) -> Result<(u16, String), String> {
    let Some(port) = port(&action.port, target) else {
        return Err("the port is not known".to_owned());
    };
    let address = address(action.host.as_deref(), target, port);
    let path = action.path.as_deref().unwrap_or("/");
    let path = if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    };
    let secure = action.scheme.as_deref() == Some("HTTPS");
    let scheme = if secure { "https" } else { "http" };
    let told = |error: &dyn std::fmt::Display| format!("Get \"{scheme}://{address}{path}\": {error}");
    let stream = TcpStream::connect(&address)
        .await
        .map_err(|error| told(&format!("dial tcp {address}: {}", plain(&error))))?;
    let mut request = Request::get(&path).header("connection", "close");
    let mut named = false;
    for header in action.http_headers.iter().flatten() {
        named |= header.name.eq_ignore_ascii_case("host");
        request = request.header(&header.name, &header.value);
    }
    if !named {
        request = request.header("host", &address);
    }
    let given = |name: &str| {
        action
            .http_headers
            .iter()
            .flatten()
            .any(|header| header.name.eq_ignore_ascii_case(name))
    };
    if !given("user-agent") {
        request = request.header("user-agent", "kube-probe/1.36");
    }
    if !given("accept") {
        request = request.header("accept", "*/*");
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| told(&error))?;
    if secure {
        let stream = crate::tls::connect_trusting_anyone(stream, target.ip)
            .await
            .map_err(|error| told(&error))?;
        exchange(TokioIo::new(stream), request)
            .await
            .map_err(|error| told(&error))
    } else {
        exchange(TokioIo::new(stream), request)
            .await
            .map_err(|error| told(&error))
    }
}

fn plain(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        std::io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        _ => error.to_string(),
    }
}

async fn exchange<S>(stream: S, request: Request<Empty<Bytes>>) -> Result<(u16, String), hyper::Error>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    let driving = tokio::spawn(connection);
    let response = sender.send_request(request).await;
    let result = match response {
        Ok(response) => {
            let status = response.status().as_u16();
            let body = Limited::new(response.into_body(), ANSWER).collect().await;
            let text = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned());
            Ok((status, text.unwrap_or_default()))
        }
        Err(error) => Err(error),
    };
    driving.abort();
    result
}
