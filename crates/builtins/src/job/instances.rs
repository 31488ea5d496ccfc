//! The pods that a job wants to have running.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use moorline_plan::{Draft, Failure};
use moorline_runtime::{EventType, Object, Seen};

use super::failure::{FAILURE_COUNT, failures_before};
use super::{Run, TRACKING};
use crate::{pods, template};

const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const FIRST_BACKOFF: Duration = Duration::from_secs(10);
const LONGEST_BACKOFF: Duration = Duration::from_mins(10);
/// At most so many pods are made in one reconcile.
const BURST: usize = 500;

/// The completion index of a pod.
pub(super) fn index_of(pod: &Pod) -> Option<i32> {
    let index = pods::annotation(&pod.metadata, INDEX)?.parse().ok();
    index.filter(|index| *index >= 0)
}

impl Run<'_> {
    /// How many pods should be active now.
    fn wanted(&self) -> usize {
        let left = match self.spec.completions {
            // A pool of workers is done when the first of them is; nobody is added any more.
            None if self.successes() > 0 => self.active().count(),
            None => return self.parallelism(),
            Some(completions) if self.is_indexed() => usize::try_from(completions)
                .unwrap_or(0)
                .saturating_sub(self.succeeded.union(&self.failed).count()),
            Some(completions) => usize::try_from(completions - self.successes()).unwrap_or(0),
        };
        left.min(self.parallelism())
    }

    /// Makes pods that are missing, deletes those that are too many.
    pub(super) fn keep_active(&self, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let mut active: Vec<Seen<Pod>> = self.active().cloned().collect();
        let wanted = self.wanted();
        if self.is_indexed() {
            active = self.without_repeated(active, draft);
        }
        if active.len() > wanted {
            pods::cheapest_first(&mut active, |_| 0);
            let surplus = active.len() - wanted;
            for pod in active.iter().take(surplus) {
                draft.put(self.snapshot.delete(pod.raw(), format!("{wanted} are wanted at once")));
            }
            return Ok(());
        }
        let leaving = if self.counts_terminating_as_failed() {
            0
        } else {
            self.pods
                .iter()
                .filter(|pod| pod.is_deleting() && !pods::has_ended(pod))
                .count()
        };
        let missing = wanted.saturating_sub(active.len() + leaving).min(BURST);
        let now = self.snapshot.now();
        let waiting = self.waiting_indexes(now);
        if missing == 0 || (!self.fails_by_index() && self.backoff_left(now).is_some()) {
            return Ok(());
        }
        if self.is_indexed() {
            let busy: BTreeSet<i32> = self
                .pods
                .iter()
                .filter(|pod| !pods::has_ended(pod))
                .filter_map(|pod| index_of(pod))
                .collect();
            let completions = self.spec.completions.unwrap_or(0);
            let free = (0..completions).filter(|index| {
                !busy.contains(index)
                    && !self.succeeded.contains(index)
                    && !self.failed.contains(index)
                    && !waiting.contains_key(index)
            });
            for (nth, index) in free.take(missing).enumerate() {
                self.create(Some(index), nth, draft)?;
            }
        } else {
            for nth in 0..missing {
                self.create(None, nth, draft)?;
            }
        }
        Ok(())
    }

    /// Of pods with the same index, or with one that is done or not wanted, those that are too many go.
    fn without_repeated(&self, active: Vec<Seen<Pod>>, draft: &mut Draft<Object>) -> Vec<Seen<Pod>> {
        let completions = self.spec.completions.unwrap_or(0);
        let mut by_index: BTreeMap<i32, Seen<Pod>> = BTreeMap::new();
        for pod in active {
            let index = index_of(&pod).filter(|index| {
                *index < completions && !self.succeeded.contains(index) && !self.failed.contains(index)
            });
            match index {
                Some(index) if !by_index.contains_key(&index) => drop(by_index.insert(index, pod)),
                _ => drop(draft.put(self.snapshot.delete(pod.raw(), "its index is done or has another pod"))),
            }
        }
        by_index.into_values().collect()
    }

    fn create(&self, index: Option<i32>, nth: usize, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let mut pod = pods::of_template(&self.spec.template);
        let job = self.snapshot.raw().name();
        let prefix = index.map_or_else(|| format!("{job}-"), |index| format!("{job}-{index}-"));
        pod.metadata.generate_name = Some(prefix.clone());
        pod.metadata.name = Some(self.snapshot.fresh_name(&prefix, nth));
        pod.metadata
            .finalizers
            .get_or_insert_default()
            .push(TRACKING.to_owned());
        if let Some(index) = index {
            self.identify(&mut pod, job, index);
        }
        let key = draft.put(self.snapshot.create(&pod, "another run is wanted")?);
        let note = format!("Created pod: {}", pod.metadata.name.unwrap_or_default());
        let event = draft.put(self.snapshot.event(EventType::Normal, "SuccessfulCreate", &note)?);
        draft.after(&event, &key)?;
        Ok(())
    }

    /// A pod of an index knows it: by annotation, label, host name and environment.
    fn identify(&self, pod: &mut Pod, job: &str, index: i32) {
        template::label(&mut pod.metadata.annotations, INDEX, &index.to_string());
        template::label(&mut pod.metadata.labels, INDEX, &index.to_string());
        if self.spec.backoff_limit_per_index.is_some() {
            let before = self
                .pods
                .iter()
                .filter(|pod| index_of(pod) == Some(index) && self.has_failed(pod));
            let failures = before.map(|pod| failures_before(pod) + 1).max().unwrap_or(0);
            template::label(&mut pod.metadata.annotations, FAILURE_COUNT, &failures.to_string());
        }
        let spec = pod.spec.get_or_insert_default();
        spec.hostname = Some(format!("{job}-{index}"));
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

    /// How long to wait before another try, after failures in a row: of the job, or of the index that waits shortest.
    pub(super) fn backoff_left(&self, now: Timestamp) -> Option<Duration> {
        if self.fails_by_index() {
            return self.waiting_indexes(now).into_values().min();
        }
        let last_success = self
            .pods
            .iter()
            .filter(|pod| pods::phase(pod) == "Succeeded")
            .filter_map(|pod| ended_at(pod))
            .max();
        let ends = self
            .pods
            .iter()
            .filter(|pod| self.has_failed(pod))
            .filter_map(|pod| ended_at(pod));
        let in_a_row: Vec<Timestamp> = ends.filter(|end| Some(*end) >= last_success).collect();
        let last = in_a_row.iter().max()?;
        delay_left(in_a_row.len(), *last, now)
    }

    /// The indexes that have failed, may be tried again, and have to wait for that, each with how long.
    fn waiting_indexes(&self, now: Timestamp) -> BTreeMap<i32, Duration> {
        let mut failed: BTreeMap<i32, (i32, Option<Timestamp>)> = BTreeMap::new();
        let is_open = |index: &i32| !self.succeeded.contains(index) && !self.failed.contains(index);
        for pod in self
            .pods
            .iter()
            .filter(|pod| self.fails_by_index() && self.has_failed(pod))
        {
            let Some(index) = index_of(pod).filter(is_open) else {
                continue;
            };
            let (failures, last) = failed.entry(index).or_default();
            *failures = (*failures).max(failures_before(pod) + 1);
            *last = (*last).max(ended_at(pod));
        }
        let left = |(index, (failures, last)): (i32, (i32, Option<Timestamp>))| {
            Some((index, delay_left(usize::try_from(failures).unwrap_or(1), last?, now)?))
        };
        failed.into_iter().filter_map(left).collect()
    }
}

/// What is left of the delay after so many failures in a row, if anything is.
fn delay_left(failures: usize, last: Timestamp, now: Timestamp) -> Option<Duration> {
    let doublings = u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    let delay = FIRST_BACKOFF
        .saturating_mul(2_u32.saturating_pow(doublings))
        .min(LONGEST_BACKOFF);
    Some(delay.saturating_sub(pods::elapsed(last, now))).filter(|left| !left.is_zero())
}

/// When the last container of a pod ended, or when it was deleted.
fn ended_at(pod: &Pod) -> Option<Timestamp> {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_deref())
        .unwrap_or_default();
    let ends = statuses.iter().filter_map(|status| {
        status
            .state
            .as_ref()?
            .terminated
            .as_ref()?
            .finished_at
            .as_ref()
            .map(|time| time.0)
    });
    ends.max()
        .or_else(|| pod.metadata.deletion_timestamp.as_ref().map(|time| time.0))
        .or_else(|| pod.metadata.creation_timestamp.as_ref().map(|time| time.0))
}
