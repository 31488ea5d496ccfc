//! Pods whose containers are processes of this machine.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    process::Stdio,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, stream, stream::BoxStream};
use jiff::Timestamp;
use moorline_apiserver::streams::{
    PodAccess,
    access::{
        AccessError, ContainerRef, Duplex, LogOptions, NodeUsage, PodRef, PodUsage, Session, Since, StreamChoice,
        TerminalSize,
    },
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    process::Command,
    sync::{broadcast, mpsc, watch},
};

/// Containers by their names.
#[derive(Default)]
pub(crate) struct LocalPods {
    containers: Mutex<BTreeMap<String, Arc<Container>>>,
    pub(crate) pod_usage: Mutex<Vec<PodUsage>>,
    pub(crate) node_usage: Mutex<Vec<NodeUsage>>,
}

struct Container {
    stdin: mpsc::Sender<Bytes>,
    said: broadcast::Sender<Bytes>,
    log: watch::Sender<Vec<(Timestamp, String)>>,
    exit: watch::Receiver<Option<i32>>,
}

impl LocalPods {
    /// Starts a container's process, a script of bash.
    pub(crate) fn start(&self, container: &str, script: &str) {
        let mut child = Command::new("bash")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (stdin, mut input) = mpsc::channel::<Bytes>(4);
        let (said, _) = broadcast::channel(1024);
        let (log, _) = watch::channel(Vec::new());
        let (exited, exit) = watch::channel(None);
        let container_of = Container {
            stdin,
            said: said.clone(),
            log: log.clone(),
            exit,
        };
        self.containers
            .lock()
            .unwrap()
            .insert(container.to_owned(), Arc::new(container_of));
        let mut writer = child.stdin.take().unwrap();
        tokio::spawn(async move {
            while let Some(bytes) = input.recv().await {
                writer.write_all(&bytes).await.unwrap();
            }
        });
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                log.send_modify(|log| log.push((Timestamp::now(), line.clone())));
                let _ = said.send(format!("{line}\n").into());
            }
            let status = child.wait().await.unwrap();
            exited.send_replace(Some(status.code().unwrap_or(137)));
        });
    }

    /// Waits until a container has written so many lines.
    pub(crate) async fn has_said(&self, container: &str, lines: usize) {
        let mut log = self.find(container).unwrap().log.subscribe();
        log.wait_for(|log| log.len() >= lines).await.unwrap();
    }

    fn find(&self, container: &str) -> Result<Arc<Container>, AccessError> {
        let found = self.containers.lock().unwrap().get(container).cloned();
        found.ok_or_else(|| AccessError::Failed(format!("container {container} does not run")))
    }
}

#[async_trait]
impl PodAccess for LocalPods {
    async fn logs(
        &self,
        container: &ContainerRef,
        options: &LogOptions,
    ) -> Result<BoxStream<'static, io::Result<Bytes>>, AccessError> {
        let name = if options.previous {
            format!("{}-previous", container.container)
        } else {
            container.container.clone()
        };
        let container = self.find(&name)?;
        let from = match options.since {
            None => Timestamp::MIN,
            Some(Since::Time(time)) => time,
            Some(Since::Ago(long)) => Timestamp::now() - long,
        };
        let (timestamps, follow) = (options.timestamps, options.follow);
        let mut log = container.log.subscribe();
        let written = log.borrow_and_update().len();
        let tail = options
            .tail_lines
            .map_or(usize::MAX, |lines| usize::try_from(lines).unwrap());
        let begin = written.saturating_sub(tail);
        let exit = container.exit.clone();
        let lines = stream::unfold((log, exit, begin), move |(mut log, mut exit, at)| async move {
            loop {
                let line = log.borrow_and_update().get(at).cloned();
                if let Some((time, line)) = line {
                    let text = if timestamps {
                        format!("{time:.9} {line}\n")
                    } else {
                        format!("{line}\n")
                    };
                    let text = (time >= from).then(|| Bytes::from(text));
                    return Some((text, (log, exit, at + 1)));
                }
                if !follow || exit.borrow_and_update().is_some() {
                    return None;
                }
                tokio::select! {
                    _ = log.changed() => {}
                    _ = exit.changed() => {}
                }
            }
        });
        Ok(lines.filter_map(|line| std::future::ready(line.map(Ok))).boxed())
    }

    async fn exec(&self, _: &ContainerRef, command: &[String], streams: &StreamChoice) -> Result<Session, AccessError> {
        if streams.terminal() {
            return on_a_terminal(command);
        }
        let piped = |wanted| if wanted { Stdio::piped() } else { Stdio::null() };
        let mut child = Command::new(&command[0])
            .args(&command[1..])
            .stdin(piped(streams.stdin))
            .stdout(piped(streams.stdout))
            .stderr(piped(streams.stderr()))
            .kill_on_drop(true)
            .spawn()?;
        Ok(Session {
            stdin: child.stdin.take().map(|stdin| Box::new(stdin) as Box<_>),
            stdout: child.stdout.take().map(|stdout| Box::new(stdout) as Box<_>),
            stderr: child.stderr.take().map(|stderr| Box::new(stderr) as Box<_>),
            resize: None,
            exit: async move { Ok(child.wait().await?.code().unwrap_or(137)) }.boxed(),
        })
    }

    async fn attach(&self, container: &ContainerRef, streams: &StreamChoice) -> Result<Session, AccessError> {
        let container = self.find(&container.container)?;
        let (mut ours, theirs) = tokio::io::duplex(1024);
        let mut said = container.said.subscribe();
        let mut exit = container.exit.clone();
        tokio::spawn(async move {
            loop {
                let piece = tokio::select! {
                    piece = said.recv() => piece.ok(),
                    _ = exit.wait_for(Option::is_some) => said.try_recv().ok(),
                };
                let Some(piece) = piece else { return };
                if ours.write_all(&piece).await.is_err() {
                    return;
                }
            }
        });
        let stdin = streams.stdin.then(|| {
            let (ours, theirs) = tokio::io::duplex(1024);
            let stdin = container.stdin.clone();
            tokio::spawn(async move {
                let mut lines = BufReader::new(ours).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    stdin.send(format!("{line}\n").into()).await.unwrap();
                }
            });
            Box::new(theirs) as Box<_>
        });
        let mut exit = container.exit.clone();
        Ok(Session {
            stdin,
            stdout: Some(Box::new(theirs)),
            stderr: None,
            resize: None,
            exit: async move { Ok(exit.wait_for(Option::is_some).await.unwrap().unwrap()) }.boxed(),
        })
    }

    async fn port_forward(&self, _: &PodRef, port: u16) -> Result<Box<dyn Duplex>, AccessError> {
        Ok(Box::new(TcpStream::connect(("127.0.0.1", port)).await?))
    }

    async fn dial(&self, address: SocketAddr) -> Result<Box<dyn Duplex>, AccessError> {
        // Every pod of these tests is at an address of its own, and listens on this machine's loopback.
        Ok(Box::new(TcpStream::connect(("127.0.0.1", address.port())).await?))
    }

    async fn pod_usage(&self) -> Vec<PodUsage> {
        self.pod_usage.lock().unwrap().clone()
    }

    async fn node_usage(&self) -> Vec<NodeUsage> {
        self.node_usage.lock().unwrap().clone()
    }
}

/// A command on a terminal of its own.
fn on_a_terminal(command: &[String]) -> Result<Session, AccessError> {
    let (terminal, pts) = pty_process::open().map_err(|error| AccessError::Failed(error.to_string()))?;
    let mut child = pty_process::Command::new(&command[0])
        .args(&command[1..])
        .kill_on_drop(true)
        .spawn(pts)
        .map_err(|error| AccessError::Failed(error.to_string()))?;
    let (reader, writer) = terminal.into_split();
    let (resize, mut sizes) = watch::channel(TerminalSize::default());
    let (forward, mut input) = tokio::io::duplex(1024);
    tokio::spawn(async move {
        let mut writer = writer;
        let mut buffer = [0; 1024];
        loop {
            tokio::select! {
                read = tokio::io::AsyncReadExt::read(&mut input, &mut buffer) => {
                    let read = read.unwrap_or(0);
                    if read == 0 {
                        return;
                    }
                    let _ = writer.write_all(&buffer[..read]).await;
                }
                Ok(()) = sizes.changed() => {
                    let size = *sizes.borrow_and_update();
                    let _ = writer.resize(pty_process::Size::new(size.rows, size.columns));
                }
            }
        }
    });
    Ok(Session {
        stdin: Some(Box::new(forward)),
        stdout: Some(Box::new(reader)),
        stderr: None,
        resize: Some(resize),
        exit: async move { Ok(child.wait().await?.code().unwrap_or(137)) }.boxed(),
    })
}
