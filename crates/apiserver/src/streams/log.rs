//! `pods/log`: what a container has written, and what it writes.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::{Sink, SinkExt as _, StreamExt as _, stream::BoxStream};
use http::{HeaderValue, Response, StatusCode, header};
use jiff::Timestamp;
use moorline_machinery::{
    field::{FieldError, Path},
    gvk::GroupKind,
    status::ApiError,
};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{Error, Message, protocol::frame::coding::CloseCode};

use super::{
    GOODBYE, StreamCall,
    access::{LogOptions, LogStream, Since},
    pod::Pod,
    upgrade::{self, Asked, Stop, Switch},
    websocket,
};
use crate::{
    body::{self, Body},
    query::Query,
};

/// The protocols that logs are spoken in over WebSocket.
const WEBSOCKET_PROTOCOLS: [&str; 3] = ["", "binary.k8s.io", "base64.binary.k8s.io"];

/// Answers a request for a log.
pub(super) async fn answer(mut call: StreamCall<'_>) -> Result<Response<Body>, ApiError> {
    let options = parse(call.query, &call.path.name)?;
    let pod = Pod::find(call.core, &call.path.namespace, &call.path.name)?;
    let container = pod.container(call.query.get("container"))?;
    let Some(node) = pod.node(call.core)? else {
        // A pod that is on no node has said nothing yet.
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        return Ok(response);
    };
    let access = call.core.streams.access()?;
    pod.has_log(container, options.previous)
        .map_err(ApiError::bad_request)?;
    let container = pod.container_ref(node, container);
    let log = access.logs(&container, &options).await?;
    let log = Log {
        pieces: log,
        left: options.limit_bytes,
    };
    if let Some(Asked::WebSocket { key, protocols }) = Asked::of(&call.parts.headers) {
        return over_websocket(&mut call, log, &key, &protocols);
    }
    let mut response = Response::new(Body::stream(log));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    Ok(response)
}

/// Reads the options of a request, and refuses those that mean nothing.
fn parse(query: &Query, pod: &str) -> Result<LogOptions, ApiError> {
    let tail_lines = number(query, "tailLines")?;
    let limit_bytes = number(query, "limitBytes")?;
    let since_seconds = number(query, "sinceSeconds")?;
    let since_time = time(query, "sinceTime")?;
    let mut errors = Vec::new();
    let mut require = |holds: bool, field, value: Option<i64>, why: &str| {
        if !holds {
            let value = value.expect("nothing is required of what is not there");
            errors.push(FieldError::invalid(&Path::root(field), value, why));
        }
    };
    let not_negative = tail_lines.is_none_or(|lines| lines >= 0);
    require(
        not_negative,
        "tailLines",
        tail_lines,
        "must be greater than or equal to 0",
    );
    let positive = limit_bytes.is_none_or(|bytes| bytes > 0);
    require(positive, "limitBytes", limit_bytes, "must be greater than 0");
    if since_time.is_none() {
        let positive = since_seconds.is_none_or(|seconds| seconds > 0);
        require(positive, "sinceSeconds", since_seconds, "must be greater than 0");
    } else if since_seconds.is_some() {
        let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
        errors.push(FieldError::forbidden(&Path::root(""), why));
    }
    let stream = match query.get("stream").unwrap_or_default() {
        "" | "All" => LogStream::All,
        "Stdout" => LogStream::Stdout,
        "Stderr" => LogStream::Stderr,
        other => {
            let known = ["All", "Stderr", "Stdout"];
            errors.push(FieldError::not_supported(&Path::root("stream"), other, known));
            LogStream::All
        }
    };
    if stream != LogStream::All && tail_lines.is_some() {
        let why = "`tailLines` and specific `stream` are mutually exclusive for now";
        errors.push(FieldError::forbidden(&Path::root(""), why));
    }
    if !errors.is_empty() {
        return Err(ApiError::invalid(&GroupKind::new("", "PodLogOptions"), pod, &errors));
    }
    let unsigned = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok());
    Ok(LogOptions {
        follow: query.flag("follow"),
        previous: query.flag("previous"),
        since: match since_time {
            Some(time) => Some(Since::Time(time)),
            None => unsigned(since_seconds).map(|seconds| Since::Ago(Duration::from_secs(seconds))),
        },
        timestamps: query.flag("timestamps"),
        tail_lines: unsigned(tail_lines),
        limit_bytes: unsigned(limit_bytes),
        stream,
    })
}

fn number(query: &Query, name: &str) -> Result<Option<i64>, ApiError> {
    let Some(text) = query.get(name) else { return Ok(None) };
    let parsed = text.parse().map(Some);
    parsed.map_err(|_| ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax")))
}

fn time(query: &Query, name: &str) -> Result<Option<Timestamp>, ApiError> {
    let Some(text) = query.get(name).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let parsed = text.parse().map(Some);
    parsed.map_err(|_| ApiError::bad_request(format!("parsing time {text:?}: it is not in RFC 3339")))
}

/// A log on its way to the client, up to its limit.
struct Log {
    pieces: BoxStream<'static, io::Result<Bytes>>,
    left: Option<u64>,
}

impl Log {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.left == Some(0) {
            return Poll::Ready(None);
        }
        let mut piece = match ready!(self.pieces.poll_next_unpin(context)) {
            Some(Ok(piece)) => piece,
            Some(Err(error)) => {
                tracing::warn!(%error, "a log broke off");
                return Poll::Ready(None);
            }
            None => return Poll::Ready(None),
        };
        if let Some(left) = &mut self.left {
            piece.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= piece.len() as u64;
        }
        Poll::Ready(Some(piece))
    }
}

impl body::Stream for Log {
    fn poll_piece(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.poll_next(context)
    }
}

fn over_websocket(
    call: &mut StreamCall<'_>,
    log: Log,
    key: &[u8],
    offered: &[String],
) -> Result<Response<Body>, ApiError> {
    let protocol = match offered {
        [] => "",
        _ => match upgrade::choose(offered, &WEBSOCKET_PROTOCOLS) {
            Some(protocol) => protocol,
            None => return Ok(upgrade::websocket_refusal(offered, &WEBSOCKET_PROTOCOLS)),
        },
    };
    let answer = match upgrade::websocket_answer(&call.parts.headers, key, protocol) {
        Ok(answer) => answer,
        Err(refusal) => return Ok(*refusal),
    };
    let as_text = protocol.starts_with("base64");
    Switch::of(&mut call.parts, &call.core.streams)?.then(move |io, stop| async move {
        let (sink, stream) = websocket::over(io).await.split();
        // A client has nothing to say here but goodbye.
        let left = stream.for_each(|_| std::future::ready(()));
        send(sink, log, as_text, stop, left).await;
    });
    Ok(answer)
}

async fn send(
    mut sink: impl Sink<Message, Error = Error> + Unpin,
    mut log: Log,
    as_text: bool,
    mut stop: Stop,
    left: impl Future<Output = ()>,
) {
    let mut left = std::pin::pin!(left);
    let copy = async {
        // An empty message tells the client that the connection stands.
        let mut piece = Some(Bytes::new());
        while let Some(bytes) = piece {
            let message = if as_text {
                Message::Text(STANDARD.encode(&bytes).into())
            } else {
                Message::Binary(bytes)
            };
            sink.send(message).await?;
            piece = std::future::poll_fn(|context| log.poll_next(context)).await;
        }
        Ok::<(), Error>(())
    };
    let code = tokio::select! {
        sent = copy => match sent {
            Ok(()) => CloseCode::Normal,
            Err(_) => return,
        },
        () = stop.wait() => CloseCode::Away,
        () = &mut left => return,
    };
    let _ = timeout(GOODBYE, async {
        websocket::close(&mut sink, code).await;
        left.await;
    })
    .await;
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use tokio_tungstenite::{WebSocketStream, tungstenite::protocol::Role};

    use super::*;

    fn refusal(query: &str) -> (u16, String) {
        let error = parse(&Query::parse(query), "p").unwrap_err();
        (error.code(), error.to_string())
    }

    #[test]
    fn options_that_mean_nothing_are_refused() {
        for (query, code, message) in [
            (
                "tailLines=-1",
                422,
                r#"PodLogOptions "p" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0"#,
            ),
            (
                "limitBytes=0",
                422,
                r#"PodLogOptions "p" is invalid: limitBytes: Invalid value: 0: must be greater than 0"#,
            ),
            (
                "sinceSeconds=0",
                422,
                r#"PodLogOptions "p" is invalid: sinceSeconds: Invalid value: 0: must be greater than 0"#,
            ),
            ("tailLines=x", 400, r#"strconv.ParseInt: parsing "x": invalid syntax"#),
        ] {
            assert_eq!(refusal(query), (code, message.to_owned()), "{query}");
        }
        let both = refusal("sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z");
        assert_eq!(both.0, 422);
        assert!(both.1.contains("at most one of"), "{}", both.1);
        assert_eq!(refusal("stream=Stdin").0, 422);
        assert_eq!(refusal("stream=Stdout&tailLines=1").0, 422);
        assert_eq!(refusal("sinceTime=yesterday").0, 400);
    }

    #[test]
    fn options_are_read_as_they_are_meant() {
        let options = parse(
            &Query::parse("follow=true&previous=1&tailLines=5&limitBytes=7&sinceSeconds=60&timestamps=true"),
            "p",
        );
        let options = options.unwrap();
        assert!(options.follow && options.previous && options.timestamps);
        assert_eq!((options.tail_lines, options.limit_bytes), (Some(5), Some(7)));
        assert_eq!(options.since, Some(Since::Ago(Duration::from_mins(1))));
        assert_eq!(parse(&Query::parse(""), "p").unwrap(), LogOptions::default());
    }

    fn log(left: Option<u64>) -> Log {
        let pieces = stream::iter(["ab", "cd", "ef"].map(|piece| Ok(Bytes::from_static(piece.as_bytes()))));
        Log {
            pieces: pieces.boxed(),
            left,
        }
    }

    #[tokio::test]
    async fn a_log_goes_over_websocket_as_bytes_or_as_text() {
        for (as_text, expected) in [(false, ["", "ab", "cd", "ef"]), (true, ["", "YWI=", "Y2Q=", "ZWY="])] {
            let (ours, theirs) = tokio::io::duplex(1024);
            tokio::spawn(async move {
                let (sink, stream) = websocket::over(theirs).await.split();
                let left = stream.for_each(|_| std::future::ready(()));
                send(sink, log(None), as_text, Stop::never(), left).await;
            });
            let mut client = WebSocketStream::from_raw_socket(ours, Role::Client, None).await;
            for piece in expected {
                let message = client.next().await.unwrap().unwrap();
                assert_eq!(
                    (message.is_text(), &message.into_data()[..]),
                    (as_text, piece.as_bytes())
                );
            }
            assert!(client.next().await.unwrap().unwrap().is_close());
        }
    }

    #[tokio::test]
    async fn a_log_is_cut_at_its_limit() {
        let mut log = log(Some(3));
        let mut text = Vec::new();
        while let Some(piece) = std::future::poll_fn(|context| log.poll_next(context)).await {
            text.extend_from_slice(&piece);
        }
        assert_eq!(text, b"abc");
    }
}
