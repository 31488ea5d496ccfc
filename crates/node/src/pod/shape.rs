//! The containers of a pod, with the part that each plays.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use crate::amounts::is_sidecar;

/// The part that a container plays in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// Runs to its end before what comes after it.
    Init,
    /// An init container that keeps running.
    Sidecar,
    /// What the pod is for.
    Main,
    /// Added later to look into the pod; never restarted.
    Ephemeral,
}

/// The containers of a pod in the order in which they start.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) containers: Vec<(Kind, Container)>,
    pub(crate) restart: Restart,
}

/// What follows when a container ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restart {
    Always,
    OnFailure,
    Never,
}

impl Restart {
    pub(crate) fn parse(policy: Option<&str>) -> Self {
        match policy {
            Some("Never") => Restart::Never,
            Some("OnFailure") => Restart::OnFailure,
            _ => Restart::Always,
        }
    }
}

impl Shape {
    pub(crate) fn of(pod: &Pod) -> Self {
        let empty = PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&empty);
        let mut containers = Vec::new();
        for container in spec.init_containers.iter().flatten() {
            let kind = if is_sidecar(container) {
                Kind::Sidecar
            } else {
                Kind::Init
            };
            containers.push((kind, container.clone()));
        }
        containers.extend(spec.containers.iter().map(|container| (Kind::Main, container.clone())));
        for container in spec.ephemeral_containers.iter().flatten() {
            // The two types have the same fields but for the target.
            let container = serde_json::to_value(container).and_then(serde_json::from_value);
            containers.extend(container.ok().map(|container| (Kind::Ephemeral, container)));
        }
        Self {
            containers,
            restart: Restart::parse(spec.restart_policy.as_deref()),
        }
    }

    pub(crate) fn of_kind(&self, kinds: &'static [Kind]) -> impl DoubleEndedIterator<Item = (Kind, &Container)> {
        let of_kind = self.containers.iter().filter(|(kind, _)| kinds.contains(kind));
        of_kind.map(|(kind, container)| (*kind, container))
    }

    pub(crate) fn find(&self, name: &str) -> Option<(Kind, &Container)> {
        let found = self.containers.iter().find(|(_, container)| container.name == name);
        found.map(|(kind, container)| (*kind, container))
    }
}
