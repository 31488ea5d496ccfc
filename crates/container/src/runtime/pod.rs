//! A pod as a runtime knows it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::watch;

use crate::{
    ContainerId, ContainerSpec, Exit, PodSpec, State,
    error::{Attempt, Result},
    state::{ContainerDir, PodDir, Running, read_json},
};

pub(super) struct Pod {
    pub(super) spec: PodSpec,
    pub(super) dir: PodDir,
    pub(super) cgroup: PathBuf,
    /// Guards the map only; a container looks after its own state.
    containers: Mutex<BTreeMap<ContainerId, Arc<Container>>>,
    /// Set when its shim is known to be gone. Never unset.
    lost: AtomicBool,
    /// Set when we are the ones who end it. Never unset.
    removing: AtomicBool,
    /// Held by who takes away what it left, one at a time: true once nothing is left. A new pod of its name may exist
    /// from then on, and is not theirs to touch.
    pub(super) gone: tokio::sync::Mutex<bool>,
}

pub(super) struct Container {
    pub(super) spec: ContainerSpec,
    pub(super) dir: ContainerDir,
    state: watch::Sender<State>,
    /// True once it has ended; apart from the state, because followers of logs need no more than this.
    ended: watch::Sender<bool>,
}

impl Pod {
    pub(super) fn new(spec: PodSpec, dir: PodDir, instance_cgroup: &Path) -> Self {
        Self {
            cgroup: instance_cgroup.join(spec.id.as_str()),
            spec,
            dir,
            containers: Mutex::default(),
            lost: AtomicBool::new(false),
            removing: AtomicBool::new(false),
            gone: tokio::sync::Mutex::new(false),
        }
    }

    /// Reads the containers that are on disk.
    pub(super) fn load_containers(&self) -> Result<()> {
        let entries = std::fs::read_dir(self.dir.containers()).into_iter().flatten().flatten();
        for id in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<ContainerId>().ok()) {
            let dir = self.dir.container(&id);
            // A container without a specification was being made when its maker died.
            let Some(spec) = read_json(&dir.spec())? else {
                std::fs::remove_dir_all(dir.path()).attempt(|| format!("remove {}", dir.path().display()))?;
                continue;
            };
            let container = Container::new(spec, dir);
            container.refresh()?;
            self.containers().insert(id, Arc::new(container));
        }
        Ok(())
    }

    pub(super) fn containers(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Arc<Container>>> {
        self.containers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all_containers(&self) -> Vec<Arc<Container>> {
        self.containers().values().cloned().collect()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Its shim is gone, and what ran with it.
    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    pub(super) fn is_being_removed(&self) -> bool {
        self.removing.load(Ordering::Acquire)
    }

    pub(super) fn begin_removal(&self) {
        self.removing.store(true, Ordering::Release);
    }
}

impl Container {
    pub(super) fn new(spec: ContainerSpec, dir: ContainerDir) -> Self {
        Self {
            spec,
            dir,
            state: watch::Sender::new(State::Created),
            ended: watch::Sender::new(false),
        }
    }

    pub(super) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    pub(super) fn subscribe_ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    /// Reads from disk what has become of it. Returns its end, if that is news.
    pub(super) fn refresh(&self) -> Result<Option<Exit>> {
        if let Some(exit) = read_json::<Exit>(&self.dir.exit())? {
            return Ok(self.exited(exit.clone()).then_some(exit));
        }
        if let Some(running) = read_json::<Running>(&self.dir.running())? {
            self.started(&running);
        }
        Ok(None)
    }

    /// It runs; not news if its end is known already.
    pub(super) fn started(&self, running: &Running) {
        self.state.send_if_modified(|state| {
            let news = *state == State::Created;
            if news {
                *state = State::Running {
                    pid: running.pid,
                    started_at: running.started_at,
                };
            }
            news
        });
    }

    /// It has ended; false if that was known.
    pub(super) fn exited(&self, exit: Exit) -> bool {
        let news = self.state.send_if_modified(|state| {
            let news = matches!(state, State::Created | State::Running { .. });
            if news {
                *state = State::Exited(exit);
            }
            news
        });
        self.ended.send_if_modified(|ended| !std::mem::replace(ended, true));
        news
    }

    /// Nobody knows how it ended; false if it did not run.
    pub(super) fn lose(&self) -> bool {
        let news = self.state.send_if_modified(|state| {
            let news = matches!(state, State::Running { .. });
            if news {
                *state = State::Lost;
            }
            news
        });
        self.ended.send_if_modified(|ended| !std::mem::replace(ended, true));
        news
    }
}
