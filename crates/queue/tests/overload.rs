//! How long keys wait when there is much more work than workers, in simulated time.
#![cfg(not(any(loom, shuttle)))]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;

use moorline_queue::{Ask, Config, Core, Moment, Next, Outcome, Priority};

/// Workers that take the same time over each key, on a clock that jumps from one event to the next.
struct Simulation {
    core: Core<u32>,
    now: Moment,
    service: Duration,
    idle: u32,
    running: BinaryHeap<Reverse<(Moment, u32)>>,
    /// When each key was first handed out.
    started: HashMap<u32, Moment>,
    hand_outs: BTreeMap<u32, usize>,
}

impl Simulation {
    fn new(config: Config, workers: u32, service: Duration) -> Self {
        Self {
            core: Core::new(config),
            now: Moment::START,
            service,
            idle: workers,
            running: BinaryHeap::new(),
            started: HashMap::new(),
            hand_outs: BTreeMap::new(),
        }
    }

    fn add(&mut self, key: u32, priority: Priority) {
        self.core.add(key, Ask::now().with_priority(priority), self.now);
    }

    /// Starts all that can start. The key that is hot asks for itself again while it runs.
    fn start(&mut self, hot: Option<u32>) {
        while self.idle > 0
            && let Next::Key(handout) = self.core.get(self.now)
        {
            self.idle -= 1;
            self.started.entry(handout.key).or_insert(self.now);
            *self.hand_outs.entry(handout.key).or_default() += 1;
            if hot == Some(handout.key) {
                self.add(handout.key, Priority::NORMAL);
            }
            self.running.push(Reverse((self.now.after(self.service), handout.key)));
        }
    }

    /// Lets the next run end. False when there is none.
    fn step(&mut self, hot: Option<u32>) -> bool {
        self.start(hot);
        let Some(Reverse((end, key))) = self.running.pop() else {
            return false;
        };
        self.now = end;
        self.idle += 1;
        self.core.done(&key, Outcome::Done, end).expect("the key was running");
        self.start(hot);
        true
    }
}

#[test]
fn one_hot_key_and_ten_thousand_cold_ones_all_get_their_share() {
    const COLD: u32 = 10_000;
    const HOT: u32 = COLD;
    let (workers, service) = (4, Duration::from_millis(10));
    let mut simulation = Simulation::new(Config::default(), workers, service);
    simulation.add(HOT, Priority::NORMAL);
    for key in 0..COLD {
        simulation.add(key, Priority::NORMAL);
    }
    let mut late_runs = 0;
    while simulation.started.len() <= COLD as usize || late_runs < COLD {
        late_runs += u32::from(simulation.started.len() > COLD as usize);
        assert!(simulation.step(Some(HOT)));
    }
    // The hot key takes a turn only after all who asked before it, so the cold ones wait for one another alone.
    let bound = service * (COLD + 1) / workers;
    let longest = (0..COLD)
        .map(|key| simulation.started[&key].since(Moment::START))
        .max()
        .unwrap();
    assert!(longest <= bound, "{longest:?} is more than {bound:?}");
    let hot = simulation.hand_outs[&HOT];
    assert!(hot > (COLD / workers) as usize, "the hot key ran {hot} times");
}

#[test]
fn a_user_edit_during_a_restart_with_fifty_thousand_objects_starts_within_a_second() {
    const OBJECTS: u32 = 50_000;
    let (workers, service) = (4, Duration::from_millis(50));
    let mut simulation = Simulation::new(Config::default(), workers, service);
    for key in 0..OBJECTS {
        simulation.add(key, Priority::LOW);
    }
    let mut edits = Vec::new();
    let mut longest = Duration::ZERO;
    while simulation.step(None) {
        if simulation.hand_outs.len().is_multiple_of(500) && edits.len() < 1000 {
            let edit = OBJECTS + u32::try_from(edits.len()).unwrap();
            edits.push((edit, simulation.now));
            simulation.add(edit, Priority::HIGH);
        }
    }
    for (edit, asked) in &edits {
        longest = longest.max(simulation.started[edit].since(*asked));
    }
    assert!(edits.len() > 90);
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    assert!((0..OBJECTS).all(|key| simulation.hand_outs[&key] == 1));
}

#[test]
fn low_keys_finish_while_high_ones_alone_would_keep_every_worker_busy() {
    const LOW: u32 = 1000;
    let (workers, service) = (4, Duration::from_millis(10));
    let config = Config {
        patience: Duration::from_secs(2),
        ..Config::default()
    };
    let mut simulation = Simulation::new(config, workers, service);
    for key in 0..LOW {
        simulation.add(key, Priority::LOW);
    }
    let mut fresh = LOW;
    while !(0..LOW).all(|key| simulation.started.contains_key(&key)) {
        simulation.add(fresh, Priority::HIGH);
        fresh += 1;
        simulation.step(None);
    }
    let longest = (0..LOW)
        .map(|key| simulation.started[&key].since(Moment::START))
        .max()
        .unwrap();
    let bound = config.patience + service * 2 * LOW / workers + service;
    assert!(longest <= bound, "{longest:?} is more than {bound:?}");
}
