//! `CronJob`: a job at each time of a schedule.
//!
//! The name of a job is made of its time, so a job whose creation was not yet written down is not made twice.

mod schedule;

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use moorline_plan::{Draft, Failure, Propagation, Step, Verdict, transformer};
use moorline_runtime::{Actor, EventType, Object, Planner, Seen, Snapshot, Watches};

use self::schedule::Schedule;
use crate::{pods, template};

const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// More missed times than this look like a clock that went astray.
const MOST_MISSED: usize = 100;

/// Runs cron jobs.
pub(crate) struct CronJobs;

impl Actor for CronJobs {
    type Object = CronJob;

    fn name(&self) -> &'static str {
        "cronjob-controller"
    }

    fn watches(&self) -> Watches {
        Watches::of::<CronJob>().owns::<Job>().without_conditions()
    }

    fn plan(&self, plan: Planner<CronJob>) -> Planner<CronJob> {
        plan.transformer(transformer("schedule", keep_schedule))
    }
}

fn keep_schedule(snapshot: &Snapshot<CronJob>, draft: &mut Draft<Object>) -> Result<Verdict, Failure> {
    let object = snapshot.object();
    let spec = object.spec.clone();
    let jobs = snapshot.owned::<Job>()?;
    let active: Vec<&Seen<Job>> = jobs.iter().filter(|job| !is_finished(job)).collect();
    let mut status = object.status.clone().unwrap_or_default();
    status.active =
        Some(active.iter().map(|job| reference(job)).collect::<Vec<_>>()).filter(|active| !active.is_empty());
    status.last_successful_time = last_success(&jobs).or(status.last_successful_time);
    clean_up(&spec, &jobs, draft);
    let verdict = if snapshot.raw().is_deleting() || spec.suspend == Some(true) {
        Verdict::Continue
    } else {
        start_due(snapshot, &spec, &active, &mut status, draft)?
    };
    draft.put(snapshot.status(&status, format!("{} jobs are active", active.len()))?);
    Ok(verdict)
}

/// Starts the latest job that is due, if the policies allow it, and says when the next is.
fn start_due(
    snapshot: &Snapshot<CronJob>,
    spec: &CronJobSpec,
    active: &[&Seen<Job>],
    status: &mut CronJobStatus,
    draft: &mut Draft<Object>,
) -> Result<Verdict, Failure> {
    let now = snapshot.now();
    let zone = match spec.time_zone.as_deref() {
        None => TimeZone::UTC,
        Some(name) => {
            if let Ok(zone) = TimeZone::get(name) {
                zone
            } else {
                let note = format!("invalid timeZone: {name:?}: unknown time zone {name}");
                draft.put(snapshot.event(EventType::Warning, "UnknownTimeZone", &note)?);
                return Ok(Verdict::Continue);
            }
        }
    };
    let schedule = match Schedule::read(&spec.schedule) {
        Ok(schedule) => schedule,
        Err(why) => {
            let note = format!("unparseable schedule: {:?}: {why}", spec.schedule);
            draft.put(snapshot.event(EventType::Warning, "UnparseableSchedule", &note)?);
            return Ok(Verdict::Continue);
        }
    };
    let verdict = look_again(&schedule, now, &zone);
    let Some(due) = latest_due(snapshot, spec, &schedule, &zone, status, draft)? else {
        return Ok(verdict);
    };
    let deadline = spec
        .starting_deadline_seconds
        .map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
    if deadline.is_some_and(|deadline| pods::elapsed(due, now) > deadline) {
        let note = format!("Missed scheduled time to start a job: {due}");
        draft.put(snapshot.event(EventType::Warning, "MissSchedule", &note)?);
        return Ok(verdict);
    }
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if !active.is_empty() => {
            let note = "Not starting job because prior execution is running and concurrency policy is Forbid";
            draft.put(snapshot.event(EventType::Normal, "JobAlreadyActive", note)?);
            return Ok(verdict);
        }
        Some("Replace") => {
            for job in active {
                draft.put(Step::delete_with(
                    job.raw().clone(),
                    Propagation::Background,
                    "the next one replaces it",
                ));
            }
        }
        _ => {}
    }
    let name = format!("{}-{}", snapshot.raw().name(), due.as_second() / 60);
    status.last_schedule_time = Some(Time(due));
    if snapshot.get::<Job>(&name)?.is_none() {
        let job = job_of(spec, &name, due, spec.time_zone.as_deref().map(|_| &zone));
        let key = draft.put(snapshot.create(&job, format!("it was due at {due}"))?);
        let event = draft.put(snapshot.event(EventType::Normal, "SuccessfulCreate", &format!("Created job {name}"))?);
        draft.after(&event, &key)?;
    }
    Ok(verdict)
}

/// The latest time of the schedule that has come and for which no job was started.
fn latest_due(
    snapshot: &Snapshot<CronJob>,
    spec: &CronJobSpec,
    schedule: &Schedule,
    zone: &TimeZone,
    status: &CronJobStatus,
    draft: &mut Draft<Object>,
) -> Result<Option<Timestamp>, Failure> {
    let now = snapshot.now();
    let created = snapshot
        .object()
        .metadata
        .creation_timestamp
        .as_ref()
        .map_or(now, |time| time.0);
    let mut since = status.last_schedule_time.as_ref().map_or(created, |time| time.0);
    if let Some(seconds) = spec.starting_deadline_seconds {
        let horizon = now
            .saturating_sub(jiff::SignedDuration::from_secs(seconds))
            .unwrap_or(Timestamp::MIN);
        since = since.max(horizon);
    }
    let mut latest = None;
    let mut missed = 0_usize;
    let mut at = since;
    while let Some(next) = schedule.next(at, zone).filter(|next| *next <= now) {
        missed += 1;
        // Far behind, the times between do not matter: leap closer to now.
        if missed > MOST_MISSED {
            let note = format!(
                "too many missed start times: {missed} or more. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
            );
            draft.put(snapshot.event(EventType::Warning, "TooManyMissedTimes", &note)?);
            return Ok(last_before(schedule, next, now, zone).or(latest));
        }
        latest = Some(next);
        at = next;
    }
    Ok(latest)
}

/// The last time of a schedule between a time of it and now, found by halving.
fn last_before(schedule: &Schedule, first: Timestamp, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let (mut low, mut high) = (first.as_second(), now.as_second());
    let mut found = first;
    while low < high {
        let middle = low + (high - low) / 2;
        match schedule
            .next(Timestamp::from_second(middle).ok()?, zone)
            .filter(|next| *next <= now)
        {
            Some(next) => {
                found = found.max(next);
                low = next.as_second().max(middle + 1);
            }
            None => high = middle,
        }
    }
    Some(found)
}

fn look_again(schedule: &Schedule, now: Timestamp, zone: &TimeZone) -> Verdict {
    match schedule.next(now, zone) {
        // A little late rather than a little early, which would mean another look.
        Some(next) => Verdict::LookAgain {
            after: pods::elapsed(now, next) + Duration::from_millis(100),
            reason: format!("the next job is due at {next}"),
        },
        None => Verdict::Continue,
    }
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
    let text = match zone {
        None => due.to_string(),
        Some(zone) => due.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
    };
    template::label(&mut job.metadata.annotations, SCHEDULED_AT, &text);
    job
}

fn condition<'j>(job: &'j Job, type_: &str) -> Option<&'j k8s_openapi::api::batch::v1::JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_deref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == type_ && condition.status == "True")
}

fn is_finished(job: &Job) -> bool {
    condition(job, "Complete").is_some() || condition(job, "Failed").is_some()
}

fn last_success(jobs: &[Seen<Job>]) -> Option<Time> {
    jobs.iter()
        .filter(|job| condition(job, "Complete").is_some())
        .filter_map(|job| job.status.as_ref()?.completion_time.clone())
        .max()
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

/// Finished jobs go, but for the latest few of each sort.
fn clean_up(spec: &CronJobSpec, jobs: &[Seen<Job>], draft: &mut Draft<Object>) {
    let sorts = [
        ("Complete", spec.successful_jobs_history_limit.unwrap_or(3)),
        ("Failed", spec.failed_jobs_history_limit.unwrap_or(1)),
    ];
    for (sort, keep) in sorts {
        let Ok(keep) = usize::try_from(keep) else { continue };
        let mut finished: Vec<&Seen<Job>> = jobs
            .iter()
            .filter(|job| condition(job, sort).is_some() && !job.is_deleting())
            .collect();
        finished.sort_by_key(|job| job.status.as_ref().and_then(|status| status.start_time.clone()));
        let surplus = finished.len().saturating_sub(keep);
        for job in finished.into_iter().take(surplus) {
            let reason = format!("the latest {keep} of its sort are kept");
            draft.put(Step::delete_with(job.raw().clone(), Propagation::Background, reason));
        }
    }
}
