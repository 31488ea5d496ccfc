//! The listener: TLS, HTTP/1.1 and HTTP/2 for whoever connects.
//!
//! Guarantees: there is no unencrypted way in; a client costs bounded memory and time until it has asked for something,
//! and nothing it sends makes the server panic or stop listening; a request that panics costs its own client an error
//! and nobody else anything; after [`Listening::stop`] everything that was being answered is answered, streams end
//! where a piece ends, and whoever does not take their answer in time is cut off.
//! Assumes: a tokio runtime; a handler that reads no more of a body than it wants to keep.
//!
//! ```text
//!   accept ─► handshake ─► connection ─┬─ request ─► handler ─► (gzip) ─► answer
//!      │      (10 s)      (who is it?) ├─ request ─► …
//!      └ at most so many               └─ idle, or told to stop: last answers, goodbye
//! ```

mod activity;
mod compress;
mod connection;
mod tls;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::body::Incoming;
pub use tls::Tls;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, watch},
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};

use crate::{auth::certificate::ClientCertificate, body::Body};

/// How much of the server a client may take up.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once; more wait to be accepted.
    pub connections: usize,
    /// How long a handshake may take.
    pub handshake: Duration,
    /// How long after the handshake the first request must have come.
    pub first_request: Duration,
    /// How long a connection may do nothing; also how long the head of a later request may take.
    pub idle: Duration,
    /// The most bytes that the head of a request may have.
    pub head_bytes: u16,
    /// Requests at once on one HTTP/2 connection.
    pub streams: u32,
    /// How often a silent HTTP/2 client is asked whether it is still there.
    pub ping_every: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            handshake: Duration::from_secs(10),
            first_request: Duration::from_secs(30),
            idle: Duration::from_secs(90),
            head_bytes: u16::MAX,
            streams: 250,
            ping_every: Duration::from_secs(30),
        }
    }
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// From where.
    pub address: SocketAddr,
    /// What its certificate is worth.
    pub certificate: ClientCertificate,
}

/// Tells, once, that the server is about to stop. Found in the extensions of every request, for what outlives it, such
/// as an upgraded connection.
#[derive(Clone, Debug)]
pub struct Stopping(watch::Receiver<Option<Duration>>);

impl Stopping {
    /// Waits until the server is about to stop.
    pub async fn wait(&mut self) {
        // A listener that is gone has stopped.
        let _ = self.0.wait_for(Option::is_some).await;
    }
}

/// A listener at work. Dropped, it stops at once, with no patience for anyone.
#[derive(Debug)]
pub struct Listening {
    address: SocketAddr,
    /// Nothing until it is to stop; then the patience that it is to have.
    stop: watch::Sender<Option<Duration>>,
    accepting: JoinHandle<usize>,
}

/// How a listener came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Everyone had their answer.
    Clean,
    /// So many connections had to be cut off.
    CutOff(usize),
}

/// Listens at an address; port 0 takes a free one. `handler` answers the requests.
pub async fn listen<H, F>(address: SocketAddr, tls: Tls, limits: Limits, handler: H) -> io::Result<Listening>
where
    H: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    listen_on(TcpListener::bind(address).await?, tls, limits, handler)
}

/// Listens at a socket that is open already.
pub fn listen_on<H, F>(listener: TcpListener, tls: Tls, limits: Limits, handler: H) -> io::Result<Listening>
where
    H: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let address = listener.local_addr()?;
    let (stop, stopping) = watch::channel(None);
    let serve = connection::Serve {
        tls,
        limits,
        handler,
        stopping: Stopping(stopping),
    };
    let accepting = tokio::spawn(accept(listener, serve));
    Ok(Listening {
        address,
        stop,
        accepting,
    })
}

impl Listening {
    /// Where it listens, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops: nobody new is let in, streams end, answers under way are finished, for as long as patience lasts.
    pub async fn stop(self, patience: Duration) -> Stopped {
        self.stop.send_replace(Some(patience));
        match self.accepting.await {
            Ok(0) => Stopped::Clean,
            Ok(cut_off) => Stopped::CutOff(cut_off),
            Err(error) => {
                tracing::error!(%error, "the listener ended in a panic");
                Stopped::CutOff(0)
            }
        }
    }
}

/// Lets clients in until told to stop; returns how many had to be cut off.
async fn accept<H, F>(listener: TcpListener, serve: connection::Serve<H>) -> usize
where
    H: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(serve.limits.connections));
    let serve = Arc::new(serve);
    let mut connections = JoinSet::new();
    let mut stopping = serve.stopping.clone();
    let mut stop = std::pin::pin!(stopping.wait());
    loop {
        let next = async {
            let place = Arc::clone(&places)
                .acquire_owned()
                .await
                .expect("the semaphore is never closed");
            listener
                .accept()
                .await
                .map(|(stream, address)| (place, stream, address))
        };
        tokio::select! {
            () = &mut stop => break,
            Some(_) = connections.join_next() => {}
            accepted = next => match accepted {
                Ok((place, stream, address)) => {
                    let serve = Arc::clone(&serve);
                    connections.spawn(async move {
                        serve.connection(stream, address).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    // Mostly too many open files: give some of them time to close.
                    sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
    drop(listener);
    let patience = serve.stopping.0.borrow().unwrap_or_default();
    let _ = timeout(patience, async { while connections.join_next().await.is_some() {} }).await;
    let left = connections.len();
    connections.shutdown().await;
    left
}

#[cfg(test)]
mod tests;
