//! What is to be done next about a pod.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::{
    backoff::go_duration,
    memory::{ContainerMemory, Ending, Memory, State, Trouble},
    restart::restarts,
    shape::{Kind, Shape},
};

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Make namespaces, address and volumes.
    Prepare,
    /// Start a container, for the first time or again.
    Start { container: String, kind: Kind },
    /// Kill one container; what follows is decided when it has ended.
    Kill { container: String, reason: KillReason },
    /// Note that a container waits out its back-off.
    Wait { container: String, trouble: Trouble },
    /// Kill what still runs, and be done with the pod.
    End(Ending),
}

/// Why a single container is killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KillReason {
    /// Its liveness probe failed.
    Unhealthy { grace: Option<i64> },
    /// Its startup probe failed.
    NotStarted { grace: Option<i64> },
    /// Its post-start hook failed.
    Hook,
    /// Its resources changed in a way that takes a restart.
    Resized,
    /// Its definition changed.
    Changed,
}

/// What to do, and when to look again if nothing happens before.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) actions: Vec<Action>,
    pub(crate) look_again: Option<Timestamp>,
}

impl Decision {
    fn look_at(&mut self, at: Timestamp) {
        self.look_again = Some(self.look_again.map_or(at, |before| before.min(at)));
    }
}

/// Decides. The same pod, memory and moment always give the same decision.
pub(crate) fn decide(pod: &Pod, shape: &Shape, memory: &Memory, now: Timestamp) -> Decision {
    let mut decision = Decision::default();
    if let Some(ending) = ending(pod, shape, memory, now, &mut decision) {
        if memory.ending.as_ref() != Some(&ending) {
            decision.actions.push(Action::End(ending));
        }
        return decision;
    }
    if memory.ending.is_some() {
        return decision;
    }
    if memory.sandbox.is_none() {
        match memory.unprepared {
            Some((until, _)) if now < until => decision.look_at(until),
            _ => decision.actions.push(Action::Prepare),
        }
        return decision;
    }
    for (name, container) in &memory.containers {
        if let (Some(reason), true) = (&container.unwanted, container.is_running()) {
            decision.actions.push(Action::Kill {
                container: name.clone(),
                reason: reason.clone(),
            });
        }
    }
    let initialised = initialise(pod, shape, memory, now, &mut decision);
    for (kind, container) in shape.of_kind(&[Kind::Ephemeral]) {
        if memory
            .container(&container.name)
            .is_none_or(|known| known.current.is_none())
        {
            attempt(pod, kind, container, memory, now, &mut decision);
        }
    }
    if initialised {
        for (kind, container) in shape.of_kind(&[Kind::Main]) {
            tend(pod, shape, kind, container, memory, now, &mut decision);
        }
    }
    decision
}

/// Why the whole pod ends now, if it does. The first cause stays, but a deletion's grace can shorten.
fn ending(pod: &Pod, shape: &Shape, memory: &Memory, now: Timestamp, decision: &mut Decision) -> Option<Ending> {
    if pod.metadata.deletion_timestamp.is_some() {
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(30);
        return match &memory.ending {
            Some(already @ Ending::Failed { grace: given, .. }) if *given <= grace => Some(already.clone()),
            _ => Some(Ending::Deleted { grace }),
        };
    }
    if let Some(already @ (Ending::Failed { .. } | Ending::Over)) = &memory.ending {
        return Some(already.clone());
    }
    let deadline = pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
    if let Some(seconds) = deadline {
        let at = memory.accepted + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        if now >= at {
            return Some(Ending::Failed {
                reason: "DeadlineExceeded".to_owned(),
                message: "Pod was active on the node longer than the specified deadline".to_owned(),
                grace: grace_of(pod),
            });
        }
        decision.look_at(at);
    }
    over(shape, memory).then_some(Ending::Over)
}

/// The time that a pod asks for to end in.
pub(crate) fn grace_of(pod: &Pod) -> i64 {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds)
        .unwrap_or(30)
}

/// Whether nothing will run any more but what runs beside.
fn over(shape: &Shape, memory: &Memory) -> bool {
    let done_for = |kind: Kind, container: &Container| {
        let ended = memory.container(&container.name).and_then(ContainerMemory::ended);
        ended.is_some_and(|ended| !restarts(shape.restart, kind, container, ended))
    };
    let failed_start = shape.of_kind(&[Kind::Init]).any(|(kind, container)| {
        let ended = memory.container(&container.name).and_then(ContainerMemory::ended);
        ended.is_some_and(|ended| ended.exit_code != 0 && !restarts(shape.restart, kind, container, ended))
    });
    let mut mains = shape.of_kind(&[Kind::Main]).peekable();
    failed_start || (mains.peek().is_some() && mains.all(|(kind, container)| done_for(kind, container)))
}

/// Sees to the init containers in their order. Says whether the main ones may start.
fn initialise(pod: &Pod, shape: &Shape, memory: &Memory, now: Timestamp, decision: &mut Decision) -> bool {
    let begun = shape.of_kind(&[Kind::Main]).any(|(_, container)| {
        memory
            .container(&container.name)
            .is_some_and(|known| known.current.is_some())
    });
    for (kind, container) in shape.of_kind(&[Kind::Init, Kind::Sidecar]) {
        let known = memory.container(&container.name);
        if kind == Kind::Init {
            if begun {
                continue;
            }
            match known.and_then(ContainerMemory::ended) {
                Some(ended) if ended.exit_code == 0 => continue,
                _ => {
                    tend(pod, shape, kind, container, memory, now, decision);
                    return false;
                }
            }
        }
        tend(pod, shape, kind, container, memory, now, decision);
        let started = known.is_some_and(|known| {
            known.is_running()
                && !known.hook_pending
                && (container.startup_probe.is_none() || known.startup == Some(true))
        });
        if !started && !begun {
            return false;
        }
    }
    true
}

/// Starts a container that is to run and does not.
fn tend(
    pod: &Pod,
    shape: &Shape,
    kind: Kind,
    container: &Container,
    memory: &Memory,
    now: Timestamp,
    decision: &mut Decision,
) {
    let known = memory.container(&container.name);
    match known.and_then(ContainerMemory::state) {
        None | Some(State::Ended(_)) => {}
        Some(State::Created | State::Running { .. }) => return,
    }
    if let Some(ended) = known.and_then(ContainerMemory::ended)
        && !restarts(shape.restart, kind, container, ended)
    {
        return;
    }
    attempt(pod, kind, container, memory, now, decision);
}

fn attempt(pod: &Pod, kind: Kind, container: &Container, memory: &Memory, now: Timestamp, decision: &mut Decision) {
    let name = container.name.clone();
    let known = memory.container(&container.name);
    if let Some(trouble) = known.and_then(|known| known.trouble.as_ref())
        && now < trouble.until
    {
        decision.look_at(trouble.until);
        return;
    }
    let ended = known.and_then(|known| known.ended().map(|ended| (known, ended)));
    if let Some((known, ended)) = ended
        && let Some((until, wait)) = known.backoff.until(ended.finished)
        && now < until
    {
        decision.look_at(until);
        let trouble = Trouble {
            reason: "CrashLoopBackOff".to_owned(),
            message: format!(
                "back-off {} restarting failed container={name} pod={}",
                go_duration(wait),
                super::described(pod)
            ),
            until,
        };
        decision.actions.push(Action::Wait {
            container: name,
            trouble,
        });
        return;
    }
    decision.actions.push(Action::Start { container: name, kind });
}
