//! The lines in which keys wait: one lane a priority, in order of arrival.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use crate::priority::Priority;
use crate::standing::{Found, SPARE, Sequel, SlotId, Slots, Standing, is_sparse};
use crate::time::Moment;

/// A place in a line. The key of its slot may have moved on meanwhile; [`Slots::found`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) arrival: u64,
    pub(crate) slot: SlotId,
}

/// The lanes, and the choice of the one to serve next.
pub(crate) struct Lanes {
    by_priority: Vec<Lane>,
    /// One bit for each lane in which a key is queued.
    occupied: u64,
    queued: usize,
    /// No key is overdue before this moment. It may be too early, never too late.
    overdue_from: Moment,
    served: Served,
}

/// Whose turn the last hand-out was, when an overdue key and a higher one both waited.
#[derive(Clone, Copy)]
enum Served {
    Highest,
    Oldest,
}

/// The line of one priority.
#[derive(Default)]
struct Lane {
    /// In order of arrival.
    line: VecDeque<Place>,
    /// Those that came after a later arrival had already joined: dirty keys whose turn had passed, raised keys.
    late: BinaryHeap<Reverse<Place>>,
    /// How many places are not stale.
    live: usize,
    /// How many keys are queued here; the other live places belong to dirty keys.
    queued: usize,
}

impl Lanes {
    pub(crate) fn new() -> Self {
        Self {
            by_priority: (0..Priority::LEVELS).map(|_| Lane::default()).collect(),
            occupied: 0,
            queued: 0,
            overdue_from: Moment::START,
            served: Served::Highest,
        }
    }

    #[inline]
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    #[inline]
    pub(crate) fn depth(&self, priority: Priority) -> usize {
        self.by_priority[priority.index()].queued
    }

    /// Gives a turn its place in line.
    #[inline]
    pub(crate) fn insert(&mut self, priority: Priority, place: Place) {
        let lane = &mut self.by_priority[priority.index()];
        lane.live += 1;
        match lane.line.back() {
            Some(last) if *last > place => lane.late.push(Reverse(place)),
            _ => lane.line.push_back(place),
        }
    }

    /// Counts a key whose turn has its place as queued.
    #[inline]
    pub(crate) fn count(&mut self, priority: Priority) {
        self.by_priority[priority.index()].queued += 1;
        self.queued += 1;
        self.occupied |= 1 << priority.index();
    }

    /// A turn older than others that wait comes to wait as well: it may be overdue before any of them.
    pub(crate) fn expect_overdue(&mut self, since: Moment, patience: Duration) {
        self.overdue_from = self.overdue_from.min(since.after(patience));
    }

    /// A key that was counted no longer waits here.
    #[inline]
    pub(crate) fn discount(&mut self, priority: Priority) {
        let lane = &mut self.by_priority[priority.index()];
        lane.queued -= 1;
        if lane.queued == 0 {
            self.occupied &= !(1 << priority.index());
        }
        self.queued -= 1;
    }

    /// The key of a place moved to another lane and left the place stale.
    ///
    /// Stale places are passed over when their turn comes, and are never more than the live ones and a few.
    pub(crate) fn abandon<K: Eq + Hash>(&mut self, priority: Priority, slots: &Slots<K>) {
        const FEW: usize = 32;
        let lane = &mut self.by_priority[priority.index()];
        lane.live -= 1;
        if lane.line.len() + lane.late.len() > 2 * lane.live + FEW {
            let is_live = |place: Place| !matches!(slots.found(place, priority), Found::Stale);
            lane.line.retain(|place| is_live(*place));
            lane.late.retain(|Reverse(place)| is_live(*place));
            lane.give_back();
        }
    }

    /// The lane whose first key is to be handed out next.
    ///
    /// That is the highest, unless the key that has waited longest of all is overdue; then these two take turns.
    #[inline]
    pub(crate) fn choose<K: Eq + Hash>(
        &mut self,
        now: Moment,
        patience: Duration,
        slots: &mut Slots<K>,
    ) -> Option<Priority> {
        let highest = highest(self.occupied)?;
        if self.occupied.is_power_of_two() || now < self.overdue_from {
            self.served = Served::Highest;
            return Some(highest);
        }
        let (oldest, since) = self.oldest(slots)?;
        self.overdue_from = since.after(patience);
        match self.served {
            Served::Highest if oldest != highest && now >= self.overdue_from => {
                self.served = Served::Oldest;
                Some(oldest)
            }
            _ => {
                self.served = Served::Highest;
                Some(highest)
            }
        }
    }

    /// The lane of the key that was asked for first of all that are queued, and when that was.
    fn oldest<K: Eq + Hash>(&mut self, slots: &mut Slots<K>) -> Option<(Priority, Moment)> {
        let mut unseen = self.occupied;
        let mut oldest: Option<(Place, Priority)> = None;
        while let Some(priority) = highest(unseen) {
            unseen &= !(1 << priority.index());
            let head = self.head(priority, slots)?;
            if oldest.is_none_or(|(place, _)| head < place) {
                oldest = Some((head, priority));
            }
        }
        let (place, priority) = oldest?;
        match slots[place.slot].standing {
            Standing::Queued(turn) => Some((priority, turn.since)),
            _ => None,
        }
    }

    /// The first queued key of a lane. What stands before it and is not queued gives up its place.
    #[inline]
    fn head<K: Eq + Hash>(&mut self, priority: Priority, slots: &mut Slots<K>) -> Option<Place> {
        let lane = &mut self.by_priority[priority.index()];
        loop {
            let place = lane.first()?;
            match slots.found(place, priority) {
                Found::Queued => return Some(place),
                Found::Stale => {}
                Found::Dirty => {
                    lane.live -= 1;
                    if let Some(run) = slots.run_mut(place.slot)
                        && let Sequel::Again(turn) = run.sequel
                    {
                        run.sequel = Sequel::Passed(turn);
                    }
                }
            }
            lane.remove_first();
        }
    }

    /// Takes the first queued key out of a lane that has one.
    #[inline]
    pub(crate) fn take<K: Eq + Hash>(&mut self, priority: Priority, slots: &mut Slots<K>) -> SlotId {
        let place = self
            .head(priority, slots)
            .expect("the lane was chosen because a key is queued there");
        let lane = &mut self.by_priority[priority.index()];
        lane.remove_first();
        lane.live -= 1;
        lane.give_back();
        self.discount(priority);
        place.slot
    }

    /// Forgets every place and finds them again from the slots, whose numbers have changed.
    pub(crate) fn rebuild<K: Eq + Hash>(&mut self, slots: &Slots<K>) {
        for lane in &mut self.by_priority {
            lane.line.clear();
            lane.late.clear();
            lane.live = 0;
        }
        let mut places: Vec<_> = slots
            .iter()
            .filter_map(|(slot, _)| {
                let turn = slots.turn(slot)?;
                let arrival = turn.arrival;
                let place = Place { arrival, slot };
                // One that passed has no place in line until its run ends.
                let passed = matches!(slots.found(place, turn.priority), Found::Stale);
                (!passed).then_some((place, turn.priority))
            })
            .collect();
        places.sort_unstable();
        for (place, priority) in places {
            self.insert(priority, place);
        }
        for lane in &mut self.by_priority {
            lane.give_back();
        }
    }

    #[cfg(test)]
    pub(crate) fn places(&self) -> usize {
        self.by_priority
            .iter()
            .map(|lane| lane.line.len() + lane.late.len())
            .sum()
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.by_priority
            .iter()
            .map(|lane| lane.line.capacity() + lane.late.capacity())
            .sum()
    }
}

impl Lane {
    #[inline]
    fn first(&self) -> Option<Place> {
        match (self.line.front(), self.late.peek()) {
            (Some(front), Some(Reverse(late))) => Some(*front.min(late)),
            (Some(front), None) => Some(*front),
            (None, late) => late.map(|Reverse(late)| *late),
        }
    }

    #[inline]
    fn remove_first(&mut self) {
        match (self.line.front(), self.late.peek()) {
            (Some(front), Some(Reverse(late))) if late < front => drop(self.late.pop()),
            (None, Some(_)) => drop(self.late.pop()),
            _ => drop(self.line.pop_front()),
        }
    }

    #[inline]
    fn give_back(&mut self) {
        if is_sparse(self.line.len(), self.line.capacity()) {
            self.line.shrink_to((2 * self.line.len()).max(SPARE));
        }
        if is_sparse(self.late.len(), self.late.capacity()) {
            self.late.shrink_to((2 * self.late.len()).max(SPARE));
        }
    }
}

fn highest(occupied: u64) -> Option<Priority> {
    let level = occupied.checked_ilog2()?;
    Some(Priority::new(u8::try_from(level).ok()?).expect("a word has as many bits as there are priorities"))
}
