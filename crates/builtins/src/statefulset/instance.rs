//! One instance: its name, its pod, the claims that its pod mounts.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume};
use moorline_plan::{Draft, Failure, StepKey};
use moorline_runtime::{EventType, Failed, Kind, Object, Seen, Target};

use super::Set;
use crate::revisions::REVISION_HASH;
use crate::{pods, template};

const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// Whether a pod may belong to this set, by its name.
pub(crate) fn is_member(set: &str, pod: &str) -> bool {
    digits(set, pod).is_some()
}

/// The number at the end of a pod's name, if the name is one that this set gives.
pub(crate) fn ordinal(set: &str, pod: &str) -> Option<i32> {
    let number = digits(set, pod)?;
    let ordinal: i32 = number.parse().ok()?;
    (ordinal.to_string() == number).then_some(ordinal)
}

fn digits<'p>(set: &str, pod: &'p str) -> Option<&'p str> {
    let number = pod.strip_prefix(set)?.strip_prefix('-')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(number)
}

/// The events that tell of pods that could not be made or taken away.
pub(crate) fn failures(failed: &Failed<'_>) -> Option<(String, String)> {
    if failed.step.target.kind != Kind::of::<Pod>() {
        return None;
    }
    let verb = match failed.step.action.verb() {
        "create" => "Create",
        "delete" => "Delete",
        _ => return None,
    };
    let pod = failed.step.desired().or(failed.step.base())?;
    let set = pod.controller().map(|owner| &*owner.name).unwrap_or_default();
    let note = format!(
        "{verb} Pod {} in StatefulSet {set} failed error: {}",
        pod.name(),
        failed.why
    );
    Some((format!("Failed{verb}"), note))
}

/// What came of the wish to make an instance.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Making {
    /// It is planned.
    Planned,
    /// Somebody has its name who is let go, or a claim of the instance that had it before is to go with that one first.
    Waiting,
    /// It cannot be made now, as the set's events say.
    Refused,
}

impl Set<'_> {
    fn pod_name(&self, ordinal: i32) -> String {
        format!("{}-{ordinal}", self.snapshot.raw().name())
    }

    /// The claims of an instance: the name of each template's volume, and the claim that stands for it.
    pub(crate) fn claims_of(&self, ordinal: i32) -> Vec<(String, PersistentVolumeClaim)> {
        let templates = self.spec.volume_claim_templates.iter().flatten();
        templates
            .map(|template| {
                let volume = template.metadata.name.clone().unwrap_or_default();
                let mut claim = template.clone();
                claim.status = None;
                claim.metadata.name = Some(format!("{volume}-{}", self.pod_name(ordinal)));
                for (key, value) in self.spec.selector.match_labels.iter().flatten() {
                    template::label(&mut claim.metadata.labels, key, value);
                }
                (volume, claim)
            })
            .collect()
    }

    /// Plans an instance's pod, after the claims that it mounts.
    pub(crate) fn create(&self, ordinal: i32, draft: &mut Draft<Object>) -> Result<Making, Failure> {
        let revision = self.revision_for(ordinal);
        let mut pod = pods::of_template(&revision.template);
        let name = self.pod_name(ordinal);
        self.identify(ordinal, &mut pod);
        template::label(&mut pod.metadata.labels, REVISION_HASH, &revision.mark);
        let step = self.snapshot.create(&pod, format!("instance {name} is missing"))?;
        // Whoever has the name now is being let go: it may keep it.
        if draft.get(&step.key()).is_some() {
            return Ok(Making::Waiting);
        }
        let mut missing = Vec::new();
        let mut going = Vec::new();
        for (_, claim) in self.claims_of(ordinal) {
            let claim_name = claim.metadata.name.clone().unwrap_or_default();
            match self.snapshot.get::<PersistentVolumeClaim>(&claim_name)? {
                Some(existing) if self.goes_with_its_pod(&existing, &name) => return Ok(Making::Waiting),
                // A pod with a claim that is going would keep it from going and never start.
                Some(existing) if existing.is_deleting() => going.push(format!("pvc {claim_name} is being deleted")),
                Some(existing) => self.tell_of_another_controller(&existing, &name, draft)?,
                None => missing.push(claim),
            }
        }
        let mut claims = Vec::new();
        for claim in &missing {
            claims.push(self.create_claim(claim, &name, draft)?);
        }
        if !going.is_empty() {
            let why = match going.as_slice() {
                [one] => one.clone(),
                several => format!("[{}]", several.join(", ")),
            };
            let set = self.snapshot.raw().name();
            let note = format!("Create Pod {name} in StatefulSet {set} failed error: {why}");
            draft.put(self.snapshot.event(EventType::Warning, "FailedCreate", &note)?);
            return Ok(Making::Refused);
        }
        let key = draft.put(step);
        self.revisions.come_first(&key, draft)?;
        for claim in &claims {
            draft.after(&key, claim)?;
        }
        self.tell("Create", &name, &key, draft)?;
        Ok(Making::Planned)
    }

    /// Plans the end of an instance's pod.
    pub(crate) fn delete(
        &self,
        pod: &Seen<Pod>,
        reason: String,
        draft: &mut Draft<Object>,
    ) -> Result<StepKey<Target>, Failure> {
        let key = draft.put(self.snapshot.delete(pod.raw(), reason));
        self.tell("Delete", pod.name(), &key, draft)?;
        Ok(key)
    }

    /// Tells that something was done to a pod, when it has been.
    pub(crate) fn tell(
        &self,
        verb: &str,
        pod: &str,
        done: &StepKey<Target>,
        draft: &mut Draft<Object>,
    ) -> Result<(), Failure> {
        let set = self.snapshot.raw().name();
        let note = format!("{verb} Pod {pod} in StatefulSet {set} successful");
        let reason = format!("Successful{verb}");
        let event = draft.put(self.snapshot.event(EventType::Normal, &reason, &note)?);
        draft.after(&event, done)?;
        Ok(())
    }

    /// Plans a claim, which outlives the set.
    fn create_claim(
        &self,
        claim: &PersistentVolumeClaim,
        pod: &str,
        draft: &mut Draft<Object>,
    ) -> Result<StepKey<Target>, Failure> {
        let step = self
            .snapshot
            .create(claim, format!("{pod} has no claim of this name"))?;
        let Some(desired) = step.desired() else {
            return Ok(draft.put(step));
        };
        let mut value = desired.value();
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("ownerReferences");
        }
        let object =
            Object::from_value(desired.kind(), &value).map_err(|error| Failure::terminal(error.to_string()))?;
        let set = self.snapshot.raw().name();
        let note = format!("Create Claim {} Pod {pod} in StatefulSet {set} success", object.name());
        let key = draft.put(moorline_plan::Step::create(object, step.reason));
        let event = draft.put(self.snapshot.event(EventType::Normal, "SuccessfulCreate", &note)?);
        draft.after(&event, &key)?;
        Ok(key)
    }

    /// What a pod has from being this instance: name, host name, subdomain, labels, volumes.
    fn identify(&self, ordinal: i32, pod: &mut Pod) {
        let name = self.pod_name(ordinal);
        pod.metadata.name = Some(name.clone());
        pod.metadata.generate_name = Some(format!("{}-", self.snapshot.raw().name()));
        label(ordinal, &name, pod);
        let spec = pod.spec.get_or_insert_default();
        spec.hostname = Some(name);
        spec.subdomain.clone_from(&self.spec.service_name);
        let claims = self.claims_of(ordinal);
        let mut others = spec.volumes.take().unwrap_or_default();
        others.retain(|volume| claims.iter().all(|(name, _)| *name != volume.name));
        let claimed = claims.into_iter().map(|(name, claim)| Volume {
            name,
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.metadata.name.unwrap_or_default(),
                read_only: None,
            }),
            ..Volume::default()
        });
        let volumes: Vec<Volume> = claimed.chain(others).collect();
        spec.volumes = (!volumes.is_empty()).then_some(volumes);
    }

    /// Gives a pod back the labels of its identity, if somebody took them away, and makes the claims that it waits for.
    pub(crate) fn repair(&self, ordinal: i32, pod: &Seen<Pod>, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let name = self.pod_name(ordinal);
        if pods::phase(pod) == "Pending" {
            for (_, claim) in self.claims_of(ordinal) {
                let claim_name = claim.metadata.name.clone().unwrap_or_default();
                if self.snapshot.get::<PersistentVolumeClaim>(&claim_name)?.is_none() {
                    self.create_claim(&claim, &name, draft)?;
                }
            }
        }
        if !pod.is_deleting() && pod.raw().label(POD_NAME) != Some(&name) {
            let mut desired = (**pod).clone();
            label(ordinal, &name, &mut desired);
            let patch = self
                .snapshot
                .patch(pod, &desired, "it has lost the label of its identity")?;
            let patched = draft.put(patch);
            self.tell("Update", &name, &patched, draft)?;
        }
        Ok(())
    }
}

/// The labels of an identity.
fn label(ordinal: i32, name: &str, pod: &mut Pod) {
    template::label(&mut pod.metadata.labels, POD_NAME, name);
    template::label(&mut pod.metadata.labels, POD_INDEX, &ordinal.to_string());
}

#[cfg(test)]
mod tests {
    use super::{is_member, ordinal};

    #[test]
    fn a_pods_ordinal_is_read_from_its_name() {
        assert_eq!(ordinal("web", "web-0"), Some(0));
        assert_eq!(ordinal("web", "web-12"), Some(12));
        assert_eq!(ordinal("web", "web-01"), None);
        assert_eq!(ordinal("web", "web-db-1"), None);
        assert_eq!(ordinal("web-db", "web-db-1"), Some(1));
        assert_eq!(ordinal("web", "other-1"), None);
    }

    #[test]
    fn a_member_is_whoever_has_the_sets_name_and_a_number() {
        assert!(is_member("web", "web-0") && is_member("web", "web-01"));
        for other in ["web", "web-", "web-a", "web-db-1", "web-+1", "other-1"] {
            assert!(!is_member("web", other), "{other}");
        }
    }
}
