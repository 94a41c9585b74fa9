//! The older hierarchies, one per controller. They are root's; each controller is used if a directory
//! can be made in it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stockade_core::{EffectiveLimits, Millicores, SandboxId};

use super::{
    CgroupLayout, Controllers, enforced_memory, ensure_dir, make_below, mount_point, read_number,
    share_of, swap,
};
use super::{HeldLimits, find_lowest, to_millicores};

/// The file with the limit of memory and swap together.
const SWAP_LIMIT_FILE: &str = "memory.memsw.limit_in_bytes";

/// The parent directory in each controller that can be used.
#[derive(Debug, Clone)]
pub(crate) struct V1Base {
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
    cpu: Option<PathBuf>,
    cpuacct: Option<PathBuf>,
    freezer: Option<PathBuf>,
    own_processes: u64,
}

/// The directories of one sandbox.
#[derive(Debug, Clone, Default)]
pub(crate) struct Directories {
    pub(super) memory: Option<PathBuf>,
    pub(super) pids: Option<PathBuf>,
    cpu: Option<PathBuf>,
    cpuacct: Option<PathBuf>,
    pub(super) freezer: Option<PathBuf>,
}

impl V1Base {
    pub(super) fn detect(cgroup_layout: CgroupLayout, mounts: &str) -> Option<Self> {
        let parent = |controller| find_parent(cgroup_layout, mounts, controller);
        let base = Self {
            own_processes: cgroup_layout.own_processes,
            memory: parent("memory")
                .filter(|parent| swap::can_be_limited(&parent.join(SWAP_LIMIT_FILE))),
            pids: parent("pids"),
            cpu: parent("cpu"),
            cpuacct: parent("cpuacct"),
            freezer: parent("freezer"),
        };
        (base.controllers() != Controllers::default()).then_some(base)
    }

    pub(super) fn controllers(&self) -> Controllers {
        Controllers {
            memory: self.memory.is_some(),
            processes: self.pids.is_some(),
            cpu: self.cpu.is_some(),
            cpu_usage: self.cpuacct.is_some(),
            freezer: self.freezer.is_some(),
        }
    }

    pub(super) fn list_parents(&self) -> Vec<PathBuf> {
        [&self.memory, &self.pids, &self.cpu, &self.cpuacct, &self.freezer]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    pub(super) fn group_dirs(&self, id: &SandboxId) -> Directories {
        let of = |parent: &Option<PathBuf>| parent.as_ref().map(|parent| parent.join(id.as_str()));
        Directories {
            memory: of(&self.memory),
            pids: of(&self.pids),
            cpu: of(&self.cpu),
            cpuacct: of(&self.cpuacct),
            freezer: of(&self.freezer),
        }
    }

    pub(super) fn create(
        &self,
        id: &SandboxId,
        limits: &EffectiveLimits,
    ) -> io::Result<Directories> {
        let directories = self.group_dirs(id);
        let made = directories.list_directories().iter().try_for_each(|directory| {
            make_below(directory.parent().unwrap_or(directory), directory)
        });
        if let Err(error) = made.and_then(|()| directories.write_limits(limits, self.own_processes))
        {
            for directory in directories.list_directories() {
                let _ = fs::remove_dir(directory);
            }
            return Err(error);
        }
        Ok(directories)
    }
}

impl Directories {
    /// Those that a process is in, by what the kernel tells of it.
    /// Not those that are the topmost or that this process is in itself: they are not its alone.
    pub(super) fn of(mounts: &str, theirs: &str, own: &str) -> Option<Self> {
        let directory = |controller: &str| {
            let has = |list: &str| list.split(',').any(|name| name == controller);
            let top = mount_point(mounts, |kind, options| kind == "cgroup" && has(options))?;
            let path = |told: &str| {
                let paths = told.lines().filter_map(|line| {
                    let (list, path) = line.split_once(':')?.1.split_once(":/")?;
                    has(list).then(|| path.to_owned())
                });
                paths.into_iter().next()
            };
            let path = path(theirs).filter(|their| Some(their) != path(own).as_ref())?;
            let way_out = path.is_empty() || path.split('/').any(|part| part == "..");
            Some(top.join(path)).filter(|directory| !way_out && directory.is_dir())
        };
        let memory = directory("memory");
        memory.is_some().then(|| Self {
            memory,
            pids: directory("pids"),
            cpu: directory("cpu"),
            cpuacct: directory("cpuacct"),
            freezer: directory("freezer"),
        })
    }

    /// Each once: two controllers often share one hierarchy.
    pub(super) fn list_directories(&self) -> Vec<PathBuf> {
        let each = [&self.memory, &self.pids, &self.cpu, &self.cpuacct, &self.freezer];
        let mut all: Vec<PathBuf> = each.into_iter().flatten().cloned().collect();
        all.sort();
        all.dedup();
        all
    }

    pub(super) fn cpu_time(&self) -> Option<Duration> {
        read_number(&self.cpuacct.as_ref()?.join("cpuacct.usage")).map(Duration::from_nanos)
    }

    pub(super) fn read_limits(&self) -> HeldLimits {
        let read = |directory: &Option<PathBuf>, file: &'static str| {
            find_lowest(directory.as_ref()?, |group| read_number(&group.join(file)))
        };
        let cpu = |group: &Path| {
            let read = |file| read_number(&group.join(file));
            to_millicores(read("cpu.cfs_quota_us"), read("cpu.cfs_period_us"))
        };
        HeldLimits {
            memory: read(&self.memory, "memory.limit_in_bytes"),
            processes: read(&self.pids, "pids.max"),
            cpu: self.cpu.as_ref().and_then(|directory| find_lowest(directory, cpu)),
        }
    }

    fn write_limits(&self, limits: &EffectiveLimits, own_processes: u64) -> io::Result<()> {
        if let (Some(memory), Some(directory)) = (limits.memory, &self.memory) {
            let memory = enforced_memory(memory).to_string();
            fs::write(directory.join("memory.limit_in_bytes"), &memory)?;
            // Memory and swap together.
            swap::write_swap_limit(&directory.join(SWAP_LIMIT_FILE), &memory)?;
        }
        if let (Some(processes), Some(directory)) = (limits.processes, &self.pids) {
            fs::write(
                directory.join("pids.max"),
                (u64::from(processes) + own_processes).to_string(),
            )?;
        }
        Ok(())
    }

    pub(super) fn set_cpu_rate(&self, rate: Millicores) -> io::Result<()> {
        let directory = self.cpu.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let (quota, period) = share_of(rate);
        fs::write(directory.join("cpu.cfs_period_us"), period.to_string())?;
        fs::write(directory.join("cpu.cfs_quota_us"), quota.to_string())
    }
}

/// The parent directory in one controller's hierarchy, if this user may make groups there.
fn find_parent(cgroup_layout: CgroupLayout, mounts: &str, controller: &str) -> Option<PathBuf> {
    let top = mount_point(mounts, |kind, options| {
        kind == "cgroup" && options.split(',').any(|option| option == controller)
    })?;
    let parent = top.join(cgroup_layout.parent);
    // Most often it is there, from the sandbox before.
    if !can_make_groups(&parent) {
        ensure_dir(&parent).ok()?;
    }
    can_make_groups(&parent).then_some(parent)
}

/// Whether groups can be made here. Another user's directory is not used even if everybody may write to it:
/// its owner removes it once it is empty, and this user could not make it again.
fn can_make_groups(parent: &Path) -> bool {
    use rustix::fs::{Access, access};
    use std::os::unix::fs::MetadataExt;
    let own = rustix::process::geteuid().as_raw();
    fs::metadata(parent).is_ok_and(|found| found.uid() == own)
        && access(parent, Access::WRITE_OK | Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod needs_root {
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn a_directory_of_another_user_is_not_used_though_everybody_may_write_to_it() {
        let top = tempfile::tempdir().unwrap();
        let cgroup_layout =
            CgroupLayout { parent: "stockade", own_processes: 1, started_by_launcher: true };
        let mounts = format!("1 1 0:1 / {} rw - cgroup cgroup rw,memory", top.path().display());
        let found = || V1Base::detect(cgroup_layout, &mounts).is_some();
        assert!(found());
        let parent = top.path().join("stockade");
        fs::set_permissions(&parent, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(found());
        chown(&parent, Some(12345), None).unwrap();
        assert!(!found());
    }
}
