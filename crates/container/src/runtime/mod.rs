//! The face of it all: pods, containers, and what becomes of them.

mod client;
mod lifecycle;
mod pod;
mod session;
mod watching;

use std::{
    collections::BTreeMap,
    fs::File,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::broadcast, time::timeout};

pub use session::{Attached, ExecEnd, ExecSession, Input, Output, Terminal};
pub use watching::{Event, Events};

use self::{
    client::ask,
    pod::{Container, Pod},
    session::{existing_input, input, invalid, output, terminal, unexpected},
};
use crate::{
    ContainerId, ContainerSpec, ExecSpec, LogOptions, LogReader, PodId, PodSpec, Resources, State, Stats,
    cgroup::Hierarchies,
    error::{Error, Result},
    wire::{Reach, Reply, Request},
};

/// Where a runtime keeps its pods, and how.
#[derive(Debug, Clone)]
pub struct Config {
    /// Everything is kept below this directory.
    pub dir: PathBuf,
    /// Tells the cgroups of this runtime from those of others on the machine: `moorline-<instance>`.
    pub instance: String,
    /// The control group that those are made in.
    pub cgroup_parent: PathBuf,
    /// The executable that shims are made of, if not this one. It calls
    /// [`run_if_asked`](crate::shim::run_if_asked) first of all.
    pub program: Option<PathBuf>,
    /// How long a shim may take to answer, and processes to die once they are killed.
    pub patience: Duration,
}

impl Config {
    /// Shims made of this executable, which get 30 seconds for an answer.
    pub fn new(dir: PathBuf, instance: &str) -> Self {
        Self {
            dir,
            instance: instance.to_owned(),
            cgroup_parent: PathBuf::from("/"),
            program: None,
            patience: Duration::from_secs(30),
        }
    }
}

/// The pods of one directory. Cheap to clone; all clones are the same runtime.
#[derive(Clone)]
pub struct Runtime {
    shared: Arc<Shared>,
}

struct Shared {
    config: Config,
    hierarchies: Hierarchies,
    /// The parent of the cgroups of all pods.
    cgroup: PathBuf,
    /// Guards the map only.
    pods: Mutex<BTreeMap<PodId, Arc<Pod>>>,
    events: broadcast::Sender<Event>,
    /// Keeps others from the directory as long as it is open.
    _lock: File,
}

/// A pod and how it stands.
#[derive(Debug, Clone)]
pub struct PodStatus {
    /// What it was made from.
    pub spec: PodSpec,
    /// Whether its shim is gone; then nothing is left to do but to remove it.
    pub lost: bool,
    /// Its containers, in the order of their ids.
    pub containers: Vec<ContainerStatus>,
}

/// A container and how it stands.
#[derive(Debug, Clone)]
pub struct ContainerStatus {
    /// What it was made from.
    pub spec: ContainerSpec,
    /// Where it stands.
    pub state: State,
}

impl Runtime {
    /// Opens the runtime of a directory and takes over the pods that are in it. Pods whose shim has died, or that
    /// were running when the machine went down, are cleaned up and reported as lost.
    pub async fn open(config: Config) -> Result<Self> {
        lifecycle::open(config).await
    }

    /// Every pod.
    pub fn list(&self) -> Vec<PodStatus> {
        let pods: Vec<_> = self.pods().values().cloned().collect();
        pods.iter().map(|pod| pod_status(pod)).collect()
    }

    /// One pod.
    pub fn pod(&self, pod: &PodId) -> Result<PodStatus> {
        Ok(pod_status(&*self.find(pod)?))
    }

    /// One container.
    pub fn container(&self, pod: &PodId, container: &ContainerId) -> Result<ContainerStatus> {
        let (_, container) = self.find_container(pod, container)?;
        Ok(ContainerStatus {
            spec: container.spec.clone(),
            state: container.state(),
        })
    }

    /// Makes a pod, which has no containers yet. Cancelling it leaves a pod that is made all the same.
    pub async fn create_pod(&self, spec: PodSpec) -> Result<()> {
        let this = self.clone();
        detached(async move { this.make_pod(spec).await }).await
    }

    /// Makes a container in a pod, without starting it.
    pub async fn create_container(&self, pod: &PodId, spec: ContainerSpec) -> Result<()> {
        let pod = self.find_living(pod)?;
        if spec.args.first().is_none_or(String::is_empty) {
            return Err(invalid(
                "args",
                "there is no command; give one, or an image that has one",
            ));
        }
        detached(async move { lifecycle::make_container(pod, spec).await }).await
    }

    /// Starts a container, once in its life. When this returns, its command runs.
    pub async fn start(&self, pod: &PodId, container: &ContainerId) -> Result<()> {
        let (pod, container) = self.find_container(pod, container)?;
        Self::expect(&pod, &container, "start", |state| *state == State::Created)?;
        let request = Request::Start {
            container: container.spec.id.clone(),
        };
        match self.ask(&pod, &request, &[], "start a container").await?.1 {
            Reply::Started { .. } => {
                if let Some(exit) = container.refresh()? {
                    self.shared.tell_exit(&pod.spec.id, &container.spec.id, exit);
                }
                Ok(())
            }
            reply => Err(Error::Start {
                pod: pod.spec.id.clone(),
                container: container.spec.id.clone(),
                reason: unexpected(reply),
            }),
        }
    }

    /// Sends a signal to the first process of a container. A container that has ended takes it silently.
    pub async fn signal(&self, pod: &PodId, container: &ContainerId, signal: i32) -> Result<()> {
        self.send_signal(pod, container, signal, Reach::First).await
    }

    /// Kills every process of a container.
    pub async fn kill(&self, pod: &PodId, container: &ContainerId) -> Result<()> {
        let kill = rustix::process::Signal::KILL.as_raw();
        self.send_signal(pod, container, kill, Reach::All).await
    }

    async fn send_signal(&self, pod: &PodId, container: &ContainerId, signal: i32, reach: Reach) -> Result<()> {
        let (pod, container) = self.find_container(pod, container)?;
        if rustix::process::Signal::from_named_raw(signal).is_none() {
            return Err(Error::Signal(signal));
        }
        if !matches!(container.state(), State::Running { .. }) {
            return Ok(());
        }
        let request = Request::Signal {
            container: container.spec.id.clone(),
            signal,
            reach,
        };
        match self.ask(&pod, &request, &[], "send a signal").await?.1 {
            // It may have ended while the request was on its way.
            Reply::Done | Reply::Failed { .. } => Ok(()),
            reply => Err(Self::refused(&pod, "send a signal", reply)),
        }
    }

    /// Waits until a container has ended or is lost, no longer than `patience`. Cancelling it loses nothing.
    pub async fn wait(&self, pod: &PodId, container: &ContainerId, patience: Duration) -> Result<State> {
        let (_, known) = self.find_container(pod, container)?;
        let mut states = known.subscribe();
        let ended = states.wait_for(|state| matches!(state, State::Exited(_) | State::Lost));
        match timeout(patience, ended).await {
            Ok(Ok(state)) => Ok(state.clone()),
            Ok(Err(_)) => Err(Error::NoContainer(pod.clone(), container.clone())),
            Err(_) => Err(Error::Deadline {
                attempted: format!("wait for the end of container {container} of pod {pod}"),
                after: patience,
            }),
        }
    }

    /// What happens from now on.
    pub fn events(&self) -> Events {
        Events::new(self.shared.events.subscribe())
    }

    /// Runs a process in a running container.
    pub async fn exec(&self, pod: &PodId, container: &ContainerId, spec: ExecSpec) -> Result<ExecSession> {
        let (pod, container) = self.find_container(pod, container)?;
        Self::expect(&pod, &container, "run a process in", |state| {
            matches!(state, State::Running { .. })
        })?;
        let command = spec.args.first().cloned().unwrap_or_default();
        let (mut stdin, mut stdout, mut stderr, mut theirs) = (None, None, None, Vec::new());
        if spec.terminal.is_none() {
            if spec.stdin {
                let (ours, end) = input()?;
                stdin = Some(ours);
                theirs.push(end);
            }
            for stream in [&mut stdout, &mut stderr] {
                let (ours, end) = output()?;
                *stream = Some(ours);
                theirs.push(end);
            }
        }
        let request = Request::Exec {
            container: container.spec.id.clone(),
            spec,
        };
        let (mut client, reply) = self
            .ask(&pod, &request, &theirs, "run a process in a container")
            .await?;
        drop(theirs);
        let Reply::Started { pid } = reply else {
            return Err(Error::Exec {
                pod: pod.spec.id.clone(),
                container: container.spec.id.clone(),
                command,
                reason: unexpected(reply),
            });
        };
        let mut handle = None;
        if let Some(fd) = client.take_fd() {
            let (input, output, terminal) = terminal(fd)?;
            (stdin, stdout, handle) = (Some(input), Some(output), Some(terminal));
        }
        Ok(ExecSession {
            stdin,
            stdout,
            stderr,
            terminal: handle,
            pid,
            client,
        })
    }

    /// Attaches to the streams of a running container. One who does not read holds the container up, for ten seconds
    /// at most.
    pub async fn attach(&self, pod: &PodId, container: &ContainerId) -> Result<Attached> {
        let (pod, container) = self.find_container(pod, container)?;
        Self::expect(&pod, &container, "attach to", |state| {
            matches!(state, State::Running { .. })
        })?;
        let (stdout, their_stdout) = output()?;
        let (stderr, their_stderr) = output()?;
        let request = Request::Attach {
            container: container.spec.id.clone(),
        };
        let theirs = [their_stdout, their_stderr];
        let (mut client, reply) = self.ask(&pod, &request, &theirs, "attach to a container").await?;
        drop(theirs);
        if !matches!(reply, Reply::Attached) {
            return Err(Self::refused(&pod, "attach to a container", reply));
        }
        let fd = client.take_fd();
        let (stdin, handle) = match fd {
            Some(fd) if container.spec.terminal => {
                let (input, _, handle) = terminal(fd)?;
                (Some(input), Some(handle))
            }
            Some(fd) => (Some(existing_input(fd)?), None),
            None => (None, None),
        };
        Ok(Attached {
            stdin,
            stdout: Some(stdout),
            stderr: Some(stderr),
            terminal: handle,
            client,
        })
    }

    /// Reads the log of a container, also of one that has ended.
    pub async fn logs(&self, pod: &PodId, container: &ContainerId, options: LogOptions) -> Result<LogReader> {
        let (_, container) = self.find_container(pod, container)?;
        let log = container
            .spec
            .log
            .as_ref()
            .ok_or_else(|| invalid("log", "this container was made without one"))?;
        LogReader::open(log.path.clone(), options, container.subscribe_ended()).await
    }

    /// What a container has used.
    pub fn stats(&self, pod: &PodId, container: &ContainerId) -> Result<Stats> {
        let (pod, container) = self.find_container(pod, container)?;
        let path = pod.cgroup.join(container.spec.id.as_str());
        Ok(self.shared.hierarchies.group(&path).stats())
    }

    /// What a pod has used, all its containers together.
    pub fn pod_stats(&self, pod: &PodId) -> Result<Stats> {
        let pod = self.find(pod)?;
        Ok(self.shared.hierarchies.group(&pod.cgroup).stats())
    }

    /// The directory with everything that a container has written beside its volumes. It is there once the container was
    /// started, and gone when it is removed.
    pub fn written(&self, pod: &PodId, container: &ContainerId) -> Result<PathBuf> {
        let (_, container) = self.find_container(pod, container)?;
        Ok(container.dir.upper())
    }

    /// Changes the limits of a container in place.
    pub fn update(&self, pod: &PodId, container: &ContainerId, resources: &Resources) -> Result<()> {
        let (pod, container) = self.find_container(pod, container)?;
        Self::expect(&pod, &container, "change the limits of", |state| {
            matches!(state, State::Running { .. })
        })?;
        let path = pod.cgroup.join(container.spec.id.as_str());
        self.shared.hierarchies.group(&path).limit(resources)
    }

    /// Changes the limits of a pod in place.
    pub fn update_pod(&self, pod: &PodId, resources: &Resources) -> Result<()> {
        let pod = self.find_living(pod)?;
        self.shared.hierarchies.group(&pod.cgroup).limit(resources)
    }

    /// Stops every process of a pod where it is, until [`Runtime::thaw`]. They stand still within moments.
    pub fn freeze(&self, pod: &PodId) -> Result<()> {
        let pod = self.find_living(pod)?;
        self.shared.hierarchies.group(&pod.cgroup).freeze()
    }

    /// Undoes [`Runtime::freeze`].
    pub fn thaw(&self, pod: &PodId) -> Result<()> {
        let pod = self.find_living(pod)?;
        self.shared.hierarchies.group(&pod.cgroup).thaw()
    }

    /// Removes a container that does not run: its writable layer, its files, its cgroup. Its log stays.
    pub async fn remove(&self, pod: &PodId, container: &ContainerId) -> Result<()> {
        let (pod, container) = self.find_container(pod, container)?;
        Self::expect(&pod, &container, "remove", |state| {
            !matches!(state, State::Running { .. })
        })?;
        let this = self.clone();
        detached(async move { this.discard_container(pod, container).await }).await
    }

    /// Kills whatever runs in a pod and removes it. Logs stay. A pod that does not exist is removed already.
    pub async fn remove_pod(&self, pod: &PodId) -> Result<()> {
        let Ok(pod) = self.find(pod) else {
            return Ok(());
        };
        let this = self.clone();
        detached(async move { this.discard_pod(pod).await }).await
    }

    /// Removes every pod, and the cgroup of this runtime. The directory itself stays, empty of pods.
    pub async fn purge(&self) -> Result<()> {
        let this = self.clone();
        detached(async move { this.discard_all().await }).await
    }

    fn pods(&self) -> MutexGuard<'_, BTreeMap<PodId, Arc<Pod>>> {
        self.shared.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, pod: &PodId) -> Result<Arc<Pod>> {
        self.pods().get(pod).cloned().ok_or_else(|| Error::NoPod(pod.clone()))
    }

    fn find_living(&self, pod: &PodId) -> Result<Arc<Pod>> {
        let found = self.find(pod)?;
        if found.is_lost() {
            Err(Error::PodLost(pod.clone()))
        } else {
            Ok(found)
        }
    }

    fn find_container(&self, pod: &PodId, container: &ContainerId) -> Result<(Arc<Pod>, Arc<Container>)> {
        let found = self.find(pod)?;
        let inside = found.containers().get(container).cloned();
        let inside = inside.ok_or_else(|| Error::NoContainer(pod.clone(), container.clone()))?;
        Ok((found, inside))
    }

    fn expect(
        pod: &Pod,
        container: &Container,
        attempted: &'static str,
        allowed: impl FnOnce(&State) -> bool,
    ) -> Result<()> {
        let state = container.state();
        if allowed(&state) {
            return Ok(());
        }
        Err(Error::WrongState {
            pod: pod.spec.id.clone(),
            container: container.spec.id.clone(),
            attempted,
            state: state.word(),
        })
    }

    async fn ask(
        &self,
        pod: &Pod,
        request: &Request,
        fds: &[std::os::fd::OwnedFd],
        attempted: &'static str,
    ) -> Result<(client::Client, Reply)> {
        let fds: Vec<_> = fds.iter().map(std::os::fd::AsFd::as_fd).collect();
        let answer = ask(&pod.dir, request, &fds, self.shared.config.patience, attempted).await?;
        answer.ok_or_else(|| Error::PodLost(pod.spec.id.clone()))
    }

    fn refused(pod: &Pod, attempted: &'static str, reply: Reply) -> Error {
        Error::Shim {
            pod: pod.spec.id.clone(),
            attempted,
            reason: unexpected(reply),
        }
    }
}

fn pod_status(pod: &Pod) -> PodStatus {
    let containers = pod.all_containers();
    let status = |container: &Arc<Container>| ContainerStatus {
        spec: container.spec.clone(),
        state: container.state(),
    };
    PodStatus {
        spec: pod.spec.clone(),
        lost: pod.is_lost(),
        containers: containers.iter().map(status).collect(),
    }
}

/// Runs to its end even if the caller is cancelled: half a pod on disk would be nobody's.
async fn detached<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(Error::Io {
                attempted: "finish".to_owned(),
                source: std::io::Error::other(error),
            }),
        },
    }
}
