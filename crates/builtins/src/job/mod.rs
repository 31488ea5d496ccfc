//! `Job`: pods that run to their end, so many times, with so many tries.
//!
//! A pod that has ended is counted exactly once, though it may vanish at any moment: it carries a finalizer until its
//! end stands in the status. First its uid is written down as not yet counted, then the finalizer goes, then the
//! counter moves and the uid is struck off; each of them is one reconcile, and a crash between any two loses nothing.

mod conditions;
mod counting;
mod failure;
mod indexes;
mod instances;
mod orphans;

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use moorline_plan::{Draft, Failure, Verdict, transformer};
use moorline_runtime::{Actor, EventType, Kind, Object, Planner, Seen, Snapshot, Watches};

use self::conditions::Ending;
pub(crate) use self::orphans::OrphansOfJobs;
use crate::claim::{Candidate, claim, selector_of};
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
    if spec
        .managed_by
        .as_deref()
        .is_some_and(|manager| manager != "kubernetes.io/job-controller")
    {
        return Ok(Verdict::Stop {
            reason: "somebody else manages it".to_owned(),
        });
    }
    let selector = spec
        .selector
        .as_ref()
        .map_or(Ok(moorline_machinery::selector::LabelSelector::NOTHING), selector_of)?;
    let pods: Vec<Seen<Pod>> = claim(snapshot, &selector, draft, |_| Candidate::Yes)?;
    let status = job.status.clone().unwrap_or_default();
    let mut run = Run {
        succeeded: indexes::read(status.completed_indexes.as_deref().unwrap_or_default()),
        failed: indexes::read(status.failed_indexes.as_deref().unwrap_or_default()),
        snapshot,
        spec,
        pods,
        status,
    };
    run.release_counted(draft)?;
    if run.ending().is_some_and(|ending| ending.is_final()) {
        return Ok(Verdict::Continue);
    }
    let verdict = run.advance(draft)?;
    let status = run.written();
    draft.put(snapshot.status(&status, run.summary())?);
    Ok(verdict)
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

    /// Ends the job: what still runs is deleted, and the condition tells why.
    fn end(&mut self, ending: &Ending, draft: &mut Draft<Object>) -> Result<(), Failure> {
        for pod in self.pods.iter().filter(|pod| pods::is_active(pod)) {
            draft.put(
                self.snapshot
                    .delete(pod.raw(), format!("the job has ended: {}", ending.reason)),
            );
        }
        let is_quiet = self.pods.iter().all(|pod| pods::has_ended(pod)) && self.is_all_counted();
        let before = self.ending().is_some();
        self.tell_ending(ending, is_quiet);
        if !before {
            let (event, note) = if ending.is_success {
                (EventType::Normal, "Job completed".to_owned())
            } else {
                (EventType::Warning, ending.message.clone())
            };
            let reason = if ending.is_success { "Completed" } else { &ending.reason };
            draft.put(self.snapshot.event(event, reason, &note)?);
        }
        Ok(())
    }

    fn suspend(&mut self, draft: &mut Draft<Object>) -> Result<(), Failure> {
        for pod in self.pods.iter().filter(|pod| pods::is_active(pod)) {
            draft.put(self.snapshot.delete(pod.raw(), "the job is suspended"));
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
