//! `pods/portforward`: connections to ports within a pod.
//!
//! Three ways lead here: SPDY with a pair of streams a connection, as kubectl has it; the same SPDY inside WebSocket,
//! as newer ones have it; and WebSocket with a pair of channels a port, as `kube` has it.

use std::{collections::HashMap, io, sync::Arc};

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _, stream::FuturesUnordered};
use http::Response;
use moorline_machinery::status::ApiError;
use tokio::{
    io::AsyncRead,
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};

use super::{
    StreamCall,
    access::{PodAccess, PodRef},
    multiplex::{Input, Output, QUEUE, write_all},
    pod::Pod,
    spdy::{self, Opened},
    upgrade::{self, Asked, Io, Stop, Switch},
    websocket::{self, Channels, Codec},
};
use crate::{body::Body, query::Query};

/// The protocol of pairs of streams.
const PAIRS: &str = "portforward.k8s.io";

/// The same inside WebSocket.
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

/// The protocols of pairs of channels. Clients that name none speak the last.
const CHANNELS: [&str; 3] = ["v4.channel.k8s.io", "v4.base64.channel.k8s.io", ""];

/// The most ports of one WebSocket, so that every channel has a number.
const PORT_LIMIT: usize = 127;

/// Where connections go.
#[derive(Clone)]
struct Way {
    access: Arc<dyn PodAccess>,
    pod: PodRef,
}

/// Answers a request to forward ports.
pub(super) fn answer(mut call: StreamCall<'_>) -> Result<Response<Body>, ApiError> {
    call.permit_create()?;
    let pod = Pod::find(call.core, &call.path.namespace, &call.path.name)?;
    let node = pod.assigned_node(call.core)?;
    let way = Way {
        access: call.core.streams.access()?,
        pod: pod.pod_ref(node),
    };
    match Asked::required(&call.parts.headers)? {
        Asked::Spdy { protocols } => {
            let answer = match upgrade::spdy_answer(&protocols, &[PAIRS]) {
                Ok((_, answer)) => answer,
                Err(refusal) => return Ok(*refusal),
            };
            Switch::of(&mut call.parts, &call.core.streams)?.then(move |io, stop| async move {
                let (reader, writer) = tokio::io::split(io);
                spdy::carry(reader, writer, stop.clone(), |streams| pairs(way, streams, stop)).await;
            });
            Ok(answer)
        }
        Asked::WebSocket { key, protocols } => over_websocket(&mut call, way, &key, &protocols),
    }
}

fn over_websocket(
    call: &mut StreamCall<'_>,
    way: Way,
    key: &[u8],
    offered: &[String],
) -> Result<Response<Body>, ApiError> {
    let spoken = [TUNNEL, CHANNELS[0], CHANNELS[1], CHANNELS[2]];
    let protocol = match offered {
        [] => "",
        _ => match upgrade::choose(offered, &spoken) {
            Some(protocol) => protocol,
            None => return Ok(upgrade::websocket_refusal(offered, &spoken)),
        },
    };
    let ports = match protocol {
        TUNNEL => Vec::new(),
        _ => ports(call.query)?,
    };
    let answer = match upgrade::websocket_answer(&call.parts.headers, key, protocol) {
        Ok(answer) => answer,
        Err(refusal) => return Ok(*refusal),
    };
    let switch = Switch::of(&mut call.parts, &call.core.streams)?;
    if protocol == TUNNEL {
        switch.then(move |io, stop| tunnel(io, stop, way));
        return Ok(answer);
    }
    let codec = match protocol {
        "v4.base64.channel.k8s.io" => Codec::Base64,
        _ => Codec::Binary,
    };
    switch.then(move |io, stop| channels(io, stop, way, ports, codec));
    Ok(answer)
}

/// The ports that a request names.
fn ports(query: &Query) -> Result<Vec<u16>, ApiError> {
    let named = query.all("ports").flat_map(|ports| ports.split(','));
    let ports: Result<Vec<u16>, ApiError> = named
        .map(|port| match port.trim().parse() {
            Ok(0) => Err(ApiError::bad_request(format!("port {port:?} must be > 0"))),
            Ok(number) => Ok(number),
            Err(_) => Err(ApiError::bad_request(format!("unable to parse {port:?} as a port"))),
        })
        .collect();
    match ports? {
        ports if ports.is_empty() => Err(ApiError::bad_request("query parameter \"ports\" is required")),
        ports if ports.len() > PORT_LIMIT => Err(ApiError::bad_request(format!(
            "at most {PORT_LIMIT} ports can be forwarded at once"
        ))),
        ports => Ok(ports),
    }
}

/// Speaks SPDY inside WebSocket: what the messages carry, one after the other, is the connection.
async fn tunnel(io: Io, stop: Stop, way: Way) {
    let (sink, stream) = websocket::over(io).await.split();
    let bytes = stream.filter_map(|message| {
        std::future::ready(match message {
            Ok(Message::Binary(bytes)) => Some(Ok(bytes)),
            Ok(Message::Text(text)) => Some(Ok(text.into())),
            Ok(Message::Close(_)) => Some(Err(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => None,
            Err(error) => Some(Err(io::Error::other(error))),
        })
    });
    let reader = StreamReader::new(Box::pin(bytes));
    let sink = sink
        .sink_map_err(io::Error::other)
        .with(|bytes: Bytes| std::future::ready(Ok::<_, io::Error>(Message::Binary(bytes))));
    let writer = SinkWriter::new(CopyToBytes::new(sink));
    spdy::carry(reader, writer, stop.clone(), |streams| pairs(way, streams, stop)).await;
}

/// Half of a pair, until the other half comes.
struct Half {
    stream: Opened,
    since: Instant,
}

/// Serves pairs of streams, one pair a connection, for as long as the client is there.
async fn pairs(way: Way, mut streams: mpsc::Receiver<Opened>, mut stop: Stop) {
    let mut halves: HashMap<String, Half> = HashMap::new();
    let mut running = FuturesUnordered::new();
    loop {
        let stream = tokio::select! {
            stream = streams.recv() => stream,
            Some(()) = running.next() => continue,
            () = stop.wait() => return,
        };
        let Some(stream) = stream else { return };
        halves.retain(|_, half| half.since.elapsed() < spdy::OPENING);
        let is_data = match stream.headers.get("streamtype") {
            "data" => true,
            "error" => false,
            _ => {
                stream.output.reset().await;
                continue;
            }
        };
        let Some(port) = stream.headers.get("port").parse().ok().filter(|port| *port > 0) else {
            stream.output.reset().await;
            continue;
        };
        let request = request_id(&stream, is_data);
        match halves.remove(&request) {
            None => {
                let since = Instant::now();
                halves.insert(request, Half { stream, since });
            }
            Some(half) if (half.stream.headers.get("streamtype") == "data") == is_data => {
                stream.output.reset().await;
                halves.insert(request, half);
            }
            Some(half) => {
                let (data, error) = if is_data {
                    (stream, half.stream)
                } else {
                    (half.stream, stream)
                };
                running.push(pair(way.clone(), port, data, error));
            }
        }
    }
}

/// What a pair is called. Clients of old do not say, and open the stream for errors right before the one for data.
fn request_id(stream: &Opened, is_data: bool) -> String {
    match stream.headers.get("requestid") {
        "" if is_data => format!("#{}", stream.id.saturating_sub(2)),
        "" => format!("#{}", stream.id),
        named => named.to_owned(),
    }
}

/// Serves one connection over a pair of streams.
async fn pair(way: Way, port: u16, data: Opened, error: Opened) {
    // Kept until the end: a stream is forgotten when this is dropped.
    let _alive = (error.broken, error.input);
    match way.access.port_forward(&way.pod, port).await {
        Err(why) => {
            let _ = error.output.send(complaint(&way.pod, port, &why).into()).await;
            error.output.end().await;
            data.output.reset().await;
        }
        Ok(connection) => {
            let (reader, writer) = tokio::io::split(connection);
            let both = async {
                let down = send_all(&data.output, reader);
                tokio::join!(write_all(data.input, writer), async {
                    down.await;
                    data.output.clone().end().await;
                });
            };
            tokio::select! {
                () = both => error.output.end().await,
                () = broken(data.broken) => {}
            }
        }
    }
}

async fn broken(broken: oneshot::Receiver<()>) {
    // When the reader is gone, so is the connection, and this with it.
    if broken.await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn send_all(output: &Output, reader: impl AsyncRead + Unpin) {
    // A client that is gone is noticed by whoever reads from it.
    let _ = output.send_all(reader, std::future::pending).await;
}

fn complaint(pod: &PodRef, port: u16, why: &impl std::fmt::Display) -> String {
    format!(
        "error forwarding port {port} to pod {}, uid {}: {why}",
        pod.name, pod.uid
    )
}

/// Serves pairs of channels: one connection a port, made at once, until all of them have ended.
async fn channels(io: Io, stop: Stop, way: Way, ports: Vec<u16>, codec: Codec) {
    let (queue, outgoing) = mpsc::channel(QUEUE);
    let mut inputs = Vec::new();
    let mut connections = Vec::new();
    for (at, port) in (0..).step_by(2).zip(ports) {
        let (sender, input) = mpsc::channel(QUEUE);
        inputs.extend([Some(sender), None]);
        let (data, error) = (Output::new(at, &queue), Output::new(at + 1, &queue));
        connections.push(channel(way.clone(), port, input, data, error));
    }
    drop(queue);
    let channels = Channels {
        inputs,
        codec,
        can_close: false,
    };
    let mut stopping = stop.clone();
    let work = async {
        tokio::select! {
            _ = futures_util::future::join_all(connections) => {}
            () = stopping.wait() => {}
        }
    };
    websocket::carry(io, channels, outgoing, stop, work).await;
}

/// Serves one connection over a pair of channels. It ends when the pod has nothing more to say, because there is no
/// other way to tell that to the client.
async fn channel(way: Way, port: u16, input: Input, data: Output, error: Output) {
    // The first message of each channel names its port.
    let name = Bytes::copy_from_slice(&port.to_le_bytes());
    if data.send(name.clone()).await.is_err() || error.send(name).await.is_err() {
        return;
    }
    match way.access.port_forward(&way.pod, port).await {
        Err(why) => {
            let _ = error.send(complaint(&way.pod, port, &why).into()).await;
        }
        Ok(connection) => {
            let (reader, writer) = tokio::io::split(connection);
            let upwards = async {
                write_all(input, writer).await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = send_all(&data, reader) => {}
                () = upwards => unreachable!("it never ends by itself"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_numbers_and_there_is_at_least_one() {
        let read = |query: &str| ports(&Query::parse(query)).map_err(|error| error.code());
        assert_eq!(read("ports=80,81&ports=82"), Ok(vec![80, 81, 82]));
        for refused in ["", "ports=", "ports=0", "ports=65536", "ports=http"] {
            assert_eq!(read(refused), Err(400), "{refused}");
        }
    }
}
