//! The replica sets of a deployment: which one is new, which are old, and what is written on them.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use moorline_plan::{Draft, Failure};
use moorline_runtime::{EventType, Object, Seen, Snapshot};

use crate::claim::{Candidate, claim, selector_of};
use crate::pods::annotation;
use crate::template::{self, TEMPLATE_HASH};

/// The longest name that an object may have.
const LONGEST_NAME: usize = 253;
/// How long a history of revisions may become.
const LONGEST_HISTORY: usize = 2000;

/// The revision to go back to, as clients of old ask for it.
pub(crate) const ROLLBACK: &str = "deprecated.deployment.rollback.revisionTarget";
pub(crate) const REVISION: &str = "deployment.kubernetes.io/revision";
const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MOST: &str = "deployment.kubernetes.io/max-replicas";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The annotations that do not go from a deployment to its sets or back.
pub(crate) const OWN: [&str; 6] = [REVISION, REVISION_HISTORY, DESIRED, MOST, LAST_APPLIED, ROLLBACK];

/// The replica sets of a deployment as they were seen, and what is decided about them on the way.
pub(crate) struct Sets {
    spec: DeploymentSpec,
    template: PodTemplateSpec,
    /// Oldest first.
    all: Vec<Seen<ReplicaSet>>,
    /// The uid of the one that has the deployment's template.
    new: Option<String>,
    /// The name of a new one that the plan makes.
    pub(crate) created: Option<String>,
    /// The collisions of names so far, one more if another one was found.
    pub(crate) collisions: Option<i32>,
}

impl Sets {
    pub(crate) fn observe(snapshot: &Snapshot<Deployment>, draft: &mut Draft<Object>) -> Result<Self, Failure> {
        let deployment = snapshot.object();
        let spec = deployment
            .spec
            .clone()
            .ok_or_else(|| Failure::terminal("spec is missing"))?;
        let mut all: Vec<Seen<ReplicaSet>> = claim(snapshot, &selector_of(&spec.selector)?, draft, |_| Candidate::Yes)?;
        all.sort_by_key(|set| set.metadata.creation_timestamp.as_ref().map(|time| time.0));
        let template = spec.template.clone();
        let new = all
            .iter()
            .find(|set| template_of(set).is_some_and(|other| template::is_same(other, &template)));
        let new = new.map(|set| set.uid().to_owned());
        let collisions = deployment.status.as_ref().and_then(|status| status.collision_count);
        Ok(Self {
            spec,
            template,
            all,
            new,
            created: None,
            collisions,
        })
    }

    /// The replica set of the deployment's template.
    pub(crate) fn new_set(&self) -> Option<&Seen<ReplicaSet>> {
        let new = self.new.as_deref()?;
        self.all.iter().find(|set| set.uid() == new)
    }

    /// The others, oldest first.
    pub(crate) fn old_sets(&self) -> impl Iterator<Item = &Seen<ReplicaSet>> {
        self.all.iter().filter(|set| Some(set.uid()) != self.new.as_deref())
    }

    /// All of them, oldest first.
    pub(crate) fn all(&self) -> &[Seen<ReplicaSet>] {
        &self.all
    }

    pub(crate) fn spec(&self) -> &DeploymentSpec {
        &self.spec
    }

    pub(crate) fn replicas(&self) -> i32 {
        self.spec.replicas.unwrap_or(1)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.spec.paused == Some(true)
    }

    pub(crate) fn recreates(&self) -> bool {
        self.spec
            .strategy
            .as_ref()
            .and_then(|strategy| strategy.type_.as_deref())
            == Some("Recreate")
    }

    /// Whether the number of replicas was changed since the sets were last scaled.
    pub(crate) fn is_being_scaled(&self) -> bool {
        let active = self.all.iter().filter(|set| replicas_of(set) > 0);
        active
            .filter_map(|set| desired_of(set))
            .any(|desired| desired != self.replicas())
    }

    /// How many pods there may be beyond those wanted.
    pub(crate) fn surge(&self) -> i32 {
        self.limits().0
    }

    /// How many of the wanted pods may be missing.
    pub(crate) fn unavailable(&self) -> i32 {
        self.limits().1
    }

    fn limits(&self) -> (i32, i32) {
        if self.recreates() {
            return (0, 0);
        }
        let rolling = self
            .spec
            .strategy
            .as_ref()
            .and_then(|strategy| strategy.rolling_update.as_ref());
        let quarter = IntOrString::String("25%".to_owned());
        let surge = rolling
            .and_then(|rolling| rolling.max_surge.as_ref())
            .unwrap_or(&quarter);
        let unavailable = rolling
            .and_then(|rolling| rolling.max_unavailable.as_ref())
            .unwrap_or(&quarter);
        let (surge, unavailable) = (
            scaled(surge, self.replicas(), Rounding::Up),
            scaled(unavailable, self.replicas(), Rounding::Down),
        );
        // With neither, nothing could ever move.
        if surge == 0 && unavailable == 0 {
            (0, 1)
        } else {
            (surge, unavailable.min(self.replicas()))
        }
    }

    /// Makes sure that there is a replica set of the deployment's template, with the latest revision.
    ///
    /// `replicas` says how many a newly made one starts with.
    pub(crate) fn ensure_new(
        &mut self,
        snapshot: &Snapshot<Deployment>,
        replicas: impl Fn(&Self) -> i32,
        draft: &mut Draft<Object>,
    ) -> Result<(), Failure> {
        if self.find_new(snapshot, draft)? {
            return Ok(());
        }
        let hash = template::short_hash(&template::normal(&self.template), self.collisions);
        let stem: String = snapshot
            .raw()
            .name()
            .chars()
            .take(LONGEST_NAME - 1 - hash.len())
            .collect();
        let name = format!("{stem}-{hash}");
        if snapshot.get::<ReplicaSet>(&name)?.is_some() {
            // Another template, or somebody else's: the next look takes another name.
            self.collisions = Some(self.collisions.unwrap_or(0) + 1);
            return Ok(());
        }
        let replicas = replicas(self);
        let mut template = self.template.clone();
        template::label(
            &mut template.metadata.get_or_insert_default().labels,
            TEMPLATE_HASH,
            &hash,
        );
        let mut selector = self.spec.selector.clone();
        template::label(&mut selector.match_labels, TEMPLATE_HASH, &hash);
        let mut set = ReplicaSet {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: template.metadata.as_ref().and_then(|metadata| metadata.labels.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(ReplicaSetSpec {
                replicas: Some(replicas),
                min_ready_seconds: self.spec.min_ready_seconds,
                selector,
                template: Some(template),
            }),
            status: None,
        };
        self.annotate(snapshot, &mut set, self.next_revision());
        let key = draft.put(snapshot.create(&set, "no replica set has the deployment's template")?);
        if replicas > 0 {
            let note = format!("Scaled up replica set {name} from 0 to {replicas}");
            let event = draft.put(snapshot.event(EventType::Normal, "ScalingReplicaSet", &note)?);
            draft.after(&event, &key)?;
        }
        self.created = Some(name);
        Ok(())
    }

    /// Whether there is a replica set of the deployment's template. One that has been used before becomes the latest.
    pub(crate) fn find_new(
        &mut self,
        snapshot: &Snapshot<Deployment>,
        draft: &mut Draft<Object>,
    ) -> Result<bool, Failure> {
        let Some(new) = self.new_set() else { return Ok(false) };
        let mut desired = planned(new, draft)?;
        self.annotate(snapshot, &mut desired, self.next_revision().max(revision_of(new)));
        if let Some(spec) = desired.spec.as_mut() {
            spec.min_ready_seconds = self.spec.min_ready_seconds;
        }
        if desired != **new {
            draft.put(snapshot.patch(new, &desired, "its revision and annotations follow the deployment")?);
        }
        Ok(true)
    }

    /// The revision that a replica set has when it is the latest.
    fn next_revision(&self) -> i64 {
        self.old_sets().map(revision_of).max().unwrap_or(0) + 1
    }

    /// Writes what a deployment writes on its replica sets. Its own annotations go along, but for those about itself.
    fn annotate(&self, snapshot: &Snapshot<Deployment>, set: &mut ReplicaSet, revision: i64) {
        let annotations = set.metadata.annotations.get_or_insert_default();
        for (key, value) in snapshot.object().metadata.annotations.iter().flatten() {
            if !OWN.contains(&key.as_str()) {
                annotations.insert(key.clone(), value.clone());
            }
        }
        let revision = revision.to_string();
        if let Some(before) = annotations.insert(REVISION.to_owned(), revision.clone())
            && before != revision
        {
            let history = annotations.entry(REVISION_HISTORY.to_owned()).or_default();
            let so_far: Vec<&str> = history
                .split(',')
                .filter(|entry| !entry.is_empty())
                .chain([before.as_str()])
                .collect();
            *history = latest(&so_far);
        }
        annotations.insert(DESIRED.to_owned(), self.replicas().to_string());
        annotations.insert(MOST.to_owned(), (self.replicas() + self.surge()).to_string());
    }

    /// Plans that a replica set has this many replicas, and says so.
    pub(crate) fn resize(
        &self,
        snapshot: &Snapshot<Deployment>,
        set: &Seen<ReplicaSet>,
        replicas: i32,
        draft: &mut Draft<Object>,
    ) -> Result<(), Failure> {
        let before = replicas_of(set);
        let mut desired = planned(set, draft)?;
        let annotations = desired.metadata.annotations.get_or_insert_default();
        annotations.insert(DESIRED.to_owned(), self.replicas().to_string());
        annotations.insert(MOST.to_owned(), (self.replicas() + self.surge()).to_string());
        if let Some(spec) = desired.spec.as_mut() {
            spec.replicas = Some(replicas);
        }
        if desired == **set {
            return Ok(());
        }
        let direction = if replicas > before { "up" } else { "down" };
        let note = format!(
            "Scaled {direction} replica set {} from {before} to {replicas}",
            set.name()
        );
        let key = draft.put(snapshot.patch(set, &desired, format!("{before} replicas become {replicas}"))?);
        if replicas != before {
            let event = draft.put(snapshot.event(EventType::Normal, "ScalingReplicaSet", &note)?);
            draft.after(&event, &key)?;
        }
        Ok(())
    }

    /// Old replica sets that are empty go, but for the latest few: once the deployment has arrived, or while it rests.
    pub(crate) fn clean_up(&self, snapshot: &Snapshot<Deployment>, draft: &mut Draft<Object>) {
        let arrived = self.new_set().is_some_and(|new| {
            let status = new.status.as_ref();
            replicas_of(new) == self.replicas()
                && status.and_then(|status| status.available_replicas).unwrap_or(0) >= self.replicas()
        });
        let Ok(keep) = usize::try_from(self.spec.revision_history_limit.unwrap_or(10)) else {
            return;
        };
        if !arrived && !self.is_paused() {
            return;
        }
        let mut old: Vec<&Seen<ReplicaSet>> = self.old_sets().filter(|set| is_gone(set)).collect();
        old.sort_by_key(|set| revision_of(set));
        let surplus = old.len().saturating_sub(keep);
        for set in old.into_iter().take(surplus) {
            draft.put(snapshot.delete(set.raw(), format!("{keep} old revisions are kept")));
        }
    }

    /// The revision that the deployment is at, once there is a set for it.
    pub(crate) fn current_revision(&self) -> Option<i64> {
        self.new_set().map(|new| self.next_revision().max(revision_of(new)))
    }
}

/// A set as it will be after the step that is planned for it already, to adopt or annotate it.
fn planned(set: &Seen<ReplicaSet>, draft: &Draft<Object>) -> Result<ReplicaSet, Failure> {
    let mut steps = draft.steps();
    let step = steps.find(|(key, _)| key.target == set.raw().target());
    let Some(planned) = step.and_then(|(_, step)| step.desired()) else {
        return Ok((**set).clone());
    };
    let typed = planned.decode::<ReplicaSet>();
    Ok((*typed.map_err(|error| Failure::terminal(error.to_string()))?).clone())
}

/// The latest of these revisions, as many as a history holds.
fn latest(revisions: &[&str]) -> String {
    let mut length = 0;
    let kept = revisions.iter().rev().take_while(|revision| {
        length += revision.len() + 1;
        length <= LONGEST_HISTORY
    });
    let mut kept: Vec<&str> = kept.copied().collect();
    kept.reverse();
    kept.join(",")
}

fn is_gone(set: &ReplicaSet) -> bool {
    let status = set.status.as_ref();
    replicas_of(set) == 0
        && status.is_none_or(|status| status.replicas == 0)
        && set.metadata.deletion_timestamp.is_none()
        && status.and_then(|status| status.observed_generation) >= set.metadata.generation
}

pub(crate) fn replicas_of(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

pub(crate) fn available_of(set: &ReplicaSet) -> i32 {
    set.status
        .as_ref()
        .and_then(|status| status.available_replicas)
        .unwrap_or(0)
}

pub(crate) fn revision_of(set: &Seen<ReplicaSet>) -> i64 {
    annotation(&set.metadata, REVISION)
        .and_then(|revision| revision.parse().ok())
        .unwrap_or(0)
}

/// How many replicas the set's deployment wanted when it was last scaled.
pub(crate) fn desired_of(set: &ReplicaSet) -> Option<i32> {
    annotation(&set.metadata, DESIRED)?.parse().ok()
}

/// The most pods that the set's deployment allowed when it was last scaled.
pub(crate) fn most_of(set: &ReplicaSet) -> Option<i32> {
    annotation(&set.metadata, MOST)?.parse().ok()
}

pub(crate) fn template_of(set: &ReplicaSet) -> Option<&PodTemplateSpec> {
    set.spec.as_ref()?.template.as_ref()
}

/// Which way a part of a pod goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    Up,
    Down,
}

/// A number, or a share of `of`.
pub(crate) fn scaled(value: &IntOrString, of: i32, rounding: Rounding) -> i32 {
    match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let hundredfold = percent * i64::from(of);
            let rounded = if rounding == Rounding::Up {
                (hundredfold + 99) / 100
            } else {
                hundredfold / 100
            };
            i32::try_from(rounded).unwrap_or(i32::MAX)
        }
    }
}
