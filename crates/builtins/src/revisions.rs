//! `ControllerRevision`s: the templates that a set had, so that it can go back and tell its pods apart.

use std::collections::HashSet;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector as Selector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use moorline_plan::{Draft, Failure};
use moorline_runtime::{Object, Seen, Snapshot};
use serde_json::{Value, json};

use crate::claim::{Candidate, claim, selector_of};
use crate::template;

/// The label by which a pod tells the revision that it was made of.
pub(crate) const REVISION_HASH: &str = "controller-revision-hash";

/// The revisions of a set, oldest first, the one of its present template among them or about to be made.
pub(crate) struct Revisions {
    known: Vec<Seen<ControllerRevision>>,
    /// The one of the present template.
    pub(crate) update: Revision,
    /// Collisions of names so far.
    pub(crate) collisions: Option<i32>,
}

/// A revision's name and the template that it keeps.
#[derive(Clone, Debug)]
pub(crate) struct Revision {
    pub(crate) name: String,
    pub(crate) hash: String,
    pub(crate) template: PodTemplateSpec,
}

impl Revisions {
    /// Observes the revisions, and plans to make the one of the present template if it is missing.
    pub(crate) fn observe<K>(
        snapshot: &Snapshot<K>,
        selector: &Selector,
        present: &PodTemplateSpec,
        collisions: Option<i32>,
        draft: &mut Draft<Object>,
    ) -> Result<Self, Failure> {
        let mut known: Vec<Seen<ControllerRevision>> =
            claim(snapshot, &selector_of(selector)?, draft, |_| Candidate::Yes)?;
        known.sort_by_key(|revision| revision.revision);
        let data = data_of(present);
        let latest = known.iter().map(|revision| revision.revision).max().unwrap_or(0);
        let same = known.iter().rev().find(|revision| {
            revision
                .data
                .as_ref()
                .is_some_and(|known| normal(&known.0) == normal(&data))
        });
        if let Some(same) = same {
            if same.revision < latest {
                let mut desired = (**same).clone();
                desired.revision = latest + 1;
                draft.put(snapshot.patch(same, &desired, "its template is the present one again")?);
            }
            let update = Revision::of(same, present);
            return Ok(Self {
                known,
                update,
                collisions,
            });
        }
        let mut collisions = collisions;
        let hash = template::short_hash(&normal(&data), collisions);
        let name = format!("{}-{hash}", snapshot.raw().name());
        let update = Revision {
            name: name.clone(),
            hash: hash.clone(),
            template: present.clone(),
        };
        if snapshot
            .get::<ControllerRevision>(&name)?
            .is_some_and(|other| known.iter().all(|known| known.uid() != other.uid()))
        {
            collisions = Some(collisions.unwrap_or(0) + 1);
            return Ok(Self {
                known,
                update,
                collisions,
            });
        }
        let mut labels = present.metadata.as_ref().and_then(|metadata| metadata.labels.clone());
        template::label(&mut labels, REVISION_HASH, &hash);
        let revision = ControllerRevision {
            metadata: ObjectMeta {
                name: Some(name),
                labels,
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(data)),
            revision: latest + 1,
        };
        draft.put(snapshot.create(&revision, "the present template has no revision")?);
        Ok(Self {
            known,
            update,
            collisions,
        })
    }

    /// The revision of a name, if it is known or the present one.
    pub(crate) fn get(&self, name: &str) -> Option<Revision> {
        if name == self.update.name {
            return Some(self.update.clone());
        }
        let known = self.known.iter().find(|revision| revision.name() == name)?;
        let template = known.data.as_ref()?.0.pointer("/spec/template")?.clone();
        let template: PodTemplateSpec = serde_json::from_value(without_directives(template)).ok()?;
        Some(Revision::of(known, &template))
    }

    /// Deletes the oldest revisions that nobody uses, but for so many.
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
        let unused: Vec<&Seen<ControllerRevision>> = self
            .known
            .iter()
            .filter(|revision| {
                revision.name() != self.update.name
                    && !used.contains(revision.name())
                    && !used.contains(&hash_of(revision))
            })
            .collect();
        let surplus = unused.len().saturating_sub(keep);
        for revision in unused.into_iter().take(surplus) {
            draft.put(snapshot.delete(revision.raw(), format!("{keep} old revisions are kept")));
        }
    }
}

impl Revision {
    fn of(seen: &Seen<ControllerRevision>, template: &PodTemplateSpec) -> Self {
        Self {
            name: seen.name().to_owned(),
            hash: hash_of(seen),
            template: template.clone(),
        }
    }
}

/// The hash of a revision, as its pods carry it.
fn hash_of(revision: &Seen<ControllerRevision>) -> String {
    let from_name = || revision.name().rsplit('-').next().unwrap_or_default().to_owned();
    revision
        .raw()
        .label(REVISION_HASH)
        .map_or_else(from_name, str::to_owned)
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
