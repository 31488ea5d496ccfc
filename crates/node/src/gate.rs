//! A client that can be cut off from its API, for nodes that are.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response};
use kube::{Client, client::Body};
use tokio::sync::watch;
use tower_service::Service;

/// A client over another one. While `open` says no, every request fails at once.
pub(crate) fn client(inner: Client, open: watch::Receiver<bool>) -> Client {
    let namespace = inner.default_namespace().to_owned();
    Client::new(Gate { inner, open }, namespace)
}

#[derive(Clone)]
struct Gate {
    inner: Client,
    open: watch::Receiver<bool>,
}

/// The way to the API is cut.
#[derive(Debug, thiserror::Error)]
#[error("the node is cut off from the API")]
struct CutOff;

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Box<dyn std::error::Error + Send + Sync>>> + Send>>;

impl Service<Request<Body>> for Gate {
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Answer;
    type Response = Response<Body>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (inner, open) = (self.inner.clone(), self.open.clone());
        Box::pin(async move {
            if !*open.borrow() {
                return Err(CutOff.into());
            }
            inner.send(request).await.map_err(Into::into)
        })
    }
}
