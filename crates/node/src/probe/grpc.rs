//! The gRPC health protocol, of which a probe needs one call with one field each way.

use std::net::SocketAddr;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Request, body::Bytes};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::ask::Answer;

/// Asks `grpc.health.v1.Health/Check`.
pub(super) async fn check(address: SocketAddr, service: &str) -> Answer {
    let stream = match TcpStream::connect(address).await {
        Ok(stream) => stream,
        Err(error) => return Answer::Ill(format!("failed to connect service {address}: {error}")),
    };
    match call(stream, address, service).await {
        Ok(Some(1)) => Answer::Well,
        Ok(status) => Answer::Ill(format!(
            "service unhealthy (responded with {:?})",
            name(status.unwrap_or(0))
        )),
        Err(words) => Answer::Ill(format!("rpc error: {words}")),
    }
}

fn name(status: u8) -> &'static str {
    match status {
        1 => "SERVING",
        2 => "NOT_SERVING",
        3 => "SERVICE_UNKNOWN",
        _ => "UNKNOWN",
    }
}

async fn call(stream: TcpStream, address: SocketAddr, service: &str) -> Result<Option<u8>, String> {
    let told = |error: hyper::Error| error.to_string();
    let io = TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
        .await
        .map_err(told)?;
    let driving = tokio::spawn(connection);
    let request = Request::post(format!("http://{address}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "kube-probe/1.36")
        .body(Full::new(frame(service)))
        .map_err(|error| error.to_string())?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(told)?;
        let in_head = failure(response.headers());
        let body = Limited::new(response.into_body(), 4096)
            .collect()
            .await
            .map_err(|error| error.to_string())?;
        if let Some(words) = in_head.or_else(|| body.trailers().and_then(failure)) {
            return Err(words);
        }
        Ok(status(&body.to_bytes()))
    };
    let answer = answer.await;
    driving.abort();
    answer
}

fn failure(headers: &hyper::HeaderMap) -> Option<String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let code = text("grpc-status").filter(|code| *code != "0")?;
    Some(format!("code = {code} desc = {}", text("grpc-message").unwrap_or("")))
}

/// A request that names a service, with the five bytes in front that gRPC has.
fn frame(service: &str) -> Bytes {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        varint(service.len(), &mut message);
        message.extend_from_slice(service.as_bytes());
    }
    let mut frame = vec![0];
    frame.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend(message);
    frame.into()
}

fn varint(mut value: usize, into: &mut Vec<u8>) {
    while value >= 0x80 {
        into.push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
        value >>= 7;
    }
    into.push(u8::try_from(value).unwrap_or(0));
}

/// The status in an answer; nothing where it is left out, which means unknown.
fn status(frame: &[u8]) -> Option<u8> {
    match frame.get(5..)? {
        [0x08, status, ..] => Some(*status),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_its_service_and_an_answer_its_status() {
        assert_eq!(frame(""), Bytes::from_static(&[0, 0, 0, 0, 0]));
        assert_eq!(frame("ab"), Bytes::from_static(&[0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']));
        assert_eq!(status(&[0, 0, 0, 0, 2, 8, 1]), Some(1));
        assert_eq!(status(&[0, 0, 0, 0, 0]), None);
    }
}
