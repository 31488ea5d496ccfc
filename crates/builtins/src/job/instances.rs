//! The pods that a job wants to have running.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use moorline_plan::{Draft, Failure, StepKey};
use moorline_runtime::{EventType, Object, Seen, Target};

use super::belonging::is_newcomer;
use super::{Run, TRACKING};
use crate::{pods, template};

const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// At most so many pods are made or taken away in one reconcile.
const BURST: usize = 500;
/// What is left of the longest name of a host when the part that is made up is taken off.
const LONGEST_PREFIX: usize = 58;

/// The completion index of a pod.
pub(super) fn index_of(pod: &Pod) -> Option<i32> {
    let index = pods::annotation(&pod.metadata, INDEX)?.parse().ok();
    index.filter(|index| *index >= 0)
}

impl Run<'_> {
    /// How many pods should be active now.
    fn wanted(&self) -> usize {
        let left = match self.spec.completions {
            // A pool of workers is done when the first of them is; nobody is added or taken away any more.
            None if self.successes() > 0 => return self.active().count(),
            None => return self.parallelism(),
            Some(completions) if self.is_indexed() => usize::try_from(completions)
                .unwrap_or(0)
                .saturating_sub(self.succeeded.union(&self.failed).count()),
            Some(completions) => usize::try_from(completions - self.successes()).unwrap_or(0),
        };
        left.min(self.parallelism())
    }

    /// Makes pods that are missing, takes away those that are too many; never both at once.
    pub(super) fn keep_active(&self, draft: &mut Draft<Object>) -> Result<(), Failure> {
        // What an adopted pod has come to is counted at the next look; until then nobody knows how many are missing.
        if self.delete_freed(draft)? || self.pods.iter().any(is_newcomer) {
            return Ok(());
        }
        let wanted = self.wanted();
        let (mut surplus, mut active) = self.repeated();
        let too_many = (surplus.len() + active.len()).saturating_sub(wanted);
        if surplus.len() < too_many {
            pods::cheapest_first(&mut active, |_| 0);
            surplus.extend(active.drain(..too_many - surplus.len()));
        }
        for pod in surplus.iter().take(BURST) {
            self.take_away(pod, &format!("{wanted} are wanted at once"), draft)?;
        }
        if !surplus.is_empty() {
            return Ok(());
        }
        let leaving = if self.counts_terminating_as_failed() {
            0
        } else {
            self.leaving().count()
        };
        let missing = wanted.saturating_sub(active.len() + leaving).min(BURST);
        let now = self.snapshot.now();
        if missing == 0 || (!self.fails_by_index() && self.backoff_left(now).is_some()) {
            return Ok(());
        }
        if self.is_indexed() {
            let free = self.free_indexes(missing);
            self.create_all(free.into_iter().map(Some), draft)
        } else {
            self.create_all(std::iter::repeat_n(None, missing), draft)
        }
    }

    /// The pods on their way out.
    fn leaving(&self) -> impl Iterator<Item = &Seen<Pod>> {
        let pods = self.pods.iter();
        pods.filter(|pod| pod.is_deleting() && !pods::has_ended(pod))
    }

    /// The first so many indexes that want a pod now.
    fn free_indexes(&self, count: usize) -> Vec<i32> {
        let mut busy: BTreeSet<i32> = self.active().filter_map(|pod| index_of(pod)).collect();
        if !self.counts_terminating_as_failed() {
            busy.extend(self.leaving().filter_map(|pod| index_of(pod)));
        }
        let waiting = self.waiting_indexes(self.snapshot.now());
        let free = (0..self.spec.completions.unwrap_or(0)).filter(|index| {
            !busy.contains(index)
                && !self.succeeded.contains(index)
                && !self.failed.contains(index)
                && !waiting.contains_key(index)
        });
        free.take(count).collect()
    }

    /// Active pods that have to go whatever is wanted, and the others. Of pods with the same index the one that is
    /// furthest on stays; those of an index that is done or not wanted go.
    fn repeated(&self) -> (Vec<Seen<Pod>>, Vec<Seen<Pod>>) {
        let mut active: Vec<Seen<Pod>> = self.active().cloned().collect();
        if !self.is_indexed() {
            return (Vec::new(), active);
        }
        pods::cheapest_first(&mut active, |_| 0);
        let mut surplus = Vec::new();
        let mut by_index: BTreeMap<i32, Seen<Pod>> = BTreeMap::new();
        for pod in active {
            let is_open = |index: &i32| !self.succeeded.contains(index) && !self.failed.contains(index);
            match self.place_of(&pod).filter(is_open) {
                Some(index) => surplus.extend(by_index.insert(index, pod)),
                None => surplus.push(pod),
            }
        }
        (surplus, by_index.into_values().collect())
    }

    fn create_all(&self, indexes: impl Iterator<Item = Option<i32>>, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let mut made: Vec<StepKey<Target>> = Vec::new();
        let replaced = self.last_failures();
        for (nth, index) in indexes.enumerate() {
            let mut pod = pods::of_template(&self.spec.template);
            if let Some(index) = index {
                self.identify(&mut pod, index, replaced.get(&index).copied());
            }
            let created = self.create(pod, index, nth, draft)?;
            // One is tried, then two, then four: where none can be made, as with a quota that is used up, one is refused.
            if nth > 0 {
                draft.after(&created, &made[(nth - 1) / 2])?;
            }
            made.push(created);
        }
        Ok(())
    }

    fn create(
        &self,
        mut pod: Pod,
        index: Option<i32>,
        nth: usize,
        draft: &mut Draft<Object>,
    ) -> Result<StepKey<Target>, Failure> {
        let job = self.snapshot.raw().name();
        let prefix = index.map_or_else(|| format!("{job}-"), |index| prefix_of(job, index));
        pod.metadata.name = Some(self.snapshot.fresh_name(&prefix, nth));
        pod.metadata.generate_name = Some(prefix);
        let finalizers = pod.metadata.finalizers.get_or_insert_default();
        if finalizers.iter().all(|finalizer| finalizer != TRACKING) {
            finalizers.push(TRACKING.to_owned());
        }
        let key = draft.put(self.snapshot.create(&pod, "another run is wanted")?);
        let note = format!("Created pod: {}", pod.metadata.name.unwrap_or_default());
        let event = draft.put(self.snapshot.event(EventType::Normal, "SuccessfulCreate", &note)?);
        draft.after(&event, &key)?;
        Ok(key)
    }

    /// A pod of an index knows it: by annotation, label, host name and environment.
    fn identify(&self, pod: &mut Pod, index: i32, replaced: Option<&Seen<Pod>>) {
        template::label(&mut pod.metadata.annotations, INDEX, &index.to_string());
        template::label(&mut pod.metadata.labels, INDEX, &index.to_string());
        if self.fails_by_index() {
            self.tell_tries(pod, replaced);
        }
        let spec = pod.spec.get_or_insert_default();
        spec.hostname = Some(format!("{}-{index}", self.snapshot.raw().name()));
        let variable = EnvVar {
            name: "JOB_COMPLETION_INDEX".to_owned(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    field_path: format!("metadata.labels['{INDEX}']"),
                    ..ObjectFieldSelector::default()
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        };
        for container in spec
            .containers
            .iter_mut()
            .chain(spec.init_containers.iter_mut().flatten())
        {
            let env = container.env.get_or_insert_default();
            if env.iter().all(|known| known.name != variable.name) {
                env.push(variable.clone());
            }
        }
    }

    /// Whether each index has tries of its own.
    pub(super) fn fails_by_index(&self) -> bool {
        self.is_indexed() && self.spec.backoff_limit_per_index.is_some()
    }
}

/// What the name of a pod of an index begins with. A long name of a job is cut short, the index never.
fn prefix_of(job: &str, index: i32) -> String {
    let suffix = format!("-{index}-");
    let job: String = job.chars().take(LONGEST_PREFIX - suffix.len()).collect();
    format!("{job}{suffix}")
}
