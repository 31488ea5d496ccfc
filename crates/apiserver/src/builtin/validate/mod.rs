//! Whether an object of a built-in kind makes sense, and whether a change of one is allowed.
//!
//! The rules are those of a Kubernetes 1.36 API server, and so are the words. What they must say stands recorded in
//! `recorded/`: objects with what a real server answered. Types have been checked and defaults filled in before.
//!
//! ```text
//!   object() ─┬─► pod, service, config, ... one file a family of kinds
//!   change() ─┘        │
//!                      └─► at: a value and its path    text: rules for text
//! ```

mod admission;
mod apps;
mod at;
mod autoscaling;
mod batch;
mod cluster;
mod config;
mod cron;
mod endpoints;
mod event;
mod flow_control;
mod networking;
mod pod;
mod policy;
mod quota;
mod rbac;
mod service;
mod storage;
mod text;
mod volume;

use moorline_machinery::{field::FieldError, names};
use serde_json::Value;

use self::at::{At, Errors};

/// What is wrong with an object, besides its metadata.
pub(crate) fn object(group: &str, kind: &str, object: &Value) -> Vec<FieldError> {
    let mut errors = Errors::new();
    let at = At::object(object);
    let check: fn(&At<'_>, &mut Errors) = match (group, kind) {
        ("", "Pod") => pod::pod,
        ("", "PodTemplate") => |object, errors| pod::template(&object.at("template"), errors),
        ("", "Service") => service::service,
        ("", "Endpoints") => endpoints::endpoints,
        ("", "ConfigMap") => config::config_map,
        ("", "Secret") => config::secret,
        ("", "Namespace") => cluster::namespace,
        ("", "Node") => cluster::node,
        ("", "PersistentVolume") => volume::persistent_volume,
        ("", "PersistentVolumeClaim") => |object, errors| volume::claim_spec(&object.at("spec"), errors),
        ("", "ResourceQuota") => quota::resource_quota,
        ("", "LimitRange") => quota::limit_range,
        ("", "ReplicationController") => apps::replication_controller,
        ("", "Event") => event::event,
        ("events.k8s.io", "Event") => event::new_event,
        ("apps", "Deployment") => apps::deployment,
        ("apps", "ReplicaSet") => apps::replica_set,
        ("apps", "StatefulSet") => apps::stateful_set,
        ("apps", "DaemonSet") => apps::daemon_set,
        ("apps", "ControllerRevision") => apps::controller_revision,
        ("batch", "Job") => batch::job,
        ("batch", "CronJob") => batch::cron_job,
        ("policy", "PodDisruptionBudget") => policy::disruption_budget,
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaling::autoscaler,
        ("networking.k8s.io", "Ingress") => networking::ingress,
        ("networking.k8s.io", "IngressClass") => networking::ingress_class,
        ("networking.k8s.io", "NetworkPolicy") => networking::network_policy,
        ("networking.k8s.io", "IPAddress") => networking::ip_address,
        ("networking.k8s.io", "ServiceCIDR") => networking::service_cidr,
        ("discovery.k8s.io", "EndpointSlice") => endpoints::slice,
        ("rbac.authorization.k8s.io", "Role") => rbac::role,
        ("rbac.authorization.k8s.io", "ClusterRole") => rbac::cluster_role,
        ("rbac.authorization.k8s.io", "RoleBinding") => rbac::role_binding,
        ("rbac.authorization.k8s.io", "ClusterRoleBinding") => rbac::cluster_role_binding,
        ("storage.k8s.io", "StorageClass") => storage::storage_class,
        ("storage.k8s.io", "CSIDriver") => storage::csi_driver,
        ("storage.k8s.io", "CSINode") => storage::csi_node,
        ("storage.k8s.io", "VolumeAttachment") => storage::volume_attachment,
        ("storage.k8s.io", "CSIStorageCapacity") => storage::storage_capacity,
        ("storage.k8s.io", "VolumeAttributesClass") => storage::attributes_class,
        ("scheduling.k8s.io", "PriorityClass") => policy::priority_class,
        ("coordination.k8s.io", "Lease") => policy::lease,
        ("node.k8s.io", "RuntimeClass") => policy::runtime_class,
        ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration") => {
            admission::webhook_configuration
        }
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => admission::policy,
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding") => admission::policy_binding,
        ("certificates.k8s.io", "CertificateSigningRequest") => policy::signing_request,
        ("apiregistration.k8s.io", "APIService") => policy::api_service,
        ("flowcontrol.apiserver.k8s.io", "FlowSchema") => flow_control::flow_schema,
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration") => flow_control::priority_level,
        _ => return errors,
    };
    check(&at, &mut errors);
    errors
}

/// What is wrong with a change of an object, besides what is wrong with the object itself.
pub(crate) fn change(group: &str, kind: &str, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::new();
    let at = At::object(new);
    let check: fn(&At<'_>, &Value, &mut Errors) = match (group, kind) {
        ("", "Pod") => pod::change,
        ("", "Service") => service::change,
        ("", "ConfigMap") => config::config_map_change,
        ("", "Secret") => config::secret_change,
        ("", "Node") => cluster::node_change,
        ("", "PersistentVolume") => volume::persistent_volume_change,
        ("", "PersistentVolumeClaim") => volume::claim_change,
        ("", "ResourceQuota") => quota::resource_quota_change,
        ("apps", "Deployment" | "ReplicaSet" | "DaemonSet") => apps::selector_change,
        ("apps", "StatefulSet") => apps::stateful_set_change,
        ("apps", "ControllerRevision") => apps::controller_revision_change,
        ("batch", "Job") => batch::job_change,
        ("networking.k8s.io", "IngressClass") => networking::ingress_class_change,
        ("networking.k8s.io", "IPAddress") => networking::ip_address_change,
        ("networking.k8s.io", "ServiceCIDR") => networking::service_cidr_change,
        ("discovery.k8s.io", "EndpointSlice") => endpoints::slice_change,
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => rbac::binding_change,
        ("storage.k8s.io", "StorageClass") => storage::storage_class_change,
        ("storage.k8s.io", "CSIDriver") => storage::csi_driver_change,
        ("storage.k8s.io", "CSINode") => storage::csi_node_change,
        ("storage.k8s.io", "VolumeAttachment") => storage::volume_attachment_change,
        ("storage.k8s.io", "CSIStorageCapacity") => storage::storage_capacity_change,
        ("storage.k8s.io", "VolumeAttributesClass") => storage::attributes_class_change,
        ("scheduling.k8s.io", "PriorityClass") => policy::priority_class_change,
        ("node.k8s.io", "RuntimeClass") => policy::runtime_class_change,
        ("certificates.k8s.io", "CertificateSigningRequest") => policy::signing_request_change,
        _ => return errors,
    };
    check(&at, old, &mut errors);
    errors
}

/// What is wrong with a write of `pods/resize`.
pub(crate) fn pod_resize(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::new();
    let at = At::object(new);
    pod::pod(&at, &mut errors);
    pod::resize(&at, old, &mut errors);
    errors
}

/// What is wrong with a write of `pods/ephemeralcontainers`.
pub(crate) fn pod_ephemeral_containers(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Errors::new();
    let at = At::object(new);
    pod::pod(&at, &mut errors);
    pod::ephemeral_containers(&at, old, &mut errors);
    errors
}

/// Whether an object is about to be created: one that exists has a version.
fn is_new(object: &At<'_>) -> bool {
    object.at("metadata").at("resourceVersion").text().is_empty()
}

/// Annotations of something that is no object by itself.
fn annotations(annotations: &At<'_>, errors: &mut Errors) {
    for (key, _) in annotations.entries() {
        for complaint in names::qualified_name(&key.to_lowercase()) {
            annotations.invalid_as(errors, key, complaint);
        }
    }
}

#[cfg(test)]
mod tests;
