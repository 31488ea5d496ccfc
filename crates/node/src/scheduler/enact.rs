//! Carrying out what the scheduler decided.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, PodCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;

use super::{ClaimChoice, Preemption, volumes::is_kept_for};
use crate::{
    events::{Recorder, Severity, seconds},
    key::Key,
    mirror::Mirror,
};

/// How long a pod's volumes may take to be made and bound.
const VOLUMES: Duration = Duration::from_mins(10);

#[derive(Clone)]
pub(super) struct Enactor {
    pub(super) client: Client,
    pub(super) claims: Arc<Mirror<PersistentVolumeClaim>>,
    pub(super) recorder: Recorder,
}

impl Enactor {
    /// Sees to the volumes of a pod and binds it to its node.
    pub(super) async fn place(&self, pod: &Pod, node: &str, claims: &[ClaimChoice]) -> Result<(), String> {
        let key = Key::of(pod);
        self.bind_volumes(&key.namespace, node, claims).await?;
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": key.name, "namespace": key.namespace, "uid": pod.metadata.uid },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let bound: kube::Result<serde_json::Value> = api
            .create_subresource("binding", &key.name, &PostParams::default(), &binding)
            .await;
        bound.map_err(|error| format!("binding rejected: {error}"))?;
        let message = format!("Successfully assigned {key} to {node}");
        self.recorder.tell(pod, Severity::Normal, "Scheduled", message);
        Ok(())
    }

    async fn bind_volumes(&self, namespace: &str, node: &str, choices: &[ClaimChoice]) -> Result<(), String> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let told = |error: kube::Error| format!("binding volumes: {error}");
        for choice in choices {
            match choice {
                ClaimChoice::Provision { claim } => {
                    let patch =
                        json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": node } } });
                    claims
                        .patch(claim, &PatchParams::default(), &Patch::Merge(patch))
                        .await
                        .map_err(told)?;
                }
                ClaimChoice::Bind { claim, volume } => {
                    let claim = claims.get(claim).await.map_err(told)?;
                    self.reserve(&claim, volume)
                        .await
                        .map_err(|why| format!("binding volumes: {why}"))?;
                }
            }
        }
        for choice in choices {
            let (ClaimChoice::Provision { claim } | ClaimChoice::Bind { claim, .. }) = choice;
            let key = Key::new(namespace, claim);
            let bound = self.claims.wait_until(&key, |claim| {
                // One that is gone will be told by the next look.
                claim.is_none_or(|claim| {
                    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
                })
            });
            if tokio::time::timeout(VOLUMES, bound).await.is_err() {
                return Err("binding volumes: context deadline exceeded".to_owned());
            }
        }
        Ok(())
    }

    /// Writes into a volume that it is this claim's, unless it has become somebody else's meanwhile. The claim follows.
    async fn reserve(&self, claim: &PersistentVolumeClaim, volume: &str) -> Result<(), String> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let seen = volumes.get(volume).await.map_err(|error| error.to_string())?;
        let holder = seen.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        if holder.is_some() && !is_kept_for(&seen, claim) {
            return Err(format!("volume {volume:?} already bound to a different claim."));
        }
        if holder.is_some_and(|holder| holder.uid.is_some()) {
            return Ok(());
        }
        let mut patch = json!({
            "metadata": { "uid": seen.metadata.uid, "resourceVersion": seen.metadata.resource_version },
            "spec": { "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": claim.metadata.namespace, "name": claim.metadata.name, "uid": claim.metadata.uid,
                "resourceVersion": claim.metadata.resource_version,
            } },
        });
        if holder.is_none() {
            patch["metadata"]["annotations"] = json!({ "pv.kubernetes.io/bound-by-controller": "yes" });
        }
        let written = volumes
            .patch(volume, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        written.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Tells why a pod goes nowhere, and has those go who make room for it.
    pub(super) fn refuse(&self, pod: Arc<Pod>, message: String, preemption: Option<Preemption>) {
        let this = self.clone();
        tokio::spawn(async move {
            this.recorder
                .tell(&*pod, Severity::Warning, "FailedScheduling", message.clone());
            if let Some(preemption) = &preemption {
                this.preempt(&pod, preemption).await;
            }
            let node = preemption.as_ref().map(|preemption| preemption.node.as_str());
            this.tell_unscheduled(&pod, "Unschedulable", &message, node).await;
        });
    }

    /// Tells that a pod is held back by its gates.
    pub(super) fn gated(&self, pod: Arc<Pod>) {
        let this = self.clone();
        tokio::spawn(async move {
            let message = "Scheduling is blocked due to non-empty scheduling gates";
            this.tell_unscheduled(&pod, "SchedulingGated", message, None).await;
        });
    }

    async fn tell_unscheduled(&self, pod: &Pod, reason: &str, message: &str, nominated: Option<&str>) {
        let conditions = pod
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_deref())
            .unwrap_or_default();
        let before = conditions.iter().find(|condition| condition.type_ == "PodScheduled");
        let told = before.is_some_and(|before| {
            before.status == "False"
                && before.reason.as_deref() == Some(reason)
                && before.message.as_deref() == Some(message)
        });
        if told && nominated.is_none() {
            return;
        }
        let since = before
            .filter(|before| before.status == "False")
            .and_then(|before| before.last_transition_time.clone());
        let condition = PodCondition {
            type_: "PodScheduled".to_owned(),
            status: "False".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            observed_generation: pod.metadata.generation,
            last_transition_time: Some(since.unwrap_or_else(|| Time(seconds(jiff::Timestamp::now())))),
            last_probe_time: None,
        };
        let mut status = json!({ "conditions": [condition] });
        if let Some(node) = nominated {
            status["nominatedNodeName"] = node.into();
        }
        self.patch_status(pod, &status).await;
    }

    async fn patch_status(&self, pod: &Pod, status: &serde_json::Value) {
        let key = Key::of(pod);
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let patch = Patch::Strategic(json!({ "metadata": { "uid": pod.metadata.uid }, "status": status }));
        if let Err(error) = api.patch_status(&key.name, &PatchParams::default(), &patch).await {
            tracing::debug!(pod = %key, %error, "the scheduler could not tell a pod's status");
        }
    }

    async fn preempt(&self, pod: &Pod, preemption: &Preemption) {
        for (key, uid) in &preemption.victims {
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
            let Ok(victim) = api.get(&key.name).await else { continue };
            let condition = PodCondition {
                type_: "DisruptionTarget".to_owned(),
                status: "True".to_owned(),
                reason: Some("PreemptionByScheduler".to_owned()),
                message: Some("default-scheduler: preempting to accommodate a higher priority pod".to_owned()),
                observed_generation: victim.metadata.generation,
                last_transition_time: Some(Time(seconds(jiff::Timestamp::now()))),
                last_probe_time: None,
            };
            self.patch_status(&victim, &json!({ "conditions": [condition] })).await;
            let options = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            if let Err(error) = api.delete(&key.name, &options).await {
                tracing::debug!(pod = %key, %error, "a pod that was to make room could not be deleted");
                continue;
            }
            let message = format!(
                "Preempted by pod {} on node {}",
                pod.metadata.uid.as_deref().unwrap_or(""),
                preemption.node
            );
            self.recorder.tell(&victim, Severity::Normal, "Preempted", message);
        }
    }
}

#[cfg(test)]
mod tests {
    use moorline_apiserver::{core::RealWorld, server::Embedded};

    use super::*;

    #[tokio::test]
    async fn a_volume_is_not_taken_from_the_claim_that_has_it() {
        let server = Embedded::ephemeral(Arc::new(RealWorld)).await.unwrap();
        let client = Client::new(server.service(), "default");
        let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
        let enactor = Enactor {
            client: client.clone(),
            claims: Arc::new(Mirror::follow(
                Api::all(client.clone()),
                kube::runtime::watcher::Config::default(),
            )),
            recorder: Recorder::new(client.clone(), "test", None),
        };
        let volumes: Api<PersistentVolume> = Api::all(client);
        let volume = serde_json::from_value(json!({ "metadata": { "name": "pv" }, "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "hostPath": { "path": "/srv/none" } } }));
        volumes.create(&PostParams::default(), &volume.unwrap()).await.unwrap();
        let mut made = Vec::new();
        for name in ["first", "second"] {
            let claim = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": { "storageClassName": "",
                "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } }));
            made.push(claims.create(&PostParams::default(), &claim.unwrap()).await.unwrap());
        }
        enactor.reserve(&made[0], "pv").await.unwrap();
        let refused = enactor.reserve(&made[1], "pv").await.unwrap_err();
        assert!(refused.contains("already bound to a different claim"), "{refused}");
        let holder = volumes.get("pv").await.unwrap().spec.unwrap().claim_ref.unwrap();
        assert_eq!(holder.uid, made[0].metadata.uid);
    }
}
