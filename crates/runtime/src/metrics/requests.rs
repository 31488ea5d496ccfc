//! What is counted of requests to API servers.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

use super::Buckets;

const REQUEST_SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
const REQUEST_BYTES: &[f64] = &[
    64.0,
    256.0,
    512.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];

/// What is counted of requests to API servers, under client-go's names.
#[derive(Clone)]
pub(crate) struct Requests {
    answered: Family<Answered, Counter>,
    duration: Family<Asked, Histogram, Buckets>,
    in_line: Family<Asked, Histogram, Buckets>,
    size: Family<Asked, Histogram, Buckets>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    code: String,
    method: String,
    host: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    verb: String,
    host: String,
}

/// One request, when it is over.
pub(crate) struct Sent<'r> {
    pub(crate) method: &'r http::Method,
    /// The server's, as far as it is known.
    pub(crate) host: &'r str,
    /// Without one, no answer came.
    pub(crate) status: Option<http::StatusCode>,
    pub(crate) bytes: Option<u64>,
    pub(crate) in_line: Duration,
    pub(crate) took: Duration,
}

impl Requests {
    pub(super) fn new() -> Self {
        let seconds = || Family::new_with_constructor(Buckets(REQUEST_SECONDS));
        Self {
            answered: Family::default(),
            duration: seconds(),
            in_line: seconds(),
            size: Family::new_with_constructor(Buckets(REQUEST_BYTES)),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("rest_client_requests", "Requests to API servers", self.answered.clone());
        registry.register(
            "rest_client_request_duration_seconds",
            "Time until a request is answered",
            self.duration.clone(),
        );
        registry.register(
            "rest_client_rate_limiter_duration_seconds",
            "Time that a request waits for its turn",
            self.in_line.clone(),
        );
        registry.register(
            "rest_client_request_size_bytes",
            "Size of a request's body",
            self.size.clone(),
        );
    }

    pub(crate) fn count(&self, sent: &Sent<'_>) {
        let (method, host) = (sent.method.to_string(), sent.host.to_owned());
        let asked = Asked {
            verb: method.clone(),
            host: host.clone(),
        };
        let code = sent
            .status
            .map_or_else(|| "<error>".to_owned(), |status| status.as_str().to_owned());
        self.answered.get_or_create(&Answered { code, method, host }).inc();
        self.duration.get_or_create(&asked).observe(sent.took.as_secs_f64());
        self.in_line.get_or_create(&asked).observe(sent.in_line.as_secs_f64());
        if let Some(bytes) = sent.bytes {
            #[expect(clippy::cast_precision_loss, reason = "a body has fewer bytes than that")]
            self.size.get_or_create(&asked).observe(bytes as f64);
        }
    }
}
