//! The columns of the built-in kinds, as data.

use super::{Cell, Column, Columns, Holds, Width, cells, pod, rare, workload};

/// The columns of a kind. Kinds that are not listed show a name and a date.
pub(super) fn of(api_version: &str, kind: &str) -> Option<Columns> {
    let found = KINDS
        .iter()
        .chain(rare::KINDS)
        .find(|(version, name, _)| *version == api_version && *name == kind);
    found.map(|(_, kind, columns)| Columns::Builtin { kind, columns })
}

pub(super) const fn name() -> Column {
    Column {
        name: "Name",
        holds: Holds::Text,
        width: Width::Always,
        cell: Cell::Name,
    }
}

pub(super) const fn age() -> Column {
    Column {
        name: "Age",
        holds: Holds::Text,
        width: Width::Always,
        cell: Cell::Age,
    }
}

pub(super) const fn text(name: &'static str, cell: Cell) -> Column {
    Column {
        name,
        holds: Holds::Text,
        width: Width::Always,
        cell,
    }
}

pub(super) const fn integer(name: &'static str, cell: Cell) -> Column {
    Column {
        name,
        holds: Holds::Integer,
        width: Width::Always,
        cell,
    }
}

pub(super) const fn boolean(name: &'static str, cell: Cell) -> Column {
    Column {
        name,
        holds: Holds::Boolean,
        width: Width::Always,
        cell,
    }
}

const fn wide(name: &'static str, cell: Cell) -> Column {
    Column {
        name,
        holds: Holds::Text,
        width: Width::Wide,
        cell,
    }
}

/// Columns that only take their text from a path.
pub(super) const fn at(name: &'static str, path: &'static str) -> Column {
    text(name, Cell::Text(path, ""))
}

const CONTAINERS: Column = wide("Containers", Cell::Computed(workload::container_names));
const IMAGES: Column = wide("Images", Cell::Computed(workload::container_images));
const SELECTOR: Column = wide("Selector", Cell::Computed(workload::selector));

const WEBHOOKS: &[Column] = &[name(), integer("Webhooks", Cell::Count("webhooks")), age()];
const BINDINGS: &[Column] = &[
    name(),
    text("Role", Cell::Computed(cells::role_reference)),
    age(),
    wide("Users", Cell::Computed(cells::subject_users)),
    wide("Groups", Cell::Computed(cells::subject_groups)),
    wide("ServiceAccounts", Cell::Computed(cells::subject_service_accounts)),
];
const AUTOSCALERS: &[Column] = &[
    name(),
    text("Reference", Cell::Computed(cells::scale_target)),
    text("Targets", Cell::Computed(cells::scale_metrics)),
    text("MinPods", Cell::Computed(cells::min_replicas)),
    text("MaxPods", Cell::Integer("spec.maxReplicas")),
    text("Replicas", Cell::Integer("status.currentReplicas")),
    age(),
];
const EVENTS: &[Column] = &[
    text("Last Seen", Cell::Computed(cells::event_last_seen)),
    at("Type", "type"),
    at("Reason", "reason"),
    text("Object", Cell::Computed(cells::event_object)),
    wide("Subobject", Cell::Computed(cells::event_subobject)),
    wide("Source", Cell::Computed(cells::event_source)),
    text("Message", Cell::Computed(cells::event_message)),
    wide("First Seen", Cell::Computed(cells::event_first_seen)),
    wide("Count", Cell::Computed(cells::event_count)),
    wide("Name", Cell::Name),
];
const REPLICAS: &[Column] = &[
    name(),
    integer("Desired", Cell::Integer("spec.replicas")),
    integer("Current", Cell::Integer("status.replicas")),
    integer("Ready", Cell::Integer("status.readyReplicas")),
    age(),
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

/// The columns of the kind of a version.
pub(super) type Kind = (&'static str, &'static str, &'static [Column]);

const KINDS: &[Kind] = &[
    (
        "v1",
        "Pod",
        &[
            name(),
            text("Ready", Cell::Computed(pod::ready)),
            text("Status", Cell::Computed(pod::status)),
            text("Restarts", Cell::Computed(pod::restarts)),
            age(),
            wide("IP", Cell::Computed(pod::address)),
            wide("Node", Cell::Text("spec.nodeName", "<none>")),
            wide("Nominated Node", Cell::Text("status.nominatedNodeName", "<none>")),
            wide("Readiness Gates", Cell::Computed(pod::readiness_gates)),
        ],
    ),
    (
        "v1",
        "PodTemplate",
        &[
            name(),
            text("Containers", Cell::Computed(workload::container_names)),
            text("Images", Cell::Computed(workload::container_images)),
            text("Pod Labels", Cell::Computed(workload::template_labels)),
        ],
    ),
    (
        "v1",
        "Service",
        &[
            name(),
            at("Type", "spec.type"),
            text("Cluster-IP", Cell::Computed(cells::cluster_ip)),
            text("External-IP", Cell::Computed(cells::external_ip)),
            text("Port(s)", Cell::Computed(cells::service_ports)),
            age(),
            wide("Selector", Cell::Computed(cells::service_selector)),
        ],
    ),
    ("v1", "ReplicationController", REPLICAS),
    (
        "v1",
        "ConfigMap",
        &[name(), text("Data", Cell::Computed(cells::config_map_data)), age()],
    ),
    (
        "v1",
        "Secret",
        &[name(), at("Type", "type"), text("Data", Cell::Count("data")), age()],
    ),
    ("v1", "ServiceAccount", &[name(), age()]),
    ("v1", "Namespace", &[name(), at("Status", "status.phase"), age()]),
    (
        "v1",
        "Node",
        &[
            name(),
            text("Status", Cell::Computed(cells::node_status)),
            text("Roles", Cell::Computed(cells::node_roles)),
            age(),
            at("Version", "status.nodeInfo.kubeletVersion"),
            wide("Internal-IP", Cell::Computed(cells::node_internal_ip)),
            wide("External-IP", Cell::Computed(cells::node_external_ip)),
            wide("OS-Image", Cell::Text("status.nodeInfo.osImage", "<unknown>")),
            wide("Kernel-Version", Cell::Computed(cells::node_kernel)),
            wide(
                "Container-Runtime",
                Cell::Text("status.nodeInfo.containerRuntimeVersion", "<unknown>"),
            ),
        ],
    ),
    ("v1", "Event", EVENTS),
    ("events.k8s.io/v1", "Event", EVENTS),
    (
        "v1",
        "Endpoints",
        &[name(), text("Endpoints", Cell::Computed(cells::endpoints)), age()],
    ),
    (
        "discovery.k8s.io/v1",
        "EndpointSlice",
        &[
            name(),
            at("AddressType", "addressType"),
            text("Ports", Cell::Computed(cells::slice_ports)),
            text("Endpoints", Cell::Computed(cells::slice_endpoints)),
            age(),
        ],
    ),
    (
        "v1",
        "PersistentVolume",
        &[
            name(),
            text("Capacity", Cell::Computed(cells::volume_capacity)),
            text("Access Modes", Cell::Computed(cells::volume_access_modes)),
            at("Reclaim Policy", "spec.persistentVolumeReclaimPolicy"),
            text("Status", Cell::Computed(cells::volume_phase)),
            text("Claim", Cell::Computed(cells::volume_claim)),
            text("StorageClass", Cell::Computed(cells::storage_class_of)),
            text(
                "VolumeAttributesClass",
                Cell::Optional("spec.volumeAttributesClassName", "<unset>"),
            ),
            at("Reason", "status.reason"),
            age(),
            wide("VolumeMode", Cell::Optional("spec.volumeMode", "<unset>")),
        ],
    ),
    (
        "v1",
        "PersistentVolumeClaim",
        &[
            name(),
            text("Status", Cell::Computed(cells::volume_phase)),
            at("Volume", "spec.volumeName"),
            text("Capacity", Cell::Computed(cells::claim_capacity)),
            text("Access Modes", Cell::Computed(cells::claim_access_modes)),
            text("StorageClass", Cell::Computed(cells::storage_class_of)),
            text(
                "VolumeAttributesClass",
                Cell::Optional("spec.volumeAttributesClassName", "<unset>"),
            ),
            age(),
            wide("VolumeMode", Cell::Optional("spec.volumeMode", "<unset>")),
        ],
    ),
    (
        "v1",
        "ResourceQuota",
        &[
            name(),
            text("Request", Cell::Computed(cells::quota_requests)),
            text("Limit", Cell::Computed(cells::quota_limits)),
            age(),
        ],
    ),
    (
        "apps/v1",
        "Deployment",
        &[
            name(),
            text("Ready", Cell::Computed(workload::ready_of_desired)),
            text("Up-to-date", Cell::Integer("status.updatedReplicas")),
            text("Available", Cell::Integer("status.availableReplicas")),
            age(),
            CONTAINERS,
            IMAGES,
            wide("Selector", Cell::Computed(workload::deployment_selector)),
        ],
    ),
    ("apps/v1", "ReplicaSet", REPLICAS),
    (
        "apps/v1",
        "StatefulSet",
        &[
            name(),
            text("Ready", Cell::Computed(workload::ready_of_desired)),
            age(),
            CONTAINERS,
            IMAGES,
        ],
    ),
    (
        "apps/v1",
        "DaemonSet",
        &[
            name(),
            integer("Desired", Cell::Integer("status.desiredNumberScheduled")),
            integer("Current", Cell::Integer("status.currentNumberScheduled")),
            integer("Ready", Cell::Integer("status.numberReady")),
            integer("Up-to-date", Cell::Integer("status.updatedNumberScheduled")),
            integer("Available", Cell::Integer("status.numberAvailable")),
            text("Node Selector", Cell::Computed(workload::node_selector)),
            age(),
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
    ),
    (
        "apps/v1",
        "ControllerRevision",
        &[
            name(),
            text("Controller", Cell::Computed(workload::controller)),
            text("Revision", Cell::Integer("revision")),
            age(),
        ],
    ),
    (
        "batch/v1",
        "Job",
        &[
            name(),
            text("Status", Cell::Computed(workload::job_status)),
            text("Completions", Cell::Computed(workload::job_completions)),
            text("Duration", Cell::Computed(workload::job_duration)),
            age(),
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
    ),
    (
        "batch/v1",
        "CronJob",
        &[
            name(),
            at("Schedule", "spec.schedule"),
            text("Timezone", Cell::Optional("spec.timeZone", "<none>")),
            boolean("Suspend", Cell::Computed(workload::cron_job_suspended)),
            integer("Active", Cell::Count("status.active")),
            text("Last Schedule", Cell::Computed(workload::cron_job_last_schedule)),
            age(),
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
    ),
    (
        "networking.k8s.io/v1",
        "Ingress",
        &[
            name(),
            text("Class", Cell::Optional("spec.ingressClassName", "<none>")),
            text("Hosts", Cell::Computed(cells::ingress_hosts)),
            text("Address", Cell::Computed(cells::load_balancer_address)),
            text("Ports", Cell::Computed(cells::ingress_ports)),
            age(),
        ],
    ),
    (
        "networking.k8s.io/v1",
        "IngressClass",
        &[
            text("Name", Cell::Computed(cells::ingress_class_name)),
            at("Controller", "spec.controller"),
            text("Parameters", Cell::Computed(cells::ingress_class_parameters)),
            age(),
        ],
    ),
    (
        "networking.k8s.io/v1",
        "NetworkPolicy",
        &[name(), text("Pod-Selector", Cell::Computed(cells::pod_selector)), age()],
    ),
    (
        "policy/v1",
        "PodDisruptionBudget",
        &[
            name(),
            text("Min Available", Cell::Computed(cells::min_available)),
            text("Max Unavailable", Cell::Computed(cells::max_unavailable)),
            integer("Allowed Disruptions", Cell::Integer("status.disruptionsAllowed")),
            age(),
        ],
    ),
    ("autoscaling/v1", "HorizontalPodAutoscaler", AUTOSCALERS),
    ("autoscaling/v2", "HorizontalPodAutoscaler", AUTOSCALERS),
    (
        "autoscaling/v1",
        "Scale",
        &[
            name(),
            integer("Desired", Cell::Integer("spec.replicas")),
            integer("Available", Cell::Integer("status.replicas")),
            age(),
        ],
    ),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", BINDINGS),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", BINDINGS),
    (
        "coordination.k8s.io/v1",
        "Lease",
        &[name(), at("Holder", "spec.holderIdentity"), age()],
    ),
    (
        "storage.k8s.io/v1",
        "StorageClass",
        &[
            text("Name", Cell::Computed(cells::storage_class_name)),
            at("Provisioner", "provisioner"),
            text("ReclaimPolicy", Cell::Optional("reclaimPolicy", "Delete")),
            text("VolumeBindingMode", Cell::Optional("volumeBindingMode", "Immediate")),
            text("AllowVolumeExpansion", Cell::Boolean("allowVolumeExpansion", false)),
            age(),
        ],
    ),
    (
        "storage.k8s.io/v1",
        "VolumeAttachment",
        &[
            name(),
            Column {
                holds: Holds::Name,
                ..at("Attacher", "spec.attacher")
            },
            at("PV", "spec.source.persistentVolumeName"),
            at("Node", "spec.nodeName"),
            boolean("Attached", Cell::Boolean("status.attached", false)),
            age(),
        ],
    ),
    (
        "storage.k8s.io/v1",
        "VolumeAttributesClass",
        &[name(), at("DriverName", "driverName"), age()],
    ),
    (
        "storage.k8s.io/v1",
        "CSINode",
        &[name(), integer("Drivers", Cell::Count("spec.drivers")), age()],
    ),
    (
        "scheduling.k8s.io/v1",
        "PriorityClass",
        &[
            name(),
            integer("Value", Cell::Integer("value")),
            boolean("Global-Default", Cell::Boolean("globalDefault", false)),
            age(),
            at("PreemptionPolicy", "preemptionPolicy"),
        ],
    ),
    (
        "node.k8s.io/v1",
        "RuntimeClass",
        &[name(), at("Handler", "handler"), age()],
    ),
    (
        "certificates.k8s.io/v1",
        "CertificateSigningRequest",
        &[
            name(),
            age(),
            text("SignerName", Cell::Text("spec.signerName", "<none>")),
            at("Requestor", "spec.username"),
            text("RequestedDuration", Cell::Computed(cells::csr_duration)),
            text("Condition", Cell::Computed(cells::csr_condition)),
        ],
    ),
    (
        "admissionregistration.k8s.io/v1",
        "MutatingWebhookConfiguration",
        WEBHOOKS,
    ),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingWebhookConfiguration",
        WEBHOOKS,
    ),
    (
        "apiregistration.k8s.io/v1",
        "APIService",
        &[
            name(),
            text("Service", Cell::Computed(cells::api_service_backend)),
            text("Available", Cell::Computed(cells::api_service_available)),
            age(),
        ],
    ),
];
