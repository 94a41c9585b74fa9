//! Resource limits, soft and hard alike but for open files: the guest has no capability to raise them again.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{At, Failure, Wall};
use crate::plan::Rlimits;

/// Signals that wait, and timers, which each take one: the kernel counts them for all of a user's processes
/// together, those outside included.
const PENDING_SIGNALS: u64 = 1024;
/// Bytes of message queues, likewise.
const QUEUE_BYTES: u64 = 400 << 10;

/// Open files that a guest may have in any case, where its host allows as many.
const MIN_OPEN_FILES: u64 = 4096;

/// One limit: soft and hard.
type WantedRlimit = (Resource, &'static str, Option<(u64, u64)>);

fn list_wanted(limits: &Rlimits) -> impl Iterator<Item = WantedRlimit> {
    let nofile = limits.nofile.map(|soft| (soft, limits.nofile_hard.unwrap_or(soft).max(soft)));
    let alike = soft_as_hard(limits).into_iter();
    let alike =
        alike.map(|(resource, name, value)| (resource, name, value.map(|most| (most, most))));
    std::iter::once((Resource::Nofile, "nofile", nofile)).chain(alike)
}

fn soft_as_hard(limits: &Rlimits) -> [(Resource, &'static str, Option<u64>); 10] {
    [
        (Resource::Nproc, "nproc", limits.nproc),
        (Resource::Fsize, "fsize", limits.fsize),
        (Resource::Data, "data", limits.data),
        (Resource::As, "address-space", limits.address_space),
        (Resource::Stack, "stack", limits.stack),
        (Resource::Cpu, "cpu", limits.cpu),
        (Resource::Memlock, "memlock", limits.memlock),
        (Resource::Sigpending, "sigpending", Some(PENDING_SIGNALS)),
        (Resource::Msgqueue, "msgqueue", Some(QUEUE_BYTES)),
        // A core file is the guest's memory on the guest's disk: of no use by default.
        (Resource::Core, "core", Some(limits.core.unwrap_or(0))),
    ]
}

/// Sets each limit given, never above a hard limit that is there already.
pub(crate) fn set_rlimits(limits: &Rlimits) -> Result<(), Failure> {
    for (resource, name, value) in list_wanted(limits) {
        let Some(value) = value else { continue };
        let most = limit_for_guest(resource);
        let (soft, hard) = (value.0.min(most), value.1.min(most));
        let limit = Rlimit { current: Some(soft), maximum: Some(hard) };
        setrlimit(resource, limit).at(Wall::Rlimits, name)?;
    }
    Ok(())
}

/// The most that a guest gets of what this process may have. An eighth of open files is kept back: the kernel counts
/// descriptors that are on their way between all processes of a user, and refuses them to each by its own limit.
/// So a guest cannot keep its launcher from passing descriptors.
fn limit_for_guest(resource: Resource) -> u64 {
    let most = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    if matches!(resource, Resource::Nofile) {
        (most - most / 8).max(most.min(MIN_OPEN_FILES))
    } else {
        most
    }
}

/// Reads them back.
pub(crate) fn prove_rlimits(limits: &Rlimits) -> Result<String, Failure> {
    let mut evidence = Vec::new();
    for (resource, name, value) in list_wanted(limits) {
        let Some(value) = value else { continue };
        let kernel = getrlimit(resource);
        match (kernel.current, kernel.maximum) {
            (Some(soft), Some(hard)) if soft <= value.0 && hard <= value.1 => {
                evidence.push(format!("{name}={hard}"));
            }
            _ => return Err(Failure::without_errno(Wall::Rlimits, format!("{name} is not set"))),
        }
    }
    Ok(evidence.join(" "))
}
