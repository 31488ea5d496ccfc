//! What is particular to each built-in kind, told once for all of them.

use std::time::Duration;

use moorline_machinery::{
    facts::resources::Resource,
    field::FieldError,
    gvk::GroupVersionKind,
    meta::{Generation, Look, UnversionedUpdate},
    names::NameRule,
};
use serde_json::{Value, json};

use super::{
    autoscalers,
    conform::{self, Purpose},
    defaults, events, schema, states, validate, warnings,
};
use crate::{
    custom,
    strategy::{Findings, Propagation, ScalePaths, Strategy},
};

/// A built-in kind.
pub(crate) struct Builtin {
    resource: &'static Resource,
    gvk: GroupVersionKind,
    group: &'static str,
    kind: &'static str,
    selectable: Vec<Box<str>>,
}

impl Builtin {
    pub(crate) fn new(resource: &'static Resource) -> Self {
        Self {
            gvk: GroupVersionKind::new(resource.group(), resource.version(), resource.kind),
            group: resource.group(),
            kind: resource.kind,
            selectable: resource.fields.iter().map(|(name, _)| (*name).into()).collect(),
            resource,
        }
    }

    fn is_first_autoscaler(&self) -> bool {
        self.group == "autoscaling" && self.resource.version() == "v1"
    }

    fn is_definition(&self) -> bool {
        self.kind == "CustomResourceDefinition"
    }
}

impl Strategy for Builtin {
    fn name_rule(&self) -> NameRule {
        self.resource.names
    }

    fn create_on_update(&self) -> bool {
        self.resource.create_on_update
    }

    fn unversioned_update(&self) -> UnversionedUpdate {
        self.resource.unversioned_update
    }

    fn generation(&self) -> Generation {
        self.resource.generation
    }

    fn looks(&self, status_only: bool) -> &[Look] {
        if status_only {
            &self.resource.status_looks
        } else {
            &self.resource.looks
        }
    }

    fn first_look(&self) -> Option<Look> {
        self.resource.first_look
    }

    fn stored_under(&self) -> Option<&str> {
        Some(self.resource.stored_under)
    }

    fn is_deleted_by_controller(&self) -> bool {
        (self.group, self.kind) == ("", "Namespace")
    }

    fn selectable_field_names(&self) -> &[Box<str>] {
        &self.selectable
    }

    fn unknown_field(&self, field: &str) -> String {
        match (self.group, self.kind) {
            ("batch", "Job") => format!("field label {field:?} not supported for Job"),
            ("resource.k8s.io", "ResourceSlice") => {
                format!("field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: {field}")
            }
            // Kinds that share the rule of all kinds name the namespace also where there is none.
            _ if self.selectable.is_empty() => {
                format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
            }
            _ => format!("field label not supported: {field}"),
        }
    }

    fn changes_on_read(&self) -> bool {
        self.group == "events.k8s.io" || self.is_first_autoscaler()
    }

    fn on_read(&self, object: &mut Value) {
        if self.is_first_autoscaler() {
            autoscalers::to_first(object);
        } else {
            events::to_new(object);
        }
    }

    fn on_store(&self, object: &mut Value) {
        if self.is_first_autoscaler() {
            autoscalers::to_second(object);
        } else if self.group == "events.k8s.io" {
            events::to_old(object);
        }
    }

    fn conform(&self, object: &mut Value, purpose: Purpose) -> Result<(), String> {
        conform::conform(schema::facts(), &self.gvk, object, purpose)?;
        if (self.group, self.kind) == ("", "Secret") {
            states::encode_string_data(object);
        }
        Ok(())
    }

    fn deprecation(&self) -> Option<&str> {
        match (self.group, self.kind) {
            ("", "ComponentStatus") => Some("v1 ComponentStatus is deprecated in v1.19+"),
            ("", "Endpoints") => Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
            _ => None,
        }
    }

    fn takes_strategic_patches(&self) -> bool {
        true
    }

    fn default_grace(&self, object: &Value) -> Option<Duration> {
        if (self.group, self.kind) != ("", "Pod") {
            return None;
        }
        let unscheduled = object["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
        let over = matches!(object["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
        let seconds = object["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
        // Nobody has to be asked to stop what never ran or has ended.
        Some(if unscheduled || over {
            Duration::ZERO
        } else {
            Duration::from_secs(seconds.max(0).unsigned_abs())
        })
    }

    fn goes_at_once(&self, object: &Value) -> bool {
        self.default_grace(object) == Some(Duration::ZERO)
    }

    fn scale(&self) -> Option<ScalePaths> {
        let scales = matches!(
            (self.group, self.kind),
            ("", "ReplicationController") | ("apps", "Deployment" | "ReplicaSet" | "StatefulSet")
        );
        scales.then(ScalePaths::workload)
    }

    fn default_propagation(&self) -> Propagation {
        match (self.group, self.kind) {
            ("", "ReplicationController") | ("batch", "Job") => Propagation::Orphan,
            _ => Propagation::Background,
        }
    }

    fn returns_deleted(&self) -> bool {
        self.resource.returns_deleted
    }

    fn is_held(&self, object: &Value) -> bool {
        (self.group, self.kind) == ("", "Namespace")
            && object["spec"]["finalizers"]
                .as_array()
                .is_some_and(|finalizers| !finalizers.is_empty())
    }

    fn prepare_delete(&self, object: &mut Value) {
        if self.is_definition() {
            custom::definition::prepare_delete(object);
        }
        if (self.group, self.kind) == ("", "Namespace") {
            object["status"]["phase"] = json!("Terminating");
        }
    }

    fn resets(&self, door: &str, has_status: bool) -> &'static [&'static str] {
        match (self.group, self.kind, door) {
            ("certificates.k8s.io", "CertificateSigningRequest", "") => &["spec", "status"],
            ("certificates.k8s.io", "CertificateSigningRequest", "status") => &["spec", "status.conditions"],
            ("certificates.k8s.io", "CertificateSigningRequest", "approval") => &["spec", "status.certificate"],
            ("apps", "Deployment", "status") => &["spec", "metadata.labels"],
            ("", "Pod", "status") => &["spec", "metadata.deletionTimestamp", "metadata.ownerReferences"],
            ("", "Namespace", "finalize") => &["status"],
            (_, _, "status") if self.status_writes().is_empty() => &["spec", "metadata"],
            (_, _, "") if has_status => &["status"],
            (_, _, "status") => &["spec"],
            _ => &[],
        }
    }

    fn status_writes(&self) -> &'static [&'static str] {
        match (self.group, self.kind) {
            ("networking.k8s.io", "ServiceCIDR")
            | ("storage.k8s.io", "VolumeAttachment")
            | ("resource.k8s.io", "ResourceClaim")
            | ("admissionregistration.k8s.io" | "flowcontrol.apiserver.k8s.io" | "apiextensions.k8s.io", _) => &[],
            ("apps", "Deployment") => &["annotations", "finalizers", "ownerReferences"],
            ("", "Pod") => &["labels", "annotations", "finalizers"],
            _ => &["labels", "annotations", "finalizers", "ownerReferences"],
        }
    }

    fn default(&self, object: &mut Value) {
        if self.is_definition() {
            custom::definition::default(object);
        }
        defaults::fill(self.group, self.kind, object);
    }

    fn prepare_create(&self, object: &mut Value) {
        if self.is_definition() {
            return custom::definition::prepare_create(object);
        }
        states::first(self.group, self.kind, object);
    }

    fn prepare_update(&self, object: &mut Value, old: &Value) {
        if self.is_definition() {
            return custom::definition::prepare_update(object, old);
        }
        states::next(self.group, self.kind, object, old);
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        if self.is_definition() {
            return custom::definition::validate(object);
        }
        validate::object(self.group, self.kind, object)
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        warnings::of(self.group, self.kind, object, old)
    }

    fn prepare_part(&self, part: &str, object: &mut Value, old: &Value) {
        match part {
            "ephemeralcontainers" => states::only_ephemeral_containers(object, old),
            "resize" => states::only_resources(object, old),
            _ => {}
        }
    }

    fn validate_part(&self, part: &str, object: &Value, old: &Value) -> Vec<FieldError> {
        match part {
            "ephemeralcontainers" => validate::pod_ephemeral_containers(object, old),
            "resize" => validate::pod_resize(object, old),
            _ => Vec::new(),
        }
    }

    fn validate_update(&self, object: &Value, old: &Value) -> Findings {
        if self.is_definition() {
            return Findings {
                object: Vec::new(),
                change: custom::definition::validate_update(object, old),
            };
        }
        Findings {
            object: validate::object(self.group, self.kind, object),
            change: validate::change(self.group, self.kind, object, old),
        }
    }

    fn prepare_status_update(&self, object: &mut Value, old: &Value) {
        states::next_status(self.group, self.kind, object, old);
    }

    fn warnings_on_delete(&self, named_propagation: bool) -> Option<&'static str> {
        ((self.group, self.kind) == ("batch", "Job") && !named_propagation).then_some(
            "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them \
             or set propagationPolicy=Orphan to suppress this warning",
        )
    }
}
