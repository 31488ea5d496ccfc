//! What a node knows of a pod that it runs.

use std::{collections::BTreeMap, net::IpAddr};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ResourceRequirements;

use super::backoff::Backoff;

/// Everything known of one pod on this node.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    /// When the node first took note of the pod.
    pub(crate) accepted: Timestamp,
    pub(crate) sandbox: Option<Sandbox>,
    /// Set while no sandbox can be made: when to try again, and how often it failed.
    pub(crate) unprepared: Option<(Timestamp, u32)>,
    pub(crate) containers: BTreeMap<String, ContainerMemory>,
    /// Set once, when the pod as a whole is to end.
    pub(crate) ending: Option<Ending>,
    /// Whether a sandbox could ever be made: after that, a missing one is told as changed.
    pub(crate) had_sandbox: bool,
    /// What the node last gave each container, where that may differ from the spec.
    pub(crate) allocated: BTreeMap<String, ResourceRequirements>,
    /// Why a resize waits or cannot be: reason and message.
    pub(crate) resize_pending: Option<(&'static str, String)>,
    pub(crate) resize_running: bool,
}

/// The namespaces and the address of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sandbox {
    pub(crate) ips: Vec<IpAddr>,
}

/// Why a pod as a whole ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It was deleted, with so many seconds of grace.
    Deleted { grace: i64 },
    /// The node ends it: the status' reason and message.
    Failed {
        reason: String,
        message: String,
        grace: i64,
    },
    /// Its containers have come to their end, sidecars remain.
    Over,
}

/// What is known of one container.
#[derive(Debug, Clone, Default)]
pub(crate) struct ContainerMemory {
    pub(crate) current: Option<Attempt>,
    /// How the attempt before ended.
    pub(crate) previous: Option<Ended>,
    /// How often it was started again.
    pub(crate) restarts: u32,
    pub(crate) trouble: Option<Trouble>,
    pub(crate) backoff: Backoff,
    pub(crate) pull_backoff: Backoff,
    /// When its image could last not be had, and why.
    pub(crate) pull_failed: Option<(Timestamp, String)>,
    /// What the probes say; `None` while they have not spoken.
    pub(crate) startup: Option<bool>,
    pub(crate) readiness: Option<bool>,
    /// Whether its post-start hook still runs.
    pub(crate) hook_pending: bool,
    /// Set when the current attempt is to be killed, and why.
    pub(crate) unwanted: Option<super::KillReason>,
}

/// One run of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) id: String,
    /// As the spec named it.
    pub(crate) image: String,
    pub(crate) image_id: String,
    pub(crate) state: State,
}

/// Where one run of a container stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// Made, and its process not yet let go.
    Created,
    /// Its process runs.
    Running { since: Timestamp },
    /// Its process has ended.
    Ended(Ended),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) id: String,
    pub(crate) exit_code: i32,
    pub(crate) signal: Option<i32>,
    pub(crate) reason: String,
    pub(crate) message: Option<String>,
    pub(crate) started: Option<Timestamp>,
    pub(crate) finished: Timestamp,
}

/// Why a container could not be started, or is not yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) reason: String,
    pub(crate) message: String,
    /// When to try again.
    pub(crate) until: Timestamp,
}

impl Memory {
    pub(crate) fn new(accepted: Timestamp) -> Self {
        Self {
            accepted,
            sandbox: None,
            unprepared: None,
            containers: BTreeMap::new(),
            ending: None,
            had_sandbox: false,
            allocated: BTreeMap::new(),
            resize_pending: None,
            resize_running: false,
        }
    }

    pub(crate) fn container(&self, name: &str) -> Option<&ContainerMemory> {
        self.containers.get(name)
    }

    pub(crate) fn container_mut(&mut self, name: &str) -> &mut ContainerMemory {
        self.containers.entry(name.to_owned()).or_default()
    }

    /// Whether any container has a process, or is about to.
    pub(crate) fn anything_runs(&self) -> bool {
        self.containers
            .values()
            .any(|container| container.is_running() || container.is_created())
    }
}

impl ContainerMemory {
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state(), Some(State::Running { .. }))
    }

    pub(crate) fn is_created(&self) -> bool {
        matches!(self.state(), Some(State::Created))
    }

    pub(crate) fn state(&self) -> Option<&State> {
        self.current.as_ref().map(|attempt| &attempt.state)
    }

    pub(crate) fn ended(&self) -> Option<&Ended> {
        match self.state() {
            Some(State::Ended(ended)) => Some(ended),
            _ => None,
        }
    }

    /// Notes that another attempt begins: what was is kept as the one before.
    pub(crate) fn begin(&mut self, attempt: Attempt) {
        if let Some(Attempt {
            state: State::Ended(ended),
            ..
        }) = self.current.take()
        {
            self.previous = Some(ended);
            self.restarts += 1;
        }
        self.current = Some(attempt);
        self.trouble = None;
        self.unwanted = None;
        self.startup = None;
        self.readiness = None;
        self.hook_pending = false;
    }
}
