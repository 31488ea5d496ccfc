//! From files back to a state.

use std::io::{self, BufReader};
use std::sync::Arc;

use super::files::{Files, LockError};
use super::frame::{Frames, Next, Prologue, Wreck};
use super::journal::{Extent, Log};
use super::names::{self, Kind, LOG_MAGIC};
use super::note::{DURABLE, Note};
use super::{Cut, Damage, DiskOptions, OpenError, Recovery, codec, snapshot};
use crate::record::{Change, Effect};
use crate::state::State;
use crate::{Describe, Record, Revision};

/// A store as its files tell of it.
pub(crate) struct Recovered {
    pub(crate) state: State,
    pub(crate) journal: Box<dyn crate::committer::Journal>,
    pub(crate) recovery: Recovery,
}

/// Reads the files, and makes sure that everything read will be read again.
pub(crate) fn recover(
    files: &Arc<dyn Files>,
    options: DiskOptions,
    describe: &dyn Describe,
) -> Result<Recovered, OpenError> {
    let hold = files.lock().map_err(|error| match error {
        LockError::Held { by } => OpenError::Held { by },
        LockError::Io(source) => OpenError::io("lock", source),
    })?;
    let present = Present::look(&**files)?;
    let mut replay = Replay {
        files: &**files,
        options: &options,
        describe,
        state: State::new(Revision::FIRST),
        based: present.snapshot.is_none(),
        durable: None,
        highest: Revision::FIRST,
        cut: Vec::new(),
        snapshot_bytes: 0,
        extent: Extent::default(),
    };
    let salvaged = match replay.read(&present) {
        Ok(()) => None,
        Err(error @ OpenError::Damaged { .. }) if options.damage == Damage::KeepWhatComesBefore && replay.based => {
            replay.salvage(&present)?;
            Some(error)
        }
        Err(error) => return Err(error),
    };

    if replay.cut.iter().any(|cut| cut.file == DURABLE) {
        Note::create(&**files, replay.state.revision()).map_err(|error| OpenError::io(DURABLE, error))?;
    }
    for name in &present.obsolete {
        match files.remove(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(OpenError::io(name, error)),
            _ => {}
        }
    }

    let Replay {
        state,
        cut,
        snapshot_bytes,
        extent,
        ..
    } = replay;
    let recovery = Recovery {
        revision: state.revision(),
        records: state.everything().len(),
        cut,
        salvaged,
    };
    let journal = Log::new(
        Arc::clone(files),
        hold,
        options,
        state.revision(),
        extent,
        snapshot_bytes,
    )
    .map_err(|error| OpenError::io(DURABLE, error))?;
    Ok(Recovered {
        state,
        journal: Box::new(journal),
        recovery,
    })
}

/// The files that matter.
struct Present {
    /// The newest snapshot.
    snapshot: Option<Revision>,
    /// The first revisions of the logs behind the snapshot, in order.
    logs: Vec<Revision>,
    durable: bool,
    /// What crashes left half made, or half removed because the snapshot covers it.
    obsolete: Vec<String>,
}

impl Present {
    fn look(files: &dyn Files) -> Result<Self, OpenError> {
        let names = files
            .names()
            .map_err(|error| OpenError::io("listing the directory", error))?;
        let kinds = || names.iter().map(|name| (name, Kind::of(name)));
        let snapshot = kinds()
            .filter_map(|(_, kind)| if let Kind::Snapshot(at) = kind { Some(at) } else { None })
            .max();
        let base = snapshot.unwrap_or(Revision::FIRST);
        let (mut logs, mut obsolete) = (Vec::new(), Vec::new());
        for (name, kind) in kinds() {
            match kind {
                Kind::Log(first) if first > base => logs.push(first),
                Kind::Snapshot(at) if Some(at) == snapshot => {}
                Kind::Other => {}
                Kind::Unfinished | Kind::Log(_) | Kind::Snapshot(_) => obsolete.push(name.clone()),
            }
        }
        logs.sort_unstable();
        let durable = names.iter().any(|name| name == DURABLE);
        Ok(Self {
            snapshot,
            logs,
            durable,
            obsolete,
        })
    }
}

/// The state as far as it has been read.
struct Replay<'a> {
    files: &'a dyn Files,
    options: &'a DiskOptions,
    describe: &'a dyn Describe,
    state: State,
    /// Whether the snapshot has been read, or there is none.
    based: bool,
    /// What was durable for certain; none where that is not known.
    durable: Option<Revision>,
    /// The highest revision of which there is any trace.
    highest: Revision,
    cut: Vec<Cut>,
    snapshot_bytes: u64,
    extent: Extent,
}

impl Replay<'_> {
    fn read(&mut self, present: &Present) -> Result<(), OpenError> {
        if let Some(revision) = present.snapshot {
            self.read_snapshot(revision)?;
        }
        // Where what is intact is to be kept, nothing intact is given up for the sake of this one.
        let durable = match self.read_durable(present) {
            Err(error) if self.options.damage == Damage::Refuse => return Err(error),
            other => other,
        };
        for (index, first) in present.logs.iter().enumerate() {
            let name = names::log(*first);
            if *first != self.state.revision().next() {
                return Err(OpenError::damaged(
                    &name,
                    0,
                    "the log before it is missing or ends too early",
                ));
            }
            self.read_log(&name, *first, present.logs.get(index + 1).copied())?;
        }
        if self.durable.is_some_and(|durable| durable > self.state.revision()) {
            return Err(OpenError::damaged(DURABLE, 0, "it tells of writes that are in no log"));
        }
        durable
    }

    fn read_snapshot(&mut self, revision: Revision) -> Result<(), OpenError> {
        let (mut state, describe) = (State::new(revision), self.describe);
        self.snapshot_bytes = snapshot::read(self.files, revision, |mut record| {
            record.attributes = Arc::new(describe.describe(&record.key, &record.value));
            state.restore(&Arc::new(record));
        })?;
        self.state = state;
        self.highest = revision;
        self.based = true;
        Ok(())
    }

    fn read_durable(&mut self, present: &Present) -> Result<(), OpenError> {
        if !present.durable {
            if present.snapshot.is_some() || !present.logs.is_empty() {
                return Err(OpenError::damaged(DURABLE, 0, "it is missing"));
            }
            Note::create(self.files, self.state.revision()).map_err(|error| OpenError::io(DURABLE, error))?;
        }
        self.durable = Note::read(self.files)?;
        match self.durable {
            Some(durable) => self.highest = self.highest.max(durable),
            None => self.cut.push(Cut {
                file: DURABLE.to_owned(),
                offset: 0,
                bytes: 0,
            }),
        }
        Ok(())
    }

    /// Reads a log that begins with `first`. The one after it begins with `next` and voids everything from there on.
    fn read_log(&mut self, name: &str, first: Revision, next: Option<Revision>) -> Result<(), OpenError> {
        let io = |error| OpenError::io(name, error);
        let mut source = BufReader::new(self.files.read(name).map_err(io)?);
        let prologue = Prologue::<1>::read(&mut source, LOG_MAGIC).map_err(|error| OpenError::prologue(name, error))?;
        if prologue.numbers[0] != first.get() {
            return Err(OpenError::damaged(name, 0, "the file is named after another revision"));
        }
        self.extent.logs += 1;
        let mut frames = Frames::new(source, Prologue::<1>::SIZE as u64);
        loop {
            let offset = frames.offset;
            if next == Some(self.state.revision().next()) {
                return Ok(());
            }
            match frames.next().map_err(io)? {
                Next::Frame(head, payload) => {
                    self.highest = self.highest.max(head.revision);
                    if head.revision != self.state.revision().next() {
                        return Err(OpenError::damaged(name, offset, "a frame before this one is missing"));
                    }
                    self.replay(head.count, &payload)
                        .ok_or_else(|| OpenError::damaged(name, offset, "a transaction makes no sense"))?;
                    self.highest = self.highest.max(self.state.revision());
                    self.extent.bytes += frames.offset - offset;
                }
                Next::End => return self.end_log(name, offset, next, Wreck::Blank),
                Next::Broken(begun) => {
                    let wreck = frames.examine(begun).map_err(io)?;
                    return self.end_log(name, offset, next, wreck);
                }
            }
        }
    }

    /// Judges what follows the last frame of a log that reads well.
    fn end_log(&mut self, name: &str, offset: u64, next: Option<Revision>, wreck: Wreck) -> Result<(), OpenError> {
        let acknowledged = self.durable.is_some_and(|durable| durable > self.state.revision());
        match wreck {
            _ if next.is_some() => return Err(OpenError::damaged(name, offset, "frames are missing at the end")),
            Wreck::Last { .. } if acknowledged => {
                return Err(OpenError::damaged(name, offset, "the checksum does not match"));
            }
            Wreck::Followed { by } => {
                self.highest = self.highest.max(by);
                return Err(OpenError::damaged(name, offset, "the checksum does not match"));
            }
            Wreck::Last { bytes } => self.cut.push(Cut {
                file: name.to_owned(),
                offset,
                bytes,
            }),
            Wreck::Blank => {}
        }
        self.settle(name, offset).map_err(|error| OpenError::io(name, error))
    }

    /// Ends the last log where it reads well. What was read may not have been durable yet, and from now on is seen.
    fn settle(&self, name: &str, end: u64) -> io::Result<()> {
        let mut file = self.files.open(name)?;
        file.set_len(end)?;
        file.sync()
    }

    /// Applies the transactions of a frame as if they were committed now; none if they do not fit the state.
    fn replay(&mut self, count: u32, mut payload: &[u8]) -> Option<()> {
        let now = (self.options.store.clock)();
        let mut near = None;
        for _ in 0..count {
            let revision = self.state.revision().next();
            let logged = codec::get_transaction(&mut payload, near.as_ref()).ok()?;
            near = logged.last().map(|change| change.key.clone());
            let mut changes = Vec::with_capacity(logged.len());
            for codec::Logged { key, written } in logged {
                let before = self.state.get(&key, self.state.revision()).cloned();
                let effect = match (written, before) {
                    (None, before) => Effect::Deleted { before: before? },
                    (Some((value, revision_at)), before) => {
                        if !codec::slot_lies_within(revision_at, revision, &value) {
                            return None;
                        }
                        let now = Arc::new(Record {
                            attributes: Arc::new(self.describe.describe(&key, &value)),
                            create_revision: before.as_ref().map_or(revision, |before| before.create_revision),
                            version: before.as_ref().map_or(1, |before| before.version + 1),
                            key: before.as_ref().map_or(key, |before| before.key.clone()),
                            mod_revision: revision,
                            value,
                            revision_at,
                        });
                        match before {
                            None => Effect::Created { now },
                            Some(before) => Effect::Updated { now, before },
                        }
                    }
                };
                changes.push(Arc::new(Change::new(revision, effect)));
            }
            self.state.publish(revision, changes, now, &mut Vec::new());
            while self.state.trim(&self.options.store.window, now) {}
        }
        payload.is_empty().then_some(())
    }

    /// Writes down what has been read as a snapshot behind every revision ever given out, and sets the rest aside.
    fn salvage(&mut self, present: &Present) -> Result<(), OpenError> {
        let io = |error| OpenError::io("salvaging what is intact", error);
        let revision = self.highest.next();
        self.state.jump(revision);
        let records = self.state.everything();
        self.snapshot_bytes = snapshot::write(self.files, revision, &records, &false.into()).map_err(io)?;
        for first in &present.logs {
            names::set_aside(self.files, &names::log(*first)).map_err(io)?;
        }
        if let Some(old) = present.snapshot {
            names::set_aside(self.files, &names::snapshot(old)).map_err(io)?;
        }
        Note::create(self.files, revision).map_err(io)?;
        self.extent = Extent::default();
        self.files.sync_names().map_err(io)
    }
}
