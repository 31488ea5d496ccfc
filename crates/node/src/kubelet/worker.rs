//! One pod's worker.

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
    context::{NodeContext, net_id, remove_files, run_id},
    prepare::{self, Ready, Unready, ports, told},
    publish::{self, Written},
    start::{self, Order, Refusal, field_path},
    stop::{self, Victim},
};
use crate::{
    env::Facts,
    events::{Severity, seconds},
    key::Key,
    pod::{
        self, Action, Attempt, Decision, Ended, Ending, KillReason, Kind, Memory, Sandbox, Shape, State, Trouble,
        decide, described,
    },
    probe::{self, Question, Report, Target, Watch},
    volume::{Failure, Setting, Volumes, refresh},
};

/// Something that a worker hears of.
#[derive(Debug)]
pub(crate) enum Update {
    /// The pod as the API has it now.
    Pod(Arc<Pod>),
    /// The API has it no more.
    Gone,
    /// A container has ended.
    Exited { container: String, exit: run::Exit },
    /// A container is lost, or all of them are.
    Lost { container: Option<String> },
    Probe(Report),
    /// An object that the pod's volumes may show has changed.
    ObjectChanged,
    Prepared(Result<Ready, Unready>),
    Began { container: String, attempt: Attempt },
    Refused { container: String, refusal: Refusal },
    Hooked { container: String, attempt: String, outcome: Result<(), String> },
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
    /// Set once nothing runs any more.
    stopped: bool,
    gone: bool,
    stale_volumes: bool,
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
        adopted: Option<&run::PodStatus>,
        own: mpsc::UnboundedSender<Update>,
        updates: mpsc::UnboundedReceiver<Update>,
    ) -> Self {
        let shape = Shape::of(&pod);
        let mut memory = adopt::memory(&pod, &shape, adopted, Timestamp::now());
        if adopted.is_some()
            && memory.sandbox.is_some()
            && let Ok(id) = net_id(&pod)
            && let Ok(network) = context.shared.network.pod(&id)
        {
            memory.sandbox = Some(Sandbox { ips: vec![network.address.into()] });
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
            stopped: false,
            gone: false,
            stale_volumes: adopted.is_some(),
            pod,
        }
    }

    /// Works until nothing of the pod is left.
    pub(crate) async fn run(mut self) -> Finished {
        if let Some(ending) = admit(&self.pod)
            && self.memory.ending.is_none()
            && !self.is_terminal()
        {
            self.memory.ending = Some(ending);
            self.stopped = true;
        }
        let mut waiting = VecDeque::new();
        loop {
            while let Ok(update) = self.updates.try_recv() {
                waiting.push_back(update);
            }
            for update in waiting.drain(..) {
                self.take(update).await;
            }
            let decision = self.decide();
            self.note_waits(&decision);
            self.publish().await;
            if self.stopped && (self.gone || self.pod.metadata.deletion_timestamp.is_some()) {
                if self.finish().await {
                    return Finished::Removed;
                }
                tokio::time::sleep(WRITE_AGAIN).await;
                continue;
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

    fn is_terminal(&self) -> bool {
        let phase = self.pod.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }

    fn decide(&mut self) -> Decision {
        if self.gone {
            // Deleted without waiting: as if by a deletion with the shortest grace.
            let ending = Ending::Deleted { grace: 1 };
            if self.memory.ending.as_ref() == Some(&ending) {
                return Decision::default();
            }
            return Decision { actions: vec![Action::End(ending)], look_again: None };
        }
        if self.is_terminal() && self.memory.ending.is_none() && !self.memory.anything_runs() {
            self.memory.ending = Some(Ending::Over);
            self.stopped = true;
        }
        decide(&self.pod, &self.shape, &self.memory, Timestamp::now())
    }

    fn wake(&self, decision: &Decision) -> Option<Timestamp> {
        let mut wake = decision.look_again;
        let mut earlier = |at: Timestamp| wake = Some(wake.map_or(at, |before| before.min(at)));
        if self.write_failed {
            earlier(Timestamp::now() + WRITE_AGAIN);
        }
        if let Some(renew) = self.volumes.renew
            && self.memory.ending.is_none()
        {
            earlier(renew);
        }
        wake
    }

    /// Takes note of something.
    async fn take(&mut self, update: Update) {
        match update {
            Update::Pod(pod) => self.pod_changed(pod),
            Update::Gone => self.gone = true,
            Update::Exited { container, exit } => self.exited(&container, &exit).await,
            Update::Lost { container } => self.lost(container.as_deref()),
            Update::Probe(report) => self.probed(report),
            Update::ObjectChanged => {
                self.stale_volumes = true;
                if let Some((until, _)) = &mut self.memory.unprepared {
                    *until = Timestamp::now();
                }
                for container in self.memory.containers.values_mut() {
                    if let Some(trouble) = &mut container.trouble
                        && trouble.reason == "CreateContainerConfigError"
                    {
                        trouble.until = Timestamp::now();
                    }
                }
            }
            Update::Prepared(result) => {
                self.running.remove(&Task::Prepare);
                self.prepared(result);
            }
            Update::Began { container, attempt } => {
                self.running.remove(&Task::Container(container.clone()));
                let has_hook = self.shape.find(&container).is_some_and(|(_, container)| {
                    container.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.post_start.is_some())
                });
                let known = self.memory.container_mut(&container);
                let now = Timestamp::now();
                if let Some(finished) = known.ended().map(|ended| ended.finished) {
                    known.backoff.attempted(finished, now);
                }
                known.begin(attempt);
                known.hook_pending = has_hook;
                self.catch_up(&container);
            }
            Update::Refused { container, refusal } => {
                self.running.remove(&Task::Container(container.clone()));
                self.refused(&container, refusal);
            }
            Update::Hooked { container, attempt, outcome } => self.hooked(&container, &attempt, outcome),
            Update::Stopped(ending) => {
                self.running.remove(&Task::End);
                if self.memory.ending.as_ref() == Some(&ending) {
                    self.stopped = true;
                    self.collect_ends();
                }
            }
            Update::Refreshed(result) => {
                self.running.remove(&Task::Refresh);
                match result {
                    Ok(volumes) => self.volumes = volumes,
                    Err(failure) => {
                        let message = failure.to_string();
                        self.context.recorder.tell(&*self.pod, Severity::Warning, "FailedMount", message);
                    }
                }
            }
            Update::Nothing => {}
        }
    }

    fn pod_changed(&mut self, pod: Arc<Pod>) {
        let labelled = |pod: &Pod| (pod.metadata.labels.clone(), pod.metadata.annotations.clone());
        self.stale_volumes |= labelled(&pod) != labelled(&self.pod);
        if pod.spec != self.pod.spec {
            self.shape = Shape::of(&pod);
            // A sub-path that could not be expanded may be expanded now.
            for container in self.memory.containers.values_mut() {
                if let Some(trouble) = &mut container.trouble
                    && trouble.reason == "CreateContainerConfigError"
                {
                    trouble.until = Timestamp::now();
                }
            }
        } else if labelled(&pod) != labelled(&self.pod) {
            for container in self.memory.containers.values_mut() {
                if let Some(trouble) = &mut container.trouble
                    && trouble.reason == "CreateContainerConfigError"
                {
                    trouble.until = Timestamp::now();
                }
            }
        }
        self.pod = pod;
    }

    /// The attempt that a container of the runtime is, if it is the current one.
    fn current(&self, id: &str) -> Option<String> {
        self.memory.containers.iter().find_map(|(name, known)| {
            let attempt = known.current.as_ref()?;
            let same = adopt::container_name(name, known.restarts) == id;
            (same && !matches!(attempt.state, State::Ended(_))).then(|| name.clone())
        })
    }

    async fn exited(&mut self, id: &str, exit: &run::Exit) {
        let Some(name) = self.current(id) else { return };
        self.note_end(&name, id, exit).await;
    }

    async fn note_end(&mut self, name: &str, id: &str, exit: &run::Exit) {
        let shown = adopt::shown_id(&self.pod, name, self.memory.container(name).map_or(0, |known| known.restarts));
        let mut ended = adopt::ended(&shown, exit);
        let falls_back = self.shape.find(name).is_some_and(|(_, container)| {
            container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError")
        });
        if falls_back && ended.exit_code != 0 && ended.message.is_none() {
            ended.message = self.last_words(id).await;
        }
        self.probes.remove(name);
        if let Some(attempt) = &mut self.memory.container_mut(name).current {
            attempt.state = State::Ended(ended);
        }
    }

    /// The end of a container's log, as a last word.
    async fn last_words(&self, id: &str) -> Option<String> {
        const LINES: usize = 80;
        const BYTES: usize = 2048;
        let (pod, id) = (run_id(&self.pod).ok()?, id.parse().ok()?);
        let options = run::LogOptions { tail_lines: Some(LINES), ..run::LogOptions::default() };
        let mut reader = self.context.shared.runtime.logs(&pod, &id, options).await.ok()?;
        let mut bytes = Vec::new();
        while let Ok(Some(entry)) = reader.next().await {
            bytes.extend(entry.text);
        }
        let from = bytes.len().saturating_sub(BYTES);
        Some(String::from_utf8_lossy(&bytes[from..]).into_owned()).filter(|text| !text.is_empty())
    }

    /// Something may have ended before the worker knew that it had begun.
    fn catch_up(&mut self, name: &str) {
        let Some(known) = self.memory.container(name) else { return };
        let id = adopt::container_name(name, known.restarts);
        let (Ok(pod), Ok(container)) = (run_id(&self.pod), id.parse()) else { return };
        let own = &self.own;
        if let Ok(status) = self.context.shared.runtime.container(&pod, &container) {
            // The worker's own channel is open while it lives.
            let _ = match status.state {
                run::State::Exited(exit) => own.send(Update::Exited { container: id, exit }),
                run::State::Lost => own.send(Update::Lost { container: Some(id) }),
                run::State::Created | run::State::Running { .. } => Ok(()),
            };
        }
    }

    fn lost(&mut self, id: Option<&str>) {
        let names: Vec<_> = match id {
            Some(id) => self.current(id).into_iter().collect(),
            None => {
                self.memory.sandbox = None;
                self.memory.containers.keys().cloned().collect()
            }
        };
        for name in names {
            self.probes.remove(&name);
            if let Some(attempt) = &mut self.memory.container_mut(&name).current
                && !matches!(attempt.state, State::Ended(_))
            {
                attempt.state = State::Ended(adopt::lost(&attempt.id));
            }
        }
    }

    fn prepared(&mut self, result: Result<Ready, Unready>) {
        match result {
            Ok(ready) => {
                self.volumes = ready.volumes;
                self.memory.sandbox = Some(Sandbox { ips: ready.ips });
                self.memory.had_sandbox = true;
                self.memory.unprepared = None;
            }
            Err(unready) => {
                self.context.recorder.tell(&*self.pod, Severity::Warning, unready.reason, unready.message);
                let failures = self.memory.unprepared.map_or(0, |(_, failures)| failures) + 1;
                let wait = Duration::from_millis(500) * 2_u32.saturating_pow(failures.min(7));
                self.memory.unprepared = Some((Timestamp::now() + wait, failures));
            }
        }
    }

    fn refused(&mut self, name: &str, refusal: Refusal) {
        let now = Timestamp::now();
        let known = self.memory.container_mut(name);
        match refusal {
            Refusal::Image { reason, message } => {
                known.pull_failed = Some((now, message.clone()));
                known.pull_backoff.attempted(now, now);
                known.trouble = Some(Trouble { reason: reason.to_owned(), message, until: now + Duration::from_secs(2) });
            }
            Refusal::Config { reason, message } => {
                known.trouble = Some(Trouble { reason: reason.to_owned(), message, until: now + TRY_AGAIN });
            }
            Refusal::Run { attempt, message } => {
                if let Some(finished) = known.ended().map(|ended| ended.finished) {
                    known.backoff.attempted(finished, now);
                }
                known.begin(attempt);
                known.trouble =
                    Some(Trouble { reason: "RunContainerError".to_owned(), message, until: now + Duration::from_secs(1) });
            }
        }
    }

    fn hooked(&mut self, name: &str, attempt: &str, outcome: Result<(), String>) {
        let kind = self.shape.find(name).map_or(Kind::Main, |(kind, _)| kind);
        let known = self.memory.container_mut(name);
        if known.current.as_ref().is_none_or(|current| current.id != attempt) {
            return;
        }
        match outcome {
            Ok(()) => known.hook_pending = false,
            Err(words) => {
                known.unwanted = Some(KillReason::Hook);
                let message = format!("PostStartHook failed: {words}");
                let field = field_path(kind, name);
                self.context.recorder.tell_container(&self.pod, &field, Severity::Warning, "FailedPostStartHook", message);
            }
        }
    }

    fn probed(&mut self, report: Report) {
        match report {
            Report::Failed { container, question, words } => {
                let kind = self.shape.find(&container).map_or(Kind::Main, |(kind, _)| kind);
                let message = format!("{question} probe failed: {words}");
                let field = field_path(kind, &container);
                self.context.recorder.tell_container(&self.pod, &field, Severity::Warning, "Unhealthy", message);
            }
            Report::Settled { container, attempt, question, healthy } => {
                let grace = self.shape.find(&container).and_then(|(_, container)| {
                    let probe = match question {
                        Question::Liveness => container.liveness_probe.as_ref(),
                        Question::Startup => container.startup_probe.as_ref(),
                        Question::Readiness => None,
                    };
                    probe.and_then(|probe| probe.termination_grace_period_seconds)
                });
                let known = self.memory.container_mut(&container);
                if known.current.as_ref().is_none_or(|current| current.id != attempt) {
                    return;
                }
                match (question, healthy) {
                    (Question::Readiness, healthy) => known.readiness = Some(healthy),
                    (Question::Startup, true) => {
                        known.startup = Some(true);
                        if let Some(probes) = self.probes.get(&container) {
                            probes.started.send_replace(true);
                        }
                    }
                    (Question::Startup, false) => known.unwanted = Some(KillReason::NotStarted { grace }),
                    (Question::Liveness, true) => {}
                    (Question::Liveness, false) => known.unwanted = Some(KillReason::Unhealthy { grace }),
                }
            }
        }
    }

    /// Keeps what a decision says about waiting, so that status and events tell it.
    fn note_waits(&mut self, decision: &Decision) {
        for action in &decision.actions {
            let Action::Wait { container, trouble } = action else { continue };
            let kind = self.shape.find(container).map_or(Kind::Main, |(kind, _)| kind);
            let known = self.memory.container_mut(container);
            if known.trouble.as_ref() != Some(trouble) {
                known.trouble = Some(trouble.clone());
                let message = format!(
                    "Back-off restarting failed container {container} in pod {}",
                    described(&self.pod)
                );
                let field = field_path(kind, container);
                self.context.recorder.tell_container(&self.pod, &field, Severity::Warning, "BackOff", message);
            }
        }
    }

    fn spawn(&mut self, task: Task, work: impl Future<Output = Update> + Send + 'static) {
        let own = self.own.clone();
        let handle = self.tasks.spawn(async move {
            // The worker's own channel is open while it lives.
            let _ = own.send(work.await);
        });
        self.running.insert(task, handle);
    }

    fn act(&mut self, decision: &Decision) {
        for action in &decision.actions {
            match action {
                Action::Prepare => {
                    if !self.running.contains_key(&Task::Prepare) {
                        let (context, pod) = (self.context.clone(), self.pod.clone());
                        self.spawn(Task::Prepare, async move {
                            Update::Prepared(prepare::prepare(&context, &pod).await)
                        });
                    }
                }
                Action::Start { container, kind } => self.start(container, *kind),
                Action::Kill { container, reason } => self.kill(container, reason),
                Action::Wait { .. } => {}
                Action::End(ending) => self.end(ending),
            }
        }
        let refreshes = self.memory.ending.is_none() && self.memory.sandbox.is_some();
        let due = self.volumes.renew.is_some_and(|renew| renew <= Timestamp::now());
        if refreshes && (self.stale_volumes || due) && !self.running.contains_key(&Task::Refresh) {
            self.stale_volumes = false;
            self.refresh();
        }
    }

    fn refresh(&mut self) {
        let (context, pod) = (self.context.clone(), self.pod.clone());
        let mut volumes = self.volumes.clone();
        let ips = self.memory.sandbox.as_ref().map(|sandbox| sandbox.ips.clone()).unwrap_or_default();
        self.spawn(Task::Refresh, async move {
            if volumes.places.is_empty() {
                // A pod that was taken over: find its volumes first.
                let found = prepare::volumes(&context, &pod, &ips).await;
                return Update::Refreshed(found.map_err(|unready| Failure {
                    volume: String::new(),
                    reason: unready.message,
                }));
            }
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            let facts = Facts {
                pod: &pod,
                container: None,
                pod_ips: &ips,
                host_ips: &context.addresses,
                allocatable: &context.allocatable,
            };
            let setting = Setting {
                client: &context.client,
                directory: &context.shared.volume_directory(&uid),
                private: &context.shared.private_directory(&uid),
                facts: &facts,
            };
            Update::Refreshed(refresh(&setting, &mut volumes).await.map(|()| volumes))
        });
    }

    fn start(&mut self, name: &str, kind: Kind) {
        let task = Task::Container(name.to_owned());
        if self.running.contains_key(&task) || self.running.contains_key(&Task::Kill(name.to_owned())) {
            return;
        }
        let Some((_, container)) = self.shape.find(name) else { return };
        let container = container.clone();
        let now = Timestamp::now();
        let image = container.image.clone().unwrap_or_default();
        let known = self.memory.container_mut(name);
        if let Some((since, why)) = &known.pull_failed
            && let Some((until, _)) = known.pull_backoff.until(*since)
            && now < until
        {
            let trouble = Trouble {
                reason: "ImagePullBackOff".to_owned(),
                message: format!("Back-off pulling image {image:?}: ErrImagePull: {why}"),
                until,
            };
            known.trouble = Some(trouble);
            let field = field_path(kind, name);
            let message = format!("Back-off pulling image {image:?}");
            self.context.recorder.tell_container(&self.pod, &field, Severity::Normal, "BackOff", message);
            let failed = "Error: ImagePullBackOff".to_owned();
            self.context.recorder.tell_container(&self.pod, &field, Severity::Warning, "Failed", failed);
            // Say so in the status at once.
            let _ = self.own.send(Update::Nothing);
            return;
        }
        if self.volumes.places.is_empty() && self.running.contains_key(&Task::Refresh) {
            return;
        }
        let attempt = if known.current.is_some() { known.restarts + 1 } else { known.restarts };
        let order = Order {
            pod: self.pod.clone(),
            kind,
            container,
            attempt,
            ips: self.memory.sandbox.as_ref().map(|sandbox| sandbox.ips.clone()).unwrap_or_default(),
            volumes: self.volumes.clone(),
        };
        let (context, own) = (self.context.clone(), self.own.clone());
        let name = name.to_owned();
        self.spawn(task, async move {
            match start::start(&context, &order).await {
                Ok(attempt) => {
                    let id = attempt.id.clone();
                    let hook = order.container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.clone());
                    let began = Update::Began { container: name.clone(), attempt };
                    let Some(handler) = hook else { return began };
                    let _ = own.send(began);
                    let target = target(&context, &order.pod, &order.container, order.attempt, &order.ips);
                    let outcome = probe::hook(&handler, &target, start::HOOK_LIMIT).await;
                    Update::Hooked { container: name, attempt: id, outcome }
                }
                Err(refusal) => Update::Refused { container: name, refusal },
            }
        });
    }

    fn victim(&self, name: &str, message: String) -> Option<Victim> {
        let (kind, container) = self.shape.find(name)?;
        let known = self.memory.container(name)?;
        Some(Victim { kind, container: container.clone(), attempt: known.restarts, message })
    }

    fn kill(&mut self, name: &str, reason: &KillReason) {
        let task = Task::Kill(name.to_owned());
        if self.running.contains_key(&task) {
            return;
        }
        let (message, own_grace) = match reason {
            KillReason::Unhealthy { grace } => {
                (format!("Container {name} failed liveness probe, will be restarted"), *grace)
            }
            KillReason::NotStarted { grace } => {
                (format!("Container {name} failed startup probe, will be restarted"), *grace)
            }
            KillReason::Hook => (format!("Container {name} failed postStartHook"), None),
            KillReason::Resized => (format!("Container {name} resize requires restart"), None),
            KillReason::Changed => (format!("Container {name} definition changed, will be restarted"), None),
        };
        let Some(victim) = self.victim(name, message) else { return };
        let whole = self.pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30);
        let grace = Duration::from_secs(u64::try_from(own_grace.unwrap_or(whole)).unwrap_or(0));
        let (context, pod, own) = (self.context.clone(), self.pod.clone(), self.own.clone());
        self.probes.remove(name);
        let handle = self.tasks.spawn(async move {
            stop::stop(&context, &pod, &victim, grace).await;
            let _ = own.send(Update::Nothing);
        });
        self.running.insert(task, handle);
    }

    fn end(&mut self, ending: &Ending) {
        let grace = match ending {
            Ending::Deleted { grace } | Ending::Failed { grace, .. } => *grace,
            Ending::Over => pod::grace_of(&self.pod),
        };
        self.memory.ending = Some(ending.clone());
        self.stopped = false;
        for (_, task) in self.running.drain() {
            task.abort();
        }
        for container in self.memory.containers.values_mut() {
            container.readiness = container.readiness.map(|_| false);
        }
        // Readiness and liveness of what is ending are nobody's concern.
        self.probes.clear();
        let names: Vec<_> = self.memory.containers.keys().cloned().collect();
        let victims: Vec<_> = names
            .iter()
            .filter(|name| self.memory.container(name).is_some_and(|known| known.is_running() || known.is_created()))
            .filter_map(|name| self.victim(name, format!("Stopping container {name}")))
            .collect();
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        let (context, pod, shape) = (self.context.clone(), self.pod.clone(), self.shape.clone());
        let ending = ending.clone();
        self.spawn(Task::End, async move {
            stop::stop_all(&context, &pod, &shape, &victims, grace).await;
            // A start that was cut short may have left a process that nobody has heard of.
            if let Ok(id) = run_id(&pod)
                && let Ok(status) = context.shared.runtime.pod(&id)
            {
                for left in status.containers {
                    if matches!(left.state, run::State::Running { .. }) {
                        let _ = context.shared.runtime.kill(&id, &left.spec.id).await;
                        let _ = context.shared.runtime.wait(&id, &left.spec.id, Duration::from_secs(20)).await;
                    }
                }
            }
            Update::Stopped(ending)
        });
    }

    /// Takes from the runtime how everything ended, where the news has not come yet.
    fn collect_ends(&mut self) {
        let Ok(id) = run_id(&self.pod) else { return };
        let status = self.context.shared.runtime.pod(&id).ok();
        let names: Vec<_> = self.memory.containers.keys().cloned().collect();
        for name in names {
            let Some(known) = self.memory.container(&name) else { continue };
            let runtime_name = adopt::container_name(&name, known.restarts);
            let Some(attempt) = &known.current else { continue };
            if matches!(attempt.state, State::Ended(_)) {
                continue;
            }
            let shown = attempt.id.clone();
            let found = status.iter().flat_map(|status| &status.containers);
            let state = found.into_iter().find(|found| found.spec.id.as_str() == runtime_name).map(|found| &found.state);
            let ended: Ended = match state {
                Some(run::State::Exited(exit)) => adopt::ended(&shown, exit),
                _ => adopt::lost(&shown),
            };
            if let Some(attempt) = &mut self.memory.container_mut(&name).current {
                attempt.state = State::Ended(ended);
            }
        }
    }

    /// Starts the probes of what began to run, and forgets those of what ended.
    fn tend_probes(&mut self) {
        self.running.retain(|_, task| !task.is_finished());
        if self.memory.ending.is_some() {
            return;
        }
        let mut wanted = Vec::new();
        for (_, container) in self.shape.of_kind(&[Kind::Sidecar, Kind::Main]) {
            let Some(known) = self.memory.container(&container.name) else { continue };
            let Some(attempt) = known.current.as_ref().filter(|_| known.is_running() && !known.hook_pending) else {
                continue;
            };
            let running = self.probes.get(&container.name).is_some_and(|probes| probes.attempt == attempt.id);
            if !running && known.unwanted.is_none() {
                wanted.push((container.clone(), attempt.id.clone(), known.restarts, known.startup));
            }
        }
        for (container, attempt, number, startup) in wanted {
            let ips = self.memory.sandbox.as_ref().map(|sandbox| sandbox.ips.clone()).unwrap_or_default();
            let target = Arc::new(target(&self.context, &self.pod, &container, number, &ips));
            let (started, receiver) = watch::channel(container.startup_probe.is_none() || startup == Some(true));
            let mut tasks = Vec::new();
            for (question, probe) in [
                (Question::Startup, &container.startup_probe),
                (Question::Liveness, &container.liveness_probe),
                (Question::Readiness, &container.readiness_probe),
            ] {
                let Some(probe) = probe.clone() else { continue };
                if question == Question::Startup && startup == Some(true) {
                    continue;
                }
                let (reports, mut heard) = mpsc::unbounded_channel();
                let own = self.own.clone();
                let watch = Watch {
                    question,
                    probe,
                    target: target.clone(),
                    container: container.name.clone(),
                    attempt: attempt.clone(),
                    started: receiver.clone(),
                    reports,
                };
                tasks.push(self.tasks.spawn(async move {
                    tokio::join!(probe::watch(watch), async {
                        while let Some(report) = heard.recv().await {
                            let _ = own.send(Update::Probe(report));
                        }
                    });
                }));
            }
            self.probes.insert(container.name.clone(), Probes { attempt, started, tasks });
        }
    }

    /// Writes the status if it says something new.
    async fn publish(&mut self) {
        if self.gone {
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
        let old = self.written.clone().or_else(|| self.pod.status.clone()).unwrap_or_default();
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

    /// Removes what is left of a pod that has stopped. Says whether all is done.
    async fn finish(&mut self) -> bool {
        let Ok(id) = run_id(&self.pod) else { return true };
        if let Err(error) = self.context.shared.runtime.remove_pod(&id).await {
            tracing::warn!(pod = %Key::of(&*self.pod), error = told(&error), "a pod's containers could not be removed");
            return false;
        }
        let (context, pod) = (self.context.clone(), self.pod.clone());
        let cleaned = tokio::task::spawn_blocking(move || {
            if let Ok(id) = net_id(&pod) {
                context.shared.network.detach(&id).map_err(|error| told(&error))?;
            }
            let uid = pod.metadata.uid.as_deref().unwrap_or("");
            remove_files(&context.shared, uid, &context.shared.log_directory(&pod)).map_err(|error| error.to_string())
        });
        if let Err(error) = cleaned.await.unwrap_or_else(|error| Err(error.to_string())) {
            tracing::warn!(pod = %Key::of(&*self.pod), error, "what a pod left could not be removed");
            return false;
        }
        if self.gone {
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
        ip: ips.first().copied().unwrap_or_else(|| std::net::Ipv4Addr::LOCALHOST.into()),
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

/// Kernel settings that a pod may have without asking anybody.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Why a node does not take a pod that was bound to it.
fn admit(pod: &Pod) -> Option<Ending> {
    let spec = pod.spec.as_ref()?;
    let sysctls = spec.security_context.iter().flat_map(|security| security.sysctls.iter().flatten());
    for sysctl in sysctls {
        let name = sysctl.name.replace('/', ".");
        if !SAFE_SYSCTLS.contains(&name.as_str()) {
            return Some(Ending::Failed {
                reason: "SysctlForbidden".to_owned(),
                message: format!("Pod was rejected: forbidden sysctl: {name:?} not allowlisted"),
                grace: 0,
            });
        }
    }
    None
}

