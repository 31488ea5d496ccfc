//! Taking over pods that run already: what was known of them is told by their labels and by the API.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use moorline_container as run;

use crate::{
    events::seconds,
    pod::{Attempt, ContainerMemory, Ended, Memory, Sandbox, Shape, State},
};

/// The words that are kept with pods and containers of the runtime.
pub(crate) mod labels {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::Pod;

    use crate::key::Key;

    pub(crate) const NAMESPACE: &str = "namespace";
    pub(crate) const NAME: &str = "name";
    pub(crate) const NODE: &str = "node";
    pub(crate) const CONTAINER: &str = "container";
    pub(crate) const ATTEMPT: &str = "attempt";
    pub(crate) const IMAGE: &str = "image";
    pub(crate) const IMAGE_ID: &str = "image-id";
    pub(crate) const STOP_SIGNAL: &str = "stop-signal";

    pub(crate) fn of_pod(pod: &Pod, node: &str) -> BTreeMap<String, String> {
        let key = Key::of(pod);
        let pairs = [(NAMESPACE, key.namespace), (NAME, key.name), (NODE, node.to_owned())];
        pairs
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

/// The name of one attempt at a container in the runtime.
pub(crate) fn container_name(container: &str, attempt: u32) -> String {
    format!("{container}-{attempt}")
}

/// The id of a container as the API shows it.
pub(crate) fn shown_id(pod: &Pod, container: &str, attempt: u32) -> String {
    format!(
        "moorline://{}_{container}_{attempt}",
        pod.metadata.uid.as_deref().unwrap_or("")
    )
}

/// What is known of a pod at the start: from the API, and from the runtime where it has the pod.
pub(crate) fn memory(pod: &Pod, shape: &Shape, running: Option<&run::PodStatus>, now: Timestamp) -> Memory {
    let status = pod.status.clone().unwrap_or_default();
    let mut memory = Memory::new(status.start_time.as_ref().map_or_else(|| seconds(now), |time| time.0));
    let statuses = status.init_container_statuses.iter().flatten();
    let statuses = statuses.chain(status.container_statuses.iter().flatten());
    let statuses = statuses.chain(status.ephemeral_container_statuses.iter().flatten());
    for told in statuses {
        if shape.find(&told.name).is_some() {
            memory.containers.insert(told.name.clone(), from_status(told));
            if let Some(resources) = &told.resources {
                memory.allocated.insert(told.name.clone(), resources.clone());
            }
        }
    }
    memory.had_sandbox = status.pod_ip.is_some();
    let Some(running) = running else { return memory };
    for found in &running.containers {
        let Some(name) = found.spec.labels.get(labels::CONTAINER) else {
            continue;
        };
        let attempt: u32 = found
            .spec
            .labels
            .get(labels::ATTEMPT)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        if matches!(found.state, run::State::Created) {
            // Its maker was cut short; the next start takes it up.
            continue;
        }
        let known = memory.container_mut(name);
        // An older attempt is what the API tells of it already.
        if known.current.is_some() && attempt < known.restarts {
            continue;
        }
        known.restarts = attempt;
        known.current = Some(from_runtime(pod, name, attempt, found));
    }
    if !running.lost {
        let ips = status.pod_ips.iter().flatten().filter_map(|ip| ip.ip.parse().ok());
        memory.sandbox = Some(Sandbox { ips: ips.collect() });
        memory.had_sandbox = true;
    }
    memory
}

fn from_runtime(pod: &Pod, name: &str, attempt: u32, found: &run::ContainerStatus) -> Attempt {
    let label = |label: &str| found.spec.labels.get(label).cloned().unwrap_or_default();
    let id = shown_id(pod, name, attempt);
    let state = match &found.state {
        run::State::Created => State::Created,
        run::State::Running { started_at, .. } => State::Running {
            since: seconds(*started_at),
        },
        run::State::Exited(exit) => State::Ended(ended(&id, exit)),
        run::State::Lost => State::Ended(lost(&id)),
    };
    Attempt {
        id,
        image: label(labels::IMAGE),
        image_id: label(labels::IMAGE_ID),
        state,
    }
}

/// How a container ended, in the API's words.
pub(crate) fn ended(id: &str, exit: &run::Exit) -> Ended {
    let reason = match exit.code {
        0 => "Completed",
        137 if exit.oom_kills > 0 => "OOMKilled",
        _ => "Error",
    };
    Ended {
        id: id.to_owned(),
        exit_code: exit.code,
        signal: None,
        reason: reason.to_owned(),
        message: Some(exit.message.clone()).filter(|message| !message.is_empty()),
        started: Some(seconds(exit.started_at)),
        finished: seconds(exit.finished_at),
    }
}

/// The end of a container of which nobody knows how it ended.
pub(crate) fn lost(id: &str) -> Ended {
    Ended {
        id: id.to_owned(),
        exit_code: 255,
        signal: None,
        reason: "Unknown".to_owned(),
        message: None,
        started: None,
        finished: seconds(Timestamp::now()),
    }
}

fn from_status(status: &ContainerStatus) -> ContainerMemory {
    let mut memory = ContainerMemory {
        restarts: u32::try_from(status.restart_count).unwrap_or(0),
        ..ContainerMemory::default()
    };
    let last = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let now = status.state.clone().unwrap_or_default();
    let id = status.container_id.clone().unwrap_or_default();
    let attempt = |state: State| Attempt {
        id: id.clone(),
        image: status.image.clone(),
        image_id: status.image_id.clone(),
        state,
    };
    if let Some(terminated) = &now.terminated {
        memory.current = Some(attempt(State::Ended(from_terminated(terminated))));
        memory.previous = last.map(from_terminated);
    } else if now.running.is_some() {
        // Whoever takes the pod over says whether it still does.
        memory.current = Some(attempt(State::Ended(lost(&id))));
        memory.previous = last.map(from_terminated);
    } else if let Some(last) = last {
        memory.current = Some(attempt(State::Ended(from_terminated(last))));
    }
    memory
}

fn from_terminated(terminated: &ContainerStateTerminated) -> Ended {
    Ended {
        id: terminated.container_id.clone().unwrap_or_default(),
        exit_code: terminated.exit_code,
        signal: terminated.signal,
        reason: terminated.reason.clone().unwrap_or_default(),
        message: terminated.message.clone(),
        started: terminated.started_at.as_ref().map(|time| time.0),
        finished: terminated
            .finished_at
            .as_ref()
            .map_or_else(|| seconds(Timestamp::now()), |time| time.0),
    }
}
