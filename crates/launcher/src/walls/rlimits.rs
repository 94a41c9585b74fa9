//! Resource limits, soft and hard alike: the guest has no capability to raise them again.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{At, Failure, Wall};
use crate::plan::Rlimits;

/// Signals that wait, and timers, which each take one: the kernel counts them for all of a user's processes
/// together, those outside included.
const PENDING_SIGNALS: u64 = 1024;
/// Bytes of message queues, likewise.
const QUEUE_BYTES: u64 = 400 << 10;

fn wanted(limits: &Rlimits) -> [(Resource, &'static str, Option<u64>); 11] {
    [
        (Resource::Nofile, "nofile", limits.nofile),
        (Resource::Nproc, "nproc", limits.nproc),
        (Resource::Fsize, "fsize", limits.fsize),
        (Resource::Data, "data", limits.data),
        (Resource::As, "address-space", limits.address_space),
        (Resource::Stack, "stack", limits.stack),
        (Resource::Cpu, "cpu", limits.cpu),
        (Resource::Memlock, "memlock", limits.memlock),
        (Resource::Sigpending, "sigpending", Some(PENDING_SIGNALS)),
        (Resource::Msgqueue, "msgqueue", Some(QUEUE_BYTES)),
        // A core file is the guest's memory on the guest's disk: of no use to anybody by default.
        (Resource::Core, "core", Some(limits.core.unwrap_or(0))),
    ]
}

/// Sets each limit given, never above a hard limit that is there already.
pub(crate) fn set(limits: &Rlimits) -> Result<(), Failure> {
    for (resource, name, value) in wanted(limits) {
        let Some(value) = value else { continue };
        let value = value.min(getrlimit(resource).maximum.unwrap_or(u64::MAX));
        let limit = Rlimit { current: Some(value), maximum: Some(value) };
        setrlimit(resource, limit).at(Wall::Rlimits, name)?;
    }
    Ok(())
}

/// Reads them back.
pub(crate) fn prove(limits: &Rlimits) -> Result<String, Failure> {
    let mut evidence = Vec::new();
    for (resource, name, value) in wanted(limits) {
        let Some(value) = value else { continue };
        let kernel = getrlimit(resource);
        match (kernel.current, kernel.maximum) {
            (Some(soft), Some(hard)) if soft <= value && hard <= value => {
                evidence.push(format!("{name}={hard}"));
            }
            _ => return Err(Failure::without_errno(Wall::Rlimits, format!("{name} is not set"))),
        }
    }
    Ok(evidence.join(" "))
}
