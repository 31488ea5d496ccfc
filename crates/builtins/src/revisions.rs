//! `ControllerRevision`s: the templates that a set had, so that it can go back and tell its pods apart.

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector as Selector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use moorline_plan::{Draft, Failure, StepKey};
use moorline_runtime::{Key, Object, Seen, Snapshot, Sources, Target};
use serde_json::{Value, json};

use crate::claim::{Candidate, claim, selector_of};
use crate::daemonset::FAILED_DAEMONS;
use crate::template;

/// The label by which a pod tells the revision that it was made of.
pub(crate) const REVISION_HASH: &str = "controller-revision-hash";
/// The label by which a revision of a stateful set tells its hash.
const HASH_OF_DATA: &str = "controller.kubernetes.io/hash";
/// How much of a set's name its revisions have in theirs.
const LONGEST_PREFIX: usize = 223;

/// What the pods of a set have as their [`REVISION_HASH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The revision's name, as with stateful sets.
    Name,
    /// The hash that the revision carries under the same label, as with daemon sets.
    Hash,
}

/// The revisions of a set, oldest first, the one of its present template among them or about to be made.
pub(crate) struct Revisions {
    known: Vec<Seen<ControllerRevision>>,
    mark: Mark,
    /// The one of the present template.
    pub(crate) update: Revision,
    /// Collisions of names so far.
    pub(crate) collisions: Option<i32>,
    /// The step that makes the one of the present template, if it is missing.
    making: Option<StepKey<Target>>,
}

/// A revision's name and the template that it keeps.
#[derive(Clone, Debug)]
pub(crate) struct Revision {
    pub(crate) name: String,
    /// What its pods carry under [`REVISION_HASH`].
    pub(crate) mark: String,
    pub(crate) template: PodTemplateSpec,
}

impl Revisions {
    /// Observes the revisions, and plans to make the one of the present template if it is missing.
    pub(crate) fn observe<K>(
        snapshot: &Snapshot<K>,
        mark: Mark,
        selector: &Selector,
        present: &PodTemplateSpec,
        collisions: Option<i32>,
        draft: &mut Draft<Object>,
    ) -> Result<Self, Failure> {
        let mut known: Vec<Seen<ControllerRevision>> =
            claim(snapshot, &selector_of(selector)?, draft, |_| Candidate::Yes)?;
        known.sort_by_key(|revision| {
            let created = revision.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (revision.revision, created, revision.name().to_owned())
        });
        let data = data_of(present);
        let latest = known.iter().map(|revision| revision.revision).max().unwrap_or(0);
        let mut revisions = Self {
            update: Revision {
                name: String::new(),
                mark: String::new(),
                template: present.clone(),
            },
            known,
            mark,
            collisions,
            making: None,
        };
        if let Some(same) = revisions.known.iter().rev().find(|known| keeps(known, &data)) {
            if same.revision < latest {
                let mut desired = (**same).clone();
                desired.revision = latest + 1;
                draft.put(snapshot.patch(same, &desired, "its template is the present one again")?);
            }
            revisions.update = Revision::of(same, present, mark);
            return Ok(revisions);
        }
        let (name, hash) = loop {
            let hash = hash_of(present, &data, mark, revisions.collisions);
            let name = name_of(snapshot.raw().name(), &hash);
            match snapshot.get::<ControllerRevision>(&name)? {
                // Somebody else's, such as that of a set of this name which is gone. As it says the same, its name
                // stands for the template already; ours is made when it is gone.
                Some(same) if keeps(&same, &data) => {
                    revisions.update = Revision::of(&same, present, mark);
                    return Ok(revisions);
                }
                Some(_) => revisions.collisions = Some(revisions.collisions.unwrap_or(0) + 1),
                None => break (name, hash),
            }
        };
        revisions.update.mark = match mark {
            Mark::Name => name.clone(),
            Mark::Hash => hash.clone(),
        };
        revisions.update.name.clone_from(&name);
        if snapshot.raw().is_deleting() {
            return Ok(revisions);
        }
        let mut labels = present.metadata.as_ref().and_then(|metadata| metadata.labels.clone());
        let label = match mark {
            Mark::Name => HASH_OF_DATA,
            Mark::Hash => REVISION_HASH,
        };
        template::label(&mut labels, label, &hash);
        let revision = ControllerRevision {
            metadata: ObjectMeta {
                name: Some(name),
                labels,
                annotations: annotations_of(snapshot.raw()),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(data)),
            revision: latest + 1,
        };
        revisions.making = Some(draft.put(snapshot.create(&revision, "the present template has no revision")?));
        Ok(revisions)
    }

    /// The revision of a name, if it is known or the present one.
    pub(crate) fn get(&self, name: &str) -> Option<Revision> {
        if name == self.update.name {
            return Some(self.update.clone());
        }
        let known = self.known.iter().find(|revision| revision.name() == name)?;
        let template = known.data.as_ref()?.0.pointer("/spec/template")?.clone();
        let template: PodTemplateSpec = serde_json::from_value(without_directives(template)).ok()?;
        Some(Revision::of(known, &template, self.mark))
    }

    /// Orders the making of a pod after that of its revision: a pod of a revision that is nowhere could not be told
    /// from others, nor be gone back to.
    pub(crate) fn come_first(&self, pod: &StepKey<Target>, draft: &mut Draft<Object>) -> Result<(), Failure> {
        if let Some(making) = &self.making {
            draft.after(pod, making)?;
        }
        Ok(())
    }

    /// Deletes the oldest revisions that nobody uses, but for so many.
    ///
    /// Of a daemon set, old ones that are still in use count among those that are kept.
    pub(crate) fn clean_up<K>(
        &self,
        snapshot: &Snapshot<K>,
        used: &HashSet<String>,
        keep: Option<i32>,
        draft: &mut Draft<Object>,
    ) {
        let Ok(keep) = usize::try_from(keep.unwrap_or(10)) else {
            return;
        };
        let old = self.known.iter().filter(|revision| revision.name() != self.update.name);
        let old: Vec<&Seen<ControllerRevision>> = old.collect();
        let (used, unused): (Vec<_>, Vec<_>) = old
            .into_iter()
            .partition(|revision| used.contains(&mark_of(revision, self.mark)));
        let counted = match self.mark {
            Mark::Name => unused.len(),
            Mark::Hash => unused.len() + used.len(),
        };
        for revision in unused.into_iter().take(counted.saturating_sub(keep)) {
            draft.put(snapshot.delete(revision.raw(), format!("{keep} old revisions are kept")));
        }
    }
}

impl Revision {
    fn of(seen: &Seen<ControllerRevision>, template: &PodTemplateSpec, mark: Mark) -> Self {
        Self {
            name: seen.name().to_owned(),
            mark: mark_of(seen, mark),
            template: template.clone(),
        }
    }

    /// Whether a pod says that it was made of this one.
    pub(crate) fn made(&self, pod: &Object) -> bool {
        pod.label(REVISION_HASH) == Some(&self.mark)
    }
}

/// The set that a revision has its name from. For [`Watches::maps`](moorline_runtime::Watches): one that finds somebody
/// else's revision under the name of its own waits until that is gone.
pub(crate) fn named_after(revision: &Object, _: &Sources) -> Vec<Key> {
    let set = revision.name().rsplit_once('-').map(|(set, _)| set);
    set.map(|set| Key::new(revision.namespace(), set)).into_iter().collect()
}

fn name_of(set: &str, hash: &str) -> String {
    let mut end = set.len().min(LONGEST_PREFIX);
    while !set.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}-{hash}", &set[..end])
}

/// The hash of a template. The two kinds of sets hash different documents, so that sets of one name and template which
/// are of either kind do not meet.
fn hash_of(present: &PodTemplateSpec, data: &Value, mark: Mark, collisions: Option<i32>) -> String {
    match mark {
        Mark::Name => template::short_hash(&normal(data), collisions),
        Mark::Hash => template::short_hash(&template::normal(present), collisions),
    }
}

/// What the pods of a revision carry.
fn mark_of(revision: &Seen<ControllerRevision>, mark: Mark) -> String {
    let from_name = || revision.name().rsplit('-').next().unwrap_or_default().to_owned();
    match mark {
        Mark::Name => revision.name().to_owned(),
        Mark::Hash => revision
            .raw()
            .label(REVISION_HASH)
            .map_or_else(from_name, str::to_owned),
    }
}

/// The annotations that a revision has from its set: `kubectl rollout history` reads the cause of a change there.
fn annotations_of(set: &Object) -> Option<BTreeMap<String, String>> {
    let mut annotations: BTreeMap<String, String> =
        serde_json::from_value(set.value()["metadata"]["annotations"].take()).unwrap_or_default();
    annotations.remove(FAILED_DAEMONS);
    (!annotations.is_empty()).then_some(annotations)
}

/// Whether a revision keeps this.
fn keeps(revision: &ControllerRevision, data: &Value) -> bool {
    let kept = revision.data.as_ref();
    kept.is_some_and(|kept| normal(&kept.0) == normal(data))
}

/// What a revision keeps: a patch that puts the template back, as `kubectl rollout undo` applies it.
fn data_of(template: &PodTemplateSpec) -> Value {
    let mut template = serde_json::to_value(template).unwrap_or_default();
    template["$patch"] = "replace".into();
    json!({ "spec": { "template": template } })
}

fn without_directives(mut template: Value) -> Value {
    if let Some(members) = template.as_object_mut() {
        members.remove("$patch");
    }
    template
}

fn normal(data: &Value) -> Value {
    let mut data = data.clone();
    template::leave_out_empty(&mut data);
    data
}
