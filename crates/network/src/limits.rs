//! What the connections of one sandbox may use together: how many there are at once, how many begin in a second,
//! and how many bytes they carry.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use stockade_core::Bytes;
use tokio::sync::watch;

use crate::policy::Denial;

/// How much a sandbox may have of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EgressLimits {
    /// Connections at once.
    pub connections: usize,
    /// Connections that begin in one second. Absent: as many as there are.
    pub connections_per_second: Option<NonZeroU32>,
    /// Bytes in both directions together, over the life of its relay. Absent: as many as there are.
    pub bytes: Option<Bytes>,
}

impl Default for EgressLimits {
    fn default() -> Self {
        Self { connections: 256, connections_per_second: None, bytes: None }
    }
}

/// Time in which the connections of [`EgressLimits::connections_per_second`] begin.
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// Counts what one sandbox uses.
pub struct EgressMeter {
    limits: EgressLimits,
    state: Mutex<MeterState>,
    /// Whether more bytes were to be carried than may be.
    spent: watch::Sender<bool>,
}

struct MeterState {
    /// When all connections so far would have begun, had they come evenly spread.
    schedule: Instant,
    bytes_left: u64,
}

impl EgressMeter {
    /// Nothing is used yet.
    pub fn new(limits: EgressLimits) -> Self {
        let bytes_left = limits.bytes.map_or(u64::MAX, |bytes| bytes.0);
        let state = Mutex::new(MeterState { schedule: Instant::now(), bytes_left });
        Self { limits, state, spent: watch::Sender::new(false) }
    }

    /// Whether one more connection may begin. Why not, otherwise.
    pub fn admit_connection(&self) -> Result<(), Denial> {
        if *self.spent.borrow() {
            return Err(self.deny_spent());
        }
        let Some(rate) = self.limits.connections_per_second else { return Ok(()) };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.take_connection(rate, Instant::now()) {
            return Ok(());
        }
        let setting = "`network.connectionsPerSecond`";
        Err(format!("{setting} lets the sandbox begin {rate} connections in a second").into())
    }

    /// How many of these bytes may pass. Fewer than all only at the limit, where connections are cut.
    pub fn take_bytes(&self, wanted: usize) -> usize {
        if self.limits.bytes.is_none() {
            return wanted;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let granted = state.bytes_left.min(wanted as u64);
        state.bytes_left -= granted;
        drop(state);
        if granted < wanted as u64 {
            self.spent.send_replace(true);
        }
        granted as usize
    }

    /// Waits until more bytes were to be carried than may be.
    pub async fn wait_until_spent(&self) -> Denial {
        let mut spent = self.spent.subscribe();
        if spent.wait_for(|spent| *spent).await.is_err() {
            // The sender lives in `self`, so the channel cannot close.
            std::future::pending::<()>().await;
        }
        self.deny_spent()
    }

    fn deny_spent(&self) -> Denial {
        let limit = self.limits.bytes.map(|bytes| bytes.to_string()).unwrap_or_default();
        format!("`network.bytes` lets the sandbox send and receive {limit} in all").into()
    }
}

impl MeterState {
    /// Each connection takes its share of a second, and a second's worth may come at once.
    fn take_connection(&mut self, rate: NonZeroU32, now: Instant) -> bool {
        let next = self.schedule.max(now) + RATE_WINDOW / rate.get();
        let is_allowed = next <= now + RATE_WINDOW;
        if is_allowed {
            self.schedule = next;
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seconds_worth_of_connections_may_come_at_once_and_then_at_that_rate() {
        let rate = NonZeroU32::new(4).unwrap();
        let begun = Instant::now();
        let mut state = MeterState { schedule: begun, bytes_left: 0 };
        let mut count = |now| (0..100).filter(|_| state.take_connection(rate, now)).count();
        assert_eq!(count(begun), 4);
        assert_eq!(count(begun + Duration::from_millis(249)), 0);
        assert_eq!(count(begun + Duration::from_millis(500)), 2);
        assert_eq!(count(begun + Duration::from_secs(60)), 4);
    }

    #[test]
    fn exactly_the_bytes_of_the_limit_pass() {
        let limits = EgressLimits { bytes: Some(Bytes(10)), ..EgressLimits::default() };
        let meter = EgressMeter::new(limits);
        assert_eq!((meter.take_bytes(6), meter.take_bytes(4)), (6, 4));
        assert!(meter.admit_connection().is_ok(), "nothing was refused yet");
        assert_eq!(meter.take_bytes(1), 0);
        let denial = meter.admit_connection().unwrap_err();
        assert!(denial.reason.contains("network.bytes"), "{denial:?}");
        assert_eq!(denial.missing_rule, None);
        let unlimited = EgressMeter::new(EgressLimits::default());
        assert_eq!(unlimited.take_bytes(usize::MAX), usize::MAX);
    }
}
