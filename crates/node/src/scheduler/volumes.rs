//! What a pod's claims allow: a volume lies on certain nodes, and one that is still to be made can lie on some.

use k8s_openapi::{
    api::{
        core::v1::{PersistentVolume, PersistentVolumeClaim},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    cluster::{Cluster, NodeState},
    filter::Refusal,
    wanted::{NodeTerms, Wanted, read_selector},
};
use crate::{amounts::amount, key::Key};

/// What becomes of a claim that waited for its first pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimChoice {
    /// It takes a volume that is there.
    Bind {
        /// The claim's name.
        claim: String,
        /// The volume's name.
        volume: String,
    },
    /// A volume is made for it on the pod's node.
    Provision {
        /// The claim's name.
        claim: String,
    },
}

/// The claims of one pod.
pub(crate) struct Claims<'a> {
    key: Key,
    bound: Vec<&'a PersistentVolume>,
    /// Claims that are bound to volumes that are not there.
    lost: bool,
    waiting: Vec<(&'a PersistentVolumeClaim, Option<&'a StorageClass>)>,
    /// Claims of which only one pod may make use.
    alone: Vec<Key>,
}

/// Reads what a pod's claims are; an error says in Kubernetes' words why it has to wait whatever the node.
pub(crate) fn read<'a>(cluster: &'a Cluster, wanted: &Wanted) -> Result<Claims<'a>, String> {
    let mut claims = Claims {
        key: wanted.key.clone(),
        bound: Vec::new(),
        lost: false,
        waiting: Vec::new(),
        alone: Vec::new(),
    };
    for name in &wanted.claims {
        let key = Key::new(&wanted.key.namespace, name);
        let Some(claim) = cluster.claims.get(&key) else {
            return Err(format!("persistentvolumeclaim {name:?} not found"));
        };
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
        }
        let spec = claim.spec.as_ref();
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        let volume = spec
            .and_then(|spec| spec.volume_name.as_ref())
            .filter(|name| !name.is_empty());
        if phase == Some("Lost") {
            let volume = volume.map_or("", String::as_str);
            return Err(format!(
                "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
            ));
        }
        let modes = spec.and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
        if modes.iter().any(|mode| mode == "ReadWriteOncePod") {
            claims.alone.push(key);
        }
        if let Some(volume) = volume {
            match cluster.volumes.get(volume) {
                Some(volume) if phase == Some("Bound") => claims.bound.push(volume),
                Some(_) => return Err("pod has unbound immediate PersistentVolumeClaims".to_owned()),
                None => claims.lost = true,
            }
            continue;
        }
        let class = class_name(
            &claim.metadata,
            spec.and_then(|spec| spec.storage_class_name.as_deref()),
        );
        let class = cluster.classes.get(class);
        if class.and_then(|class| class.volume_binding_mode.as_deref()) != Some("WaitForFirstConsumer") {
            return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
        }
        claims.waiting.push((claim, class));
    }
    Ok(claims)
}

impl Claims<'_> {
    pub(crate) fn check(&self, cluster: &Cluster, node: &NodeState) -> Result<(), Refusal> {
        let refused = |reason: &str, room_would_help: bool| {
            Err(Refusal {
                reasons: vec![reason.to_owned()],
                room_would_help,
            })
        };
        let used = |claim: &Key| {
            let users = cluster.claim_users.get(claim);
            users.is_some_and(|users| users.iter().any(|user| *user != self.key))
        };
        if self.alone.iter().any(used) {
            return refused(
                "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
                true,
            );
        }
        if self.lost {
            return refused(
                "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
                false,
            );
        }
        if !self.bound.iter().all(|volume| reaches(volume, node)) {
            return refused("node(s) didn't match PersistentVolume's node affinity", false);
        }
        let mut taken = Vec::new();
        for (claim, class) in &self.waiting {
            match choice(cluster, claim, *class, node, &taken) {
                Some(ClaimChoice::Bind { volume, .. }) => taken.push(volume),
                Some(ClaimChoice::Provision { .. }) => {}
                None => return refused("node(s) didn't find available persistent volumes to bind", false),
            }
        }
        Ok(())
    }

    /// What becomes of the claims that waited, on this node.
    pub(crate) fn choose(&self, cluster: &Cluster, node: &NodeState) -> Vec<ClaimChoice> {
        let mut taken = Vec::new();
        let mut choices = Vec::new();
        for (claim, class) in &self.waiting {
            let Some(choice) = choice(cluster, claim, *class, node, &taken) else {
                continue;
            };
            if let ClaimChoice::Bind { volume, .. } = &choice {
                taken.push(volume.clone());
            }
            choices.push(choice);
        }
        choices
    }
}

fn choice(
    cluster: &Cluster,
    claim: &PersistentVolumeClaim,
    class: Option<&StorageClass>,
    node: &NodeState,
    taken: &[String],
) -> Option<ClaimChoice> {
    let name = claim.metadata.name.clone().unwrap_or_default();
    let free = cluster.volumes.iter().filter(|(volume, _)| !taken.contains(volume));
    let fitting = free.filter(|(_, volume)| fits(volume, claim) && reaches(volume, node));
    let is_free = |volume: &PersistentVolume| volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none());
    if let Some((volume, _)) = fitting.min_by_key(|(_, volume)| (is_free(volume), capacity(volume))) {
        return Some(ClaimChoice::Bind {
            claim: name,
            volume: volume.clone(),
        });
    }
    let class = class?;
    let provisionable = class.provisioner != "kubernetes.io/no-provisioner";
    (provisionable && allowed(class, node)).then_some(ClaimChoice::Provision { claim: name })
}

fn allowed(class: &StorageClass, node: &NodeState) -> bool {
    let Some(terms) = class.allowed_topologies.as_ref().filter(|terms| !terms.is_empty()) else {
        return true;
    };
    terms.iter().any(|term| {
        let mut expressions = term.match_label_expressions.iter().flatten();
        expressions.all(|expression| {
            node.labels
                .get(&expression.key)
                .is_some_and(|value| expression.values.contains(value))
        })
    })
}

fn reaches(volume: &PersistentVolume, node: &NodeState) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    required.is_none_or(|terms| NodeTerms::of(terms).matches(&node.name, &node.labels))
}

fn capacity(volume: &PersistentVolume) -> i64 {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    capacity
        .and_then(|capacity| capacity.get("storage"))
        .map_or(0, |quantity| amount("storage", quantity))
}

/// Whether a volume that nobody else has claimed can serve a claim. One that is kept for the claim need not be of its
/// class, nor be selected.
fn fits(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let (Some(offer), Some(asked)) = (&volume.spec, &claim.spec) else {
        return false;
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
    let modes = offer.access_modes.as_deref().unwrap_or_default();
    let wanted = asked
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref());
    let wanted = wanted
        .and_then(|requests| requests.get("storage"))
        .map_or(0, |size| amount("storage", size));
    let is_usable = volume.metadata.deletion_timestamp.is_none()
        && mode(&offer.volume_mode) == mode(&asked.volume_mode)
        && text(&offer.volume_attributes_class_name) == text(&asked.volume_attributes_class_name)
        && asked.access_modes.iter().flatten().all(|mode| modes.contains(mode))
        && capacity(volume) >= wanted;
    if offer.claim_ref.is_some() {
        return is_usable && is_kept_for(volume, claim);
    }
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let labels = volume.metadata.labels.clone().unwrap_or_default();
    is_usable
        && phase == Some("Available")
        && class_name(&volume.metadata, offer.storage_class_name.as_deref())
            == class_name(&claim.metadata, asked.storage_class_name.as_deref())
        && (asked.selector.is_none() || read_selector(asked.selector.as_ref()).matches(&labels))
}

/// Whether a volume names this claim as the one that has it or shall have it.
pub(super) fn is_kept_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let holder = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    holder.is_some_and(|holder| {
        holder.namespace == claim.metadata.namespace
            && holder.name == claim.metadata.name
            && (holder.uid.is_none() || holder.uid == claim.metadata.uid)
    })
}

/// The class of a claim or a volume, which used to be chosen by an annotation; empty for none.
fn class_name<'a>(metadata: &'a ObjectMeta, chosen: Option<&'a str>) -> &'a str {
    let annotations = metadata.annotations.as_ref();
    let old = annotations.and_then(|annotations| annotations.get("volume.beta.kubernetes.io/storage-class"));
    old.map(String::as_str).or(chosen).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim() -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "data", "namespace": "n", "uid": "u" },
            "spec": { "storageClassName": "local", "accessModes": ["ReadWriteOnce"],
                      "resources": { "requests": { "storage": "1Gi" } } },
        }))
        .unwrap()
    }

    fn volume(change: impl Fn(&mut Value)) -> PersistentVolume {
        let mut volume = json!({
            "metadata": { "name": "pv" },
            "spec": { "storageClassName": "local", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" } },
            "status": { "phase": "Available" },
        });
        change(&mut volume);
        serde_json::from_value(volume).unwrap()
    }

    #[test]
    fn a_volume_that_is_kept_for_a_claim_must_be_large_enough_too() {
        let keep = |volume: &mut Value| {
            volume["spec"]["claimRef"] = json!({ "namespace": "n", "name": "data" });
            volume["spec"]["storageClassName"] = json!("other");
        };
        assert!(fits(&volume(keep), &claim()), "it need not be of the class");
        for (field, value) in [
            ("capacity", json!({ "storage": "1Mi" })),
            ("volumeMode", json!("Block")),
            ("accessModes", json!(["ReadOnlyMany"])),
            ("volumeAttributesClassName", json!("fast")),
        ] {
            let unfit = volume(|volume| {
                keep(volume);
                volume["spec"][field] = value.clone();
            });
            assert!(!fits(&unfit, &claim()), "{field}");
        }
        let foreign = volume(|volume| volume["spec"]["claimRef"] = json!({ "namespace": "m", "name": "data" }));
        assert!(!fits(&foreign, &claim()), "it is kept for a claim in another namespace");
    }

    #[test]
    fn a_free_volume_must_be_available_and_of_the_class() {
        assert!(fits(&volume(|_| ()), &claim()));
        assert!(!fits(
            &volume(|volume| volume["status"]["phase"] = json!("Pending")),
            &claim()
        ));
        let annotated = volume(|volume| {
            volume["metadata"]["annotations"] = json!({ "volume.beta.kubernetes.io/storage-class": "other" });
        });
        assert!(!fits(&annotated, &claim()));
    }
}
