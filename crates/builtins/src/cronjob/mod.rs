//! `CronJob`: a job at each time of a schedule.
//!
//! The name of a job is made of its time, so a job whose creation was not yet written down is not made twice. That a time
//! is over and done is written down when its job is there, one look after its creation: a job that could not be made is
//! tried again.

mod history;
mod schedule;

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use moorline_plan::{Draft, Failure, StepKey, Verdict, transformer};
use moorline_runtime::{Actor, EventType, Failed, Kind, Object, Planner, Snapshot, Target, Watches};

use self::history::History;
use self::schedule::{Passed, Schedule};
use crate::{pods, template};

const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// A little late rather than a little early, which would mean another look.
const LATE: Duration = Duration::from_millis(100);

/// Runs cron jobs.
pub(crate) struct CronJobs;

impl Actor for CronJobs {
    type Object = CronJob;

    fn name(&self) -> &'static str {
        "cronjob-controller"
    }

    fn watches(&self) -> Watches {
        // While it goes, its status still tells of its jobs.
        Watches::of::<CronJob>()
            .owns::<Job>()
            .while_deleted()
            .without_conditions()
            .naming_failures(failures)
    }

    fn plan(&self, plan: Planner<CronJob>) -> Planner<CronJob> {
        plan.transformer(transformer("schedule", keep_schedule))
    }
}

/// The events that tell of jobs that could not be made or taken away.
fn failures(failed: &Failed<'_>) -> Option<(String, String)> {
    if failed.step.target.kind != Kind::of::<Job>() {
        return None;
    }
    match failed.step.action.verb() {
        "create" => Some(("FailedCreate".to_owned(), format!("Error creating job: {}", failed.why))),
        "delete" => Some(("FailedDelete".to_owned(), format!("Error deleting job: {}", failed.why))),
        _ => None,
    }
}

fn keep_schedule(snapshot: &Snapshot<CronJob>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let mut history = History::of(snapshot)?;
    history.clean_up(draft)?;
    history.follow(draft)?;
    let verdict = if snapshot.raw().is_deleting() {
        Verdict::Continue
    } else {
        start_due(&mut history, draft)?
    };
    let reason = format!("{} jobs are active", history.active().len());
    draft.put(snapshot.status(&history.into_status(), reason)?);
    Ok(verdict)
}

/// Starts the latest job that is due, if the policies allow it, and says when the next is.
fn start_due(history: &mut History<'_>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let snapshot = history.snapshot;
    let now = snapshot.now();
    let spec = &snapshot.object().spec;
    let Some(times) = Times::of(snapshot, &history.status, draft)? else {
        return Ok(Verdict::Continue);
    };
    if let Passed::Many(_) = times.passed {
        let note = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        draft.put(snapshot.event(EventType::Warning, "TooManyMissedTimes", note)?);
    }
    let Some(due) = times.passed.last() else {
        return Ok(times.look_again(now));
    };
    let name = format!("{}-{}", snapshot.raw().name(), due.as_second() / 60);
    if let Some(job) = snapshot.get::<Job>(&name)? {
        // A job that runs stands for its time already. One of somebody else's is in the way: the time is neither over
        // nor can it be served.
        if history.is_child(&job) && !history.is_active(&job) {
            history.status.last_schedule_time = Some(Time(due));
        }
        return Ok(times.look_again(now));
    }
    let deadline = starting_deadline(spec);
    if deadline.is_some_and(|deadline| pods::elapsed(due, now) > deadline) {
        let due = due.to_zoned(TimeZone::UTC).strftime("%a, %d %b %Y %H:%M:%S %z");
        let note = format!("Missed scheduled time to start a job: {due}");
        draft.put(snapshot.event(EventType::Warning, "MissSchedule", &note)?);
        return Ok(times.look_again(now));
    }
    let replaced = match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !history.active().is_empty() => {
            let note = "Not starting job because prior execution is running and concurrency policy is Forbid";
            draft.put(snapshot.event(EventType::Normal, "JobAlreadyActive", note)?);
            return Ok(times.look_again(now));
        }
        Some("Replace") => history.replace_active(draft)?,
        _ => Vec::new(),
    };
    let job = job_of(spec, &name, due, spec.time_zone.as_deref().map(|_| &times.zone));
    start(snapshot, &job, due, &replaced, draft)?;
    Ok(times.look_again(now))
}

fn start(
    snapshot: &Snapshot<CronJob>,
    job: &Job,
    due: Timestamp,
    replaced: &[StepKey<Target>],
    draft: &mut Draft<Object>,
) -> Result<(), Failure> {
    let key = draft.put(snapshot.create(job, format!("it was due at {due}"))?);
    for earlier in replaced {
        draft.after(&key, earlier)?;
    }
    let note = format!("Created job {}", job.metadata.name.as_deref().unwrap_or_default());
    let event = draft.put(snapshot.event(EventType::Normal, "SuccessfulCreate", &note)?);
    draft.after(&event, &key)?;
    Ok(())
}

/// The times of a schedule as they matter now.
struct Times {
    zone: TimeZone,
    /// Those that have come since the last that was served, and are not too long ago to be served.
    passed: Passed,
    /// The next that has not come.
    next: Timestamp,
}

impl Times {
    /// None if the cron job is suspended, or says nothing that can be followed.
    fn of(
        snapshot: &Snapshot<CronJob>,
        status: &CronJobStatus,
        draft: &mut Draft<Object>,
    ) -> Result<Option<Self>, Failure> {
        let spec = &snapshot.object().spec;
        let mut warn = |reason: &str, note: &str| -> Result<Option<Self>, Failure> {
            draft.put(snapshot.event(EventType::Warning, reason, note)?);
            Ok(None)
        };
        let Some(zone) = spec
            .time_zone
            .as_deref()
            .map_or(Some(TimeZone::UTC), |name| TimeZone::get(name).ok())
        else {
            let name = spec.time_zone.as_deref().unwrap_or_default();
            let note = format!("invalid timeZone: {name:?}: unknown time zone {name}");
            return warn("UnknownTimeZone", &note);
        };
        if spec.suspend == Some(true) {
            return Ok(None);
        }
        let schedule = match Schedule::read(&spec.schedule) {
            Ok(schedule) => schedule,
            Err(why) => {
                let note = format!("unparseable schedule: {:?} : {why}", spec.schedule);
                return warn("UnparseableSchedule", &note);
            }
        };
        let now = snapshot.now();
        let created = snapshot.object().metadata.creation_timestamp.as_ref();
        let since = status
            .last_schedule_time
            .as_ref()
            .or(created)
            .map_or(now, |time| time.0);
        let horizon = starting_deadline(spec).and_then(|deadline| now.checked_sub(deadline).ok());
        let passed = schedule.between(since.max(horizon.unwrap_or(since)), now, &zone);
        let Some(next) = schedule.next_since(since, now, &zone) else {
            let why = "time difference between two schedules is less than 1 second";
            return warn(
                "InvalidSchedule",
                &format!("invalid schedule: {} : {why}", spec.schedule),
            );
        };
        Ok(Some(Self { zone, passed, next }))
    }

    fn look_again(&self, now: Timestamp) -> Verdict {
        Verdict::LookAgain {
            after: pods::elapsed(now, self.next) + LATE,
            reason: format!("the next job is due at {}", self.next),
        }
    }
}

fn starting_deadline(spec: &CronJobSpec) -> Option<Duration> {
    let seconds = spec.starting_deadline_seconds?;
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

fn job_of(spec: &CronJobSpec, name: &str, due: Timestamp, zone: Option<&TimeZone>) -> Job {
    let metadata = spec.job_template.metadata.clone().unwrap_or_default();
    let mut job = Job {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: metadata.labels,
            annotations: metadata.annotations,
            ..ObjectMeta::default()
        },
        spec: spec.job_template.spec.clone(),
        status: None,
    };
    template::label(&mut job.metadata.annotations, SCHEDULED_AT, &told_in(due, zone));
    job
}

/// A time as the clocks of a zone show it.
fn told_in(due: Timestamp, zone: Option<&TimeZone>) -> String {
    match zone.map(|zone| due.to_zoned(zone.clone())) {
        Some(told) if !told.offset().is_zero() => told.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
        _ => due.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_by_the_clocks_of_its_zone() {
        let due: Timestamp = "2026-01-05T09:00:00Z".parse().unwrap();
        let told = |zone: &str| told_in(due, Some(&TimeZone::get(zone).unwrap()));
        assert_eq!(told("Europe/Berlin"), "2026-01-05T10:00:00+01:00");
        assert_eq!(told("Europe/London"), "2026-01-05T09:00:00Z");
        assert_eq!(told_in(due, None), "2026-01-05T09:00:00Z");
    }
}
