//! Reaching into the pods of this machine, for the API server: logs, commands, ports, usage.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt as _, stream, stream::BoxStream};
use moorline_apiserver::streams::access::{
    AccessError, ContainerRef, Duplex, LogOptions, LogStream, NodeUsage, PodAccess, PodRef, PodUsage, Session, Since,
    StreamChoice, TerminalSize, Usage,
};
use moorline_node::{Key, LogQuery, Machine, StreamError, container as run};
use tokio::sync::watch;

/// What the API server reaches pods through.
pub(crate) struct Pods {
    machine: Arc<Machine>,
    /// The processor time of each container when it was last asked for: usage is what came since.
    before: Mutex<HashMap<(Key, String), Sample>>,
}

#[derive(Clone, Copy)]
struct Sample {
    taken: jiff::Timestamp,
    cpu_nanos: u64,
}

impl Pods {
    pub(crate) fn new(machine: Arc<Machine>) -> Self {
        Self {
            machine,
            before: Mutex::default(),
        }
    }

    /// What the pods of one node use, pod by pod.
    fn usage_of(&self, node: &str) -> Vec<PodUsage> {
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        let pods = self.machine.stats(node).into_iter();
        pods.filter_map(|pod| {
            let mut taken = None;
            let mut window = Duration::ZERO;
            let mut containers = BTreeMap::new();
            for container in pod.containers {
                let sample = Sample {
                    taken: container.at,
                    cpu_nanos: container.stats.cpu_nanos,
                };
                let last = before.insert((pod.pod.clone(), container.name.clone()), sample);
                let passed = last.map_or(Duration::ZERO, |last| {
                    Duration::try_from(sample.taken.duration_since(last.taken)).unwrap_or(Duration::ZERO)
                });
                let spent = last.map_or(0, |last| sample.cpu_nanos.saturating_sub(last.cpu_nanos));
                let nanocores = match passed.as_nanos() {
                    0 => 0,
                    passed => u128::from(spent) * 1_000_000_000 / passed,
                };
                let usage = Usage {
                    cpu_nanocores: u64::try_from(nanocores).unwrap_or(u64::MAX),
                    memory_bytes: container.stats.memory_working_set_bytes,
                };
                containers.insert(container.name, usage);
                taken = Some(container.at);
                window = window.max(passed);
            }
            Some(PodUsage {
                namespace: pod.pod.namespace,
                name: pod.pod.name,
                taken: taken?,
                window,
                containers,
            })
        })
        .collect()
    }
}

fn key(pod: &PodRef) -> Key {
    Key::new(&pod.namespace, &pod.name)
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err is given")]
fn refused(error: StreamError) -> AccessError {
    match &error {
        StreamError::Port { .. } | StreamError::Network(_) | StreamError::Runtime(_) => {
            AccessError::Failed(told(&error))
        }
        _ => AccessError::Refused(error.to_string()),
    }
}

/// An error with everything that led to it.
fn told(error: &dyn std::error::Error) -> String {
    let mut told = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        told.push_str(": ");
        told.push_str(&cause.to_string());
        source = cause.source();
    }
    told
}

#[async_trait]
impl PodAccess for Pods {
    async fn logs(
        &self,
        container: &ContainerRef,
        options: &LogOptions,
    ) -> Result<BoxStream<'static, io::Result<Bytes>>, AccessError> {
        let since = options.since.map(|since| match since {
            Since::Time(time) => time,
            Since::Ago(ago) => jiff::Timestamp::now()
                .checked_sub(jiff::SignedDuration::try_from(ago).unwrap_or(jiff::SignedDuration::MAX))
                .unwrap_or(jiff::Timestamp::MIN),
        });
        let query = LogQuery {
            options: run::LogOptions {
                follow: options.follow && !options.previous,
                tail_lines: options
                    .tail_lines
                    .map(|lines| usize::try_from(lines).unwrap_or(usize::MAX)),
                since,
                limit_bytes: None,
            },
            previous: options.previous,
        };
        let reader = self
            .machine
            .logs(&key(&container.pod), Some(&container.container), query)
            .await
            .map_err(refused)?;
        let (timestamps, wanted) = (options.timestamps, options.stream);
        let lines = stream::unfold(reader, move |mut reader| async move {
            loop {
                return match reader.next().await {
                    Ok(Some(entry)) => {
                        let of = match entry.stream {
                            run::LogStream::Stdout => LogStream::Stdout,
                            run::LogStream::Stderr => LogStream::Stderr,
                        };
                        if wanted != LogStream::All && wanted != of {
                            continue;
                        }
                        let line = if timestamps { entry.with_timestamp() } else { entry.text };
                        Some((Ok(Bytes::from(line)), reader))
                    }
                    Ok(None) => None,
                    Err(error) => Some((Err(io::Error::other(told(&error))), reader)),
                };
            }
        });
        Ok(Box::pin(lines))
    }

    async fn exec(
        &self,
        container: &ContainerRef,
        command: &[String],
        streams: &StreamChoice,
    ) -> Result<Session, AccessError> {
        let mut spec = run::ExecSpec::new(command.to_vec());
        spec.stdin = streams.stdin;
        spec.terminal = streams.terminal().then_some(run::WindowSize { columns: 80, rows: 24 });
        let started = self
            .machine
            .exec(&key(&container.pod), Some(&container.container), spec)
            .await;
        let mut session = started.map_err(refused)?;
        Ok(Session {
            stdin: session.stdin.take().map(|stdin| Box::new(stdin) as _),
            stdout: session.stdout.take().map(|stdout| Box::new(stdout) as _),
            stderr: session.stderr.take().map(|stderr| Box::new(stderr) as _),
            resize: session.terminal.clone().map(follow_size),
            exit: async move { ended(session.wait().await) }.boxed(),
        })
    }

    async fn attach(&self, container: &ContainerRef, _: &StreamChoice) -> Result<Session, AccessError> {
        let attached = self
            .machine
            .attach(&key(&container.pod), Some(&container.container))
            .await;
        let mut attached = attached.map_err(refused)?;
        Ok(Session {
            stdin: attached.stdin.take().map(|stdin| Box::new(stdin) as _),
            stdout: attached.stdout.take().map(|stdout| Box::new(stdout) as _),
            stderr: attached.stderr.take().map(|stderr| Box::new(stderr) as _),
            resize: attached.terminal.clone().map(follow_size),
            exit: async move { ended(attached.wait().await) }.boxed(),
        })
    }

    async fn port_forward(&self, pod: &PodRef, port: u16) -> Result<Box<dyn Duplex>, AccessError> {
        Ok(Box::new(
            self.machine.port_forward(&key(pod), port).await.map_err(refused)?,
        ))
    }

    async fn dial(&self, address: SocketAddr) -> Result<Box<dyn Duplex>, AccessError> {
        let connected = tokio::net::TcpStream::connect(address).await;
        let unreachable = |error: io::Error| AccessError::Unreachable(format!("dial tcp {address}: {error}"));
        Ok(Box::new(connected.map_err(unreachable)?))
    }

    async fn pod_usage(&self) -> Vec<PodUsage> {
        self.machine
            .node_names()
            .iter()
            .flat_map(|node| self.usage_of(node))
            .collect()
    }

    async fn node_usage(&self) -> Vec<NodeUsage> {
        let nodes = self.machine.node_names().into_iter();
        nodes
            .map(|name| {
                let pods = self.usage_of(&name);
                let of_pods = pods.iter().flat_map(|pod| pod.containers.values());
                let usage = of_pods.fold(Usage::default(), |sum, usage| Usage {
                    cpu_nanocores: sum.cpu_nanocores + usage.cpu_nanocores,
                    memory_bytes: sum.memory_bytes + usage.memory_bytes,
                });
                let window = pods.iter().map(|pod| pod.window).max().unwrap_or_default();
                NodeUsage {
                    name,
                    taken: jiff::Timestamp::now(),
                    window,
                    usage,
                }
            })
            .collect()
    }
}

fn ended(end: run::Result<run::ExecEnd>) -> Result<i32, AccessError> {
    end.map(|end| end.code)
        .map_err(|error| AccessError::Failed(told(&error)))
}

/// Passes on every size that a client says its terminal has.
fn follow_size(terminal: run::Terminal) -> watch::Sender<TerminalSize> {
    let (told, mut sizes) = watch::channel(TerminalSize::default());
    tokio::spawn(async move {
        while sizes.changed().await.is_ok() {
            let size = *sizes.borrow_and_update();
            if let Err(error) = terminal.resize(run::WindowSize {
                columns: size.columns,
                rows: size.rows,
            }) {
                tracing::debug!(%error, "a terminal did not take its size");
            }
        }
    });
    told
}
