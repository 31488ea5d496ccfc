//! One pod's worker: it hears (`hear`), decides, tells, and sets about what is to be done (`act`).

mod act;
mod hear;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use moorline_container as run;
use tokio::{
    sync::{mpsc, watch},
    task::{AbortHandle, JoinSet},
};

use super::{
    adopt,
    context::{NodeContext, net_id, remove, remove_files, run_id},
    prepare::{Ready, Unready, ports, told},
    publish::{self, Written},
    start::{self, Refusal},
};
use crate::{
    events::{Severity, seconds},
    key::Key,
    pod::{self, Action, Attempt, Decision, Ending, Memory, Sandbox, Shape, decide, is_over, says_that_something_runs},
    probe::{Report, Target},
    volume::{Failure, Volumes},
};

/// Something that a worker hears of.
#[derive(Debug)]
pub(crate) enum Update {
    /// The pod as the API has it now.
    Pod(Arc<Pod>),
    /// The API has it no more.
    Gone,
    /// A container has ended.
    Exited {
        container: String,
        exit: run::Exit,
    },
    /// A container is lost, or all of them are.
    Lost {
        container: Option<String>,
    },
    Probe(Report),
    /// An object that the pod's volumes may show has changed.
    ObjectChanged,
    /// The pod takes more room than it may; in words.
    Evict(String),
    Prepared(Result<Ready, Unready>),
    Began {
        container: String,
        attempt: Attempt,
    },
    Refused {
        container: String,
        refusal: Refusal,
    },
    Hooked {
        container: String,
        attempt: String,
        outcome: Result<(), String>,
    },
    /// Nothing of the pod runs any more.
    Stopped(Ending),
    Refreshed(Result<Volumes, Failure>),
    /// Only to look again.
    Nothing,
}

/// What a worker is working on for one container, or for the pod as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Task {
    Prepare,
    Refresh,
    End,
    Container(String),
    Kill(String),
}

/// A status that could not be written is tried again after this.
const WRITE_AGAIN: Duration = Duration::from_secs(1);
/// How long after a failure a container or sandbox is tried again, where nothing else says so.
const TRY_AGAIN: Duration = Duration::from_secs(5);

pub(crate) struct Worker {
    context: Arc<NodeContext>,
    pod: Arc<Pod>,
    shape: Shape,
    memory: Memory,
    volumes: Volumes,
    updates: mpsc::UnboundedReceiver<Update>,
    own: mpsc::UnboundedSender<Update>,
    tasks: JoinSet<()>,
    running: HashMap<Task, AbortHandle>,
    probes: HashMap<String, Probes>,
    written: Option<PodStatus>,
    write_failed: bool,
    life: Life,
    /// The pod was over when it came, and the API has all there is to tell.
    told: bool,
    presence: Presence,
    stale_volumes: bool,
}

/// How a pod comes to its worker.
pub(crate) enum Origin<'a> {
    /// It is to be run.
    New,
    /// It runs already.
    Adopted(&'a run::PodStatus),
    /// The node does not take it.
    Refused(Ending),
}

/// How far a pod has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// It runs, or will, or is being ended.
    Runs,
    /// Nothing runs any more.
    Stopped,
    /// Nothing is left but logs.
    LetGo,
}

/// Whether the API has the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    There,
    /// It was removed without waiting for the node.
    Gone,
}

/// The probes of one attempt.
struct Probes {
    attempt: String,
    started: watch::Sender<bool>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Probes {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// How a worker ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Finished {
    /// Nothing of the pod is left.
    Removed,
}

impl Worker {
    pub(crate) fn new(
        context: Arc<NodeContext>,
        pod: Arc<Pod>,
        origin: Origin<'_>,
        own: mpsc::UnboundedSender<Update>,
        updates: mpsc::UnboundedReceiver<Update>,
    ) -> Self {
        let shape = Shape::of(&pod);
        let adopted = match origin {
            Origin::Adopted(status) => Some(status),
            Origin::New | Origin::Refused(_) => None,
        };
        let told = adopted.is_none() && is_over(&pod) && !says_that_something_runs(&pod);
        let mut memory = adopt::memory(&pod, &shape, adopted, Timestamp::now());
        if adopted.is_some()
            && memory.sandbox.is_some()
            && let Ok(id) = net_id(&pod)
            && let Ok(network) = context.shared.network.pod(&id)
        {
            memory.sandbox = Some(Sandbox {
                ips: vec![network.address.into()],
            });
        }
        let mut life = Life::Runs;
        if let Origin::Refused(ending) = origin {
            if let Ending::Failed { reason, message, .. } = &ending {
                context.recorder.tell(&*pod, Severity::Warning, reason, message.clone());
            }
            memory.ending = Some(ending);
            life = Life::Stopped;
        }
        Self {
            context,
            shape,
            memory,
            volumes: Volumes::default(),
            updates,
            own,
            tasks: JoinSet::new(),
            running: HashMap::new(),
            probes: HashMap::new(),
            written: None,
            write_failed: false,
            life,
            told,
            presence: Presence::There,
            stale_volumes: adopted.is_some(),
            pod,
        }
    }

    /// Works until nothing of the pod is left.
    pub(crate) async fn run(mut self) -> Finished {
        let mut waiting = VecDeque::new();
        loop {
            while let Ok(update) = self.updates.try_recv() {
                waiting.push_back(update);
            }
            for update in waiting.drain(..) {
                self.take(update).await;
            }
            // First, so that a status which says that it knows of new resources also says what became of them.
            self.resize();
            let decision = self.decide();
            self.note_waits(&decision);
            self.publish().await;
            if self.life != Life::Runs && (self.is_gone() || self.pod.metadata.deletion_timestamp.is_some()) {
                if self.finish().await {
                    return Finished::Removed;
                }
                tokio::time::sleep(WRITE_AGAIN).await;
                continue;
            }
            if self.holds_for_nothing() {
                self.let_go().await;
            }
            self.act(&decision);
            self.tend_probes();
            let wake = self.wake(&decision);
            tokio::select! {
                update = self.updates.recv() => waiting.extend(update),
                Some(ended) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    if let Err(error) = ended
                        && error.is_panic()
                    {
                        tracing::error!(pod = %Key::of(&*self.pod), "a task for a pod panicked; it will be tried again");
                        self.running.retain(|_, task| !task.is_finished());
                    }
                }
                () = sleep_until(wake) => {}
            }
        }
    }

    fn is_gone(&self) -> bool {
        self.presence == Presence::Gone
    }

    /// Whether it has something left that it needs no more: nothing runs any more nor will, and the API knows it. What
    /// the node itself ended gives back at once, as it was for want of it, and on a full disk the API learns nothing.
    fn holds_for_nothing(&self) -> bool {
        let ended_by_node = matches!(self.memory.ending, Some(Ending::Failed { .. }));
        self.life == Life::Stopped && (ended_by_node || is_over(&self.pod))
    }

    fn decide(&mut self) -> Decision {
        if self.is_gone() {
            // Deleted without waiting: as if by a deletion with the shortest grace.
            let ending = Ending::Deleted { grace: 1 };
            if self.memory.ending.as_ref() == Some(&ending) {
                return Decision::default();
            }
            return Decision {
                actions: vec![Action::End(ending)],
                look_again: None,
            };
        }
        if is_over(&self.pod) && self.memory.ending.is_none() && !self.memory.anything_runs() {
            self.memory.ending = Some(Ending::Over);
            self.life = Life::Stopped;
        }
        decide(&self.pod, &self.shape, &self.memory, Timestamp::now())
    }

    fn wake(&self, decision: &Decision) -> Option<Timestamp> {
        let mut wake = decision.look_again;
        let mut earlier = |at: Timestamp| wake = Some(wake.map_or(at, |before| before.min(at)));
        if self.write_failed || self.holds_for_nothing() {
            earlier(Timestamp::now() + WRITE_AGAIN);
        }
        if let Some(renew) = self.volumes.renew
            && self.memory.ending.is_none()
        {
            earlier(renew);
        }
        wake
    }

    /// Writes the status if it says something new.
    async fn publish(&mut self) {
        if self.is_gone() || self.told {
            return;
        }
        let mut seen = (*self.pod).clone();
        if let Some(written) = &self.written {
            // What was written last counts, also where the API's news of it has not come yet.
            let ours = written.conditions.clone().unwrap_or_default();
            let told = seen.status.clone().unwrap_or_default();
            let mut conditions = ours.clone();
            let foreign = told.conditions.into_iter().flatten();
            conditions.extend(foreign.filter(|theirs| !ours.iter().any(|own| own.type_ == theirs.type_)));
            let mut status = seen.status.take().unwrap_or_default();
            status.conditions = Some(conditions);
            status.phase.clone_from(&written.phase);
            seen.status = Some(status);
        }
        let now = seconds(Timestamp::now());
        let status = pod::status(&seen, &self.shape, &self.memory, &self.context.addresses, now);
        let old = self
            .written
            .clone()
            .or_else(|| self.pod.status.clone())
            .unwrap_or_default();
        if status == old && !self.write_failed {
            return;
        }
        match publish::status(&self.context.client, &self.pod, &old, &status).await {
            Written::Done => {
                self.written = Some(status);
                self.write_failed = false;
            }
            // The news of its end is on its way.
            Written::Gone => self.write_failed = false,
            Written::Failed(error) => {
                tracing::debug!(pod = %Key::of(&*self.pod), error, "a pod's status could not be written");
                self.write_failed = true;
            }
        }
    }

    /// Gives back what a pod that has stopped still holds: its sandbox and address, its images, its volumes. Its logs
    /// are there until it is deleted. Says whether all is done.
    async fn let_go(&mut self) -> bool {
        let Ok(id) = run_id(&self.pod) else { return true };
        if let Err(error) = self.context.shared.runtime.remove_pod(&id).await {
            tracing::warn!(pod = %Key::of(&*self.pod), error = told(&error), "a pod's containers could not be removed");
            return false;
        }
        if let Err(error) = self.context.shared.release_images(|uid| uid == id.as_str()).await {
            tracing::warn!(pod = %Key::of(&*self.pod), error = told(&error), "a pod's images could not be let go");
            return false;
        }
        let (context, pod) = (self.context.clone(), self.pod.clone());
        let cleaned = tokio::task::spawn_blocking(move || {
            if let Ok(id) = net_id(&pod) {
                context.shared.network.detach(&id).map_err(|error| told(&error))?;
            }
            let uid = pod.metadata.uid.as_deref().unwrap_or("");
            remove_files(&context.shared, uid).map_err(|error| error.to_string())
        });
        if let Err(error) = cleaned.await.unwrap_or_else(|error| Err(error.to_string())) {
            tracing::warn!(pod = %Key::of(&*self.pod), error, "what a pod left could not be removed");
            return false;
        }
        self.life = Life::LetGo;
        true
    }

    /// Removes what is left of a pod that has stopped. Says whether all is done.
    async fn finish(&mut self) -> bool {
        if self.life != Life::LetGo && !self.let_go().await {
            return false;
        }
        let logs = self.context.shared.log_directory(&self.pod);
        let removed = tokio::task::spawn_blocking(move || remove(&logs)).await;
        if let Err(error) = removed.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            tracing::warn!(pod = %Key::of(&*self.pod), %error, "a pod's logs could not be removed");
            return false;
        }
        if self.is_gone() {
            return true;
        }
        match publish::delete(&self.context.client, &self.pod).await {
            Written::Done | Written::Gone => true,
            Written::Failed(error) => {
                tracing::debug!(pod = %Key::of(&*self.pod), error, "a pod could not be deleted from the API");
                false
            }
        }
    }
}

fn target(
    context: &Arc<NodeContext>,
    pod: &Pod,
    container: &k8s_openapi::api::core::v1::Container,
    attempt: u32,
    ips: &[std::net::IpAddr],
) -> Target {
    Target {
        ip: ips
            .first()
            .copied()
            .unwrap_or_else(|| std::net::Ipv4Addr::LOCALHOST.into()),
        ports: ports(container),
        exec: start::exec(context, pod, &container.name, attempt),
    }
}

async fn sleep_until(at: Option<Timestamp>) {
    match at {
        None => std::future::pending().await,
        Some(at) => {
            let left = Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default();
            tokio::time::sleep(left).await;
        }
    }
}
