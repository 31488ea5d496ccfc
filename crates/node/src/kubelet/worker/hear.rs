//! What a worker makes of what it hears.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use moorline_container as run;

use super::{
    super::{
        adopt,
        context::run_id,
        prepare::{Ready, Unready},
        start::{Refusal, field_path},
    },
    Life, Presence, TRY_AGAIN, Task, Update, Worker,
};
use crate::{
    events::Severity,
    pod::{EVICTED, Ended, Ending, KillReason, Kind, Sandbox, Shape, State, Trouble},
    probe::{Question, Report},
};

impl Worker {
    /// Takes note of something.
    pub(super) async fn take(&mut self, update: Update) {
        match update {
            Update::Pod(pod) => self.pod_changed(pod),
            Update::Gone => self.presence = Presence::Gone,
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
            Update::Evict(message) => self.evict(message),
            Update::Prepared(result) => {
                self.running.remove(&Task::Prepare);
                self.prepared(result);
            }
            Update::Began { container, attempt } => {
                self.running.remove(&Task::Container(container.clone()));
                let has_hook = self.shape.find(&container).is_some_and(|(_, container)| {
                    container
                        .lifecycle
                        .as_ref()
                        .is_some_and(|lifecycle| lifecycle.post_start.is_some())
                });
                let known = self.memory.container_mut(&container);
                let now = Timestamp::now();
                if let Some(finished) = known.ended().map(|ended| ended.finished) {
                    known.backoff.attempted(finished, now);
                }
                known.begin(attempt);
                known.hook_pending = has_hook;
                let resources = self
                    .shape
                    .find(&container)
                    .and_then(|(_, found)| found.resources.clone());
                self.memory
                    .allocated
                    .insert(container.clone(), resources.unwrap_or_default());
                self.catch_up(&container).await;
            }
            Update::Refused { container, refusal } => {
                self.running.remove(&Task::Container(container.clone()));
                self.refused(&container, refusal);
            }
            Update::Hooked {
                container,
                attempt,
                outcome,
            } => self.hooked(&container, &attempt, outcome),
            Update::Stopped(ending) => {
                self.running.remove(&Task::End);
                if self.memory.ending.as_ref() == Some(&ending) {
                    self.life = Life::Stopped;
                    self.collect_ends();
                }
            }
            Update::Refreshed(result) => {
                self.running.remove(&Task::Refresh);
                match result {
                    Ok(volumes) => self.volumes = volumes,
                    Err(failure) => {
                        let message = failure.to_string();
                        self.context
                            .recorder
                            .tell(&*self.pod, Severity::Warning, "FailedMount", message);
                    }
                }
            }
            Update::Nothing => {}
        }
    }

    fn evict(&mut self, message: String) {
        if self.memory.ending.is_some() {
            return;
        }
        self.context
            .recorder
            .tell(&*self.pod, Severity::Warning, EVICTED, message.clone());
        self.end(&Ending::Failed {
            reason: EVICTED.to_owned(),
            message,
            grace: 1,
        });
    }

    pub(super) fn pod_changed(&mut self, pod: Arc<Pod>) {
        let labelled = |pod: &Pod| (pod.metadata.labels.clone(), pod.metadata.annotations.clone());
        self.stale_volumes |= labelled(&pod) != labelled(&self.pod);
        if pod.spec != self.pod.spec {
            self.shape = Shape::of(&pod);
            for (_, container) in self.shape.of_kind(&[Kind::Sidecar, Kind::Main]) {
                let Some(known) = self.memory.containers.get_mut(&container.name) else {
                    continue;
                };
                let image = known.current.as_ref().map(|attempt| attempt.image.as_str());
                if known.is_running() && image.is_some_and(|image| Some(image) != container.image.as_deref()) {
                    known.unwanted = Some(KillReason::Changed);
                }
            }
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
    pub(super) fn current(&self, id: &str) -> Option<String> {
        self.memory.containers.iter().find_map(|(name, known)| {
            let attempt = known.current.as_ref()?;
            let same = adopt::container_name(name, known.restarts) == id;
            (same && !matches!(attempt.state, State::Ended(_))).then(|| name.clone())
        })
    }

    pub(super) async fn exited(&mut self, id: &str, exit: &run::Exit) {
        let Some(name) = self.current(id) else { return };
        self.note_end(&name, id, exit).await;
    }

    pub(super) async fn note_end(&mut self, name: &str, id: &str, exit: &run::Exit) {
        let shown = adopt::shown_id(
            &self.pod,
            name,
            self.memory.container(name).map_or(0, |known| known.restarts),
        );
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
    pub(super) async fn last_words(&self, id: &str) -> Option<String> {
        const LINES: usize = 80;
        const BYTES: usize = 2048;
        let (pod, id) = (run_id(&self.pod).ok()?, id.parse().ok()?);
        let options = run::LogOptions {
            tail_lines: Some(LINES),
            ..run::LogOptions::default()
        };
        let mut reader = self.context.shared.runtime.logs(&pod, &id, options).await.ok()?;
        let mut bytes = Vec::new();
        while let Ok(Some(entry)) = reader.next().await {
            bytes.extend(entry.text);
        }
        let from = bytes.len().saturating_sub(BYTES);
        Some(String::from_utf8_lossy(&bytes[from..]).into_owned()).filter(|text| !text.is_empty())
    }

    /// What was quick has ended before the worker knew that it had begun, and the news of its end was passed over. The
    /// runtime knows of an end before it tells of it, so one that it does not know of yet is still to be told.
    pub(super) async fn catch_up(&mut self, name: &str) {
        let Some(known) = self.memory.container(name) else {
            return;
        };
        let id = adopt::container_name(name, known.restarts);
        let (Ok(pod), Ok(container)) = (run_id(&self.pod), id.parse()) else {
            return;
        };
        if let Ok(status) = self.context.shared.runtime.container(&pod, &container) {
            match status.state {
                run::State::Exited(exit) => self.exited(&id, &exit).await,
                run::State::Lost => self.lost(Some(&id)),
                run::State::Created | run::State::Running { .. } => {}
            }
        }
    }

    pub(super) fn lost(&mut self, id: Option<&str>) {
        let names: Vec<_> = if let Some(id) = id {
            self.current(id).into_iter().collect()
        } else {
            self.memory.sandbox = None;
            self.memory.containers.keys().cloned().collect()
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

    pub(super) fn prepared(&mut self, result: Result<Ready, Unready>) {
        match result {
            Ok(ready) => {
                self.volumes = ready.volumes;
                self.memory.sandbox = Some(Sandbox { ips: ready.ips });
                self.memory.had_sandbox = true;
                self.memory.unprepared = None;
            }
            Err(unready) => {
                self.context
                    .recorder
                    .tell(&*self.pod, Severity::Warning, unready.reason, unready.message);
                let failures = self.memory.unprepared.map_or(0, |(_, failures)| failures) + 1;
                let wait = Duration::from_millis(500) * 2_u32.saturating_pow(failures.min(7));
                self.memory.unprepared = Some((Timestamp::now() + wait, failures));
            }
        }
    }

    pub(super) fn refused(&mut self, name: &str, refusal: Refusal) {
        let now = Timestamp::now();
        let known = self.memory.container_mut(name);
        match refusal {
            Refusal::Image { reason, message } => {
                known.pull_failed = Some((now, message.clone()));
                known.pull_backoff.attempted(now, now);
                known.trouble = Some(Trouble {
                    reason: reason.to_owned(),
                    message,
                    until: now + Duration::from_secs(2),
                });
            }
            Refusal::Config { reason, message } => {
                known.trouble = Some(Trouble {
                    reason: reason.to_owned(),
                    message,
                    until: now + TRY_AGAIN,
                });
            }
            Refusal::Run { attempt, message } => {
                if let Some(finished) = known.ended().map(|ended| ended.finished) {
                    known.backoff.attempted(finished, now);
                }
                known.begin(attempt);
                known.trouble = Some(Trouble {
                    reason: "RunContainerError".to_owned(),
                    message,
                    until: now + Duration::from_secs(1),
                });
            }
        }
    }

    pub(super) fn hooked(&mut self, name: &str, attempt: &str, outcome: Result<(), String>) {
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
                self.context.recorder.tell_container(
                    &self.pod,
                    &field,
                    Severity::Warning,
                    "FailedPostStartHook",
                    message,
                );
            }
        }
    }

    pub(super) fn probed(&mut self, report: Report) {
        match report {
            Report::Failed {
                container,
                question,
                words,
            } => {
                let kind = self.shape.find(&container).map_or(Kind::Main, |(kind, _)| kind);
                let message = format!("{question} probe failed: {words}");
                let field = field_path(kind, &container);
                self.context
                    .recorder
                    .tell_container(&self.pod, &field, Severity::Warning, "Unhealthy", message);
            }
            Report::Settled {
                container,
                attempt,
                question,
                healthy,
            } => {
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

    /// Takes from the runtime how everything ended, where the news has not come yet.
    pub(super) fn collect_ends(&mut self) {
        let Ok(id) = run_id(&self.pod) else { return };
        let status = self.context.shared.runtime.pod(&id).ok();
        let names: Vec<_> = self.memory.containers.keys().cloned().collect();
        for name in names {
            let Some(known) = self.memory.container(&name) else {
                continue;
            };
            let runtime_name = adopt::container_name(&name, known.restarts);
            let Some(attempt) = &known.current else { continue };
            if matches!(attempt.state, State::Ended(_)) {
                continue;
            }
            let shown = attempt.id.clone();
            let found = status.iter().flat_map(|status| &status.containers);
            let state = found
                .into_iter()
                .find(|found| found.spec.id.as_str() == runtime_name)
                .map(|found| &found.state);
            let ended: Ended = match state {
                Some(run::State::Exited(exit)) => adopt::ended(&shown, exit),
                _ => adopt::lost(&shown),
            };
            if let Some(attempt) = &mut self.memory.container_mut(&name).current {
                attempt.state = State::Ended(ended);
            }
        }
    }
}
