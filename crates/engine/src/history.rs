//! The output of one execution, for any number of readers (C-13).
//!
//! A bounded window of the newest events is kept once; a reader is only a position in it. So a reader
//! who comes late gets what is still there, one who is slow finds a gap with its size, and neither
//! costs memory of its own or slows anybody. The one exception is asked for by name: a *follower*
//! holds the window, and with it the program, while it has not read, as a pipe would.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use stockade_core::{Outcome, StreamId};
use tokio::sync::Notify;

/// How much output is kept for readers who come late: at most this many events and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryBounds {
    /// Most events.
    pub events: usize,
    /// Most bytes.
    pub bytes: usize,
}

impl Default for HistoryBounds {
    fn default() -> Self {
        Self { events: 16 * 1024, bytes: 16 << 20 }
    }
}

/// One thing a reader sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// The program wrote. Numbers rise by one from 0 over both streams.
    Output {
        /// Its number.
        seq: u64,
        /// Where it wrote.
        stream: StreamId,
        /// What it wrote.
        data: Bytes,
    },
    /// This reader was too slow or too late for these.
    Gap {
        /// How many events.
        events: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// It ended; nothing follows.
    End(Outcome),
}

/// The writing end and the keeper of the window.
#[derive(Debug)]
pub(crate) struct History {
    state: Mutex<HistoryState>,
    bounds: HistoryBounds,
    /// Something was written, or it ended.
    written: Notify,
    /// A follower has read, or is gone.
    read: Notify,
}

#[derive(Debug, Default)]
struct HistoryState {
    events: VecDeque<HistoryEvent>,
    bytes: usize,
    /// Position behind the newest event.
    end: Position,
    outcome: Option<Outcome>,
    followers: BTreeMap<u64, Position>,
    next_follower: u64,
    holding: HistoryHolding,
}

#[derive(Debug)]
struct HistoryEvent {
    at: Position,
    stream: StreamId,
    data: Bytes,
}

/// How many events and bytes came before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Position {
    seq: u64,
    bytes: u64,
}

/// Whether followers may hold the program back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum HistoryHolding {
    #[default]
    Allowed,
    /// The program is being ended: no follower may keep it alive by not reading.
    Over,
}

impl HistoryState {
    fn start(&self) -> Position {
        self.events.front().map_or(self.end, |event| event.at)
    }

    fn is_over_bounds(&self, bounds: HistoryBounds, coming: usize) -> bool {
        self.events.len() >= bounds.events || self.bytes + coming > bounds.bytes
    }

    /// Whether a follower still needs the oldest event.
    fn is_oldest_held(&self) -> bool {
        let oldest = self.start().seq;
        self.holding == HistoryHolding::Allowed
            && !self.events.is_empty()
            && self.followers.values().any(|follower| follower.seq <= oldest)
    }

    /// Lets the oldest events go until this much fits. Fails while a follower needs one of them.
    fn make_room(&mut self, bounds: HistoryBounds, coming: usize) -> bool {
        while !self.events.is_empty() && self.is_over_bounds(bounds, coming) {
            if self.is_oldest_held() {
                return false;
            }
            self.bytes -= self.events.pop_front().map_or(0, |event| event.data.len());
        }
        true
    }

    fn push(&mut self, stream: StreamId, data: Bytes) {
        let at = self.end;
        self.end = Position { seq: at.seq + 1, bytes: at.bytes + data.len() as u64 };
        self.bytes += data.len();
        self.events.push_back(HistoryEvent { at, stream, data });
    }
}

impl History {
    pub(crate) fn new(bounds: HistoryBounds) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            bounds,
            written: Notify::new(),
            read: Notify::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, HistoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds output. Waits while a follower has not read what would have to go.
    pub(crate) async fn push(&self, stream: StreamId, data: Bytes) {
        loop {
            let read = self.read.notified();
            tokio::pin!(read);
            read.as_mut().enable();
            {
                let mut state = self.state();
                if state.make_room(self.bounds, data.len()) {
                    state.push(stream, data);
                    break;
                }
            }
            read.await;
        }
        self.written.notify_waiters();
    }

    /// From now on followers are readers like any other.
    pub(crate) fn stop_holding(&self) {
        self.state().holding = HistoryHolding::Over;
        self.read.notify_waiters();
    }

    /// Adds the end.
    pub(crate) fn finish(&self, outcome: Outcome) {
        self.state().outcome = Some(outcome);
        self.written.notify_waiters();
    }

    pub(crate) fn subscribe(self: &Arc<Self>) -> Subscription {
        // From the very first event: what has left the window is a gap for a late subscriber.
        let at = Position::default();
        Subscription { history: Arc::clone(self), at, follower: None, ended: false }
    }

    pub(crate) fn follow(self: &Arc<Self>) -> Subscription {
        let mut subscription = self.subscribe();
        let mut state = self.state();
        let follower = state.next_follower;
        state.next_follower += 1;
        state.followers.insert(follower, subscription.at);
        subscription.follower = Some(follower);
        drop(state);
        subscription
    }
}

/// One reader of an execution's output.
#[derive(Debug)]
pub struct Subscription {
    history: Arc<History>,
    at: Position,
    follower: Option<u64>,
    ended: bool,
}

impl Subscription {
    /// The next event, waiting for it; nothing after [`OutputEvent::End`]. Safe to drop half-way.
    pub async fn next(&mut self) -> Option<OutputEvent> {
        loop {
            let history = Arc::clone(&self.history);
            let written = history.written.notified();
            tokio::pin!(written);
            written.as_mut().enable();
            if self.ended {
                return None;
            }
            if let Some(event) = self.try_next() {
                return Some(event);
            }
            written.await;
        }
    }

    /// How the execution ended, waiting for it. Reads nothing.
    pub(crate) async fn outcome(&self) -> Outcome {
        loop {
            let written = self.history.written.notified();
            tokio::pin!(written);
            written.as_mut().enable();
            let outcome = self.history.state().outcome.clone();
            if let Some(outcome) = outcome {
                return outcome;
            }
            written.await;
        }
    }

    /// The next event if it is there already.
    pub fn try_next(&mut self) -> Option<OutputEvent> {
        let history = Arc::clone(&self.history);
        let mut state = history.state();
        let start = state.start();
        if self.at.seq < start.seq {
            let missed = self.move_to(start, &mut state);
            return Some(OutputEvent::Gap {
                events: start.seq - missed.seq,
                bytes: start.bytes - missed.bytes,
            });
        }
        let index = usize::try_from(self.at.seq - start.seq).unwrap_or(usize::MAX);
        if let Some(event) = state.events.get(index) {
            let (seq, stream, data) = (event.at.seq, event.stream, event.data.clone());
            let next = Position { seq: seq + 1, bytes: event.at.bytes + data.len() as u64 };
            self.move_to(next, &mut state);
            return Some(OutputEvent::Output { seq, stream, data });
        }
        let outcome = state.outcome.clone().filter(|_| !self.ended)?;
        self.ended = true;
        Some(OutputEvent::End(outcome))
    }

    /// Moves on and says where it was.
    fn move_to(&mut self, to: Position, state: &mut HistoryState) -> Position {
        if let Some(follower) = self.follower {
            state.followers.insert(follower, to);
            self.history.read.notify_waiters();
        }
        std::mem::replace(&mut self.at, to)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(follower) = self.follower {
            self.history.state().followers.remove(&follower);
            self.history.read.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use stockade_core::{Ending, StreamReport, Usage};

    use super::*;

    const SMALL_BOUNDS: HistoryBounds = HistoryBounds { events: 4, bytes: 100 };

    fn sample_outcome() -> Outcome {
        let (stdout, stderr) = (StreamReport::default(), StreamReport::default());
        Outcome {
            ending: Ending::Exited(0),
            stdout,
            stderr,
            usage: Usage::default(),
            limits: vec![],
            limits_reached: vec![],
            network_denied: vec![],
            network_unreachable: false,
            network_observed: None,
        }
    }

    fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    fn write_bytes(history: &History, bytes: usize) -> Option<()> {
        poll_once(history.push(StreamId::Stdout, Bytes::from(vec![b'x'; bytes])))
    }

    fn drain_sequence_numbers(subscription: &mut Subscription) -> Vec<u64> {
        std::iter::from_fn(|| subscription.try_next())
            .filter_map(|event| match event {
                OutputEvent::Output { seq, .. } => Some(seq),
                OutputEvent::Gap { .. } | OutputEvent::End(_) => None,
            })
            .collect()
    }

    #[test]
    fn a_late_reader_gets_the_history_once_and_then_the_live_stream() {
        let history = History::new(SMALL_BOUNDS);
        write_bytes(&history, 1).unwrap();
        write_bytes(&history, 1).unwrap();
        let mut late = history.subscribe();
        assert_eq!(drain_sequence_numbers(&mut late), [0, 1]);
        write_bytes(&history, 1).unwrap();
        assert_eq!(drain_sequence_numbers(&mut late), [2]);
        history.finish(sample_outcome());
        assert_eq!(late.try_next(), Some(OutputEvent::End(sample_outcome())));
        assert_eq!(poll_once(late.next()), Some(None));
    }

    #[test]
    fn a_slow_reader_finds_a_gap_with_its_size_and_slows_nobody() {
        let history = History::new(SMALL_BOUNDS);
        let mut slow = history.subscribe();
        for _ in 0..10 {
            write_bytes(&history, 3).unwrap();
        }
        assert_eq!(slow.try_next(), Some(OutputEvent::Gap { events: 6, bytes: 18 }));
        assert_eq!(drain_sequence_numbers(&mut slow), [6, 7, 8, 9]);
    }

    #[test]
    fn the_window_is_bounded_by_bytes_too() {
        let history = History::new(SMALL_BOUNDS);
        for _ in 0..3 {
            write_bytes(&history, 60).unwrap();
        }
        assert_eq!(drain_sequence_numbers(&mut history.subscribe()), [2]);
    }

    #[test]
    fn a_follower_holds_the_writer_until_it_reads() {
        let history = History::new(SMALL_BOUNDS);
        let mut follower = history.follow();
        for _ in 0..4 {
            write_bytes(&history, 1).unwrap();
        }
        assert_eq!(write_bytes(&history, 1), None);
        assert!(follower.try_next().is_some());
        write_bytes(&history, 1).unwrap();
        assert_eq!(drain_sequence_numbers(&mut follower), [1, 2, 3, 4]);
    }

    #[test]
    fn a_follower_misses_nothing_when_one_event_takes_the_room_of_many() {
        let history = History::new(SMALL_BOUNDS);
        let mut follower = history.follow();
        for _ in 0..4 {
            write_bytes(&history, 25).unwrap();
        }
        assert!(follower.try_next().is_some());
        assert_eq!(write_bytes(&history, 80), None, "three events that must go were not read yet");
        assert_eq!(drain_sequence_numbers(&mut follower), [1, 2, 3]);
        write_bytes(&history, 80).unwrap();
        assert_eq!(drain_sequence_numbers(&mut follower), [4]);
    }

    #[test]
    fn a_follower_that_is_dropped_or_overruled_holds_nobody() {
        let history = History::new(SMALL_BOUNDS);
        let follower = history.follow();
        let another = history.follow();
        for _ in 0..4 {
            write_bytes(&history, 1).unwrap();
        }
        drop(follower);
        assert_eq!(write_bytes(&history, 1), None);
        history.stop_holding();
        write_bytes(&history, 1).unwrap();
        drop(another);
    }
}
