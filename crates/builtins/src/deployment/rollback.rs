//! Going back to an earlier revision, as clients of old ask for it: by an annotation. Those of today write the template.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use moorline_plan::{Draft, Failure};
use moorline_runtime::{EventType, Object, Seen, Snapshot};

use super::sets::{OWN, ROLLBACK, Sets, revision_of, template_of};
use crate::pods::annotation;
use crate::template::{self, TEMPLATE_HASH};

/// Gives the deployment the template of the revision that it is asked to go back to, and takes the request away. Tells
/// whether there was one.
pub(crate) fn roll_back(
    snapshot: &Snapshot<Deployment>,
    sets: &Sets,
    draft: &mut Draft<Object>,
) -> Result<bool, Failure> {
    let asked = annotation(&snapshot.object().metadata, ROLLBACK).and_then(|revision| revision.parse::<i64>().ok());
    let Some(asked) = asked else { return Ok(false) };
    let mut desired = snapshot.object().clone();
    if let Some(annotations) = desired.metadata.annotations.as_mut() {
        annotations.remove(ROLLBACK);
    }
    let name = snapshot.raw().name();
    let target = sets
        .all()
        .iter()
        .find(|set| Some(revision_of(set)) == revision(sets, asked));
    let (event, reason, note) = match target {
        None if asked == 0 => (
            EventType::Warning,
            "DeploymentRollbackRevisionNotFound",
            "Unable to find last revision.".to_owned(),
        ),
        None => (
            EventType::Warning,
            "DeploymentRollbackRevisionNotFound",
            "Unable to find the revision to rollback to.".to_owned(),
        ),
        Some(set) if template_of(set).is_some_and(|of_old| is_wanted(&desired, of_old)) => (
            EventType::Warning,
            "DeploymentRollbackTemplateUnchanged",
            format!("The rollback revision contains the same template as current deployment \"{name}\""),
        ),
        Some(set) => {
            become_of(&mut desired, set);
            let note = format!("Rolled back deployment \"{name}\" to revision {}", revision_of(set));
            (EventType::Normal, "DeploymentRollback", note)
        }
    };
    let patched = draft.put(snapshot.patch_own(&desired, note.clone())?);
    let event = draft.put(snapshot.event(event, reason, &note)?);
    draft.after(&event, &patched)?;
    Ok(true)
}

/// The revision that is meant: none stands for the one before the latest.
fn revision(sets: &Sets, asked: i64) -> Option<i64> {
    if asked != 0 {
        return Some(asked);
    }
    let mut revisions: Vec<i64> = sets.all().iter().map(revision_of).collect();
    revisions.sort_unstable();
    revisions.iter().rev().nth(1).copied().filter(|revision| *revision > 0)
}

fn is_wanted(deployment: &Deployment, template: &k8s_openapi::api::core::v1::PodTemplateSpec) -> bool {
    let wanted = deployment.spec.as_ref().map(|spec| &spec.template);
    wanted.is_some_and(|wanted| template::is_same(wanted, template))
}

/// The deployment as it was when it made this set: its template, and the annotations that went along.
fn become_of(deployment: &mut Deployment, set: &Seen<ReplicaSet>) {
    if let (Some(spec), Some(of_old)) = (deployment.spec.as_mut(), template_of(set)) {
        spec.template = of_old.clone();
        let labels = spec
            .template
            .metadata
            .as_mut()
            .and_then(|metadata| metadata.labels.as_mut());
        if let Some(labels) = labels {
            labels.remove(TEMPLATE_HASH);
        }
    }
    let annotations = deployment.metadata.annotations.get_or_insert_default();
    annotations.retain(|key, _| OWN.contains(&key.as_str()));
    let of_old = set.metadata.annotations.iter().flatten();
    let copied = of_old.filter(|(key, _)| !OWN.contains(&key.as_str()));
    annotations.extend(copied.map(|(key, value)| (key.clone(), value.clone())));
}
