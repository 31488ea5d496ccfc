//! The jobs that a cron job has started: which of them run, which have finished, which may go.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job, JobCondition};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use moorline_plan::{Draft, Failure, Propagation, Step, StepKey};
use moorline_runtime::{EventType, Object, Seen, Snapshot, Target};

use super::SCHEDULED_AT;
use crate::pods;

/// The jobs of a cron job, and the status that it comes to.
pub(super) struct History<'s> {
    pub(super) snapshot: &'s Snapshot<CronJob>,
    pub(super) status: CronJobStatus,
    /// The jobs that it controls, whoever made them.
    jobs: Vec<Seen<Job>>,
}

impl<'s> History<'s> {
    pub(super) fn of(snapshot: &'s Snapshot<CronJob>) -> Result<Self, Failure> {
        let mut history = Self {
            snapshot,
            status: snapshot.object().status.clone().unwrap_or_default(),
            jobs: Vec::new(),
        };
        history.jobs = snapshot.owned::<Job>()?;
        history.jobs.retain(|job| is_controlled_by(snapshot, job));
        Ok(history)
    }

    /// The jobs that count as running.
    pub(super) fn active(&self) -> &[ObjectReference] {
        self.status.active.as_deref().unwrap_or_default()
    }

    /// Whether a job counts as running.
    pub(super) fn is_active(&self, job: &Seen<Job>) -> bool {
        let mut active = self.active().iter();
        active.any(|known| known.uid.as_deref() == Some(job.uid()))
    }

    pub(super) fn is_child(&self, job: &Seen<Job>) -> bool {
        is_controlled_by(self.snapshot, job)
    }

    pub(super) fn into_status(self) -> CronJobStatus {
        self.status
    }

    /// Finished jobs go, but for the latest few of each sort.
    pub(super) fn clean_up(&mut self, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let spec = &self.snapshot.object().spec;
        let sorts = [
            ("Complete", spec.successful_jobs_history_limit.unwrap_or(3)),
            ("Failed", spec.failed_jobs_history_limit.unwrap_or(1)),
        ];
        for (sort, keep) in sorts {
            let Ok(keep) = usize::try_from(keep) else { continue };
            let is_meant = |job: &&Seen<Job>| condition(job, sort).is_some() && !job.is_deleting();
            let mut finished: Vec<Seen<Job>> = self.jobs.iter().filter(is_meant).cloned().collect();
            // Those that never started are the last.
            finished.sort_by_key(|job| {
                let start = job.status.as_ref().and_then(|status| status.start_time.clone());
                (start.is_none(), start, job.name().to_owned())
            });
            let surplus = finished.len().saturating_sub(keep);
            for job in finished.iter().take(surplus) {
                self.delete(job, &format!("the latest {keep} of its sort are kept"), draft)?;
            }
        }
        Ok(())
    }

    /// Brings the list of jobs that run and the time of the last success up to date.
    pub(super) fn follow(&mut self, draft: &mut Draft<Object>) -> Result<(), Failure> {
        for job in self.jobs.clone() {
            let is_listed = self.is_active(&job);
            if let Some(finish) = finish(&job) {
                if is_listed {
                    let note = format!("Saw completed job: {}, condition: {}", job.name(), finish.type_);
                    self.tell(EventType::Normal, "SawCompletedJob", &note, draft)?;
                    self.strike_off(job.uid());
                }
                if finish.type_ == "Complete" {
                    let completion = job.status.as_ref().and_then(|status| status.completion_time.clone());
                    self.status.last_successful_time = self.status.last_successful_time.take().max(completion);
                }
            } else if !is_listed && !job.is_deleting() {
                if self.is_run(&job) {
                    self.status.active.get_or_insert_default().push(reference(&job));
                    let served = self.time_of(&job).map(Time);
                    self.status.last_schedule_time = self.status.last_schedule_time.take().max(served);
                } else {
                    let name = job.name();
                    let note = format!("Saw a job that the controller did not create or forgot: {name}");
                    self.tell(EventType::Warning, "UnexpectedJob", &note, draft)?;
                }
            }
        }
        self.miss(draft)
    }

    /// Strikes jobs off the list that are gone, though nobody saw them finish.
    fn miss(&mut self, draft: &mut Draft<Object>) -> Result<(), Failure> {
        for known in self.active().to_vec() {
            let (name, uid) = (known.name.unwrap_or_default(), known.uid.unwrap_or_default());
            // It need not be among its children: somebody may have made it their own.
            let there = self.snapshot.get::<Job>(&name)?;
            if there.is_none_or(|job| job.uid() != uid) {
                let note = format!("Active job went missing: {name}");
                self.tell(EventType::Normal, "MissingJob", &note, draft)?;
                self.strike_off(&uid);
            }
        }
        Ok(())
    }

    /// Deletes the jobs that run, to make room for the next one.
    pub(super) fn replace_active(&mut self, draft: &mut Draft<Object>) -> Result<Vec<StepKey<Target>>, Failure> {
        let mut deleted = Vec::new();
        for known in self.active().to_vec() {
            let job = self.jobs.iter().find(|job| known.uid.as_deref() == Some(job.uid()));
            if let Some(job) = job.cloned() {
                deleted.push(self.delete(&job, "the next one replaces it", draft)?);
            }
        }
        Ok(deleted)
    }

    /// Whether a job is a run of the schedule. Those that people start by hand from the template are not: they neither
    /// hold up a run nor are they replaced by one.
    fn is_run(&self, job: &Seen<Job>) -> bool {
        let name = job.name().strip_prefix(self.snapshot.raw().name());
        let minute = name.and_then(|rest| rest.strip_prefix('-'));
        minute.is_some_and(|minute| minute.parse::<i64>().is_ok())
            && pods::annotation(&job.metadata, SCHEDULED_AT).is_some()
    }

    /// The time that a run of the schedule serves, if it can be one.
    fn time_of(&self, job: &Seen<Job>) -> Option<Timestamp> {
        let created = self.snapshot.object().metadata.creation_timestamp.as_ref()?.0;
        let time: Timestamp = pods::annotation(&job.metadata, SCHEDULED_AT)?.parse().ok()?;
        (created..=self.snapshot.now()).contains(&time).then_some(time)
    }

    fn delete(&mut self, job: &Seen<Job>, reason: &str, draft: &mut Draft<Object>) -> Result<StepKey<Target>, Failure> {
        let key = draft.put(Step::delete_with(job.raw().clone(), Propagation::Background, reason));
        let note = format!("Deleted job {}", job.name());
        let event = draft.put(self.snapshot.event(EventType::Normal, "SuccessfulDelete", &note)?);
        draft.after(&event, &key)?;
        self.strike_off(job.uid());
        Ok(key)
    }

    fn strike_off(&mut self, uid: &str) {
        let active = self.status.active.take().unwrap_or_default();
        let left: Vec<ObjectReference> = active
            .into_iter()
            .filter(|known| known.uid.as_deref() != Some(uid))
            .collect();
        self.status.active = Some(left).filter(|left| !left.is_empty());
    }

    fn tell(&self, event: EventType, reason: &str, note: &str, draft: &mut Draft<Object>) -> Result<(), Failure> {
        draft.put(self.snapshot.event(event, reason, note)?);
        Ok(())
    }
}

fn is_controlled_by(snapshot: &Snapshot<CronJob>, job: &Seen<Job>) -> bool {
    let owner = job.raw().controller();
    owner.is_some_and(|owner| *owner.uid == *snapshot.raw().uid())
}

/// The condition by which a job has finished, if it has.
fn finish(job: &Job) -> Option<&JobCondition> {
    condition(job, "Complete").or_else(|| condition(job, "Failed"))
}

fn condition<'j>(job: &'j Job, type_: &str) -> Option<&'j JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_deref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == type_ && condition.status == "True")
}

fn reference(job: &Seen<Job>) -> ObjectReference {
    ObjectReference {
        api_version: Some("batch/v1".to_owned()),
        kind: Some("Job".to_owned()),
        namespace: Some(job.raw().namespace().to_owned()),
        name: Some(job.name().to_owned()),
        uid: Some(job.uid().to_owned()),
        resource_version: Some(job.raw().version().to_string()),
        ..ObjectReference::default()
    }
}
