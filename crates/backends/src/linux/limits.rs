//! Which limits control groups hold on this host, and what takes their place where they do not.

use stockade_core::{
    Admitted, Capabilities, EffectiveLimits, Enforcement, Feature, LimitKind, Support,
};
use stockade_launcher::Rlimits;

use super::cgroup::{Controllers, Hierarchy};

/// Files that all processes of a sandbox may have open together, where a group counts what they cost as the
/// sandbox's memory.
const OPEN_FILES_COUNTED: u64 = 1 << 27;
/// The same where no group counts it: at about a kibibyte each.
const OPEN_FILES_UNCOUNTED: u64 = 1 << 19;

/// Resource limits of each single process, independent of control groups. Nothing here bounds address space:
/// what a program reserves (AddressSanitizer 16 TiB, a JVM its heap) is no memory yet.
pub(crate) fn per_process(limits: &EffectiveLimits) -> Rlimits {
    Rlimits {
        nofile: limits.open_files.map(u64::from),
        fsize: limits.disk.map(|disk| disk.0),
        ..Rlimits::default()
    }
}

/// The same where programs may raise a default number of open files that they find too low. One that was named
/// stands.
pub(crate) fn per_process_raisable(admitted: &Admitted, memory_is_held: bool) -> Rlimits {
    let limits = admitted.limits();
    let named = admitted.spec().limits.asks_for(LimitKind::OpenFiles);
    let all = if memory_is_held { OPEN_FILES_COUNTED } else { OPEN_FILES_UNCOUNTED };
    let each = all / limits.processes.map_or(u64::MAX, u64::from).max(1);
    let raised = limits.open_files.filter(|_| !named).map(|soft| each.max(u64::from(soft)));
    Rlimits { nofile_hard: raised, ..per_process(limits) }
}

/// Threads of the host that a kernel in user space needs for itself.
const HOST_THREADS: u32 = 512;

/// Room in its groups for the host's threads of a kernel in user space, which may need one for each
/// pair of the guest's: only a backstop, since that kernel counts the guest's own. Memory is one for both.
pub(crate) fn with_runtime(limits: &EffectiveLimits) -> EffectiveLimits {
    let pairs = |most: u32| most.saturating_add(16).saturating_pow(2).saturating_add(HOST_THREADS);
    EffectiveLimits { processes: limits.processes.map(pairs), ..*limits }
}

/// What each process is held to by a kernel in user space, which counts processes for its sandbox
/// alone.
pub(crate) fn counted_inside(limits: &EffectiveLimits) -> Rlimits {
    Rlimits {
        nproc: limits.processes.map(|most| u64::from(most) + super::OWN_PROCESSES),
        ..per_process(limits)
    }
}

/// The limits that depend on control groups. What holds processes without one, and disk in any case,
/// is each backend's own.
pub(crate) fn measure_limits(
    hierarchy: &Hierarchy,
    processes: Support,
    disk: Support,
) -> [(Feature, Support); 5] {
    let processes = match hierarchy.controllers().processes {
        true => Support::full(format!("{} pids controller", hierarchy.name())),
        false => processes,
    };
    [
        (Feature::MemoryLimit, memory_support(hierarchy)),
        (Feature::ProcessLimit, processes),
        (Feature::CpuRateLimit, cpu_rate(hierarchy)),
        (Feature::CpuTimeLimit, cpu_time(hierarchy)),
        (Feature::DiskLimit, disk),
    ]
}

/// What makes the disk limit exact on native where nothing of the host is written: all private places are one.
pub(crate) const ONE_PRIVATE_FILE_SYSTEM: &str =
    "one sized file system in memory for all private places";

/// What the kernel counts for all processes of a user together, in whatever namespaces they are. Programs of root
/// are exempt from it, but for watches of epoll, which the memory limit alone bounds.
pub(crate) fn with_user_counts(all: Capabilities) -> Capabilities {
    let remedy = "run it as a user of its own, or choose a backend with a kernel of its own";
    if rustix::process::geteuid().is_root() {
        return all.with_gap(
            "C-18",
            "epoll watches are counted for all processes of the user who owns the workspace: while guests use them \
             up, other programs of that user, root too, cannot wait for events",
            remedy,
        );
    }
    all.with_gap(
        "C-18",
        "descriptors on their way between processes, epoll watches and buffers of pipes are counted for all \
         processes of this user: while a guest uses them up, other programs of the user cannot pass descriptors",
        remedy,
    )
}

/// Disk, where nothing but counting holds a workspace to it.
pub(crate) fn disk_by_counting() -> Support {
    Support::partial(
        "sized file systems for private places; for a workspace on disk RLIMIT_FSIZE and adding up \
         its files every 250 ms",
        "a file that was deleted while it is open does not count, nor what is written between two checks",
        "choose native, which holds it exactly where nothing of the host is written",
    )
}

/// How measured support begins where a control group holds a limit; the version follows.
const BY_GROUP: &str = "cgroup v";

/// A limit that was measured as held by a control group, and that none of these controllers holds. A provisional
/// admission measures nothing.
pub(crate) fn find_broken_promise(admitted: &Admitted, on: Controllers) -> Option<LimitKind> {
    let mut promised = admitted.enforcement().iter().filter_map(|held| match held {
        Enforcement::Fully { limit, by, .. } => by.starts_with(BY_GROUP).then_some(*limit),
        Enforcement::Partly { .. } | Enforcement::NotAtAll { .. } => None,
    });
    promised.find(|limit| match limit {
        LimitKind::Memory => !on.memory,
        LimitKind::Processes => !on.processes,
        LimitKind::CpuRate => !on.cpu,
        LimitKind::CpuTime => !on.cpu_usage,
        LimitKind::WallTime
        | LimitKind::Disk
        | LimitKind::OpenFiles
        | LimitKind::Output
        | LimitKind::Fuel => false,
    })
}

fn memory_support(hierarchy: &Hierarchy) -> Support {
    match hierarchy.controllers().memory {
        true => Support::full(format!("{} memory controller", hierarchy.name())),
        false => Support::partial(
            "adding up resident memory, page tables and swap every 10 ms",
            "processes together may go beyond it for some milliseconds, and files in memory that none \
             of them maps do not count, nor most objects of the kernel",
            delegation_remedy(LimitKind::Memory),
        ),
    }
}

fn cpu_rate(hierarchy: &Hierarchy) -> Support {
    match hierarchy.controllers().cpu {
        true => Support::full(format!("{} cpu controller", hierarchy.name())),
        false => {
            Support::missing(explain_unavailable(hierarchy), delegation_remedy(LimitKind::CpuRate))
        }
    }
}

fn cpu_time(hierarchy: &Hierarchy) -> Support {
    match hierarchy.controllers().cpu_usage {
        true => Support::full(format!("{} counter, read every 50 ms", hierarchy.name())),
        false => Support::partial(
            "RLIMIT_CPU for each process, and adding up their times every 10 ms",
            "the CPU time of a process that is never waited for is not counted",
            delegation_remedy(LimitKind::CpuTime),
        ),
    }
}

/// Processes, where no control group counts them.
pub(crate) fn processes_by_counting() -> Support {
    Support::partial(
        "counting processes and threads every 10 ms",
        "more may be started for some milliseconds",
        delegation_remedy(LimitKind::Processes),
    )
}

/// Why there is no controller.
pub(crate) fn explain_unavailable(hierarchy: &Hierarchy) -> String {
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

#[cfg(test)]
mod tests {
    use stockade_core::{BackendName, SandboxSpec};

    use super::*;

    #[test]
    fn a_hope_is_no_promise_and_neither_is_a_watch() {
        let name = BackendName::literal("test");
        let hope = || {
            let none = Capabilities::none(name.clone(), stockade_core::Boundary::SharedKernel);
            Feature::ALL.iter().fold(none, |all, it| all.with(*it, Support::full("hope")))
        };
        let broken = |all: &Capabilities, on| {
            let limits = stockade_core::Limits {
                cpu_rate: Some(stockade_core::Millicores(500)),
                ..Default::default()
            };
            let spec = SandboxSpec { limits, ..SandboxSpec::default() };
            find_broken_promise(&stockade_core::admit(&spec, all).unwrap(), on)
        };
        let off = Controllers::default();
        assert_eq!(broken(&hope(), off), None);
        let watched = memory_support(&Hierarchy::None { reason: "none".into() });
        assert_eq!(broken(&hope().with(Feature::MemoryLimit, watched), off), None);
        for (feature, by, limit, on) in [
            (
                Feature::MemoryLimit,
                "memory controller",
                LimitKind::Memory,
                Controllers { memory: true, ..off },
            ),
            (
                Feature::ProcessLimit,
                "pids controller",
                LimitKind::Processes,
                Controllers { processes: true, ..off },
            ),
            (
                Feature::CpuRateLimit,
                "cpu controller",
                LimitKind::CpuRate,
                Controllers { cpu: true, ..off },
            ),
            (
                Feature::CpuTimeLimit,
                "counter",
                LimitKind::CpuTime,
                Controllers { cpu_usage: true, ..off },
            ),
        ] {
            let measured = hope().with(feature, Support::full(format!("cgroup v2 {by}")));
            assert_eq!(broken(&measured, off), Some(limit));
            assert_eq!(broken(&measured, on), None);
        }
    }
}
