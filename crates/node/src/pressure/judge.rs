//! When there is too little of something. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
    time::Duration,
};

use moorline_machinery::quantity::Quantity;
use tokio::time::Instant;

/// What a node says when the machine runs short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Condition {
    Memory,
    Disk,
}

impl Condition {
    pub(crate) const ALL: [Self; 2] = [Self::Memory, Self::Disk];

    /// The type of the node's condition.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
        }
    }
}

/// What can run short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Signal {
    Memory,
    Disk,
    Inodes,
}

impl Signal {
    const ALL: [Self; 3] = [Self::Memory, Self::Disk, Self::Inodes];

    /// Its name in a kubelet's settings.
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory.available",
            Self::Disk => "nodefs.available",
            Self::Inodes => "nodefs.inodesFree",
        }
    }

    fn condition(self) -> Condition {
        match self {
            Self::Memory => Condition::Memory,
            Self::Disk | Self::Inodes => Condition::Disk,
        }
    }

    /// What is wanted back.
    pub(super) fn resource(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "ephemeral-storage",
            Self::Inodes => "inodes",
        }
    }
}

/// The least that is to be left: an amount, a share of all there is, or the smaller of both.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Least {
    amount: Option<u64>,
    percent: Option<f64>,
}

impl Least {
    fn of(self, all: u64) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a share of a size need not be exact to the byte"
        )]
        let share = self.percent.map(|percent| (all as f64 * percent / 100.0) as u64);
        self.amount.into_iter().chain(share).min().unwrap_or(0)
    }
}

/// Below what the machine is short of something, by signal. Of what is not named there may be any little.
#[derive(Debug, Clone, PartialEq)]
pub struct Thresholds(BTreeMap<Signal, Least>);

impl Default for Thresholds {
    /// Less than what Kubernetes keeps free: machines that people work at are fuller than servers, and a database that
    /// ends because a tenth of a large disk is all that is left would surprise them.
    fn default() -> Self {
        let least = |amount: Option<u64>, percent| Least {
            amount,
            percent: Some(percent),
        };
        Self(BTreeMap::from([
            (Signal::Memory, least(Some(100 << 20), 5.0)),
            (Signal::Disk, least(Some(1 << 30), 5.0)),
            (Signal::Inodes, least(None, 1.0)),
        ]))
    }
}

impl FromStr for Thresholds {
    type Err = String;

    /// Reads `memory.available<100Mi,nodefs.available<10%`, as a kubelet's `--eviction-hard`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut read = BTreeMap::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, least) = part
                .split_once('<')
                .ok_or_else(|| format!("{part:?} is not of the form SIGNAL<AMOUNT"))?;
            let signal = Signal::ALL.into_iter().find(|signal| signal.name() == name);
            let signal = signal.ok_or_else(|| {
                let known = Signal::ALL.map(Signal::name).join(", ");
                format!("there is no signal {name:?}; there are {known}")
            })?;
            let least = if let Some(percent) = least.strip_suffix('%') {
                let percent: f64 = percent.parse().map_err(|_| format!("{least:?} is not a percentage"))?;
                if !(0.0..100.0).contains(&percent) {
                    return Err(format!("{least:?} is not a percentage below a hundred"));
                }
                Least {
                    percent: Some(percent),
                    ..Least::default()
                }
            } else {
                let amount: Quantity = least.parse().map_err(|_| format!("{least:?} is not a quantity"))?;
                Least {
                    amount: Some(u64::try_from(amount.value()).map_err(|_| format!("{least:?} is less than nothing"))?),
                    ..Least::default()
                }
            };
            if read.insert(signal, least).is_some() {
                return Err(format!("{name} is named twice"));
            }
        }
        Ok(Self(read))
    }
}

/// When the machine is short of something, and for how long that counts.
#[derive(Debug, Clone, PartialEq)]
pub struct PressureConfig {
    /// Below what it is.
    pub thresholds: Thresholds,
    /// For how long nodes say so after it was last seen, so that they do not say now this and now that.
    pub hold: Duration,
    /// How often it is looked at.
    pub look: Duration,
}

impl Default for PressureConfig {
    fn default() -> Self {
        Self {
            thresholds: Thresholds::default(),
            hold: Duration::from_mins(5),
            look: Duration::from_secs(10),
        }
    }
}

/// How much is left of something, and how much there is at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Level {
    pub(super) available: u64,
    pub(super) all: u64,
}

/// What was seen of the machine; what could not be seen is left out.
pub(super) type Levels = BTreeMap<Signal, Level>;

/// What there is too little of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Want {
    pub(super) signal: Signal,
    pub(super) least: u64,
    pub(super) available: u64,
}

/// Remembers when the machine was last short of something.
pub(super) struct Judge {
    config: PressureConfig,
    last: BTreeMap<Condition, Instant>,
}

impl Judge {
    pub(super) fn new(config: PressureConfig) -> Self {
        Self {
            config,
            last: BTreeMap::new(),
        }
    }

    /// What nodes have to say, and what is wanted most: memory before disk, whose want kills sooner.
    pub(super) fn look(&mut self, levels: &Levels, now: Instant) -> (BTreeSet<Condition>, Option<Want>) {
        let wants: Vec<_> = levels
            .iter()
            .filter_map(|(signal, level)| {
                let least = self.config.thresholds.0.get(signal)?.of(level.all);
                (level.available < least).then_some(Want {
                    signal: *signal,
                    least,
                    available: level.available,
                })
            })
            .collect();
        for want in &wants {
            self.last.insert(want.signal.condition(), now);
        }
        let hold = self.config.hold;
        let short = wants
            .iter()
            .map(|want| want.signal.condition())
            .collect::<BTreeSet<_>>();
        self.last
            .retain(|condition, last| short.contains(condition) || now.duration_since(*last) < hold);
        (self.last.keys().copied().collect(), wants.first().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(memory: u64, disk: u64) -> Levels {
        let level = |available| Level { available, all: 1000 };
        BTreeMap::from([(Signal::Memory, level(memory)), (Signal::Disk, level(disk))])
    }

    #[test]
    fn thresholds_are_read_as_a_kubelet_reads_them() {
        let read: Thresholds = "memory.available<1Ki, nodefs.available<10%".parse().unwrap();
        assert_eq!(read.0[&Signal::Memory].of(5000), 1024);
        assert_eq!(read.0[&Signal::Disk].of(5000), 500);
        assert_eq!("".parse(), Ok(Thresholds(BTreeMap::new())), "nothing is watched");
        for (text, complaint) in [
            (
                "memory.available",
                "\"memory.available\" is not of the form SIGNAL<AMOUNT",
            ),
            ("memory.available<much", "\"much\" is not a quantity"),
            ("memory.available<-1", "\"-1\" is less than nothing"),
            ("nodefs.available<100%", "\"100%\" is not a percentage below a hundred"),
            (
                "nodefs.available<1%,nodefs.available<2%",
                "nodefs.available is named twice",
            ),
            (
                "pid.available<1",
                "there is no signal \"pid.available\"; there are memory.available, nodefs.available, nodefs.inodesFree",
            ),
        ] {
            assert_eq!(text.parse::<Thresholds>(), Err(complaint.to_owned()));
        }
    }

    #[test]
    fn the_smaller_of_an_amount_and_a_share_is_kept_free_by_default() {
        let least = |signal, all| Thresholds::default().0[&signal].of(all);
        assert_eq!(least(Signal::Disk, 1 << 40), 1 << 30);
        assert_eq!(least(Signal::Disk, 1000 << 20), 50 << 20);
        assert_eq!(least(Signal::Memory, 64 << 30), 100 << 20);
        assert_eq!(least(Signal::Inodes, 1000), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn want_is_said_until_it_was_not_seen_for_a_while() {
        let mut judge = Judge::new(PressureConfig {
            thresholds: "memory.available<100,nodefs.available<10%".parse().unwrap(),
            hold: Duration::from_mins(1),
            look: Duration::from_secs(10),
        });
        let mut look = |memory, disk| judge.look(&levels(memory, disk), Instant::now());
        assert_eq!(look(100, 100), (BTreeSet::new(), None), "the least is enough");
        let (said, want) = look(500, 99);
        assert_eq!(said, [Condition::Disk].into());
        assert_eq!(
            want,
            Some(Want {
                signal: Signal::Disk,
                least: 100,
                available: 99
            })
        );
        let (said, want) = look(0, 0);
        assert_eq!(said, Condition::ALL.into());
        assert_eq!(want.unwrap().signal, Signal::Memory, "it kills sooner");
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(look(500, 500), (Condition::ALL.into(), None), "it may come back");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(look(500, 500), (BTreeSet::new(), None));
    }
}
