//! The recorder: what was seen, what was planned and what became of it, kept on disk in a bounded ring; and replay.

use std::{
    collections::{BTreeMap, VecDeque},
    fs, io,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use moorline_plan::{Failure, Outcomes, Plan};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::{
    actor::Actor,
    controller::plans::Plans,
    execute::Effect,
    object::{Object, Target},
    snapshot::{Answers, Given, Query, Reads},
};

/// One reconcile. The contents of secrets are left out.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The object that it was for.
    pub object: Object,
    /// The time and what else was given.
    pub given: Given,
    /// What was asked of the caches, and the answers.
    pub answers: Vec<(Query, Vec<Object>)>,
    /// What was asked and not answered, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<(Query, Failure)>,
    /// What was planned.
    pub plan: Plan<Object>,
    /// What became of it.
    pub outcomes: Outcomes<Target, Effect>,
}

/// What comes of running the actor's transformers on a record once more.
#[derive(Debug)]
pub struct Replayed {
    /// The plan as it was recorded.
    pub recorded: Plan<Object>,
    /// The plan that the same snapshot gives now.
    pub rebuilt: Plan<Object>,
}

impl Replayed {
    /// Whether both are the same.
    pub fn is_same(&self) -> bool {
        self.recorded == self.rebuilt
    }
}

impl std::fmt::Display for Replayed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_same() {
            return write!(f, "the same plan:\n{}", self.rebuilt.to_text());
        }
        let difference = self.recorded.difference(&self.rebuilt);
        write!(
            f,
            "another plan:\n{}recorded:\n{}",
            self.rebuilt.to_text(),
            self.recorded.to_text()
        )?;
        for step in &difference.added {
            writeln!(f, "+ {} {}", step.action.verb(), step.target)?;
        }
        for step in &difference.removed {
            writeln!(f, "- {} {}", step.action.verb(), step.target)?;
        }
        for change in &difference.changed {
            writeln!(f, "~ {} {}", change.is.action.verb(), change.is.target)?;
        }
        Ok(())
    }
}

/// Why a record cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The file cannot be read.
    #[error("cannot read the record {path}")]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no record.
    #[error("{path} is not a record")]
    Contents {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// The record is of another actor.
    #[error("the record is of the actor {recorded:?}, which is not among those that can be replayed here")]
    Actor {
        /// Whose it is.
        recorded: String,
    },
    /// Not even a status can be planned.
    #[error("cannot plan: {0}")]
    Plan(String),
}

impl Record {
    /// Reads a record from a file.
    pub fn open(path: &Path) -> Result<Self, ReplayError> {
        let bytes = fs::read(path).map_err(|source| ReplayError::File {
            path: path.to_owned(),
            source,
        })?;
        serde_json::from_slice(&bytes).map_err(|source| ReplayError::Contents {
            path: path.to_owned(),
            source,
        })
    }

    /// The name of the actor whose reconcile it is.
    pub fn actor(&self) -> &str {
        &self.given.actor
    }

    /// Builds the plan once more, from the recorded snapshot and with the actor as it is now.
    pub fn replay<A: Actor>(&self, actor: &A) -> Result<Replayed, ReplayError> {
        if self.actor() != actor.name() {
            return Err(ReplayError::Actor {
                recorded: self.actor().to_owned(),
            });
        }
        let plans = Plans::of(actor, &actor.watches());
        let answers = self.answers.iter().cloned().map(|(query, answer)| (query, Ok(answer)));
        let refusals = self.refusals.iter().cloned().map(|(query, why)| (query, Err(why)));
        let reads = Reads::from_record(answers.chain(refusals).collect());
        let made = plans
            .make(&self.object, self.given.clone(), reads)
            .map_err(|failure| ReplayError::Plan(failure.message))?;
        let rebuilt = redacted(&made.built.plan).map_err(|error| ReplayError::Plan(error.to_string()))?;
        Ok(Replayed {
            recorded: self.plan.clone(),
            rebuilt,
        })
    }
}

/// How much is kept.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Where: one file for each reconcile, for this user's eyes only.
    pub directory: PathBuf,
    /// How many reconciles; fewer if they are so large that they would take more than 256 MiB.
    pub records: usize,
}

/// Writes records in the background. Clones write to the same ring.
#[derive(Clone, Debug)]
pub struct Recorder {
    sender: mpsc::Sender<Job>,
}

struct Job {
    object: Object,
    given: Given,
    answers: Answers,
    plan: Plan<Object>,
    outcomes: Outcomes<Target, Effect>,
}

/// How much a ring holds at most, however few its records are.
const MOST_BYTES: u64 = 256 * 1024 * 1024;

/// The time that a record's name begins with.
const TIME_DIGITS: usize = 20;

/// How many records may wait to be written. Beyond that they are dropped: recording never holds up a controller.
const BACKLOG: usize = 64;

impl Recorder {
    /// Starts writing into a ring. What an earlier process left there counts. Needs a tokio runtime.
    pub fn start(ring: Ring) -> io::Result<Self> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&ring.directory)?;
        let mut kept = left_there(&ring.directory)?;
        let mut bytes: u64 = kept.iter().map(|(_, bytes)| bytes).sum();
        let (sender, mut jobs) = mpsc::channel::<Job>(BACKLOG);
        tokio::task::spawn_blocking(move || {
            while let Some(job) = jobs.blocking_recv() {
                match write(&ring.directory, job) {
                    Ok((path, size)) => {
                        kept.push_back((path, size));
                        bytes += size;
                    }
                    Err(error) => tracing::warn!(%error, "a reconcile was not recorded"),
                }
                while kept.len() > ring.records || bytes > MOST_BYTES {
                    let Some((oldest, size)) = kept.pop_front() else { break };
                    bytes = bytes.saturating_sub(size);
                    if let Err(error) = fs::remove_file(&oldest) {
                        tracing::warn!(path = %oldest.display(), %error, "an old record was not removed");
                    }
                }
            }
        });
        Ok(Self { sender })
    }

    pub(crate) fn keep(
        &self,
        object: &Object,
        given: Given,
        answers: Answers,
        plan: Plan<Object>,
        outcomes: Outcomes<Target, Effect>,
    ) {
        let job = Job {
            object: object.clone(),
            given,
            answers,
            plan,
            outcomes,
        };
        if self.sender.try_send(job).is_err() {
            tracing::debug!("a reconcile was not recorded: the disk does not keep up");
        }
    }
}

/// The records that an earlier process left, oldest first, with their sizes. What it was writing when it ended goes.
fn left_there(directory: &Path) -> io::Result<VecDeque<(PathBuf, u64)>> {
    let mut left = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        // Only what has our names is ours: somebody may keep other things there.
        let ours = name.to_str().is_some_and(|name| {
            let time = name.split('-').next().unwrap_or_default();
            time.len() == TIME_DIGITS && time.bytes().all(|byte| byte.is_ascii_digit())
        });
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("json") if ours => left.push((path, entry.metadata()?.len())),
            Some("partial") if ours => fs::remove_file(path)?,
            _ => {}
        }
    }
    left.sort();
    Ok(left.into())
}

/// Writes a record to a file that only this user can read, and tells its size.
fn write(directory: &Path, job: Job) -> io::Result<(PathBuf, u64)> {
    let redact = |objects: Vec<Object>| objects.iter().map(redacted_object).collect::<io::Result<Vec<Object>>>();
    let (mut answers, mut refusals) = (Vec::new(), Vec::new());
    for (query, answer) in job.answers {
        match answer {
            Ok(objects) => answers.push((query, redact(objects)?)),
            Err(why) => refusals.push((query, why)),
        }
    }
    let name = format!(
        "{:0TIME_DIGITS$}-{}-{}.json",
        job.given.now.as_nanosecond(),
        job.given.actor,
        job.given.id.get(..8).unwrap_or_default()
    );
    let record = Record {
        object: redacted_object(&job.object)?,
        answers,
        refusals,
        plan: redacted(&job.plan)?,
        given: job.given,
        outcomes: job.outcomes,
    };
    let path = directory.join(name);
    let partial = path.with_extension("partial");
    let contents = serde_json::to_vec_pretty(&record)?;
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&partial)?;
    file.write_all(&contents)?;
    fs::rename(&partial, &path)?;
    Ok((path, contents.len() as u64))
}

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The word `redacted`, as secrets hold bytes.
const REDACTED: &str = "cmVkYWN0ZWQ=";

fn redacted_object(object: &Object) -> io::Result<Object> {
    if !object.kind().is("", "Secret") {
        return Ok(object.clone());
    }
    let mut value = serde_json::to_value(object)?;
    redact(&mut value);
    Ok(serde_json::from_value(value)?)
}

/// A plan without the contents of secrets.
fn redacted(plan: &Plan<Object>) -> serde_json::Result<Plan<Object>> {
    let mut value = serde_json::to_value(plan)?;
    redact(&mut value);
    serde_json::from_value(value)
}

/// Replaces the contents of every secret within a value.
fn redact(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if map.get("kind").is_some_and(|kind| kind == "Secret") && map.contains_key("metadata") {
                for contents in ["data", "stringData"] {
                    let Some(Value::Object(contents)) = map.get_mut(contents) else {
                        continue;
                    };
                    contents.values_mut().for_each(|value| *value = REDACTED.into());
                }
                // What kubectl applied stands there once more, as text.
                let annotations = map
                    .get_mut("metadata")
                    .and_then(|metadata| metadata.get_mut("annotations"));
                if let Some(applied) = annotations.and_then(|annotations| annotations.get_mut(LAST_APPLIED)) {
                    *applied = "redacted".into();
                }
            }
            map.values_mut().for_each(redact);
        }
        Value::Array(values) => values.iter_mut().for_each(redact),
        _ => {}
    }
}

/// Something that can replay the records of one actor, whatever its type.
pub(crate) type Replayer = Arc<dyn Fn(&Record) -> Result<Replayed, ReplayError> + Send + Sync>;

/// Actors by name, for replaying whatever record comes along.
#[derive(Clone, Default)]
pub struct Replayers(BTreeMap<String, Replayer>);

impl Replayers {
    /// Adds an actor.
    #[must_use]
    pub fn with<A: Actor>(mut self, actor: A) -> Self {
        self.add(Arc::new(actor));
        self
    }

    pub(crate) fn add<A: Actor>(&mut self, actor: Arc<A>) {
        let name = actor.name().to_owned();
        self.0.insert(name, Arc::new(move |record| record.replay(&*actor)));
    }

    /// Replays a file: what `moorline replay FILE` does.
    pub fn replay_file(&self, path: &Path) -> Result<Replayed, ReplayError> {
        let record = Record::open(path)?;
        let replayer = self.0.get(record.actor());
        let replayer = replayer.ok_or_else(|| ReplayError::Actor {
            recorded: record.actor().to_owned(),
        })?;
        replayer(&record)
    }
}
