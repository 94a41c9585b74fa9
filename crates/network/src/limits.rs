//! What the connections of one sandbox may use together: how many there are at once, how many begin in a second,
//! and how many bytes they carry. And what those of all sandboxes of its tenant may, as its caller counts that.

use std::any::Any;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
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

/// The place of one connection among those of its tenant, until it is dropped.
pub type TenantPlace = Box<dyn Any + Send + Sync>;

/// Counts what the connections of all sandboxes of a tenant use together. Asked while bytes are relayed, so it answers
/// at once.
pub trait TenantBudget: Send + Sync {
    /// A place for one more connection. Why there is none, otherwise.
    fn begin_connection(&self) -> Result<TenantPlace, String>;

    /// How many of these bytes may pass. Fewer than all only where the tenant has no more.
    fn take_bytes(&self, wanted: u64) -> u64;

    /// Why no bytes pass.
    fn describe_spent(&self) -> String;
}

/// Time in which the connections of [`EgressLimits::connections_per_second`] begin.
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// Counts what one sandbox uses.
pub struct EgressMeter {
    limits: EgressLimits,
    tenant: Option<Arc<dyn TenantBudget>>,
    state: Mutex<MeterState>,
    /// Whether more bytes were to be carried than may be.
    spent: watch::Sender<SpentBytes>,
}

/// Whose bytes are used up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpentBytes {
    /// Those of the sandbox, for good.
    own: bool,
    /// How often those of its tenant were: after a while it has others.
    tenant_count: u64,
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
        Self { limits, tenant: None, state, spent: watch::Sender::new(SpentBytes::default()) }
    }

    /// The same, for a sandbox whose tenant has a budget of its own.
    pub fn with_tenant(self, tenant: Arc<dyn TenantBudget>) -> Self {
        Self { tenant: Some(tenant), ..self }
    }

    /// What is used up now.
    pub fn spent(&self) -> SpentBytes {
        *self.spent.borrow()
    }

    /// Whether one more connection may begin, and its place among those of its tenant. Why not, otherwise.
    pub fn admit_connection(&self) -> Result<Option<TenantPlace>, Denial> {
        if self.spent().own {
            return Err(self.deny_spent());
        }
        self.admit_rate()?;
        let place = self.tenant.as_ref().map(|tenant| tenant.begin_connection());
        Ok(place.transpose()?)
    }

    fn admit_rate(&self) -> Result<(), Denial> {
        let Some(rate) = self.limits.connections_per_second else { return Ok(()) };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.take_connection(rate, Instant::now()) {
            return Ok(());
        }
        let setting = "`network.connectionsPerSecond`";
        Err(format!("{setting} lets the sandbox begin {rate} connections in a second").into())
    }

    /// How many of these bytes may pass. Fewer than all only at a limit, where connections are cut.
    pub fn take_bytes(&self, wanted: usize) -> usize {
        let granted = self.take_own_bytes(wanted);
        let Some(tenant) = &self.tenant else { return granted };
        let passed = tenant.take_bytes(granted as u64).min(granted as u64) as usize;
        if passed < granted {
            self.spent.send_modify(|spent| spent.tenant_count = spent.tenant_count.wrapping_add(1));
        }
        passed
    }

    fn take_own_bytes(&self, wanted: usize) -> usize {
        if self.limits.bytes.is_none() {
            return wanted;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let granted = state.bytes_left.min(wanted as u64);
        state.bytes_left -= granted;
        drop(state);
        if granted < wanted as u64 {
            self.spent.send_modify(|spent| spent.own = true);
        }
        granted as usize
    }

    /// Waits until more bytes were to be carried than may be, since `begun` was used up.
    pub async fn wait_until_spent(&self, begun: SpentBytes) -> Denial {
        let mut spent = self.spent.subscribe();
        let is_spent = |spent: &SpentBytes| spent.own || spent.tenant_count != begun.tenant_count;
        let found = spent.wait_for(is_spent).await.map(|spent| spent.own);
        match found {
            Ok(true) => self.deny_spent(),
            Ok(false) => self.deny_spent_by_tenant(),
            // The sender lives in `self`, so the channel cannot close.
            Err(_) => std::future::pending().await,
        }
    }

    fn deny_spent_by_tenant(&self) -> Denial {
        self.tenant.as_ref().map(|tenant| tenant.describe_spent()).unwrap_or_default().into()
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

    /// Bytes of a tenant that come in portions.
    struct PortionedBudget(Mutex<u64>);

    impl TenantBudget for PortionedBudget {
        fn begin_connection(&self) -> Result<TenantPlace, String> {
            Ok(Box::new(()))
        }

        fn take_bytes(&self, wanted: u64) -> u64 {
            let mut left = self.0.lock().unwrap();
            let granted = wanted.min(*left);
            *left -= granted;
            granted
        }

        fn describe_spent(&self) -> String {
            "the tenant has no more".into()
        }
    }

    #[tokio::test]
    async fn bytes_of_a_tenant_that_are_used_up_cut_what_runs_and_not_what_comes_later() {
        let budget = Arc::new(PortionedBudget(Mutex::new(10)));
        let limits = EgressLimits { bytes: Some(Bytes(100)), ..EgressLimits::default() };
        let meter = EgressMeter::new(limits).with_tenant(budget.clone());
        let begun = meter.spent();
        assert_eq!((meter.take_bytes(10), meter.spent()), (10, begun));
        assert_eq!(meter.take_bytes(1), 0);
        // Also where it is asked for only afterwards.
        assert_eq!(meter.wait_until_spent(begun).await.reason, "the tenant has no more");
        *budget.0.lock().unwrap() = 5;
        let begun = meter.spent();
        assert!(meter.admit_connection().unwrap().is_some());
        assert_eq!((meter.take_bytes(5), meter.spent()), (5, begun));
    }
}
