//! The status of a pod, from its spec and what is known of it.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus, VolumeMountStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{
    memory::{ContainerMemory, Ended, Ending, Memory, State},
    restart::restarts,
    shape::{Kind, Shape},
};
use crate::amounts::qos_class;

/// The reason of a pod that the node ended to get back what it took.
pub(crate) const EVICTED: &str = "Evicted";

/// Whether the API says that a pod has come to its end.
pub(crate) fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether the API says that a container of a pod runs.
pub(crate) fn says_that_something_runs(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| {
        let parts = [
            &status.init_container_statuses,
            &status.container_statuses,
            &status.ephemeral_container_statuses,
        ];
        parts.into_iter().flatten().flatten()
    });
    let mut states = statuses.filter_map(|status| status.state.as_ref());
    states.any(|state| state.running.is_some())
}

/// `name_namespace(uid)`, as a kubelet names pods in messages.
pub(crate) fn described(pod: &Pod) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let meta = &pod.metadata;
    format!("{}_{}({})", text(&meta.name), text(&meta.namespace), text(&meta.uid))
}

/// The whole status. What others wrote (conditions that are not a kubelet's, the nomination) is taken from the pod.
pub(crate) fn status(pod: &Pod, shape: &Shape, memory: &Memory, hosts: &[IpAddr], now: Timestamp) -> PodStatus {
    let old = pod.status.clone().unwrap_or_default();
    let spec = pod.spec.clone().unwrap_or_default();
    let of = |kinds: &'static [Kind]| -> Option<Vec<ContainerStatus>> {
        let statuses = shape
            .of_kind(kinds)
            .map(|(kind, container)| container_status(kind, container, memory, shape));
        let statuses: Vec<_> = statuses.collect();
        (!statuses.is_empty()).then_some(statuses)
    };
    let mains = of(&[Kind::Main]);
    let inits = of(&[Kind::Init, Kind::Sidecar]);
    let phase = phase(pod, shape, memory, &old);
    let ips: Vec<IpAddr> = if spec.host_network == Some(true) {
        if memory.sandbox.is_some() || memory.had_sandbox {
            hosts.to_vec()
        } else {
            Vec::new()
        }
    } else {
        memory
            .sandbox
            .as_ref()
            .map(|sandbox| sandbox.ips.clone())
            .unwrap_or_default()
    };
    let (mut reason, mut message) = (None, None);
    if let Some(Ending::Failed {
        reason: why,
        message: words,
        ..
    }) = &memory.ending
    {
        reason = Some(why.clone());
        message = Some(words.clone());
    }
    let mut status = PodStatus {
        phase: Some(phase.to_owned()),
        reason,
        message,
        start_time: Some(Time(memory.accepted)),
        qos_class: Some(old.qos_class.clone().unwrap_or_else(|| qos_class(&spec).to_owned())),
        host_ip: hosts.first().map(ToString::to_string),
        host_ips: Some(hosts.iter().map(|ip| HostIP { ip: ip.to_string() }).collect()),
        pod_ip: ips.first().map(ToString::to_string),
        pod_ips: (!ips.is_empty()).then(|| ips.iter().map(|ip| PodIP { ip: ip.to_string() }).collect()),
        container_statuses: mains,
        init_container_statuses: inits,
        ephemeral_container_statuses: of(&[Kind::Ephemeral]),
        observed_generation: pod.metadata.generation,
        ..old.clone()
    };
    status.nominated_node_name = None;
    status.conditions = Some(conditions(pod, shape, memory, &status, &old, now));
    status
}

fn is_initialised(shape: &Shape, memory: &Memory) -> bool {
    let begun = shape.of_kind(&[Kind::Main]).any(|(_, container)| {
        memory
            .container(&container.name)
            .is_some_and(|known| known.current.is_some())
    });
    begun
        || shape.of_kind(&[Kind::Init, Kind::Sidecar]).all(|(kind, container)| {
            let known = memory.container(&container.name);
            known.is_some_and(|known| match kind {
                Kind::Init => known.ended().is_some_and(|ended| ended.exit_code == 0),
                _ => is_started(container, known),
            })
        })
}

fn is_started(container: &Container, known: &ContainerMemory) -> bool {
    known.is_running() && !known.hook_pending && (container.startup_probe.is_none() || known.startup == Some(true))
}

fn is_ready(kind: Kind, container: &Container, known: &ContainerMemory, ending: bool) -> bool {
    match kind {
        Kind::Init => known.ended().is_some_and(|ended| ended.exit_code == 0),
        Kind::Ephemeral => false,
        Kind::Sidecar | Kind::Main => {
            let probed = match (&container.readiness_probe, known.readiness) {
                (None, _) => !ending || known.readiness != Some(false),
                (Some(_), said) => said == Some(true),
            };
            is_started(container, known) && probed
        }
    }
}

fn container_status(kind: Kind, container: &Container, memory: &Memory, shape: &Shape) -> ContainerStatus {
    let unknown = ContainerMemory::default();
    let known = memory.container(&container.name).unwrap_or(&unknown);
    let attempt = known.current.as_ref();
    let mut last = known.previous.as_ref().map(terminated);
    let unstarted = if shape.of_kind(&[Kind::Init, Kind::Sidecar]).next().is_some() {
        "PodInitializing"
    } else {
        "ContainerCreating"
    };
    let state = match known.state() {
        Some(State::Running { since }) => running(*since),
        Some(State::Ended(ended)) => match &known.trouble {
            Some(trouble) if memory.ending.is_none() && restarts(shape.restart, kind, container, ended) => {
                last = Some(terminated(ended));
                waiting(&trouble.reason, Some(trouble.message.clone()))
            }
            _ => terminated(ended),
        },
        Some(State::Created) => waiting(unstarted, None),
        None => match &known.trouble {
            Some(trouble) => waiting(&trouble.reason, Some(trouble.message.clone())),
            None => waiting(unstarted, None),
        },
    };
    let image = attempt.map_or_else(
        || container.image.clone().unwrap_or_default(),
        |attempt| attempt.image.clone(),
    );
    let resources = memory.allocated.get(&container.name).or(container.resources.as_ref());
    let shown = (known.is_running() && kind != Kind::Ephemeral)
        .then(|| resources.cloned())
        .flatten();
    let requests = resources.and_then(|resources| resources.requests.clone());
    ContainerStatus {
        name: container.name.clone(),
        image,
        image_id: attempt.map(|attempt| attempt.image_id.clone()).unwrap_or_default(),
        container_id: attempt.map(|attempt| attempt.id.clone()),
        ready: is_ready(kind, container, known, memory.ending.is_some()),
        started: Some(match kind {
            Kind::Init => known.is_running(),
            _ => is_started(container, known),
        }),
        restart_count: i32::try_from(known.restarts).unwrap_or(i32::MAX),
        state: Some(state),
        last_state: Some(last.unwrap_or_default()),
        allocated_resources: shown.is_some().then_some(requests).flatten(),
        resources: shown,
        volume_mounts: mounts(container),
        ..ContainerStatus::default()
    }
}

fn mounts(container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container.volume_mounts.as_ref()?.iter().map(|mount| VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only,
        recursive_read_only: mount
            .read_only
            .filter(|read_only| *read_only)
            .map(|_| "Disabled".to_owned()),
        ..VolumeMountStatus::default()
    });
    Some(mounts.collect())
}

fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message,
        }),
        ..ContainerState::default()
    }
}

fn running(since: Timestamp) -> ContainerState {
    ContainerState {
        running: Some(ContainerStateRunning {
            started_at: Some(Time(since)),
        }),
        ..ContainerState::default()
    }
}

fn terminated(ended: &Ended) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            container_id: Some(ended.id.clone()).filter(|id| !id.is_empty()),
            exit_code: ended.exit_code,
            signal: ended.signal,
            reason: Some(ended.reason.clone()),
            message: ended.message.clone(),
            started_at: ended.started.map(Time),
            finished_at: Some(Time(ended.finished)),
        }),
        ..ContainerState::default()
    }
}

/// Where the pod as a whole stands.
fn phase(pod: &Pod, shape: &Shape, memory: &Memory, old: &PodStatus) -> &'static str {
    // What is over stays over.
    match old.phase.as_deref() {
        Some("Failed") => return "Failed",
        Some("Succeeded") => return "Succeeded",
        _ => {}
    }
    let ending = memory.ending.is_some() || pod.metadata.deletion_timestamp.is_some();
    if matches!(memory.ending, Some(Ending::Failed { .. })) && !memory.anything_runs() {
        return "Failed";
    }
    let mut counts = Counts::default();
    let mut unfinished_start = false;
    let mut failed_start = false;
    for (kind, container) in shape.of_kind(&[Kind::Init, Kind::Sidecar]) {
        let unknown = ContainerMemory::default();
        let known = memory.container(&container.name).unwrap_or(&unknown);
        match (kind, known.ended()) {
            (Kind::Init, Some(ended)) if ended.exit_code == 0 => {}
            (Kind::Init, Some(ended)) => {
                failed_start |= !restarts(shape.restart, kind, container, ended) || ending;
                unfinished_start = true;
            }
            (Kind::Init, None) => unfinished_start = true,
            (_, ended) => unfinished_start |= ended.is_none() && !is_started(container, known),
        }
    }
    for (kind, container) in shape.of_kind(&[Kind::Main]) {
        let unknown = ContainerMemory::default();
        let known = memory.container(&container.name).unwrap_or(&unknown);
        counts.take(known, |ended| restarts(shape.restart, kind, container, ended));
    }
    let begun = counts.running + counts.stopped > 0;
    if failed_start && !memory.anything_runs() {
        return "Failed";
    }
    if unfinished_start && !begun {
        return if ending && !memory.anything_runs() && memory.had_sandbox {
            "Failed"
        } else {
            "Pending"
        };
    }
    counts.phase(ending)
}

#[derive(Default)]
struct Counts {
    waiting: usize,
    running: usize,
    stopped: usize,
    succeeded: usize,
    /// Whether one that stopped is started again, by the pod's policy or its own.
    starts_again: bool,
}

impl Counts {
    fn take(&mut self, known: &ContainerMemory, starts_again: impl Fn(&Ended) -> bool) {
        match known.state() {
            Some(State::Running { .. }) => self.running += 1,
            Some(State::Ended(ended)) => {
                self.stopped += 1;
                self.succeeded += usize::from(ended.exit_code == 0);
                self.starts_again |= starts_again(ended);
            }
            Some(State::Created) | None => self.waiting += 1,
        }
    }

    fn phase(&self, ending: bool) -> &'static str {
        if self.waiting > 0 {
            return if ending && self.running == 0 && self.stopped > 0 {
                "Failed"
            } else {
                "Pending"
            };
        }
        if self.running > 0 {
            return "Running";
        }
        let well = self.stopped == self.succeeded;
        match (self.starts_again && !ending, well) {
            (true, _) => "Running",
            (false, true) => "Succeeded",
            (false, false) => "Failed",
        }
    }
}

fn conditions(
    pod: &Pod,
    shape: &Shape,
    memory: &Memory,
    status: &PodStatus,
    old: &PodStatus,
    now: Timestamp,
) -> Vec<PodCondition> {
    let mut list = Vec::new();
    let mut put = |type_: &str, (status, reason, message): Told| {
        let before = old
            .conditions
            .iter()
            .flatten()
            .find(|condition| condition.type_ == type_);
        let since = before
            .filter(|before| before.status == status)
            .and_then(|before| before.last_transition_time.clone());
        list.push(PodCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason,
            message,
            observed_generation: pod.metadata.generation,
            last_probe_time: None,
            last_transition_time: Some(since.unwrap_or(Time(now))),
        });
    };
    // What is over has let go of it.
    let sandboxed = memory.sandbox.is_some() && !matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    put("PodReadyToStartContainers", (truth(sandboxed), None, None));
    put("Initialized", initialized(shape, memory, status));
    let containers = containers_ready(shape, memory, status);
    put("Ready", ready(pod, &containers));
    put("ContainersReady", containers);
    put("PodScheduled", ("True", None, None));
    if let Some((reason, message)) = &memory.resize_pending {
        put(
            "PodResizePending",
            ("True", Some((*reason).to_owned()), Some(message.clone())),
        );
    }
    if memory.resize_running {
        put("PodResizeInProgress", ("True", None, None));
    }
    if let Some(Ending::Failed { reason, message, .. }) = &memory.ending
        && reason == EVICTED
    {
        let why = Some("TerminationByKubelet".to_owned());
        put("DisruptionTarget", ("True", why, Some(message.clone())));
    }
    let ours = [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
        "PodResizePending",
        "PodResizeInProgress",
    ];
    let foreign = old
        .conditions
        .iter()
        .flatten()
        .filter(|condition| !ours.contains(&condition.type_.as_str()));
    for condition in foreign {
        if !list.iter().any(|own| own.type_ == condition.type_) {
            list.push(condition.clone());
        }
    }
    list
}

/// A condition's status, reason and message.
type Told = (&'static str, Option<String>, Option<String>);

fn truth(holds: bool) -> &'static str {
    if holds { "True" } else { "False" }
}

fn initialized(shape: &Shape, memory: &Memory, status: &PodStatus) -> Told {
    let over = status.phase.as_deref() == Some("Succeeded");
    if is_initialised(shape, memory) {
        return ("True", over.then(|| "PodCompleted".to_owned()), None);
    }
    let missing = shape.of_kind(&[Kind::Init, Kind::Sidecar]).filter(|(kind, container)| {
        let known = memory.container(&container.name);
        !known.is_some_and(|known| match kind {
            Kind::Init => known.ended().is_some_and(|ended| ended.exit_code == 0),
            _ => is_started(container, known),
        })
    });
    let names: Vec<_> = missing.map(|(_, container)| container.name.as_str()).collect();
    let message = format!("containers with incomplete status: [{}]", names.join(" "));
    ("False", Some("ContainersNotInitialized".to_owned()), Some(message))
}

fn containers_ready(shape: &Shape, memory: &Memory, status: &PodStatus) -> Told {
    match status.phase.as_deref() {
        Some("Succeeded") => return ("False", Some("PodCompleted".to_owned()), None),
        Some("Failed") => return ("False", Some("PodFailed".to_owned()), None),
        _ => {}
    }
    let unready = shape.of_kind(&[Kind::Sidecar, Kind::Main]).filter(|(kind, container)| {
        let known = memory.container(&container.name);
        !known.is_some_and(|known| is_ready(*kind, container, known, memory.ending.is_some()))
    });
    let names: Vec<_> = unready.map(|(_, container)| container.name.as_str()).collect();
    if names.is_empty() {
        return ("True", None, None);
    }
    let message = format!("containers with unready status: [{}]", names.join(" "));
    ("False", Some("ContainersNotReady".to_owned()), Some(message))
}

fn ready(pod: &Pod, containers: &Told) -> Told {
    if containers.0 != "True" {
        return containers.clone();
    }
    let gates = pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let mut missing = Vec::new();
    for gate in gates {
        match conditions
            .iter()
            .find(|condition| condition.type_ == gate.condition_type)
        {
            None => missing.push(format!(
                "corresponding condition of pod readiness gate {:?} does not exist.",
                gate.condition_type
            )),
            Some(condition) if condition.status != "True" => missing.push(format!(
                "the status of pod readiness gate {:?} is not \"True\", but {}",
                gate.condition_type, condition.status
            )),
            Some(_) => {}
        }
    }
    if missing.is_empty() {
        return ("True", None, None);
    }
    (
        "False",
        Some("ReadinessGatesNotReady".to_owned()),
        Some(missing.join(", ")),
    )
}
