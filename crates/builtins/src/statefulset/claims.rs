//! Whether claims go with their instance, by `persistentVolumeClaimRetentionPolicy`.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use moorline_plan::{Draft, Failure};
use moorline_runtime::{Object, Seen};
use serde_json::{Value, json};

use super::Set;
use super::instance::ordinal;

impl Set<'_> {
    /// Lets claims be owned by whom they shall go with: the set when it is deleted, the pod when the set shrinks.
    pub(crate) fn claims(&self, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let policy = self.spec.persistent_volume_claim_retention_policy.as_ref();
        let deletes = |when: Option<&String>| when.is_some_and(|when| when == "Delete");
        let when_deleted = deletes(policy.and_then(|policy| policy.when_deleted.as_ref()));
        let when_scaled = deletes(policy.and_then(|policy| policy.when_scaled.as_ref()));
        for (number, pod) in &self.pods {
            for (_, claim) in self.claims_of(*number) {
                let name = claim.metadata.name.unwrap_or_default();
                let Some(existing) = self.snapshot.get::<PersistentVolumeClaim>(&name)? else {
                    continue;
                };
                let is_condemned = !self.ordinals().contains(number);
                let set_owns = when_deleted && !(when_scaled && is_condemned);
                let pod_owns = when_scaled && is_condemned;
                self.own_claim(&existing, set_owns, pod_owns.then(|| pod.raw()), draft)?;
            }
        }
        Ok(())
    }

    fn own_claim(
        &self,
        claim: &Seen<PersistentVolumeClaim>,
        set_owns: bool,
        pod: Option<&Object>,
        draft: &mut Draft<Object>,
    ) -> Result<(), Failure> {
        let set = self.snapshot.raw();
        let mut desired = claim.raw().value();
        let before = desired["metadata"]["ownerReferences"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let is_ours = |reference: &Value| {
            reference["uid"] == set.uid()
                || (reference["kind"] == "Pod"
                    && reference["name"]
                        .as_str()
                        .is_some_and(|name| ordinal(set.name(), name).is_some()))
        };
        let mut after: Vec<Value> = before.iter().filter(|reference| !is_ours(reference)).cloned().collect();
        if set_owns {
            after.push(reference(set, true));
        }
        if let Some(pod) = pod {
            after.push(reference(pod, false));
        }
        let uids = |references: &[Value]| {
            references
                .iter()
                .map(|reference| reference["uid"].to_string())
                .collect::<Vec<_>>()
        };
        if uids(&before) == uids(&after) || claim.is_deleting() {
            return Ok(());
        }
        desired["metadata"]["ownerReferences"] = after.into();
        draft.put(
            self.snapshot
                .patch_value(claim.raw(), &desired, "the retention policy says with whom it goes")?,
        );
        Ok(())
    }
}

fn reference(owner: &Object, controls: bool) -> Value {
    let mut reference = json!({
        "apiVersion": owner.kind().api_version(), "kind": owner.kind().name(), "name": owner.name(), "uid": owner.uid(),
    });
    if controls {
        reference["controller"] = true.into();
        reference["blockOwnerDeletion"] = true.into();
    }
    reference
}
