//! A client with manners: it says who it is, keeps its pace, and is counted.

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderValue, Request, Response, header};
use kube::client::Body;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use tokio::time::Instant;
use tower_service::Service;

use crate::metrics::Metrics;

/// Labels of `rest_client_requests_total`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    code: String,
    method: String,
}

/// How fast requests may come: so many a second, and so many at once after a quiet time.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Requests a second; without a bound if zero.
    pub qps: f64,
    /// Requests at once.
    pub burst: u32,
}

/// Wraps a client: a user agent, a pace, and `rest_client_requests_total`.
pub fn polite(client: kube::Client, user_agent: &str, pace: Pace, metrics: &Metrics) -> kube::Client {
    let requests: Family<Answered, Counter> = Family::default();
    metrics.with_registry(|registry| {
        registry.register("rest_client_requests", "Requests to the API server", requests.clone());
    });
    let namespace = client.default_namespace().to_owned();
    let service = Polite {
        client,
        user_agent: HeaderValue::from_str(user_agent).ok(),
        bucket: (pace.qps > 0.0).then(|| Arc::new(Bucket::new(pace))),
        requests,
    };
    kube::Client::new(service, namespace)
}

#[derive(Clone)]
struct Polite {
    client: kube::Client,
    user_agent: Option<HeaderValue>,
    bucket: Option<Arc<Bucket>>,
    requests: Family<Answered, Counter>,
}

impl Service<Request<Body>> for Polite {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, kube::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), kube::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(user_agent) = &self.user_agent {
            request.headers_mut().insert(header::USER_AGENT, user_agent.clone());
        }
        let this = self.clone();
        Box::pin(async move {
            if let Some(bucket) = &this.bucket {
                bucket.take().await;
            }
            let method = request.method().to_string();
            let answer = this.client.send(request).await;
            let code = answer
                .as_ref()
                .map_or_else(|_| "<error>".to_owned(), |answer| answer.status().as_str().to_owned());
            this.requests.get_or_create(&Answered { code, method }).inc();
            answer
        })
    }
}

/// A token bucket told by one moment: when it will be full again.
struct Bucket {
    every: Duration,
    room: Duration,
    full_at: Mutex<Instant>,
}

impl Bucket {
    fn new(pace: Pace) -> Self {
        let every = Duration::from_secs_f64(1.0 / pace.qps);
        Self {
            every,
            room: every * pace.burst.max(1),
            full_at: Mutex::new(Instant::now()),
        }
    }

    async fn take(&self) {
        let wait = {
            let now = Instant::now();
            let mut full_at = self.full_at.lock().expect("nothing panics while it holds this");
            *full_at = (*full_at).max(now) + self.every;
            full_at.duration_since(now).saturating_sub(self.room)
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_at_once_and_the_rest_at_the_pace() {
        let bucket = Bucket::new(Pace { qps: 10.0, burst: 5 });
        let start = Instant::now();
        for _ in 0..5 {
            bucket.take().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..20 {
            bucket.take().await;
        }
        let elapsed = start.elapsed();
        assert!(
            elapsed >= Duration::from_millis(1990) && elapsed <= Duration::from_millis(2100),
            "{elapsed:?}"
        );
    }
}
