//! How processes end, and ending them.

use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};

use super::{
    connection::{Connection, Purpose},
    container::Container,
    serve::{Shim, Stop},
};
use crate::{ContainerId, Result, wire::Reply};

/// How long the processes of a pod may take to die once they are killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// How a process ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) code: i32,
    pub(super) signal: Option<i32>,
}

impl End {
    pub(super) fn of(status: WaitStatus) -> Self {
        let signal = status.terminating_signal();
        let code = status.exit_status().unwrap_or_else(|| 128 + signal.unwrap_or(0));
        Self { code, signal }
    }
}

impl Shim {
    /// Collects every child that has ended, orphans of containers included.
    pub(super) fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            self.process_ended(pid.as_raw_nonzero().get().unsigned_abs(), End::of(status));
        }
    }

    pub(super) fn process_ended(&mut self, pid: u32, end: End) {
        let of_container = |container: &Container| container.process.as_ref().is_some_and(|process| process.pid == pid);
        if let Some(id) = self
            .containers
            .values()
            .find(|container| of_container(container))
            .map(|c| c.id.clone())
        {
            self.container_ended(&id, end);
            return;
        }
        let of_exec =
            |connection: &&Connection| matches!(connection.purpose, Purpose::Exec { pid: known } if known == pid);
        if let Some(id) = self.connections.iter().find(of_exec).map(|connection| connection.id) {
            self.reply(
                id,
                &Reply::ExecEnded {
                    code: end.code,
                    signal: end.signal,
                },
                &[],
            );
            self.drop_connection(id);
            return;
        }
        if self.pause == Some(pid) {
            // Everything in its namespace has died with it.
            self.stopping = Some(Stop::Unasked);
        }
        if !self.launches.is_empty() {
            self.unclaimed.push((pid, end));
        }
    }

    fn container_ended(&mut self, id: &ContainerId, end: End) {
        let group = self.hierarchies.group(&self.cgroup.join(id.as_str()));
        let oom_kills = group.oom_kills();
        // Where processes are shared, others of the container outlive its first one.
        if let Err(error) = group.kill(PATIENCE) {
            let _ = writeln!(io::stderr(), "{} {error}", jiff::Timestamp::now());
        }
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let exit = container.ended(end.code, end.signal, oom_kills);
        self.tell_watchers(&Reply::Exited {
            container: id.clone(),
            exit,
        });
        self.relieve(id);
    }

    pub(super) fn tell_watchers(&mut self, reply: &Reply) {
        let watching = |connection: &&Connection| matches!(connection.purpose, Purpose::Watching);
        let watchers: Vec<_> = self
            .connections
            .iter()
            .filter(watching)
            .map(|connection| connection.id)
            .collect();
        for watcher in watchers {
            self.reply(watcher, reply, &[]);
        }
    }

    /// Kills everything, writes down how it ended, and answers who asked.
    pub(super) fn stop(mut self) -> Result<()> {
        let start = Instant::now();
        let mut killed = self.hierarchies.group(&self.cgroup).kill(PATIENCE);
        // Every descendant becomes a child in the end, launchers and what they had not yet put in a cgroup included.
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    self.process_ended(pid.as_raw_nonzero().get().unsigned_abs(), End::of(status));
                    continue;
                }
                Ok(None) if start.elapsed() < PATIENCE => {}
                Ok(None) | Err(_) => break,
            }
            for child in children() {
                kill(child, Signal::KILL);
            }
            killed = self.hierarchies.group(&self.cgroup).kill(PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
        let reply = match &killed {
            Ok(()) => Reply::Done,
            Err(error) => Reply::Failed {
                reason: error.to_string(),
            },
        };
        if let Some(Stop::AskedBy(id)) = self.stopping {
            self.reply(id, &reply, &[]);
        }
        killed
    }
}

/// The children of this process, which has one thread.
fn children() -> Vec<u32> {
    let text = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

pub(super) fn kill(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}
