//! What tenants have used, summed from the records of what has ended. Read from the newest back, within a bound on
//! records and time, since a journal can be long.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use stockade_core::{JobId, Result, SandboxId, TenantName, Usage};
use stockade_fs::{Directory, Timestamp};

use super::event::Event;
use super::fault::JournalFault;
use super::newest::Backward;
use super::read::Filter;
use super::record::Record;
use super::verify::Damage;

/// Bounds on one summary: records that are held in memory at most, and time.
const MAX_USAGE_RECORDS: usize = 200_000;
const USAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// What one tenant has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantUsage {
    /// Executions that have ended.
    pub jobs: u64,
    /// Their processor time in milliseconds, where it was measured.
    pub cpu_ms: u64,
    /// Their durations in milliseconds.
    pub wall_ms: u64,
    /// The highest memory of each in bytes, multiplied by its duration in milliseconds: none used more.
    pub memory_byte_ms: u128,
    /// Bytes that connections to other hosts have sent.
    pub sent_bytes: u64,
    /// Bytes that they have received.
    pub received_bytes: u64,
}

/// What tenants have used within a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageSummary {
    /// Each tenant that has used anything.
    pub tenants: BTreeMap<TenantName, TenantUsage>,
    /// When the earliest record was written that was read; absent where there is none.
    pub earliest: Option<Timestamp>,
    /// Whether everything was read, and it is known of everything whose it is.
    pub complete: bool,
}

/// A summary that is being made.
#[derive(Default)]
struct UsageReader {
    filter: Filter,
    summary: UsageSummary,
    /// Ends whose start has not come yet.
    ended: HashMap<JobId, Usage>,
    /// Traffic of sandboxes whose tenant is not known yet: sent and received.
    traffic: HashMap<SandboxId, (u64, u64)>,
    owners: HashMap<SandboxId, TenantName>,
}

impl UsageSummary {
    /// Sums up what has ended within the times of a filter, of its tenant if it names one.
    pub(super) fn read(dir: &Directory, filter: Filter) -> Result<Self, JournalFault> {
        let mut lines = Backward::new(dir)?;
        let (started, mut count) = (Instant::now(), 0);
        let mut reader = UsageReader { filter, ..UsageReader::default() };
        while let Some(line) = lines.next()? {
            let record: Record = match serde_json::from_slice(&line) {
                Ok(record) => record,
                Err(_) => return Err(lines.damaged(Damage::Malformed)),
            };
            if reader.is_done(&record) {
                return Ok(reader.finish(true));
            }
            count += 1;
            if count > MAX_USAGE_RECORDS || started.elapsed() > USAGE_TIMEOUT {
                return Ok(reader.finish(false));
            }
            reader.take(record);
        }
        Ok(reader.finish(true))
    }
}

impl UsageReader {
    /// Whether nothing of what is wanted lies in this record or before it.
    fn is_done(&self, record: &Record) -> bool {
        let early = self.filter.is_before(record.time);
        early && self.ended.is_empty() && self.traffic.is_empty()
    }

    fn take(&mut self, record: Record) {
        let Record { time, event, .. } = record;
        let late = self.filter.until.is_some_and(|until| time >= until);
        let within = !late && !self.filter.is_before(time);
        if within {
            self.summary.earliest = Some(time);
        }
        if let (Some(sandbox), Some(tenant)) = (event.sandbox(), event.tenant()) {
            self.learn_owner(sandbox.clone(), tenant.clone());
        }
        match event {
            Event::Started { job, tenant, .. } => {
                if let Some(usage) = self.ended.remove(&job) {
                    self.add_job(tenant, usage);
                }
            }
            Event::Stopped { job, outcome, .. } if within => {
                self.ended.insert(job, outcome.usage);
            }
            Event::EndUnknown { job, .. } if within => {
                self.ended.insert(job, Usage::default());
            }
            Event::Connection { sandbox, sent, received, .. } if within => {
                self.add_traffic(sandbox, (sent, received));
            }
            Event::Stopped { .. }
            | Event::EndUnknown { .. }
            | Event::Connection { .. }
            | Event::Created { .. }
            | Event::Prepared { .. }
            | Event::Captured { .. }
            | Event::Restored { .. }
            | Event::Destroyed { .. }
            | Event::Decided { .. }
            | Event::Refused { .. }
            | Event::WorkspaceAcquired { .. }
            | Event::WorkspaceReleased { .. }
            | Event::ConnectionsOmitted { .. }
            | Event::SecretRenewal { .. }
            | Event::RulesReplaced { .. }
            | Event::Pruned { .. }
            | Event::Rotated { .. } => {}
        }
    }

    fn learn_owner(&mut self, sandbox: SandboxId, tenant: TenantName) {
        if let Some(traffic) = self.traffic.remove(&sandbox) {
            self.usage_of(tenant.clone()).add_traffic(traffic);
        }
        self.owners.insert(sandbox, tenant);
    }

    fn add_job(&mut self, tenant: TenantName, usage: Usage) {
        self.usage_of(tenant).add_job(usage);
    }

    fn add_traffic(&mut self, sandbox: SandboxId, (sent, received): (u64, u64)) {
        if let Some(tenant) = self.owners.get(&sandbox).cloned() {
            return self.usage_of(tenant).add_traffic((sent, received));
        }
        let held = self.traffic.entry(sandbox).or_default();
        *held = (held.0.saturating_add(sent), held.1.saturating_add(received));
    }

    fn usage_of(&mut self, tenant: TenantName) -> &mut TenantUsage {
        self.summary.tenants.entry(tenant).or_default()
    }

    fn finish(mut self, read: bool) -> UsageSummary {
        self.summary.complete = read && self.ended.is_empty() && self.traffic.is_empty();
        if let Some(wanted) = &self.filter.tenant {
            self.summary.tenants.retain(|tenant, _| tenant == wanted);
        }
        self.summary
    }
}

impl TenantUsage {
    fn add_job(&mut self, usage: Usage) {
        let memory = u128::from(usage.peak_memory_bytes.unwrap_or(0)) * u128::from(usage.wall_ms);
        self.jobs += 1;
        self.cpu_ms = self.cpu_ms.saturating_add(usage.cpu_ms.unwrap_or(0));
        self.wall_ms = self.wall_ms.saturating_add(usage.wall_ms);
        self.memory_byte_ms = self.memory_byte_ms.saturating_add(memory);
    }

    fn add_traffic(&mut self, (sent, received): (u64, u64)) {
        self.sent_bytes = self.sent_bytes.saturating_add(sent);
        self.received_bytes = self.received_bytes.saturating_add(received);
    }
}
