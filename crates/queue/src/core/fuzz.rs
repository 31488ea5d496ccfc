//! The core beside a model that is too plain to be wrong, through long runs of chance.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::*;
use crate::Backoff;

const PATIENCE: Duration = Duration::from_millis(40);
const FIRST: Duration = Duration::from_millis(4);
const MOST: Duration = Duration::from_millis(60);

/// One key of the model. It is dirty or queued if it has a turn, and processing if it has a run.
#[derive(Clone, Copy, Default)]
struct Entry {
    turn: Option<Turn>,
    delay: Option<Delay>,
    run: Option<(Priority, Start)>,
    failures: u32,
    rested_at: Moment,
}

/// Looks through all it knows to answer anything.
#[derive(Default)]
struct Model {
    keys: BTreeMap<u32, Entry>,
    now: Moment,
    counter: u64,
    closing: bool,
    last_was_oldest: bool,
    unreported: Vec<u32>,
}

impl Model {
    fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn advance(&mut self, now: Moment) {
        self.now = self.now.max(now);
        loop {
            let delays = self
                .keys
                .iter()
                .filter_map(|(key, entry)| entry.delay.map(|it| (it.due, it.stamp, *key)));
            let Some((due, _, key)) = delays.min().filter(|(due, ..)| *due <= self.now) else {
                break;
            };
            let arrival = self.count();
            let entry = self.keys.get_mut(&key).unwrap();
            let priority = entry.delay.take().unwrap().priority;
            entry.turn = Some(Turn {
                arrival,
                since: due,
                priority,
            });
        }
    }

    fn add(&mut self, key: u32, delay: Duration, priority: Priority, now: Moment) {
        self.advance(now);
        if self.closing {
            return;
        }
        let (arrival, now) = (self.count(), self.now);
        let entry = self.keys.entry(key).or_default();
        if let Some(turn) = &mut entry.turn {
            turn.priority = turn.priority.max(priority);
            return;
        }
        let due = now.after(delay);
        let priority = entry.delay.map_or(priority, |it| it.priority.max(priority));
        if delay.is_zero() {
            entry.delay = None;
            entry.turn = Some(Turn {
                arrival,
                since: now,
                priority,
            });
        } else if let Some(earlier) = entry.delay.as_mut().filter(|it| it.due <= due) {
            earlier.priority = priority;
        } else {
            entry.delay = Some(Delay {
                due,
                stamp: arrival,
                priority,
            });
        }
    }

    fn queued(&self) -> impl Iterator<Item = (u32, Turn)> {
        self.keys
            .iter()
            .filter(|(_, it)| it.run.is_none())
            .filter_map(|(key, it)| Some((*key, it.turn?)))
    }

    fn get(&mut self, now: Moment) -> Option<u32> {
        self.advance(now);
        let oldest = self.queued().min_by_key(|(_, turn)| turn.arrival)?;
        let highest = self
            .queued()
            .min_by_key(|(_, turn)| (std::cmp::Reverse(turn.priority), turn.arrival))?;
        let overdue = self.now >= oldest.1.since.after(PATIENCE) && oldest.1.priority != highest.1.priority;
        self.last_was_oldest = overdue && !self.last_was_oldest;
        let (key, turn) = if self.last_was_oldest { oldest } else { highest };
        let now = self.now;
        let entry = self.keys.get_mut(&key).unwrap();
        let early = entry.failures > 0 && now < entry.rested_at;
        entry.turn = None;
        entry.run = Some((turn.priority, if early { Start::DuringBackoff } else { Start::InTime }));
        Some(key)
    }

    fn done(&mut self, key: u32, outcome: Outcome, now: Moment) {
        self.advance(now);
        let (stamp, now) = (self.count(), self.now);
        let entry = self.keys.get_mut(&key).unwrap();
        let (priority, start) = entry.run.take().unwrap();
        let wish = match outcome {
            Outcome::Done => None,
            Outcome::After(delay) => Some(now.after(delay)),
            Outcome::Retry => {
                entry.failures += u32::from(start == Start::InTime);
                entry.rested_at = now.after(MOST.min(FIRST * (1 << (entry.failures - 1).min(10))));
                Some(entry.rested_at)
            }
        };
        if outcome != Outcome::Retry {
            entry.failures = 0;
        }
        if let Some(due) = wish
            && entry.turn.is_none()
            && entry.delay.is_none_or(|it| it.due > due)
        {
            if self.closing {
                self.unreported.push(key);
            } else {
                let priority = entry.delay.map_or(priority, |it| it.priority.max(priority));
                entry.delay = Some(Delay { due, stamp, priority });
            }
        }
        self.keys
            .retain(|_, it| it.turn.is_some() || it.delay.is_some() || it.run.is_some());
    }

    fn shut_down(&mut self, at_once: bool, now: Moment) -> usize {
        self.advance(now);
        self.closing = true;
        let mut dropped = std::mem::take(&mut self.unreported).len();
        for entry in self.keys.values_mut() {
            dropped += usize::from(entry.delay.take().is_some());
            if at_once {
                dropped += usize::from(entry.turn.take().is_some());
            }
        }
        self.keys.retain(|_, it| it.turn.is_some() || it.run.is_some());
        dropped
    }

    fn assert_like(&self, core: &mut Core<u32>) {
        assert_eq!(core.len(), self.queued().count());
        assert_eq!(
            core.dirty(),
            self.keys
                .values()
                .filter(|it| it.run.is_some() && it.turn.is_some())
                .count()
        );
        assert_eq!(
            core.processing(),
            self.keys.values().filter(|it| it.run.is_some()).count()
        );
        assert_eq!(
            core.delayed(),
            self.keys.values().filter(|it| it.delay.is_some()).count()
        );
        assert_eq!(
            core.next_due(),
            self.keys.values().filter_map(|it| Some(it.delay?.due)).min()
        );
        assert_eq!(core.slots.iter().count(), self.keys.len());
        let mut depths = [0; Priority::LEVELS];
        self.queued().for_each(|(_, turn)| depths[turn.priority.index()] += 1);
        assert_eq!(
            Priority::all().map(|priority| core.depth(priority)).collect::<Vec<_>>(),
            depths
        );
        assert!(core.lanes.places() <= 2 * (core.len() + core.dirty()) + 64 * 33);
        assert!(core.timers.held() <= 2 * core.delayed() + 33);
    }
}

fn run(seed: u64, steps: usize, keys: u32, priorities: u8) {
    let mut rng = Rng::with_seed(seed);
    let backoff = Backoff {
        first: FIRST,
        most: MOST,
        jitter_percent: 0,
    };
    let mut core = Core::new(Config {
        patience: PATIENCE,
        backoff,
        ..Config::default()
    });
    let mut model = Model::default();
    let mut now = Moment::START;
    let mut held: Vec<u32> = Vec::new();
    for step in 0..steps {
        now = now.after(Duration::from_millis(rng.u64(0..3)));
        let key = rng.u32(0..keys);
        match rng.u32(0..100) {
            0..45 => {
                let delay = Duration::from_millis(if rng.bool() { 0 } else { rng.u64(0..50) });
                let priority = Priority::new(rng.u8(0..priorities)).unwrap();
                core.add(key, Ask::after(delay).with_priority(priority), now);
                model.add(key, delay, priority, now);
            }
            45..72 => {
                let got = match core.get(now) {
                    Next::Key(handout) => Some(handout.key),
                    Next::Wait { .. } | Next::Ended => None,
                };
                assert_eq!(got, model.get(now), "seed {seed}, step {step}");
                held.extend(got);
            }
            72..98 if !held.is_empty() => {
                let key = held.swap_remove(rng.usize(0..held.len()));
                let outcome = match rng.u32(0..4) {
                    0 => Outcome::Retry,
                    1 => Outcome::After(Duration::from_millis(rng.u64(1..80))),
                    _ => Outcome::Done,
                };
                core.done(&key, outcome, now).unwrap();
                model.done(key, outcome, now);
            }
            98 if !held.contains(&key) => {
                assert_eq!(core.done(&key, Outcome::Retry, now), Err(NotProcessing { key }));
                model.advance(now);
            }
            99 if step > steps * 9 / 10 => {
                let at_once = rng.u32(0..3) == 0;
                let dropped = if at_once {
                    core.shut_down_now(now)
                } else {
                    core.shut_down(now)
                };
                assert_eq!(dropped.len(), model.shut_down(at_once, now), "seed {seed}, step {step}");
            }
            _ => continue,
        }
        model.assert_like(&mut core);
    }
}

#[test]
fn the_core_does_what_the_model_does_with_few_keys() {
    for seed in 0..300 {
        run(seed, 1000, 6, 3);
    }
}

#[test]
fn the_core_does_what_the_model_does_with_many_keys_and_all_priorities() {
    for seed in 0..20 {
        run(1000 + seed, 5000, 300, 64);
    }
}
