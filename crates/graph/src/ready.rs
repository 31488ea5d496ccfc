//! What can be worked on now, while other work is under way.

use std::hash::Hash;

use crate::error::NotInFlight;
use crate::graph::Graph;
use crate::ranks::ReadyRanks;
use crate::topology::{Direction, Slot};

/// Where a vertex stands in an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Not all that it depends on is done. Left when the last of that is completed, to `Ready`, or when any of it fails,
    /// to `Settled`.
    Waiting,
    /// May be handed out. Left by `pop`.
    Ready,
    /// With a worker. Left by `complete` and `fail`.
    InFlight,
    /// Completed, failed, or blocked by a failure. Never left.
    Settled,
}

/// Hands out the vertices of a graph so that each comes after all that it depends on, as many at once as are ready.
///
/// Ready vertices leave in insertion order. A vertex that fails blocks what depends on it, and nothing else. Handing
/// out and settling cost time proportional to the edges of the vertex concerned.
///
/// ```
/// # use moorline_graph::Graph;
/// let mut graph = Graph::new();
/// graph.insert("cluster", ());
/// graph.add_connect(&"cluster", "service", ())?;
/// graph.add_connect(&"cluster", "workload", ())?;
/// graph.add_connect(&"workload", "secret", ())?;
///
/// let mut ready = graph.ready_set();
/// assert_eq!(ready.pop(), Some((&"service", &())));
/// assert_eq!(ready.pop(), Some((&"secret", &())));
/// assert_eq!(ready.pop(), None, "the workload waits for its secret");
/// ready.complete(&"secret")?;
/// assert_eq!(ready.pop(), Some((&"workload", &())));
/// assert_eq!(ready.fail(&"service")?, [&"cluster"]);
/// ready.complete(&"workload")?;
/// assert_eq!(ready.remaining(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ReadySet<'g, K, V> {
    graph: &'g Graph<K, V>,
    /// For each slot, how many of its successors are not yet completed.
    waits_for: Vec<u32>,
    standing: Vec<Standing>,
    ready: ReadyRanks,
    remaining: usize,
    in_flight: usize,
}

impl<K, V> Graph<K, V> {
    /// Begins an execution of the graph.
    pub fn ready_set(&self) -> ReadySet<'_, K, V> {
        let waits_for = self.held_by(Direction::Into);
        let mut standing = vec![Standing::Settled; waits_for.len()];
        let mut ready = ReadyRanks::new(self.ranks());
        for slot in self.topology.slots() {
            standing[slot as usize] = Standing::Waiting;
            if waits_for[slot as usize] == 0 {
                standing[slot as usize] = Standing::Ready;
                ready.push(slot);
            }
        }
        ReadySet {
            graph: self,
            waits_for,
            standing,
            ready,
            remaining: self.len(),
            in_flight: 0,
        }
    }
}

impl<'g, K, V> ReadySet<'g, K, V> {
    /// Hands out the earliest inserted vertex that is ready. `None` while nothing is, and after everything was.
    pub fn pop(&mut self) -> Option<(&'g K, &'g V)> {
        let slot = self.ready.pop()?;
        self.standing[slot as usize] = Standing::InFlight;
        self.in_flight += 1;
        Some(self.graph.vertex(slot))
    }

    /// How many vertices are neither completed, nor failed, nor blocked: waiting, ready or in flight.
    pub fn remaining(&self) -> usize {
        self.remaining
    }

    /// How many vertices were handed out and not yet settled.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// How many vertices can be handed out now.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }
}

impl<'g, K: Eq + Hash + Clone, V> ReadySet<'g, K, V> {
    /// A vertex that was handed out is done: what waited only for it becomes ready.
    pub fn complete(&mut self, key: &K) -> Result<(), NotInFlight<K>> {
        let slot = self.settle(key)?;
        for dependent in self.graph.topology.neighbours(slot, Direction::Into) {
            let waits_for = &mut self.waits_for[dependent as usize];
            *waits_for -= 1;
            // What is blocked never comes here: it goes on waiting for what failed.
            if *waits_for == 0 {
                self.standing[dependent as usize] = Standing::Ready;
                self.ready.push(dependent);
            }
        }
        Ok(())
    }

    /// A vertex that was handed out has failed: what depends on it, directly or not, will not be handed out. Returns
    /// those that this failure is the first to block, in insertion order.
    pub fn fail(&mut self, key: &K) -> Result<Vec<&'g K>, NotInFlight<K>> {
        let mut frontier = vec![self.settle(key)?];
        let mut blocked: Vec<Slot> = Vec::new();
        while let Some(slot) = frontier.pop() {
            for dependent in self.graph.topology.neighbours(slot, Direction::Into) {
                let standing = &mut self.standing[dependent as usize];
                if *standing == Standing::Waiting {
                    *standing = Standing::Settled;
                    self.remaining -= 1;
                    blocked.push(dependent);
                    frontier.push(dependent);
                }
            }
        }
        blocked.sort_unstable_by_key(|slot| self.ready.ranks().of(*slot));
        Ok(blocked.into_iter().map(|slot| self.graph.key(slot)).collect())
    }

    fn settle(&mut self, key: &K) -> Result<Slot, NotInFlight<K>> {
        let in_flight = |slot: &Slot| self.standing[*slot as usize] == Standing::InFlight;
        let slot = self
            .graph
            .find(key)
            .filter(in_flight)
            .ok_or_else(|| NotInFlight(key.clone()))?;
        self.standing[slot as usize] = Standing::Settled;
        self.in_flight -= 1;
        self.remaining -= 1;
        Ok(slot)
    }
}
