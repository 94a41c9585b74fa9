//! The quotas on the network: how many connections the sandboxes of a tenant have at once, how many they begin within a
//! minute, and how many bytes they send and receive within an hour. They hold over all engines of a state directory: a
//! connection has a locked file, and bytes are taken from the hour in portions, so that few of them need the lock. A
//! portion is used in the minute in which it is counted: one that outlived that would be free again before it is used.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use stockade_core::{Bytes, Result, TenantName};
use stockade_fs::Locked;
use stockade_network::{TenantBudget, TenantPlace};

use crate::config::Quota;
use crate::engine::{EngineInner, lock_mutex};
use crate::hourly_use::minute_of;
use crate::quota::{QuotaLedger, time_since_epoch};

const CONNECTION_FILE_PREFIX: &str = "connection";
const RATE_FILE_PREFIX: &str = "connections";
const EGRESS_FILE_PREFIX: &str = "egress";
/// Slots that are looked at for one connection. A higher quota holds as this one.
const MAX_CONNECTION_SLOTS: u32 = 1024;
/// How long it is not looked again for a slot, or for room in the minute, where there was none: a guest asks as often as
/// it likes.
const FULL_PAUSE: Duration = Duration::from_millis(100);
/// Most bytes that are taken from the hour ahead of their use. Lost when an engine is killed.
const MAX_PORTION_BYTES: u64 = 1 << 20;
/// A portion is at most this part of a quota, so that one sandbox takes little from the others.
const PORTIONS_PER_QUOTA: u64 = 256;

/// What the connections of one sandbox may use of the quotas of its tenant.
struct EgressBudget {
    ledger: Arc<QuotaLedger>,
    tenant: TenantName,
    quota: Quota,
    portion: Mutex<EgressPortion>,
    /// Where a free slot is looked for first.
    next_slot: AtomicU32,
    /// Until when there is no slot.
    full_until: Arc<Mutex<Option<Instant>>>,
    /// Until when no connection begins.
    paced_until: Mutex<Option<Instant>>,
}

/// Bytes that were taken from the hour and not used yet.
#[derive(Debug, Clone, Copy, Default)]
struct EgressPortion {
    bytes: u64,
    /// The minute in which they are counted, since the epoch.
    minute: u64,
}

/// The slot of a connection. Free again when it is dropped.
struct ConnectionSlot {
    _lock: Locked,
    full_until: Arc<Mutex<Option<Instant>>>,
}

impl EngineInner {
    /// What a sandbox of this tenant may use of its quotas; nothing where there are none on the network.
    pub(crate) fn egress_budget(&self, tenant: &TenantName) -> Option<Arc<dyn TenantBudget>> {
        let quota = self.quota(tenant);
        let Quota { connections, connections_per_minute, egress_bytes_per_hour, .. } = quota;
        if connections.or(connections_per_minute).is_none() && egress_bytes_per_hour.is_none() {
            return None;
        }
        Some(Arc::new(EgressBudget::new(Arc::clone(&self.quotas), tenant.clone(), quota)))
    }
}

impl EgressBudget {
    fn new(ledger: Arc<QuotaLedger>, tenant: TenantName, quota: Quota) -> Self {
        let (portion, next_slot, full_until, paced_until) = Default::default();
        Self { ledger, tenant, quota, portion, next_slot, full_until, paced_until }
    }

    fn take_slot(&self, most: u32) -> Result<ConnectionSlot, String> {
        let is_full = lock_mutex(&self.full_until).is_some_and(|until| Instant::now() < until);
        let found = if is_full { None } else { self.find_slot(most)? };
        let Some((number, lock)) = found else {
            let tenant = &self.tenant;
            return Err(format!(
                "the quota `connections` lets tenant {tenant} have {most} at once"
            ));
        };
        self.next_slot.store(number.wrapping_add(1), Ordering::Relaxed);
        Ok(ConnectionSlot { _lock: lock, full_until: Arc::clone(&self.full_until) })
    }

    fn find_slot(&self, most: u32) -> Result<Option<(u32, Locked)>, String> {
        let (slots, first) =
            (most.min(MAX_CONNECTION_SLOTS), self.next_slot.load(Ordering::Relaxed));
        let found = self.ledger.lock_slot(CONNECTION_FILE_PREFIX, &self.tenant, slots, first);
        let found = found.map_err(|_| self.describe_uncounted())?;
        if found.is_none() {
            *lock_mutex(&self.full_until) = Some(Instant::now() + FULL_PAUSE);
        }
        Ok(found)
    }

    /// Counts one more connection in the minute. Why there is no room for it, otherwise.
    fn count_connection(&self) -> Result<(), String> {
        let Some(most) = self.quota.connections_per_minute else { return Ok(()) };
        let mut paced_until = lock_mutex(&self.paced_until);
        if !paced_until.is_some_and(|until| Instant::now() < until) {
            let counted = self.ledger.count_in_minute(RATE_FILE_PREFIX, &self.tenant, most);
            let Err(delay) = counted.map_err(|_| self.describe_uncounted())? else { return Ok(()) };
            *paced_until = Some(Instant::now() + delay.min(FULL_PAUSE));
        }
        let tenant = &self.tenant;
        Err(format!(
            "the quota `connectionsPerMinute` lets tenant {tenant} begin {most} in a minute"
        ))
    }

    /// Makes sure that so many bytes were taken from the hour within this minute, if there are as many; answers how
    /// many there are.
    fn fill_portion(&self, portion: &mut EgressPortion, wanted: u64, most: Bytes) -> Result<u64> {
        if portion.bytes < wanted || portion.minute != minute_of(time_since_epoch()) {
            let (rest, ahead) = (*portion, MAX_PORTION_BYTES.min(most.0 / PORTIONS_PER_QUOTA));
            *portion =
                self.ledger.change_hourly_use(EGRESS_FILE_PREFIX, &self.tenant, |used, now| {
                    used.give_back(rest.bytes, rest.minute);
                    let bytes = most.0.saturating_sub(used.total()).min(wanted.max(ahead));
                    used.add(bytes, now);
                    EgressPortion { bytes, minute: minute_of(now) }
                })?;
        }
        Ok(portion.bytes)
    }

    /// Names no path of the host: a guest reads it too.
    fn describe_uncounted(&self) -> String {
        let tenant = &self.tenant;
        format!("what tenant {tenant} uses cannot be counted: see `quotas` in the state directory")
    }

    /// Refuses a connection that could carry nothing.
    fn check_bytes(&self) -> Result<(), String> {
        let Some(most) = self.quota.egress_bytes_per_hour else { return Ok(()) };
        let filled = self.fill_portion(&mut lock_mutex(&self.portion), 1, most);
        match filled.map_err(|_| self.describe_uncounted())? {
            0 => Err(self.describe_spent()),
            _ => Ok(()),
        }
    }
}

impl TenantBudget for EgressBudget {
    fn begin_connection(&self) -> Result<TenantPlace, String> {
        self.check_bytes()?;
        let slot = self.quota.connections.map(|most| self.take_slot(most)).transpose()?;
        // The slot first: a connection that is refused for want of one is not counted.
        self.count_connection()?;
        Ok(Box::new(slot))
    }

    fn take_bytes(&self, wanted: u64) -> u64 {
        let Some(most) = self.quota.egress_bytes_per_hour else { return wanted };
        let mut portion = lock_mutex(&self.portion);
        // What cannot be counted does not pass.
        let passed = self.fill_portion(&mut portion, wanted, most).unwrap_or(0).min(wanted);
        portion.bytes -= passed;
        passed
    }

    fn describe_spent(&self) -> String {
        let (tenant, quota) = (&self.tenant, self.quota.egress_bytes_per_hour);
        let most = quota.map(|most| most.to_string()).unwrap_or_default();
        format!(
            "the quota `egressBytesPerHour` lets tenant {tenant} send and receive {most} in an hour"
        )
    }
}

impl Drop for EgressBudget {
    fn drop(&mut self) {
        let rest = std::mem::take(&mut *lock_mutex(&self.portion));
        if rest.bytes > 0 {
            // What cannot be given back is free again after an hour.
            let _ = self.ledger.change_hourly_use(EGRESS_FILE_PREFIX, &self.tenant, |used, _| {
                used.give_back(rest.bytes, rest.minute);
            });
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        *lock_mutex(&self.full_until) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(dir: &tempfile::TempDir, tenant: &str, quota: Quota) -> EgressBudget {
        // A ledger of its own, as another engine has.
        let ledger = Arc::new(QuotaLedger::new(dir.path().to_owned()));
        EgressBudget::new(ledger, tenant.parse().unwrap(), quota)
    }

    #[test]
    fn connections_of_a_tenant_are_counted_over_sandboxes_and_engines() {
        let dir = tempfile::tempdir().unwrap();
        let quota = Quota { connections: Some(2), ..Quota::default() };
        let (one, other) = (budget(&dir, "a", quota), budget(&dir, "a", quota));
        let first = one.begin_connection().unwrap();
        let second = other.begin_connection().unwrap();
        for full in [&one, &other, &one] {
            let reason = full.begin_connection().unwrap_err();
            assert!(reason.contains("tenant a have 2 at once"), "{reason}");
        }
        assert!(budget(&dir, "b", quota).begin_connection().is_ok());
        drop(first);
        let _third = one.begin_connection().unwrap();
        drop(second);
        let _fourth = other.begin_connection().unwrap();
        let none = Quota { connections: Some(0), ..Quota::default() };
        assert!(budget(&dir, "c", none).begin_connection().is_err());
    }

    #[test]
    fn connections_that_a_tenant_begins_are_counted_over_sandboxes_and_engines() {
        let dir = tempfile::tempdir().unwrap();
        // Two in a minute: no clock of a test gets half of that far between two lines.
        let connections_per_minute = Some(2);
        let quota = Quota { connections_per_minute, ..Quota::default() };
        let (one, other) = (budget(&dir, "a", quota), budget(&dir, "a", quota));
        // Also those that are over.
        drop(one.begin_connection().unwrap());
        drop(other.begin_connection().unwrap());
        for full in [&one, &other, &one] {
            let reason = full.begin_connection().unwrap_err();
            assert!(reason.contains("tenant a begin 2 in a minute"), "{reason}");
        }
        assert!(budget(&dir, "b", quota).begin_connection().is_ok());
        // One that is refused for another reason is not counted.
        let both = Quota { connections: Some(1), connections_per_minute, ..Quota::default() };
        let narrow = budget(&dir, "c", both);
        let first = narrow.begin_connection().unwrap();
        assert!(narrow.begin_connection().unwrap_err().contains("have 1 at once"));
        drop(first);
        assert!(narrow.begin_connection().is_ok());
        let none = Quota { connections_per_minute: Some(0), ..Quota::default() };
        assert!(budget(&dir, "d", none).begin_connection().is_err());
        std::fs::write(dir.path().join("quotas/connections-e"), "9").unwrap();
        let reason = budget(&dir, "e", quota).begin_connection().unwrap_err();
        assert!(reason.contains("cannot be counted"), "{reason}");
    }

    #[test]
    fn exactly_the_bytes_of_the_hour_pass_over_sandboxes_and_engines() {
        let dir = tempfile::tempdir().unwrap();
        let quota = Quota { egress_bytes_per_hour: Some(Bytes(100_000)), ..Quota::default() };
        let (one, other) = (budget(&dir, "a", quota), budget(&dir, "a", quota));
        assert_eq!(one.take_bytes(40_000), 40_000);
        assert_eq!(other.take_bytes(50_000), 50_000);
        assert_eq!(one.take_bytes(20_000), 10_000);
        assert_eq!(other.take_bytes(1), 0);
        assert!(other.begin_connection().unwrap_err().contains("100000b in an hour"));
        assert!(budget(&dir, "b", quota).begin_connection().is_ok());
    }

    #[test]
    fn what_a_sandbox_took_ahead_is_free_again_when_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let quota = Quota { egress_bytes_per_hour: Some(Bytes(1 << 20)), ..Quota::default() };
        let (one, other) = (budget(&dir, "a", quota), budget(&dir, "a", quota));
        assert_eq!(one.take_bytes(1), 1);
        assert!(lock_mutex(&one.portion).bytes > 0);
        drop(one);
        assert_eq!(other.take_bytes(1 << 20), (1 << 20) - 1);
    }

    #[test]
    fn a_portion_is_neither_used_nor_given_back_after_its_hour() {
        let dir = tempfile::tempdir().unwrap();
        let quota = Quota { egress_bytes_per_hour: Some(Bytes(1 << 20)), ..Quota::default() };
        let (one, other) = (budget(&dir, "a", quota), budget(&dir, "a", quota));
        let minute = minute_of(time_since_epoch()) - 61;
        *lock_mutex(&one.portion) = EgressPortion { bytes: 4096, minute };
        assert_eq!(other.take_bytes(1 << 20), 1 << 20);
        drop(one);
        assert_eq!(other.take_bytes(1), 0);
        let again = budget(&dir, "a", quota);
        *lock_mutex(&again.portion) = EgressPortion { bytes: 4096, minute };
        assert_eq!(again.take_bytes(1), 0);
    }

    #[test]
    fn a_portion_is_used_in_the_minute_in_which_it_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let quota = Quota { egress_bytes_per_hour: Some(Bytes(1 << 20)), ..Quota::default() };
        let one = budget(&dir, "a", quota);
        assert_eq!(one.take_bytes(1), 1);
        let minute = minute_of(time_since_epoch()) - 30;
        // As if it was taken half an hour ago: what passes now is counted now.
        let count = |amount: u64| {
            let counted =
                one.ledger.change_hourly_use(EGRESS_FILE_PREFIX, &one.tenant, |used, _| {
                    used.add(amount, Duration::from_secs(minute * 60));
                    used.total()
                });
            counted.unwrap()
        };
        let before = count(5000);
        *lock_mutex(&one.portion) = EgressPortion { bytes: 5000, minute };
        assert_eq!(one.take_bytes(10), 10);
        let portion = *lock_mutex(&one.portion);
        assert!(portion.minute > minute);
        assert_eq!(count(0), before - 5000 + portion.bytes + 10);
    }

    #[test]
    fn what_cannot_be_counted_does_not_pass() {
        let dir = tempfile::tempdir().unwrap();
        let quota = Quota { egress_bytes_per_hour: Some(Bytes(u64::MAX)), ..Quota::default() };
        let one = budget(&dir, "a", quota);
        assert_eq!(one.take_bytes(u64::MAX), u64::MAX);
        assert_eq!(one.take_bytes(1), 0);
        std::fs::write(dir.path().join("quotas/egress-a"), "9").unwrap();
        let other = budget(&dir, "a", quota);
        assert_eq!(other.take_bytes(1), 0);
        let reason = other.begin_connection().unwrap_err();
        assert!(reason.contains("cannot be counted"), "{reason}");
        // A guest is told no path of the host.
        assert!(!reason.contains('/'), "{reason}");
    }
}
