//! Which limits control groups hold on this host, and what takes their place where they do not.

use stockade_core::{EffectiveLimits, Feature, LimitKind, Support};
use stockade_launcher::Rlimits;

use super::cgroup::Hierarchy;

/// Without a group that holds memory, one process may not even reserve more than this many times the
/// limit. Not the limit itself: stacks of threads are reserved whole and hardly ever used.
const RESERVED: u64 = 4;

/// What each single process is held to, whatever the groups do.
pub(crate) fn per_process(limits: &EffectiveLimits, memory_is_held: bool) -> Rlimits {
    Rlimits {
        nofile: limits.open_files.map(u64::from),
        fsize: limits.disk.map(|disk| disk.0),
        data: limits
            .memory
            .filter(|_| !memory_is_held)
            .map(|memory| memory.0.saturating_mul(RESERVED)),
        ..Rlimits::default()
    }
}

/// Threads of the host that a kernel in user space needs for itself.
#[cfg(any(feature = "docker", feature = "gvisor"))]
const HOST_THREADS: u32 = 512;

/// Room in its groups for the host's threads of a kernel in user space, which may need one for each
/// pair of the guest's: only a backstop, since that kernel counts the guest's own. Memory is one for both.
#[cfg(any(feature = "docker", feature = "gvisor"))]
pub(crate) fn with_runtime(limits: &EffectiveLimits) -> EffectiveLimits {
    let pairs = |most: u32| most.saturating_add(16).saturating_pow(2).saturating_add(HOST_THREADS);
    EffectiveLimits { processes: limits.processes.map(pairs), ..*limits }
}

/// What each process is held to by a kernel in user space, which counts processes for its sandbox
/// alone.
#[cfg(any(feature = "docker", feature = "gvisor"))]
pub(crate) fn counted_inside(limits: &EffectiveLimits, memory_is_held: bool) -> Rlimits {
    Rlimits {
        nproc: limits.processes.map(|most| u64::from(most) + super::OWN_PROCESSES),
        ..per_process(limits, memory_is_held)
    }
}

/// The limits that depend on control groups. What holds processes without one, and disk in any case,
/// is each backend's own.
pub(crate) fn measured(
    hierarchy: &Hierarchy,
    processes: Support,
    disk: Support,
) -> [(Feature, Support); 5] {
    let processes = match hierarchy.controllers().processes {
        true => Support::full(format!("{} pids controller", hierarchy.name())),
        false => processes,
    };
    [
        (Feature::MemoryLimit, memory(hierarchy)),
        (Feature::ProcessLimit, processes),
        (Feature::CpuRateLimit, cpu_rate(hierarchy)),
        (Feature::CpuTimeLimit, cpu_time(hierarchy)),
        (Feature::DiskLimit, disk),
    ]
}

/// What makes the disk limit exact on native where nothing of the host is written: all private places are one.
pub(crate) const ONE_PRIVATE_FILE_SYSTEM: &str =
    "one sized file system in memory for all private places";

/// Disk, where nothing but counting holds a workspace to it.
pub(crate) fn disk_by_counting() -> Support {
    Support::partial(
        "sized file systems for private places; for a workspace on disk RLIMIT_FSIZE and adding up \
         its files every 250 ms",
        "a file that was deleted while it is open does not count, nor what is written between two looks",
        "choose native, which holds it exactly where nothing of the host is written",
    )
}

fn memory(hierarchy: &Hierarchy) -> Support {
    match hierarchy.controllers().memory {
        true => Support::full(format!("{} memory controller", hierarchy.name())),
        false => Support::partial(
            "counting resident memory every 10 ms",
            "processes together may go beyond it for a few milliseconds, and files in memory that none \
             of them maps do not count",
            delegation_remedy(LimitKind::Memory),
        ),
    }
}

fn cpu_rate(hierarchy: &Hierarchy) -> Support {
    match hierarchy.controllers().cpu {
        true => Support::full(format!("{} cpu controller", hierarchy.name())),
        false => Support::missing(unavailable(hierarchy), delegation_remedy(LimitKind::CpuRate)),
    }
}

fn cpu_time(hierarchy: &Hierarchy) -> Support {
    match hierarchy.controllers().cpu_usage {
        true => Support::full(format!("{} counter, read every 50 ms", hierarchy.name())),
        false => Support::partial(
            "RLIMIT_CPU for each process, and adding up their times",
            "a process that nobody waits for takes its time with it",
            delegation_remedy(LimitKind::CpuTime),
        ),
    }
}

/// Why there is no controller.
pub(crate) fn unavailable(hierarchy: &Hierarchy) -> String {
    match hierarchy {
        Hierarchy::None { reason } => reason.clone(),
        Hierarchy::V1(_) | Hierarchy::V2(_) => "the controller is not available".into(),
    }
}

/// How to get control groups, or to go without.
pub(crate) fn delegation_remedy(kind: LimitKind) -> String {
    format!(
        "run it in a delegated control group (`systemd-run --user --scope -p Delegate=yes stockade …`), \
         or go without with --without {}",
        kind.feature()
    )
}
