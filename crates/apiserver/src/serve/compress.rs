//! Large answers made small, for clients that like it.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, Response, header};

use crate::body::Body;

/// Smaller answers are sent as they are.
const WORTH_IT: usize = 128 << 10;
/// Larger ones would hold up the other requests of their thread.
const BLOCKING: usize = 1 << 20;

/// Whether a client takes gzip.
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|choice| {
        let mut parts = choice.split(';').map(str::trim);
        let is_gzip = parts
            .next()
            .is_some_and(|name| name.eq_ignore_ascii_case("gzip") || name == "*");
        let refused = parts
            .filter_map(|part| part.strip_prefix("q="))
            .any(|q| q.parse() == Ok(0.0_f32));
        is_gzip && !refused
    })
}

/// Compresses an answer if it is worth it. Streams never are: what is in them must arrive at once.
pub(super) async fn compress(response: Response<Body>) -> Response<Body> {
    let worth_it = response.body().as_whole().is_some_and(|body| body.len() > WORTH_IT);
    if !worth_it || response.headers().contains_key(header::CONTENT_ENCODING) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let body = if body.as_whole().is_some_and(|body| body.len() > BLOCKING) {
        match tokio::task::spawn_blocking(move || smaller(&body)).await {
            Ok(body) => body,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    } else {
        smaller(&body)
    };
    let headers = &mut parts.headers;
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    Response::from_parts(parts, body)
}

fn smaller(body: &Body) -> Body {
    let bytes = body.as_whole().expect("only whole bodies are compressed");
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
    encoder
        .write_all(bytes)
        .and_then(|()| encoder.finish())
        .map(Body::whole)
        .expect("memory can be written to")
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn accepts(value: &str) -> bool {
        accepts_gzip(&HeaderMap::from_iter([(
            header::ACCEPT_ENCODING,
            value.parse().unwrap(),
        )]))
    }

    #[test]
    fn clients_say_whether_they_take_gzip() {
        for yes in [
            "gzip",
            "deflate, gzip",
            "GZIP;q=0.5",
            "*",
            "br;q=1.0, gzip;q=0.8, *;q=0.1",
        ] {
            assert!(accepts(yes), "{yes}");
        }
        for no in ["", "identity", "gzip;q=0", "br, gzip; q=0.0", "gzipped"] {
            assert!(!accepts(no), "{no}");
        }
    }

    #[tokio::test]
    async fn only_large_whole_answers_are_compressed() {
        let small = compress(Response::new(Body::whole(vec![b'a'; WORTH_IT]))).await;
        assert_eq!(small.headers().len(), 0);
        for size in [WORTH_IT + 1, BLOCKING + 1] {
            let text: Vec<u8> = (0..size).map(|at| b'a' + u8::try_from(at % 7).unwrap()).collect();
            let large = compress(Response::new(Body::whole(text.clone()))).await;
            assert_eq!(large.headers()[header::CONTENT_ENCODING], "gzip");
            assert_eq!(large.headers()[header::VARY], "Accept-Encoding");
            let bytes = large.body().as_whole().unwrap();
            assert!(bytes.len() < size / 10, "{}", bytes.len());
            let mut again = Vec::new();
            flate2::read::GzDecoder::new(bytes).read_to_end(&mut again).unwrap();
            assert!(again == text);
        }
    }
}
