//! `Job`: pods that run to their end, so many times, with so many tries.
//!
//! A pod that has ended is counted exactly once, though it may vanish at any moment: it carries a finalizer until its
//! end stands in the status. First its uid is written down as not yet counted, then the finalizer goes, then the
//! counter moves and the uid is struck off; each of them is one reconcile, and a crash between any two loses nothing.

mod backoff;
mod belonging;
mod conditions;
mod counting;
mod failure;
mod indexes;
mod instances;
mod orphans;
mod removal;

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use moorline_plan::{Draft, Failure, Verdict, transformer};
use moorline_runtime::{Actor, EventType, Kind, Object, Planner, Seen, Snapshot, Watches};

use self::conditions::Ending;
pub(crate) use self::orphans::OrphansOfJobs;
use crate::claim::selector_of;
use crate::{pods, wake};

pub(crate) const TRACKING: &str = "batch.kubernetes.io/job-tracking";

/// Runs jobs.
pub(crate) struct Jobs;

impl Actor for Jobs {
    type Object = Job;

    fn name(&self) -> &'static str {
        "job-controller"
    }

    fn watches(&self) -> Watches {
        Watches::of::<Job>()
            .owns::<Pod>()
            .maps::<Pod>(wake::selecting(Kind::of::<Job>()))
            .without_conditions()
            .naming_failures(pods::failures)
    }

    fn plan(&self, plan: Planner<Job>) -> Planner<Job> {
        // A finished job expires whoever managed it, and whatever is wrong with it.
        let expiry = |snapshot: &Snapshot<Job>, draft: &mut Draft<Object>| Ok(expire(snapshot, draft));
        plan.transformer(transformer("expiry", expiry))
            .transformer(transformer("run", run))
    }
}

/// A job as it was seen, and the status that it comes to.
pub(crate) struct Run<'s> {
    snapshot: &'s Snapshot<Job>,
    spec: JobSpec,
    pods: Vec<Seen<Pod>>,
    status: JobStatus,
    /// Indexes that succeeded and failed, of a job with indexes.
    succeeded: BTreeSet<i32>,
    failed: BTreeSet<i32>,
}

fn run(snapshot: &Snapshot<Job>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let job = snapshot.object();
    let spec = job.spec.clone().ok_or_else(|| Failure::terminal("spec is missing"))?;
    if is_managed_elsewhere(job) {
        return Ok(Verdict::Stop {
            reason: "somebody else manages it".to_owned(),
        });
    }
    if conditions::is_finished(job) {
        for pod in belonging::of(snapshot)?.iter().filter(|pod| belonging::is_held(pod)) {
            let freed = belonging::without_tracking(pod.raw());
            draft.put(snapshot.patch_value(pod.raw(), &freed, "the job is over")?);
        }
        return Ok(Verdict::Continue);
    }
    let selector = spec
        .selector
        .as_ref()
        .map_or(Ok(moorline_machinery::selector::LabelSelector::NOTHING), selector_of)?;
    let pods = belonging::claim_pods(snapshot, &selector, draft)?;
    let status = job.status.clone().unwrap_or_default();
    let mut run = Run {
        succeeded: BTreeSet::new(),
        failed: BTreeSet::new(),
        snapshot,
        spec,
        pods,
        status,
    };
    run.succeeded = run.within(run.status.completed_indexes.as_deref().unwrap_or_default());
    run.failed = run.within(run.status.failed_indexes.as_deref().unwrap_or_default());
    run.release_counted(draft)?;
    let verdict = run.advance(draft)?;
    let status = run.written();
    draft.put(snapshot.status(&status, run.summary())?);
    Ok(verdict)
}

fn is_managed_elsewhere(job: &Job) -> bool {
    let manager = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
    manager.is_some_and(|manager| manager != "kubernetes.io/job-controller")
}

impl Run<'_> {
    fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    fn is_indexed(&self) -> bool {
        self.spec.completion_mode.as_deref() == Some("Indexed")
    }

    fn parallelism(&self) -> usize {
        usize::try_from(self.spec.parallelism.unwrap_or(1)).unwrap_or(0)
    }

    /// Of indexes as a text tells them, those that the job has: it may have had more.
    fn within(&self, text: &str) -> BTreeSet<i32> {
        let mut indexes = indexes::read(text);
        indexes.retain(|index| *index < self.spec.completions.unwrap_or(0));
        indexes
    }

    fn backoff_limit(&self) -> i32 {
        self.spec.backoff_limit.unwrap_or(6)
    }

    fn active(&self) -> impl Iterator<Item = &Seen<Pod>> {
        self.pods.iter().filter(|pod| pods::is_active(pod))
    }

    /// Whether a pod on its way out is replaced at once, rather than when it has really ended.
    fn counts_terminating_as_failed(&self) -> bool {
        self.spec.pod_replacement_policy.as_deref() != Some("Failed") && self.spec.pod_failure_policy.is_none()
    }

    fn advance(&mut self, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
        let now = self.snapshot.now();
        if self.status.start_time.is_none() && !self.is_suspended() {
            self.status.start_time = Some(Time(now));
        }
        self.count();
        let judged = self.judge();
        if let Some(ending) = judged {
            self.end(&ending, draft)?;
        } else if self.is_suspended() {
            self.suspend(draft)?;
        } else {
            self.resume(draft)?;
            self.keep_active(draft)?;
        }
        self.tell_counts();
        Ok(self.deadline(now))
    }

    /// When to look again though nothing changes: at the end of the time that the job has, or of a pod's backoff.
    fn deadline(&self, now: jiff::Timestamp) -> Verdict {
        let limit = self
            .spec
            .active_deadline_seconds
            .filter(|_| !self.is_suspended() && self.ending().is_none());
        let left = limit.zip(self.status.start_time.as_ref()).map(|(limit, start)| {
            let limit = Duration::from_secs(u64::try_from(limit).unwrap_or(0));
            limit.saturating_sub(pods::elapsed(start.0, now))
        });
        let backoff = self.backoff_left(now).filter(|_| self.ending().is_none());
        match left.into_iter().chain(backoff).min() {
            Some(after) => Verdict::LookAgain {
                after,
                reason: "a deadline or a backoff is under way".to_owned(),
            },
            None => Verdict::Continue,
        }
    }

    /// Ends the job: what still runs is stopped, and the condition tells why.
    fn end(&mut self, ending: &Ending, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let reason = format!("the job has ended: {}", ending.reason);
        if ending.is_success {
            self.dismiss(&reason, draft)?;
        } else {
            self.count_stopped();
            for pod in self.active().filter(|pod| !belonging::is_newcomer(pod)) {
                self.delete(pod, &reason, draft)?;
            }
        }
        let is_quiet = self.pods.iter().all(|pod| pods::has_ended(pod)) && self.is_all_counted();
        self.tell_ending(ending, is_quiet);
        if is_quiet {
            self.announce(ending, draft)?;
        }
        Ok(())
    }

    /// Tells people that the job is over.
    fn announce(&self, ending: &Ending, draft: &mut Draft<Object>) -> Result<(), Failure> {
        let snapshot = self.snapshot;
        if !ending.is_success {
            draft.put(snapshot.event(EventType::Warning, &ending.reason, &ending.message)?);
            return Ok(());
        }
        if self
            .spec
            .completions
            .is_some_and(|completions| self.successes() > completions)
        {
            let note = "Too many succeeded pods running after completion count reached";
            draft.put(snapshot.event(EventType::Warning, "TooManySucceededPods", note)?);
        }
        draft.put(snapshot.event(EventType::Normal, "Completed", "Job completed")?);
        Ok(())
    }

    fn suspend(&mut self, draft: &mut Draft<Object>) -> Result<(), Failure> {
        for pod in self.active() {
            self.take_away(pod, "the job is suspended", draft)?;
        }
        if self.set_condition("Suspended", true, "JobSuspended", "Job suspended") {
            draft.put(self.snapshot.event(EventType::Normal, "Suspended", "Job suspended")?);
        }
        self.status.start_time = None;
        Ok(())
    }

    fn resume(&mut self, draft: &mut Draft<Object>) -> Result<(), Failure> {
        if self.has_condition("Suspended") && self.set_condition("Suspended", false, "JobResumed", "Job resumed") {
            self.status.start_time = Some(Time(self.snapshot.now()));
            draft.put(self.snapshot.event(EventType::Normal, "Resumed", "Job resumed")?);
        }
        Ok(())
    }

    fn summary(&self) -> String {
        let count = |count: Option<i32>| count.unwrap_or(0);
        let status = &self.status;
        format!(
            "{} active, {} succeeded, {} failed",
            count(status.active),
            count(status.succeeded),
            count(status.failed)
        )
    }
}

/// A finished job goes when its time is up.
fn expire(snapshot: &Snapshot<Job>, draft: &mut Draft<Object>) -> Verdict {
    let job = snapshot.object();
    let Some(ttl) = job.spec.as_ref().and_then(|spec| spec.ttl_seconds_after_finished) else {
        return Verdict::Continue;
    };
    let Some(finished) = conditions::finished_at(job) else {
        return Verdict::Continue;
    };
    let ttl = Duration::from_secs(u64::try_from(ttl).unwrap_or(0));
    match ttl.saturating_sub(pods::elapsed(finished, snapshot.now())) {
        Duration::ZERO if !snapshot.raw().is_deleting() => {
            let base = snapshot.raw().clone();
            let reason = "it finished longer ago than ttlSecondsAfterFinished";
            draft.put(moorline_plan::Step::delete_with(
                base,
                moorline_plan::Propagation::Foreground,
                reason,
            ));
            Verdict::Continue
        }
        Duration::ZERO => Verdict::Continue,
        after => Verdict::LookAgain {
            after,
            reason: "it goes when its time is up".to_owned(),
        },
    }
}
