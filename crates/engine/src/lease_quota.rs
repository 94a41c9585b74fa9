//! Quotas on the live sandboxes of a tenant: how many there are, and the memory, disk, processes and CPU share that
//! their limits add up to. Counted by their leases, so that they hold over all engines of a state directory. A sandbox
//! without a limit that is to be counted is refused: nothing bounds what it uses.

use stockade_core::{
    Admitted, Bytes, Enforcement, Error, ErrorCode, LimitKind, Limits, Refusal, Refusals, Result,
    TenantName,
};

use crate::config::Quota;
use crate::lease::LeaseBody;

const LEASE_OPERATION: &str = "take a lease";

/// A resource of which the limits of live sandboxes are added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SummedResource {
    Memory,
    Disk,
    Processes,
    Cpus,
}

impl SummedResource {
    const ALL: [Self; 4] = [Self::Memory, Self::Disk, Self::Processes, Self::Cpus];

    /// The most that a tenant may have of it, in bytes, processes or thousandths of a core.
    fn most(self, quota: &Quota) -> Option<u64> {
        match self {
            Self::Memory => quota.memory.map(|most| most.0),
            Self::Disk => quota.disk.map(|most| most.0),
            Self::Processes => quota.processes.map(u64::from),
            Self::Cpus => quota.cpus.map(|most| most.0.into()),
        }
    }

    /// What a sandbox with these limits may use of it, in the same units. Absent: nothing bounds it.
    fn amount(self, limits: &Limits) -> Option<u64> {
        match self {
            Self::Memory => limits.memory.map(|amount| amount.0),
            Self::Disk => limits.disk.map(|amount| amount.0),
            Self::Processes => limits.processes.map(u64::from),
            Self::Cpus => limits.cpu_rate.map(|amount| amount.0.into()),
        }
    }

    fn limit(self) -> LimitKind {
        match self {
            Self::Memory => LimitKind::Memory,
            Self::Disk => LimitKind::Disk,
            Self::Processes => LimitKind::Processes,
            Self::Cpus => LimitKind::CpuRate,
        }
    }

    /// The field of a spec and of the configuration, below `limits`.
    fn field(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Processes => "processes",
            Self::Cpus => "cpuRate",
        }
    }

    fn flag(self) -> &'static str {
        match self {
            Self::Memory => "--mem",
            Self::Disk => "--disk",
            Self::Processes => "--pids",
            Self::Cpus => "--cpu",
        }
    }

    /// An amount of it, for people.
    fn describe(self, amount: u64) -> String {
        match self {
            Self::Memory => format!("{} of memory", Bytes(amount)),
            Self::Disk => format!("{} of disk", Bytes(amount)),
            Self::Processes => format!("{amount} processes"),
            Self::Cpus => format!("{} CPUs", amount as f64 / 1000.0),
        }
    }
}

/// The limits of a sandbox that something enforces: others bound nothing, and so cannot be counted.
pub(crate) fn enforced_limits(admitted: &Admitted) -> Limits {
    let mut limits = *admitted.limits();
    for enforcement in admitted.enforcement() {
        if let Enforcement::NotAtAll { limit, .. } = enforcement {
            limits.lift(*limit);
        }
    }
    limits
}

/// Refuses a sandbox that lacks a limit which the quota of its tenant adds up.
pub(crate) fn refuse_uncounted(
    tenant: &TenantName,
    quota: &Quota,
    limits: &Limits,
) -> impl Iterator<Item = Refusal> {
    let is_uncounted = move |resource: &SummedResource| {
        resource.most(quota).is_some() && resource.amount(limits).is_none()
    };
    SummedResource::ALL.into_iter().filter(is_uncounted).map(move |resource| {
        let (limit, field, flag) = (resource.limit(), resource.field(), resource.flag());
        let reason =
            format!("tenant {tenant} has a quota on it, and without a limit it cannot be counted");
        let remedy = format!(
            "name the limit with `{flag}` or `limits.{field}`, on a backend that enforces it"
        );
        let field = format!("limits.{limit}");
        Refusal { field, feature: Some(limit.feature()), reason, remedy, backend: None }
    })
}

/// Whether a quota has room for this many sandboxes with these limits, where there is nothing else.
pub(crate) fn fits_empty_quota(quota: &Quota, limits: &Limits, count: u32) -> bool {
    SummedResource::ALL.into_iter().all(|resource| {
        let Some(most) = resource.most(quota) else { return true };
        let amount = resource.amount(limits);
        amount.is_some_and(|amount| amount.saturating_mul(count.into()) <= most)
    })
}

/// Whether one more sandbox fits the quota of its tenant beside the live ones.
pub(crate) fn check_lease_quota(live: &[LeaseBody], new: &LeaseBody, quota: &Quota) -> Result<()> {
    check_count(live, &new.tenant, quota)?;
    let uncounted: Vec<_> = refuse_uncounted(&new.tenant, quota, &new.limits).collect();
    if !uncounted.is_empty() {
        return Err(Error::refused(LEASE_OPERATION, None, Refusals(uncounted)));
    }
    SummedResource::ALL.into_iter().try_for_each(|resource| check_sum(resource, live, new, quota))
}

fn check_count(live: &[LeaseBody], tenant: &TenantName, quota: &Quota) -> Result<()> {
    let count = live.len();
    match quota.sandboxes {
        Some(most) if count >= most as usize => {
            let ready = describe_ready(live);
            let message = format!("tenant {tenant} has {count} of at most {most} sandboxes{ready}");
            Err(Error::new(ErrorCode::QuotaExceeded, LEASE_OPERATION, message)
                .remedy("wait until one has ended, destroy one, or raise the quota"))
        }
        Some(_) | None => Ok(()),
    }
}

fn check_sum(
    resource: SummedResource,
    live: &[LeaseBody],
    new: &LeaseBody,
    quota: &Quota,
) -> Result<()> {
    let (Some(most), Some(wanted)) = (resource.most(quota), resource.amount(&new.limits)) else {
        return Ok(());
    };
    let used = add_up(resource, live)?;
    if used.saturating_add(wanted) <= most {
        return Ok(());
    }
    let (tenant, ready) = (&new.tenant, describe_ready(live));
    let [used, most, wanted] = [used, most, wanted].map(|amount| resource.describe(amount));
    let message = format!(
        "the sandboxes of tenant {tenant} may use {used}{ready}, and at most {most}; this one needs {wanted}"
    );
    let remedy = format!(
        "lower `{}`, wait until a sandbox has ended, destroy one, or raise the quota",
        resource.flag()
    );
    Err(Error::new(ErrorCode::QuotaExceeded, LEASE_OPERATION, message).remedy(remedy))
}

/// What live sandboxes may use together. One from before the quota, without the limit, cannot be counted.
fn add_up(resource: SummedResource, live: &[LeaseBody]) -> Result<u64> {
    live.iter().try_fold(0_u64, |sum, body| match resource.amount(&body.limits) {
        Some(amount) => Ok(sum.saturating_add(amount)),
        None => {
            let (id, tenant, limit) = (&body.id, &body.tenant, resource.limit());
            let message = format!(
                "sandbox {id} of tenant {tenant} has no {limit} limit, so that it cannot be counted"
            );
            Err(Error::new(ErrorCode::QuotaExceeded, LEASE_OPERATION, message)
                .remedy("destroy it, or wait until it has ended"))
        }
    })
}

fn describe_ready(live: &[LeaseBody]) -> String {
    match live.iter().filter(|body| body.ready).count() {
        0 => String::new(),
        ready => format!(", {ready} of them ready in a pool"),
    }
}

#[cfg(test)]
mod tests {
    use stockade_core::{BackendName, Millicores};

    use super::*;

    fn body(id: &str, limits: Limits) -> LeaseBody {
        let id = id.parse().unwrap();
        let mut body = LeaseBody::new(id, BackendName::literal("mock"), TenantName::default());
        body.limits = limits;
        body
    }

    fn memory(amount: u64) -> Limits {
        Limits { memory: Some(Bytes(amount)), ..Limits::default() }
    }

    #[test]
    fn limits_are_added_up_to_exactly_the_quota() {
        let quota = Quota { memory: Some(Bytes(10)), ..Quota::default() };
        let live = [body("a", memory(4)), body("b", memory(4))];
        assert!(check_lease_quota(&live, &body("c", memory(2)), &quota).is_ok());
        let error = check_lease_quota(&live, &body("c", memory(3)), &quota).unwrap_err();
        assert_eq!(error.code(), ErrorCode::QuotaExceeded);
        assert!(error.message().contains("8b of memory"), "{error}");
        assert!(error.hint().unwrap().contains("--mem"), "{error}");
    }

    #[test]
    fn every_resource_is_held_by_its_own_limit() {
        let limits = Limits {
            memory: Some(Bytes(2)),
            disk: Some(Bytes(2)),
            processes: Some(2),
            cpu_rate: Some(Millicores(2)),
            ..Limits::default()
        };
        let quotas = |most: u64| {
            let number = u32::try_from(most).unwrap();
            [
                Quota { memory: Some(Bytes(most)), ..Quota::default() },
                Quota { disk: Some(Bytes(most)), ..Quota::default() },
                Quota { processes: Some(number), ..Quota::default() },
                Quota { cpus: Some(Millicores(number)), ..Quota::default() },
            ]
        };
        let live = [body("a", limits)];
        for (enough, less) in quotas(4).iter().zip(quotas(3).iter()) {
            assert!(check_lease_quota(&live, &body("b", limits), enough).is_ok(), "{enough:?}");
            assert!(check_lease_quota(&live, &body("b", limits), less).is_err(), "{less:?}");
            let unlimited = check_lease_quota(&[], &body("b", Limits::default()), enough);
            assert_eq!(unlimited.unwrap_err().code(), ErrorCode::Refused);
            assert!(fits_empty_quota(enough, &limits, 2) && !fits_empty_quota(less, &limits, 2));
        }
    }

    #[test]
    fn huge_numbers_and_unbounded_sandboxes_leave_no_room() {
        let quota = Quota { memory: Some(Bytes(u64::MAX - 1)), ..Quota::default() };
        let huge = [body("a", memory(u64::MAX)), body("b", memory(u64::MAX))];
        let error = check_lease_quota(&huge, &body("c", memory(1)), &quota).unwrap_err();
        assert_eq!(error.code(), ErrorCode::QuotaExceeded);
        assert!(!fits_empty_quota(&quota, &memory(u64::MAX / 2), u32::MAX));
        let unbounded = [body("old", Limits::default())];
        let error = check_lease_quota(&unbounded, &body("c", memory(1)), &quota).unwrap_err();
        assert_eq!(error.code(), ErrorCode::QuotaExceeded);
        assert!(error.message().contains("sandbox old"), "{error}");
        assert!(check_lease_quota(&unbounded, &body("c", memory(1)), &Quota::default()).is_ok());
    }
}
