//! One instance: its name, its pod, the claims that its pod mounts.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume};
use moorline_plan::{Draft, Failure};
use moorline_runtime::{EventType, Object, Seen};

use super::Set;
use crate::revisions::REVISION_HASH;
use crate::{pods, template};

const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// The number at the end of a pod's name, if the name is one of this set.
pub(crate) fn ordinal(set: &str, pod: &str) -> Option<i32> {
    let number = pod.strip_prefix(set)?.strip_prefix('-')?;
    let ordinal: i32 = number.parse().ok()?;
    (ordinal.to_string() == number).then_some(ordinal)
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
    pub(crate) fn create(&self, ordinal: i32, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let revision = self.revision_for(ordinal);
        let mut pod = pods::of_template(&revision.template);
        let name = self.pod_name(ordinal);
        self.identify(ordinal, &mut pod);
        template::label(&mut pod.metadata.labels, REVISION_HASH, &revision.mark);
        let mut claims = Vec::new();
        for (_, claim) in self.claims_of(ordinal) {
            let claim_name = claim.metadata.name.clone().unwrap_or_default();
            match self.snapshot.get::<PersistentVolumeClaim>(&claim_name)? {
                Some(existing) if existing.is_deleting() => {
                    // A pod with a claim that is going would keep it from going and never start.
                    return Ok(());
                }
                Some(_) => {}
                None => claims.push(draft.put(self.unowned(&claim, format!("{name} has no claim of this name"))?)),
            }
        }
        let key = draft.put(self.snapshot.create(&pod, format!("instance {name} is missing"))?);
        self.revisions.come_first(&key, draft)?;
        for claim in &claims {
            draft.after(&key, claim)?;
        }
        let note = format!(
            "create Pod {name} in StatefulSet {} successful",
            self.snapshot.raw().name()
        );
        let event = draft.put(self.snapshot.event(EventType::Normal, "SuccessfulCreate", &note)?);
        draft.after(&event, &key)?;
        Ok(())
    }

    /// A step that makes a claim that outlives the set.
    fn unowned(&self, claim: &PersistentVolumeClaim, reason: String) -> Result<moorline_plan::Step<Object>, Failure> {
        let step = self.snapshot.create(claim, reason)?;
        let Some(desired) = step.desired() else { return Ok(step) };
        let mut value = desired.value();
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("ownerReferences");
        }
        let object =
            Object::from_value(desired.kind(), &value).map_err(|error| Failure::terminal(error.to_string()))?;
        Ok(moorline_plan::Step::create(object, step.reason))
    }

    /// What a pod has from being this instance: name, host name, subdomain, labels, volumes.
    fn identify(&self, ordinal: i32, pod: &mut Pod) {
        let name = self.pod_name(ordinal);
        pod.metadata.name = Some(name.clone());
        template::label(&mut pod.metadata.labels, POD_NAME, &name);
        template::label(&mut pod.metadata.labels, POD_INDEX, &ordinal.to_string());
        let spec = pod.spec.get_or_insert_default();
        spec.hostname = Some(name);
        spec.subdomain.clone_from(&self.spec.service_name);
        let claims = self.claims_of(ordinal);
        let volumes = spec.volumes.get_or_insert_default();
        volumes.retain(|volume| claims.iter().all(|(name, _)| *name != volume.name));
        for (name, claim) in claims {
            volumes.push(Volume {
                name,
                persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                    claim_name: claim.metadata.name.unwrap_or_default(),
                    read_only: Some(false),
                }),
                ..Volume::default()
            });
        }
    }

    /// Gives a pod back the labels of its identity, if somebody took them away, and makes claims that are missing.
    pub(crate) fn repair(&self, ordinal: i32, pod: &Seen<Pod>, draft: &mut Draft<Object>) -> Result<(), Failure> {
        if pod.is_deleting() {
            return Ok(());
        }
        let name = self.pod_name(ordinal);
        if pod.raw().label(POD_NAME) != Some(&name) {
            let mut desired = (**pod).clone();
            template::label(&mut desired.metadata.labels, POD_NAME, &name);
            draft.put(
                self.snapshot
                    .patch(pod, &desired, "it has lost the label of its identity")?,
            );
        }
        for (_, claim) in self.claims_of(ordinal) {
            let claim_name = claim.metadata.name.clone().unwrap_or_default();
            if self.snapshot.get::<PersistentVolumeClaim>(&claim_name)?.is_none() {
                draft.put(self.unowned(&claim, format!("{name} has no claim of this name"))?);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::ordinal;

    #[test]
    fn a_pods_ordinal_is_read_from_its_name() {
        assert_eq!(ordinal("web", "web-0"), Some(0));
        assert_eq!(ordinal("web", "web-12"), Some(12));
        assert_eq!(ordinal("web", "web-01"), None);
        assert_eq!(ordinal("web", "web-db-1"), None);
        assert_eq!(ordinal("web-db", "web-db-1"), Some(1));
        assert_eq!(ordinal("web", "other-1"), None);
    }
}
