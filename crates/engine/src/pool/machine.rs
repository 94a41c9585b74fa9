//! What a pool decides, as a pure state machine: time and everything that happens come in, what is
//! to be done goes out. It touches no clock, no task and no sandbox, so that a test can play
//! thousands of schedules through it.
//!
//! Every sandbox of the pool has a seat from before it is made until it is known to be gone. There
//! are never more seats than the maximum, unless that was lowered; who finds none waits in line.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// Time since the pool began.
pub(super) type Moment = Duration;
/// One sandbox of the pool, over its whole life.
pub(super) type PoolSeat = u64;
/// One caller who wants a sandbox.
pub(super) type PoolAsker = u64;

/// Delay after the first failed creation in a row; each further failure doubles it.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Upper bound of that delay.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Pause of creation after a ready sandbox had to make room.
const EVICTION_PAUSE: Duration = Duration::from_secs(1);

/// The numbers a pool is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PoolBounds {
    pub minimum: usize,
    pub maximum: usize,
    /// How long one beyond the minimum may wait for a caller.
    pub idle: Duration,
    /// How long a caller may wait for a seat.
    pub patience: Duration,
}

/// What is to be done. The order counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolAct {
    /// Make a sandbox; `made` or `failed` follows.
    Make(PoolSeat),
    /// It is this caller's now, and never another's. `answered` follows, and later `ended`.
    Give(PoolAsker, PoolSeat),
    /// This caller gets none.
    Refuse(PoolAsker, Why),
    /// Take it down; `ended` follows.
    Retire(PoolSeat),
}

/// Why a caller gets none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Every seat was taken for as long as it could wait.
    Exhausted,
    /// The one that was being made for it could not be made.
    Failed,
    /// The pool has ended.
    Closed,
}

/// How many there are of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PoolCounts {
    pub ready: usize,
    pub making: usize,
    pub used: usize,
    pub retiring: usize,
    pub waiting: usize,
}

#[derive(Debug)]
pub(super) struct PoolMachine {
    bounds: PoolBounds,
    /// How many are to be ready: the minimum, and one more for each caller who found none, until
    /// one of them has waited in vain.
    target: usize,
    /// The oldest first. The newest is given first, so that surplus ones reach the idle timeout.
    ready: Vec<(PoolSeat, Moment)>,
    making: BTreeSet<PoolSeat>,
    used: BTreeSet<PoolSeat>,
    /// Given, but the caller has not been answered yet.
    answering: BTreeSet<PoolSeat>,
    retiring: BTreeSet<PoolSeat>,
    line: VecDeque<(PoolAsker, Moment)>,
    failures: u32,
    rests_until: Moment,
    last: PoolSeat,
    closed: bool,
}

impl PoolMachine {
    pub(super) fn new(bounds: PoolBounds) -> Self {
        Self {
            bounds,
            target: bounds.minimum,
            ready: Vec::new(),
            making: BTreeSet::new(),
            used: BTreeSet::new(),
            answering: BTreeSet::new(),
            retiring: BTreeSet::new(),
            line: VecDeque::new(),
            failures: 0,
            rests_until: Moment::ZERO,
            last: 0,
            closed: false,
        }
    }

    pub(super) fn bounds(&self) -> PoolBounds {
        self.bounds
    }

    pub(super) fn counts(&self) -> PoolCounts {
        PoolCounts {
            ready: self.ready.len(),
            making: self.making.len(),
            used: self.used.len(),
            retiring: self.retiring.len(),
            waiting: self.line.len(),
        }
    }

    /// The one that would be given next.
    pub(super) fn next_ready(&self) -> Option<PoolSeat> {
        self.ready.last().map(|(seat, _)| *seat)
    }

    /// Everyone that is ready.
    pub(super) fn ready(&self) -> impl Iterator<Item = PoolSeat> {
        self.ready.iter().map(|(seat, _)| *seat)
    }

    /// A caller wants one.
    pub(super) fn ask(&mut self, now: Moment, asker: PoolAsker) -> Vec<PoolAct> {
        if self.closed {
            return vec![PoolAct::Refuse(asker, Why::Closed)];
        }
        if self.ready.is_empty() {
            self.target = (self.target + 1).min(self.bounds.maximum);
        }
        self.line.push_back((asker, now.saturating_add(self.bounds.patience)));
        self.settle(now)
    }

    /// A caller has gone away. One that was given something keeps it.
    pub(super) fn give_up(&mut self, now: Moment, asker: PoolAsker) -> Vec<PoolAct> {
        self.line.retain(|(waiting, _)| *waiting != asker);
        self.settle(now)
    }

    /// A caller has got what it was given: from now on others may be made.
    pub(super) fn answered(&mut self, now: Moment, seat: PoolSeat) -> Vec<PoolAct> {
        self.answering.remove(&seat);
        self.settle(now)
    }

    /// The walls stand.
    pub(super) fn made(&mut self, now: Moment, seat: PoolSeat) -> Vec<PoolAct> {
        if !self.making.remove(&seat) {
            return Vec::new();
        }
        self.failures = 0;
        self.rests_until = now;
        if self.closed {
            return vec![self.retire(seat)];
        }
        self.ready.push((seat, now));
        self.settle(now)
    }

    /// The walls could not be built, and nothing is left of them.
    pub(super) fn failed(&mut self, now: Moment, seat: PoolSeat) -> Vec<PoolAct> {
        if !self.making.remove(&seat) {
            return Vec::new();
        }
        let rest =
            FIRST_RETRY_DELAY.saturating_mul(1 << self.failures.min(16)).min(MAX_RETRY_DELAY);
        self.failures = self.failures.saturating_add(1);
        self.rests_until = now + rest;
        let mut acts = Vec::new();
        // A caller that left the queue may have left one more in the making: the first caller is refused
        // only if fewer are in the making than callers wait, or after its timeout.
        let first_is_late = self.line.front().is_some_and(|(_, until)| *until <= now);
        if self.making.len() < self.line.len() || first_is_late {
            let first = self.line.pop_front();
            acts.extend(first.map(|(asker, _)| PoolAct::Refuse(asker, Why::Failed)));
        }
        acts.extend(self.settle(now));
        acts
    }

    /// A ready one is of no use any more.
    pub(super) fn spoiled(&mut self, now: Moment, seat: PoolSeat) -> Vec<PoolAct> {
        let Some(at) = self.ready.iter().position(|(ready, _)| *ready == seat) else {
            return Vec::new();
        };
        self.ready.remove(at);
        let mut acts = vec![self.retire(seat)];
        acts.extend(self.settle(now));
        acts
    }

    /// A ready one has to make room for something else: no other is made in its place at once.
    pub(super) fn withdraw(&mut self, now: Moment, seat: PoolSeat) -> Vec<PoolAct> {
        self.rests_until = self.rests_until.max(now.saturating_add(EVICTION_PAUSE));
        self.spoiled(now, seat)
    }

    /// Nothing is left of it: its seat is free.
    pub(super) fn ended(&mut self, now: Moment, seat: PoolSeat) -> Vec<PoolAct> {
        if self.making.contains(&seat) {
            return self.failed(now, seat);
        }
        self.ready.retain(|(ready, _)| *ready != seat);
        self.answering.remove(&seat);
        self.used.remove(&seat);
        self.retiring.remove(&seat);
        self.settle(now)
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Moment) -> Vec<PoolAct> {
        self.settle(now)
    }

    /// From now on it is held to other numbers. What is ready beyond the minimum goes at once.
    pub(super) fn resize(&mut self, now: Moment, bounds: PoolBounds) -> Vec<PoolAct> {
        self.bounds = bounds;
        self.target = bounds.minimum;
        let mut acts = Vec::new();
        while !self.ready.is_empty()
            && (self.ready.len() > bounds.minimum
                || self.taken() - self.retiring.len() > bounds.maximum)
        {
            let (seat, _) = self.ready.remove(0);
            acts.push(self.retire(seat));
        }
        acts.extend(self.settle(now));
        acts
    }

    /// Refuses every caller from now on, and retires what no caller has.
    pub(super) fn close(&mut self) -> Vec<PoolAct> {
        self.closed = true;
        let refused = std::mem::take(&mut self.line).into_iter();
        let mut acts: Vec<_> =
            refused.map(|(asker, _)| PoolAct::Refuse(asker, Why::Closed)).collect();
        for (seat, _) in std::mem::take(&mut self.ready) {
            acts.push(self.retire(seat));
        }
        acts
    }

    /// When `tick` has something to do, if nothing happens before.
    pub(super) fn wakes_at(&self) -> Option<Moment> {
        let unserved = self.line.iter().skip(self.making.len()).map(|(_, until)| *until).min();
        let surplus = self.ready.len() > self.bounds.minimum;
        let oldest = self.ready.first().filter(|_| surplus);
        let idle = oldest.map(|(_, since)| since.saturating_add(self.bounds.idle));
        let refill = self.wants_refill().then_some(self.rests_until);
        [unserved, idle, refill].into_iter().flatten().min().filter(|_| !self.closed)
    }

    fn taken(&self) -> usize {
        self.ready.len() + self.making.len() + self.used.len() + self.retiring.len()
    }

    fn retire(&mut self, seat: PoolSeat) -> PoolAct {
        self.retiring.insert(seat);
        PoolAct::Retire(seat)
    }

    /// Does everything that can be done now: those in line come before what is only for later.
    fn settle(&mut self, now: Moment) -> Vec<PoolAct> {
        let mut acts = Vec::new();
        if self.closed {
            return acts;
        }
        self.give(&mut acts);
        while self.making.len() < self.line.len() && self.taken() < self.bounds.maximum {
            acts.push(self.make());
        }
        self.expire_waiting(now, &mut acts);
        self.shrink_ready(now, &mut acts);
        if self.wants_refill() && now >= self.rests_until {
            acts.push(self.make());
        }
        acts
    }

    fn give(&mut self, acts: &mut Vec<PoolAct>) {
        while !self.line.is_empty()
            && let Some((seat, _)) = self.ready.pop()
            && let Some((asker, _)) = self.line.pop_front()
        {
            self.used.insert(seat);
            self.answering.insert(seat);
            acts.push(PoolAct::Give(asker, seat));
        }
    }

    /// Callers for which one is being made wait for that, as they would without a pool.
    fn expire_waiting(&mut self, now: Moment, acts: &mut Vec<PoolAct>) {
        let served = self.making.len().min(self.line.len());
        let unserved = self.line.split_off(served);
        for (asker, until) in unserved {
            if until <= now {
                acts.push(PoolAct::Refuse(asker, Why::Exhausted));
            } else {
                self.line.push_back((asker, until));
            }
        }
    }

    fn shrink_ready(&mut self, now: Moment, acts: &mut Vec<PoolAct>) {
        while self.ready.len() > self.bounds.minimum
            && let Some((seat, since)) = self.ready.first().copied()
            && since.saturating_add(self.bounds.idle) <= now
        {
            self.ready.remove(0);
            self.target = self.ready.len().max(self.bounds.minimum);
            acts.push(self.retire(seat));
        }
    }

    /// One at a time, and never while a caller is waiting for an answer.
    fn wants_refill(&self) -> bool {
        !self.closed
            && self.line.is_empty()
            && self.answering.is_empty()
            && self.making.is_empty()
            && self.ready.len() < self.target
            && self.taken() < self.bounds.maximum
    }

    fn make(&mut self) -> PoolAct {
        self.last += 1;
        self.making.insert(self.last);
        PoolAct::Make(self.last)
    }
}
