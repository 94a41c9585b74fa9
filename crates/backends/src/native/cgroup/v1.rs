//! The older hierarchies, one per controller. They are root's; each controller is used if a directory
//! can be made in it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stockade_core::{EffectiveLimits, SandboxId};

use super::super::plan::OWN_PROCESSES;
use super::{Controllers, PARENT, make, make_below, mount_point, number, throwaway};

/// The parent directory in each controller that can be used.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Base {
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
    cpu: Option<PathBuf>,
    cpuacct: Option<PathBuf>,
}

/// The directories of one sandbox.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Directories {
    pub(super) memory: Option<PathBuf>,
    pids: Option<PathBuf>,
    cpu: Option<PathBuf>,
    cpuacct: Option<PathBuf>,
}

const PERIOD_US: u64 = 100_000;

impl Base {
    pub(super) fn detect(mounts: &str) -> Option<Self> {
        let base = Self {
            memory: parent(mounts, "memory"),
            pids: parent(mounts, "pids"),
            cpu: parent(mounts, "cpu"),
            cpuacct: parent(mounts, "cpuacct"),
        };
        (base.controllers() != Controllers::default()).then_some(base)
    }

    pub(super) fn controllers(&self) -> Controllers {
        Controllers {
            memory: self.memory.is_some(),
            processes: self.pids.is_some(),
            cpu: self.cpu.is_some(),
            cpu_usage: self.cpuacct.is_some(),
        }
    }

    pub(super) fn parents(&self) -> Vec<PathBuf> {
        [&self.memory, &self.pids, &self.cpu, &self.cpuacct]
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    pub(super) fn directories(&self, id: &SandboxId) -> Directories {
        let of = |parent: &Option<PathBuf>| parent.as_ref().map(|parent| parent.join(id.as_str()));
        Directories {
            memory: of(&self.memory),
            pids: of(&self.pids),
            cpu: of(&self.cpu),
            cpuacct: of(&self.cpuacct),
        }
    }

    pub(super) fn create(
        &self,
        id: &SandboxId,
        limits: &EffectiveLimits,
    ) -> io::Result<Directories> {
        let directories = self.directories(id);
        let made = directories.all().iter().try_for_each(|directory| {
            make_below(directory.parent().unwrap_or(directory), directory)
        });
        if let Err(error) = made.and_then(|()| directories.limit(limits)) {
            for directory in directories.all() {
                let _ = fs::remove_dir(directory);
            }
            return Err(error);
        }
        Ok(directories)
    }
}

impl Directories {
    /// Each once: two controllers often share one hierarchy.
    pub(super) fn all(&self) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = [&self.memory, &self.pids, &self.cpu, &self.cpuacct]
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        all.sort();
        all.dedup();
        all
    }

    pub(super) fn cpu_time(&self) -> Option<Duration> {
        number(&self.cpuacct.as_ref()?.join("cpuacct.usage")).map(Duration::from_nanos)
    }

    fn limit(&self, limits: &EffectiveLimits) -> io::Result<()> {
        if let (Some(memory), Some(directory)) = (limits.memory, &self.memory) {
            fs::write(directory.join("memory.limit_in_bytes"), memory.0.to_string())?;
            // Memory and swap together; absent where swap is not accounted.
            let _ = fs::write(directory.join("memory.memsw.limit_in_bytes"), memory.0.to_string());
        }
        if let (Some(processes), Some(directory)) = (limits.processes, &self.pids) {
            fs::write(
                directory.join("pids.max"),
                (u64::from(processes) + OWN_PROCESSES).to_string(),
            )?;
        }
        if let (Some(rate), Some(directory)) = (limits.cpu_rate, &self.cpu) {
            let quota = (u64::from(rate.0) * PERIOD_US / 1000).max(1000);
            fs::write(directory.join("cpu.cfs_period_us"), PERIOD_US.to_string())?;
            fs::write(directory.join("cpu.cfs_quota_us"), quota.to_string())?;
        }
        Ok(())
    }
}

/// The parent directory in one controller's hierarchy, if this user may make groups there.
fn parent(mounts: &str, controller: &str) -> Option<PathBuf> {
    let top = mount_point(mounts, |kind, options| {
        kind == "cgroup" && options.split(',').any(|option| option == controller)
    })?;
    let parent = top.join(PARENT);
    make(&parent).ok()?;
    writable(&parent).then_some(parent)
}

/// Whether groups can be made here: somebody else may have made the directory.
fn writable(parent: &Path) -> bool {
    let trial = parent.join(throwaway::name("trial", 0));
    make(&trial).and_then(|()| fs::remove_dir(&trial)).is_ok()
}
