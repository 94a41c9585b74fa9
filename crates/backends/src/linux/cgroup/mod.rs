//! Control groups: limits and counters for a whole sandbox, and a place to find it by its id.
//!
//! Version 2 where it is delegated to us, version 1 where its controllers are writable, else none,
//! with the reason and the remedy. Only directories named after a sandbox are ever removed.

mod swap;
mod systemd;
pub(crate) mod throwaway;
mod v1;
mod v2;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stockade_core::{Bytes, EffectiveLimits, Millicores, SandboxId, Span};
use stockade_fs::read_kernel_file;
use stockade_launcher::Cgroup;

pub(crate) use swap::is_swap_on;
pub(crate) use systemd::describe_manager;

/// What a backend's groups have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CgroupLayout {
    /// The name of the directory that holds the groups of all its sandboxes.
    pub parent: &'static str,
    /// How many processes of a group are the backend's and not the guest's.
    pub own_processes: u64,
    /// Whether all of its processes are started by its launcher. Then a group that systemd delegates to the launcher
    /// will do; other processes may not be moved there.
    pub started_by_launcher: bool,
}

/// What this host lets us use.
#[derive(Debug, Clone)]
pub(crate) enum Hierarchy {
    V2(v2::V2Base),
    V1(v1::V1Base),
    None { reason: String },
}

/// The group of one sandbox.
#[derive(Debug, Clone)]
pub(crate) enum Group {
    V2(PathBuf),
    V1(v1::Directories),
}

/// What a group is held to. Absent: to nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HeldLimits {
    pub memory: Option<u64>,
    pub processes: Option<u64>,
    /// In thousandths of a processor.
    pub cpu: Option<u64>,
}

/// Which limits a hierarchy can hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Controllers {
    pub memory: bool,
    pub processes: bool,
    pub cpu: bool,
    pub cpu_usage: bool,
    /// Everything in a group can be stopped where it is.
    pub freezer: bool,
}

impl Hierarchy {
    /// Looks at the mounts and tries to make a group, which is the only proof that it can be done. `launcher`: starts
    /// the launcher if needed and answers its process id; where the systemd of this user is to be asked for a group,
    /// that process is moved there.
    pub(crate) fn detect(
        cgroup_layout: CgroupLayout,
        launcher: impl FnOnce() -> Option<u32>,
    ) -> Self {
        let found = Self::detect_version(cgroup_layout, launcher);
        found.list_parents().iter().for_each(|parent| throwaway::remove_forsaken_groups(parent));
        found
    }

    /// Finds existing groups only: starts no launcher and asks systemd for nothing.
    pub(crate) fn detect_existing(cgroup_layout: CgroupLayout) -> Self {
        Self::detect(cgroup_layout, || None)
    }

    fn detect_version(cgroup_layout: CgroupLayout, launcher: impl FnOnce() -> Option<u32>) -> Self {
        let mounts = read_kernel_file("/proc/self/mountinfo").unwrap_or_default();
        let own = read_kernel_file("/proc/self/cgroup").unwrap_or_default();
        let second = v2::V2Base::detect(cgroup_layout, &mounts, &own, launcher);
        if let Ok(base) = &second
            && base.controllers != Controllers::default()
        {
            return Self::V2(base.clone());
        }
        match v1::V1Base::detect(cgroup_layout, &mounts) {
            Some(base) => Self::V1(base),
            None => {
                Self::None { reason: second.err().unwrap_or_else(|| "no controller is on".into()) }
            }
        }
    }

    pub(crate) fn controllers(&self) -> Controllers {
        match self {
            Self::V2(base) => base.controllers,
            Self::V1(base) => base.controllers(),
            Self::None { .. } => Controllers::default(),
        }
    }

    /// The version, for reports.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::V2(_) => "cgroup v2",
            Self::V1(_) => "cgroup v1",
            Self::None { .. } => "no cgroup",
        }
    }

    /// Makes the group of a sandbox with its limits set, the rate of the processor aside.
    pub(crate) fn create(
        &self,
        id: &SandboxId,
        limits: &EffectiveLimits,
    ) -> io::Result<Option<Group>> {
        let group = match self {
            Self::V2(base) => Group::V2(base.create(id, limits)?),
            Self::V1(base) => Group::V1(base.create(id, limits)?),
            Self::None { .. } => return Ok(None),
        };
        Ok(Some(group))
    }

    /// The group a sandbox of this id has or had, no matter which process made it. None if this process has a
    /// systemd scope of its own and the group is not in it.
    pub(crate) fn find(&self, id: &SandboxId) -> Option<Group> {
        match self {
            Self::V2(base) => {
                let directory = base.directory(id);
                (base.scope.is_none() || directory.is_dir()).then_some(Group::V2(directory))
            }
            Self::V1(base) => Some(Group::V1(base.group_dirs(id))),
            Self::None { .. } => None,
        }
    }

    /// The scope of systemd's that it lies in.
    pub(crate) fn scope(&self) -> Option<&Path> {
        match self {
            Self::V2(base) => base.scope.as_deref(),
            Self::V1(_) | Self::None { .. } => None,
        }
    }

    fn list_parents(&self) -> Vec<PathBuf> {
        match self {
            Self::V2(base) => vec![base.parent.clone()],
            Self::V1(base) => base.list_parents(),
            Self::None { .. } => Vec::new(),
        }
    }

    /// Removes the directories that hold the groups, where no sandbox of anybody is left.
    pub(crate) fn remove_empty_parents(&self) {
        for parent in self.list_parents() {
            let _ = fs::remove_dir(parent);
        }
        if let Self::V2(v2::V2Base { scope: Some(scope), .. }) = self {
            systemd::leave_scope(scope);
        }
    }

    /// The ids that have a group.
    pub(crate) fn ids(&self) -> Vec<SandboxId> {
        let mut ids: Vec<SandboxId> =
            self.list_parents().iter().flat_map(|parent| list_sandbox_groups(parent)).collect();
        ids.sort();
        ids.dedup();
        ids
    }
}

fn list_sandbox_groups(parent: &Path) -> Vec<SandboxId> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

impl Group {
    /// The group a process is in. It is limited and removed by the container engine that made it.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let mounts = read_kernel_file("/proc/self/mountinfo").ok()?;
        let theirs = read_kernel_file(format!("/proc/{pid}/cgroup")).ok()?;
        let own = read_kernel_file("/proc/self/cgroup").ok()?;
        let first = v1::Directories::of(&mounts, &theirs, &own).map(Self::V1);
        first.or_else(|| v2::find_group(&mounts, &theirs, &own).map(Self::V2))
    }

    /// What the kernel holds it to, by itself or by what it lies in.
    pub(crate) fn read_limits(&self) -> HeldLimits {
        match self {
            Self::V2(directory) => v2::read_limits(directory),
            Self::V1(directories) => directories.read_limits(),
        }
    }

    /// How the launcher is told about it.
    pub(crate) fn plan(&self) -> Cgroup {
        match self {
            Self::V2(directory) => Cgroup::V2(directory.clone()),
            Self::V1(directories) => Cgroup::V1(directories.list_directories()),
        }
    }

    /// Processor time used by everything that was ever in it.
    pub(crate) fn cpu_time(&self) -> Option<Span> {
        match self {
            Self::V2(directory) => v2::cpu_time(directory),
            Self::V1(directories) => directories.cpu_time(),
        }
        .map(Span::from)
    }

    /// The highest memory so far.
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        match self {
            Self::V2(directory) => read_number(&directory.join("memory.peak")),
            Self::V1(directories) => {
                read_number(&directories.memory.as_ref()?.join("memory.max_usage_in_bytes"))
            }
        }
    }

    /// Whether the kernel itself holds it to its memory.
    pub(crate) fn holds_memory(&self) -> bool {
        match self {
            Self::V2(directory) => directory.join("memory.max").exists(),
            Self::V1(directories) => directories.memory.is_some(),
        }
    }

    /// Holds it to a rate of the processor. Only what the guest runs is to be slow: set from the start, its
    /// walls would be built at that pace.
    pub(crate) fn set_cpu_rate(&self, rate: Millicores) -> io::Result<()> {
        match self {
            Self::V2(directory) => v2::set_cpu_rate(directory, rate),
            Self::V1(directories) => directories.set_cpu_rate(rate),
        }
    }

    /// Asks the kernel to stop everything in it, or to let it go on.
    pub(crate) fn freeze(&self, stop: bool) -> io::Result<()> {
        let (file, word) = match self {
            Self::V2(directory) => (directory.join("cgroup.freeze"), if stop { "1" } else { "0" }),
            Self::V1(directories) => {
                let directory = directories.freezer.as_ref().ok_or(io::ErrorKind::Unsupported)?;
                (directory.join("freezer.state"), if stop { "FROZEN" } else { "THAWED" })
            }
        };
        fs::write(file, word)
    }

    /// Whether everything in it stands still.
    pub(crate) fn is_frozen(&self) -> bool {
        match self {
            Self::V2(directory) => {
                read_keyed_value(&directory.join("cgroup.events"), "frozen") == Some(1)
            }
            Self::V1(directories) => {
                let state = |directory: &PathBuf| read_kernel_file(directory.join("freezer.state"));
                directories
                    .freezer
                    .as_ref()
                    .is_some_and(|directory| state(directory).is_ok_and(|it| it.trim() == "FROZEN"))
            }
        }
    }

    /// How many processes the kernel has killed for want of memory.
    pub(crate) fn oom_kills(&self) -> u64 {
        let events = match self {
            Self::V2(directory) => Some(directory.join("memory.events")),
            Self::V1(directories) => {
                directories.memory.as_ref().map(|directory| directory.join("memory.oom_control"))
            }
        };
        events.and_then(|file| read_keyed_value(&file, "oom_kill")).unwrap_or(0)
    }

    /// How many processes the kernel has refused for want of room in it; absent where it does not count them.
    pub(crate) fn refused_processes(&self) -> Option<u64> {
        let directory = match self {
            Self::V2(directory) => directory,
            Self::V1(directories) => directories.pids.as_ref()?,
        };
        read_keyed_value(&directory.join("pids.events"), "max")
    }

    /// The processes in it, as the host numbers them: each once, in however many hierarchies it is.
    pub(crate) fn list_processes(&self) -> BTreeSet<i32> {
        let text =
            |directory: &Path| read_kernel_file(directory.join("cgroup.procs")).unwrap_or_default();
        let pids =
            |text: String| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>();
        self.list_directories().iter().flat_map(|directory| pids(text(directory))).collect()
    }

    /// Removes it. The kernel refuses while anything is in it, so success is proof that nothing is.
    pub(crate) fn remove(&self) -> io::Result<()> {
        for directory in self.list_directories() {
            match fs::remove_dir(&directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn list_directories(&self) -> Vec<PathBuf> {
        match self {
            Self::V2(directory) => vec![directory.clone()],
            Self::V1(directories) => directories.list_directories(),
        }
    }
}

/// What the kernel may charge beyond a limit at once, where an allocation of its own must not fail.
const MAX_OVERCHARGE_BYTES: u64 = 256 << 10;

/// Where the kernel has to draw the line, so that what was promised is never exceeded by a page.
fn enforced_memory(memory: Bytes) -> u64 {
    memory.0.saturating_sub(MAX_OVERCHARGE_BYTES).max(memory.0 / 2)
}

/// What a rate comes to in a period, both in microseconds. The kernel deals out no less than a millisecond,
/// and no less often than every second.
fn share_of(rate: Millicores) -> (u64, u64) {
    let period = if rate.0 < 10 { 1_000_000 } else { 100_000 };
    ((u64::from(rate.0) * period / 1000).max(1000), period)
}

fn read_number(file: &Path) -> Option<u64> {
    read_kernel_file(file).ok()?.trim().parse().ok()
}

/// The lowest of what a group and those above it say, without the topmost.
fn find_lowest(group: &Path, value: impl Fn(&Path) -> Option<u64>) -> Option<u64> {
    let root = Path::new("/sys/fs/cgroup");
    group.ancestors().take_while(|above| *above != root).filter_map(value).min()
}

/// A share of processor time, in thousandths of a processor.
fn to_millicores(quota: Option<u64>, period: Option<u64>) -> Option<u64> {
    Some(quota? * 1000 / period.filter(|period| *period > 0)?)
}

/// A value from a file of `key value` lines.
fn read_keyed_value(file: &Path, key: &str) -> Option<u64> {
    let text = read_kernel_file(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

fn duration_from_micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// The mount point of a hierarchy: the one whose file system and options fit.
fn mount_point(mounts: &str, fits: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        let point = left.split(' ').nth(4)?;
        // A mount of only a part of the hierarchy does not show the groups we would look for.
        fits(kind, options).then(|| PathBuf::from(point))
    })
}

/// Makes a sandbox's directory, and its parent if another process has removed that.
fn make_below(parent: &Path, directory: &Path) -> io::Result<()> {
    match make_dir(directory) {
        Err(error) if is_gone(&error) => {
            ensure_dir(parent)?;
            make_dir(directory)
        }
        other => other,
    }
}

/// Whether the directory above is gone or about to be: the kernel has a second error for the latter.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::NODEV)
}

/// Makes a directory that no other user can write to, with any umask.
fn make_dir(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().mode(0o755).create(directory)
}

/// Makes a directory; one that is there already serves as well.
fn ensure_dir(directory: &Path) -> io::Result<()> {
    match make_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_comes_to_what_was_asked_for_however_low_it_is() {
        for rate in [1, 9, 10, 50, 1000, 64_000] {
            let (quota, period) = share_of(Millicores(rate));
            assert_eq!(quota * 1000 / period, u64::from(rate));
            assert!(quota >= 1000 && period <= 1_000_000, "{quota} in {period}");
        }
    }
}
