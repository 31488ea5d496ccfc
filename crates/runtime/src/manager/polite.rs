//! A client with manners: it says who it is, keeps its pace, writes only while it may, and is counted.

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderValue, Method, Request, Response, header};
use hyper::body::Body as _;
use hyper_util::client::legacy::connect::HttpInfo;
use kube::client::Body;
use tokio::time::Instant;
use tower_service::Service;

use crate::{
    fence::Fence,
    metrics::{Metrics, Requests, Sent},
    request::Whereabouts,
};

/// How fast requests may come: so many a second, and so many at once after a quiet time.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Requests a second; without a bound if zero.
    pub qps: f64,
    /// Requests at once.
    pub burst: u32,
}

impl Pace {
    /// The slowest that there is: one request in a quarter of an hour.
    pub(crate) const SLOWEST: f64 = 0.001;

    /// Nobody waits.
    pub(crate) const UNBOUNDED: Self = Self { qps: 0.0, burst: 1 };
}

/// Wraps a client: a user agent, a pace, and client-go's metrics `rest_client_*`.
pub fn polite(client: kube::Client, user_agent: &str, pace: Pace, metrics: &Metrics) -> kube::Client {
    fenced(client, user_agent, pace, metrics, &Fence::open())
}

/// Like [`polite`], and of what would change anything only what passes the fence is sent.
pub(crate) fn fenced(
    client: kube::Client,
    user_agent: &str,
    pace: Pace,
    metrics: &Metrics,
    fence: &Fence,
) -> kube::Client {
    let namespace = client.default_namespace().to_owned();
    let agent = HeaderValue::from_str(user_agent);
    if agent.is_err() {
        tracing::warn!(user_agent, "this cannot be a user agent and is left out");
    }
    let service = Polite {
        client,
        user_agent: agent.ok(),
        bucket: (pace.qps > 0.0).then(|| Arc::new(Bucket::new(pace))),
        fence: fence.clone(),
        requests: metrics.requests.clone(),
        host: Arc::default(),
    };
    kube::Client::new(service, namespace)
}

#[derive(Clone)]
struct Polite {
    client: kube::Client,
    user_agent: Option<HeaderValue>,
    bucket: Option<Arc<Bucket>>,
    fence: Fence,
    requests: Requests,
    /// Where the last answer came from. A client does not tell where it sends to.
    host: Arc<Mutex<Arc<str>>>,
}

impl Service<Request<Body>> for Polite {
    type Response = Response<Body>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(user_agent) = &self.user_agent {
            request.headers_mut().insert(header::USER_AGENT, user_agent.clone());
        }
        let this = self.clone();
        Box::pin(async move {
            let asked = Instant::now();
            if let Some(bucket) = &this.bucket {
                // Its time runs from when it is sent.
                let whereabouts = request.extensions().get::<Whereabouts>().cloned();
                whereabouts.iter().for_each(Whereabouts::enter);
                bucket.take().await;
                whereabouts.iter().for_each(Whereabouts::leave);
            }
            let method = request.method().clone();
            if method != Method::GET {
                // Only now: its time may have ended while it stood in line.
                this.fence.check()?;
            }
            let sent = Instant::now();
            let bytes = request.body().size_hint().exact();
            let answer = this.client.send(request).await;
            this.requests.count(&Sent {
                method: &method,
                host: &this.host_of(answer.as_ref().ok()),
                status: answer.as_ref().ok().map(Response::status),
                bytes,
                in_line: sent - asked,
                took: sent.elapsed(),
            });
            Ok(answer?)
        })
    }
}

impl Polite {
    fn host_of(&self, answer: Option<&Response<Body>>) -> Arc<str> {
        let mut host = self.host.lock().expect("nothing panics while it holds this");
        if let Some(connection) = answer.and_then(|answer| answer.extensions().get::<HttpInfo>()) {
            let address = connection.remote_addr().to_string();
            if **host != *address {
                *host = Arc::from(address);
            }
        }
        Arc::clone(&host)
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
        let every = Duration::from_secs_f64(1.0 / pace.qps.max(Pace::SLOWEST));
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::manager::serve::{self, Pages};

    /// Answers everything, and counts it.
    #[derive(Clone, Default)]
    struct Server(Arc<AtomicUsize>);

    impl Service<Request<Body>> for Server {
        type Response = Response<Body>;
        type Error = std::convert::Infallible;
        type Future = std::future::Ready<Result<Response<Body>, Self::Error>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok(Response::new(Body::empty())))
        }
    }

    fn request(method: Method, uri: &str) -> Request<Body> {
        Request::builder()
            .method(method)
            .uri(uri)
            .body(Body::from(vec![0; 100]))
            .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_whose_time_ends_while_it_stands_in_line_is_not_sent() {
        let (server, fence) = (Server::default(), Fence::open());
        let client = kube::Client::new(server.clone(), "default");
        let pace = Pace { qps: 0.1, burst: 1 };
        let client = fenced(client, "test", pace, &Metrics::new(), &fence);
        fence.open_until(Instant::now() + Duration::from_secs(5));
        client.send(request(Method::POST, "/a")).await.unwrap();
        let refused = client.send(request(Method::POST, "/b")).await.unwrap_err();
        assert!(
            crate::request::chain(&refused).contains("may no longer act"),
            "{refused}"
        );
        assert_eq!(server.0.load(Ordering::SeqCst), 1, "the second one came too late");
        client.send(request(Method::GET, "/c")).await.unwrap();
    }

    #[tokio::test]
    async fn requests_are_counted_by_the_server_that_answers() {
        let listener = serve::listen(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve::serve(listener, Pages::Health(Arc::new(|| Ok(())))));
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        let metrics = Metrics::new();
        let client = kube::Client::try_from(config).unwrap();
        // Twice on the same metrics: members are counted beside home.
        for agent in ["one", "two"] {
            let client = polite(client.clone(), agent, Pace::UNBOUNDED, &metrics);
            client.send(request(Method::GET, "/healthz")).await.unwrap();
        }
        let text = metrics.to_text();
        for line in [
            format!("rest_client_requests_total{{code=\"200\",method=\"GET\",host=\"{address}\"}} 2"),
            format!("rest_client_request_duration_seconds_count{{verb=\"GET\",host=\"{address}\"}} 2"),
            format!("rest_client_rate_limiter_duration_seconds_count{{verb=\"GET\",host=\"{address}\"}} 2"),
            format!("rest_client_request_size_bytes_sum{{verb=\"GET\",host=\"{address}\"}} 200"),
        ] {
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
        assert_eq!(text.matches("# TYPE rest_client_requests counter").count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pace_that_makes_no_sense_does_not_panic() {
        for qps in [1e-30, f64::NAN, -5.0, f64::INFINITY] {
            let client = kube::Client::new(Server::default(), "default");
            let pace = Pace { qps, burst: u32::MAX };
            let client = polite(client, "test", pace, &Metrics::new());
            client.send(request(Method::POST, "/a")).await.unwrap();
        }
    }

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
