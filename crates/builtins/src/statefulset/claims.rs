//! Whether claims go with their instance, by `persistentVolumeClaimRetentionPolicy`.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use moorline_plan::{Draft, Failure, StepKey};
use moorline_runtime::{EventType, Key, Kind, Object, Owner, Seen, Sources, Target};
use serde_json::{Value, json};

use super::Set;
use crate::pods;

/// The set that a claim was made for, by its name. For [`Watches::maps`](moorline_runtime::Watches): an instance may
/// wait for a claim to go, and nobody but the claim tells of that.
pub(crate) fn set_of(claim: &Object, sources: &Sources) -> Vec<Key> {
    let Some((stem, _)) = claim.name().rsplit_once('-') else {
        return Vec::new();
    };
    let kind = Kind::of::<StatefulSet>();
    let splits = stem.match_indices('-').map(|(at, _)| (&stem[..at], &stem[at + 1..]));
    let sets = splits.filter(|(volume, set)| {
        let set = sources.get(&kind, claim.namespace(), set);
        set.is_some_and(|set| has_template(&set, volume))
    });
    sets.map(|(_, set)| Key::new(claim.namespace(), set)).collect()
}

fn has_template(set: &Object, volume: &str) -> bool {
    let set = set.value();
    let mut templates = set["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten();
    templates.any(|template| template["metadata"]["name"] == volume)
}

/// Which claims are deleted, and when.
#[derive(Clone, Copy)]
struct Deleted {
    /// All of them, with the set.
    with_the_set: bool,
    /// Those of instances that are no longer wanted, with their pods.
    with_the_pod: bool,
}

impl Set<'_> {
    fn deleted_claims(&self) -> Deleted {
        let policy = self.spec.persistent_volume_claim_retention_policy.as_ref();
        let deletes = |when: Option<&String>| when.is_some_and(|when| when == "Delete");
        Deleted {
            with_the_set: deletes(policy.and_then(|policy| policy.when_deleted.as_ref())),
            with_the_pod: deletes(policy.and_then(|policy| policy.when_scaled.as_ref())),
        }
    }

    /// Whether a claim still belongs to a pod that is gone: a new one of its name must not find the old one's data.
    pub(crate) fn goes_with_its_pod(&self, claim: &Seen<PersistentVolumeClaim>, pod: &str) -> bool {
        let of_pod = |owner: &Owner| &*owner.api_version == "v1" && &*owner.kind == "Pod" && &*owner.name == pod;
        self.deleted_claims().with_the_pod && claim.raw().owners().iter().any(of_pod)
    }

    /// Lets claims be owned by whom they shall go with: the set when it is deleted, the pod when the set shrinks.
    ///
    /// Returns what has to be done before a pod that is too many may go: a claim that it does not own yet would stay.
    pub(crate) fn claims(&self, draft: &mut Draft<Object>) -> Result<Vec<StepKey<Target>>, Failure> {
        let mut before_shrinking = Vec::new();
        for (number, pod) in &self.pods {
            let is_wanted = self.ordinals().contains(number);
            // Whether a claim goes with its pod is settled when the pod begins to go; only who is not bound to any
            // order changes its mind.
            if is_wanted && pod.is_deleting() && !self.is_parallel() {
                continue;
            }
            for (_, claim) in self.claims_of(*number) {
                let name = claim.metadata.name.unwrap_or_default();
                let Some(existing) = self.snapshot.get::<PersistentVolumeClaim>(&name)? else {
                    continue;
                };
                let Some(patched) = self.own_claim(&existing, pod, is_wanted, draft)? else {
                    continue;
                };
                if is_wanted {
                    self.tell("Update", pod.name(), &patched, draft)?;
                } else {
                    before_shrinking.push(patched);
                }
            }
        }
        Ok(before_shrinking)
    }

    fn own_claim(
        &self,
        claim: &Seen<PersistentVolumeClaim>,
        pod: &Seen<Pod>,
        is_wanted: bool,
        draft: &mut Draft<Object>,
    ) -> Result<Option<StepKey<Target>>, Failure> {
        let (set, owners) = (self.snapshot.raw(), claim.raw().owners());
        let may_own = [set, pod.raw()];
        let is_stale = |owner: &Owner| {
            may_own
                .iter()
                .any(|ours| names(owner, ours) && *owner.uid != *ours.uid())
        };
        // Whoever made it what it is, is gone; the collector decides what becomes of it.
        if claim.is_deleting() || owners.iter().any(is_stale) {
            return Ok(None);
        }
        let deleted = self.deleted_claims();
        let is_anothers = self.is_anothers(claim, pod.name());
        let wanted = if is_anothers {
            None
        } else if deleted.with_the_pod && !is_wanted {
            Some(pod.raw())
        } else {
            deleted.with_the_set.then_some(set)
        };
        let is_right = may_own.iter().all(|ours| {
            let shall_own = wanted.is_some_and(|wanted| wanted.uid() == ours.uid());
            match owners.iter().find(|owner| *owner.uid == *ours.uid()) {
                Some(owner) => shall_own && owner.controller,
                None => !shall_own,
            }
        });
        if !is_right || pods::phase(pod) == "Pending" {
            self.tell_of_another_controller(claim, pod.name(), draft)?;
        }
        if is_right {
            return Ok(None);
        }
        let mut desired = claim.raw().value();
        let before = desired["metadata"]["ownerReferences"].take();
        let is_ours = |reference: &Value| {
            may_own.iter().any(|ours| {
                reference["apiVersion"] == ours.kind().api_version()
                    && reference["kind"] == ours.kind().name()
                    && reference["name"] == ours.name()
            })
        };
        let mut after: Vec<Value> = before.as_array().cloned().unwrap_or_default();
        after.retain(|reference| !is_ours(reference));
        after.extend(wanted.map(controlling));
        desired["metadata"]["ownerReferences"] = after.into();
        let patch = self
            .snapshot
            .patch_value(claim.raw(), &desired, "the retention policy says with whom it goes")?;
        Ok(Some(draft.put(patch)))
    }

    /// Whether somebody else manages a claim that the policy would have deleted; it is left to that one.
    fn is_anothers(&self, claim: &Seen<PersistentVolumeClaim>, pod: &str) -> bool {
        let deleted = self.deleted_claims();
        let set = self.snapshot.raw();
        let is_another = |owner: &Owner| {
            let is_pod = &*owner.api_version == "v1" && &*owner.kind == "Pod" && &*owner.name == pod;
            owner.controller && !is_pod && !names(owner, set)
        };
        (deleted.with_the_set || deleted.with_the_pod) && claim.raw().owners().iter().any(is_another)
    }

    /// Says so if somebody else manages a claim, as the policy is of no effect then.
    pub(crate) fn tell_of_another_controller(
        &self,
        claim: &Seen<PersistentVolumeClaim>,
        pod: &str,
        draft: &mut Draft<Object>,
    ) -> Result<(), Failure> {
        if self.is_anothers(claim, pod) {
            let note = format!(
                "PersistentVolumeClaim {} has a conflicting OwnerReference that acts as a manging controller, \
                 the retention policy is ignored for this claim",
                claim.name()
            );
            draft.put(
                self.snapshot
                    .event(EventType::Warning, "ConflictingController", &note)?,
            );
        }
        Ok(())
    }
}

/// Whether a reference is to an object of this kind and name, of whatever age.
fn names(owner: &Owner, object: &Object) -> bool {
    *owner.api_version == *object.kind().api_version()
        && *owner.kind == *object.kind().name()
        && *owner.name == *object.name()
}

fn controlling(owner: &Object) -> Value {
    json!({
        "apiVersion": owner.kind().api_version(), "kind": owner.kind().name(), "name": owner.name(),
        "uid": owner.uid(), "controller": true, "blockOwnerDeletion": true,
    })
}
