//! The quota on processor time: what the executions of a tenant have used within the last hour. It is charged every
//! few seconds where the host counts it while they run, and when they have ended. A new execution is refused once
//! it is used up; what runs goes on.

use std::sync::Arc;
use std::time::Duration;

use stockade_core::{Error, ErrorCode, ProcessControl, Result, Span, TenantName};

use crate::config::Quota;
use crate::engine::EngineInner;
use crate::lifecycle::SandboxOrder;
use crate::quota::{QUOTA_OPERATION, QuotaLedger};
use crate::supervise::SupervisedEnd;

/// Interval at which a running execution is charged. At most so much goes uncounted when an engine is killed.
const CPU_CHARGE_INTERVAL: Duration = Duration::from_secs(5);
const CPU_FILE_PREFIX: &str = "cpu";

/// The processor time of one execution, charged to its tenant.
pub(crate) struct CpuCharge<'a> {
    ledger: &'a QuotaLedger,
    tenant: &'a TenantName,
    charged: Span,
}

impl QuotaLedger {
    /// Fails where a tenant has used as much processor time within the hour as it may.
    pub(crate) fn check_cpu(&self, tenant: &TenantName, quota: Quota) -> Result<()> {
        let Some(most) = quota.cpu_seconds_per_hour else { return Ok(()) };
        let most = Span::secs(most.into()).as_millis();
        let refused = self.change_hourly_use(CPU_FILE_PREFIX, tenant, |used, now| {
            let total = used.total();
            (total >= most).then(|| (total, used.delay_until_below(most, now)))
        })?;
        let Some((total, delay)) = refused else { return Ok(()) };
        let (total, most) = (total / 1000, most / 1000);
        let message =
            format!("tenant {tenant} has used {total} of {most} CPU seconds within an hour");
        Err(Error::new(ErrorCode::QuotaExceeded, QUOTA_OPERATION, message)
            .remedy("wait, or raise the quota")
            .retry_in(delay))
    }

    fn charge_cpu(&self, tenant: &TenantName, time: Span) -> Result<()> {
        self.change_hourly_use(CPU_FILE_PREFIX, tenant, |used, now| {
            used.add(time.as_millis(), now);
        })
    }
}

impl EngineInner {
    /// Charges the tenant of a sandbox for an execution in it; nothing where there is no quota on processor time.
    pub(crate) fn cpu_charge<'a>(&'a self, order: &'a SandboxOrder) -> Option<CpuCharge<'a>> {
        let tenant = &order.admitted.spec().tenant;
        self.quota(tenant).cpu_seconds_per_hour?;
        Some(CpuCharge { ledger: &self.quotas, tenant, charged: Span::millis(0) })
    }
}

impl CpuCharge<'_> {
    /// Waits for the end of an execution, and charges what it uses until then.
    pub(crate) async fn charge_until_end(
        mut self,
        control: Arc<dyn ProcessControl>,
        supervised: impl Future<Output = SupervisedEnd>,
    ) -> SupervisedEnd {
        tokio::pin!(supervised);
        let end = loop {
            tokio::select! {
                biased;
                end = &mut supervised => break end,
                () = tokio::time::sleep(CPU_CHARGE_INTERVAL) => {
                    self.charge_up_to(control.cpu_used());
                }
            }
        };
        self.charge_up_to(end.usage.cpu_ms.map(Span::millis));
        end
    }

    /// Charges what was not charged yet. What cannot be charged now is with the next time.
    fn charge_up_to(&mut self, used: Option<Span>) {
        let used = used.unwrap_or(self.charged).max(self.charged);
        let more = used.as_millis() - self.charged.as_millis();
        if more > 0 && self.ledger.charge_cpu(self.tenant, Span::millis(more)).is_ok() {
            self.charged = used;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(dir: &tempfile::TempDir) -> QuotaLedger {
        QuotaLedger::new(dir.path().to_owned())
    }

    fn seconds(most: u32) -> Quota {
        Quota { cpu_seconds_per_hour: Some(most), ..Quota::default() }
    }

    #[test]
    fn processor_time_is_counted_over_engines_until_it_is_used_up() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (ledger(&dir), ledger(&dir));
        let (busy, idle) = ("busy".parse().unwrap(), "idle".parse().unwrap());
        one.check_cpu(&busy, seconds(2)).unwrap();
        one.charge_cpu(&busy, Span::millis(1999)).unwrap();
        other.check_cpu(&busy, seconds(2)).unwrap();
        other.charge_cpu(&busy, Span::millis(1)).unwrap();
        let refused = one.check_cpu(&busy, seconds(2)).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::QuotaExceeded);
        let delay = refused.retry_delay().unwrap();
        assert!(delay > Duration::ZERO && delay <= Duration::from_secs(61 * 60), "{delay:?}");
        one.check_cpu(&idle, seconds(2)).unwrap();
        one.check_cpu(&busy, Quota::default()).unwrap();
        assert!(one.check_cpu(&idle, seconds(0)).is_err());
    }

    #[test]
    fn a_file_that_was_not_written_here_is_refused_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let (ledger, tenant) = (ledger(&dir), "busy".parse().unwrap());
        ledger.charge_cpu(&tenant, Span::millis(1)).unwrap();
        let file = dir.path().join("quotas/cpu-busy");
        let good = std::fs::read(&file).unwrap();
        for wrong in [good[..100].to_vec(), vec![b'9'; good.len()], [good.clone(), good].concat()] {
            std::fs::write(&file, wrong).unwrap();
            let error = ledger.check_cpu(&tenant, seconds(2)).unwrap_err();
            assert_eq!(error.code(), ErrorCode::StateUnavailable);
            assert!(error.message().contains("cpu-busy"), "{error}");
            assert!(ledger.charge_cpu(&tenant, Span::millis(1)).is_err());
        }
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/dev/null", &file).unwrap();
        assert!(ledger.check_cpu(&tenant, seconds(2)).is_err());
    }
}
