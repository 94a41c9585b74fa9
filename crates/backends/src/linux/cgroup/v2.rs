//! The unified hierarchy. Root uses a directory of its own at the top; anybody else needs a group that
//! is delegated to them: the one above the group they are in, that one itself, or one that the systemd of this user
//! delegates when it is asked.
//!
//! A group holds processes or hands controllers down, never both. So sandboxes' groups are made beside
//! the group this process is in; and where only that one is ours, this process first makes room in it
//! by moving down, if it is alone there.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stockade_core::{EffectiveLimits, Millicores, SandboxId};
use stockade_fs::read_kernel_file;

use super::{
    CgroupLayout, Controllers, duration_from_micros, enforced_memory, ensure_dir, make_below,
    mount_point, read_keyed_value, share_of, swap, systemd,
};
use super::{HeldLimits, find_lowest, read_number, to_millicores};

/// Where sandboxes' groups are made.
#[derive(Debug, Clone)]
pub(crate) struct V2Base {
    pub(super) parent: PathBuf,
    pub(super) controllers: Controllers,
    own_processes: u64,
    /// The systemd scope that this process has asked for and that `parent` lies in. Each process has its own.
    pub(super) scope: Option<PathBuf>,
}

/// The controllers that enforce limits of ours.
const LIMIT_CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// The file with the limit of swap.
const SWAP_LIMIT_FILE: &str = "memory.swap.max";

/// The child group that this process moves to, to make room.
const ENGINE_CGROUP: &str = "stockade-engine";

impl V2Base {
    pub(super) fn detect(
        cgroup_layout: CgroupLayout,
        mounts: &str,
        own: &str,
        launcher: impl FnOnce() -> Option<u32>,
    ) -> Result<Self, String> {
        let top =
            mount_point(mounts, |kind, _| kind == "cgroup2").ok_or("cgroup v2 is not mounted")?;
        let inside = resolve_group(&top, own);
        let above = inside.parent().filter(|above| above.starts_with(&top)).unwrap_or(&top);
        let mut places = vec![top.as_path(), above, inside.as_path()];
        places.dedup();
        let nowhere = Err(io::Error::from(io::ErrorKind::NotFound));
        let delegated = places
            .iter()
            .fold(nowhere, |found, place| found.or_else(|_| Self::at(cgroup_layout, place)))
            .or_else(|error| match error.kind() == io::ErrorKind::Unsupported {
                // Moving down changes nothing about what is handed down to here.
                true => Err(error),
                false => make_room(&inside).and_then(|()| Self::at(cgroup_layout, &inside)),
            })
            .map_err(|error| format!("no cgroup v2 directory is delegated to this user: {error}"));
        match delegated {
            Err(reason) if require_limit_controllers(&top).is_ok() => {
                Self::by_systemd(cgroup_layout, &top, &inside, launcher)
                    .map_err(|error| format!("{reason}; none from systemd: {error}"))
            }
            found => found,
        }
    }

    /// Below a scope that the systemd of this user makes for the launcher.
    fn by_systemd(
        cgroup_layout: CgroupLayout,
        top: &Path,
        inside: &Path,
        launcher: impl FnOnce() -> Option<u32>,
    ) -> io::Result<Self> {
        if rustix::process::geteuid().is_root() {
            return Err(io::Error::other("it is not asked by root"));
        }
        if !is_login_session(inside) {
            let reason = format!("{} is no login session", inside.display());
            return Err(io::Error::other(reason));
        }
        let launcher = launcher().ok_or_else(|| io::Error::other("it is not asked"))?;
        let scope = systemd::enter_scope(top, launcher)?;
        Ok(Self { scope: Some(scope.clone()), ..Self::at(cgroup_layout, &scope)? })
    }

    /// Makes the parent and switches on what is there.
    fn at(cgroup_layout: CgroupLayout, place: &Path) -> io::Result<Self> {
        let parent = place.join(cgroup_layout.parent);
        require_limit_controllers(place)?;
        ensure_dir(&parent)?;
        let enabled = may_enter(place)
            .and_then(|()| enable_controllers(place))
            .and_then(|()| enable_controllers(&parent))
            .inspect_err(|_| drop(fs::remove_dir(&parent)));
        enabled?;
        let on = read_kernel_file(parent.join("cgroup.subtree_control"))?;
        let has = |name| on.split_whitespace().any(|controller| controller == name);
        let controllers = Controllers {
            memory: has("memory") && swap::can_be_limited(&parent.join(SWAP_LIMIT_FILE)),
            processes: has("pids"),
            cpu: has("cpu"),
            // Counted by the kernel in every group, also with no controller enabled.
            cpu_usage: true,
            freezer: parent.join("cgroup.freeze").exists(),
        };
        let own_processes = cgroup_layout.own_processes;
        Ok(Self { parent, controllers, own_processes, scope: None })
    }

    pub(super) fn directory(&self, id: &SandboxId) -> PathBuf {
        self.parent.join(id.as_str())
    }

    pub(super) fn create(&self, id: &SandboxId, limits: &EffectiveLimits) -> io::Result<PathBuf> {
        let directory = self.directory(id);
        make_below(&self.parent, &directory)?;
        // A parent that had to be made again has everything switched off.
        let set =
            enable_controllers(&self.parent).and_then(|()| self.write_limits(&directory, limits));
        if set.is_err() {
            let _ = fs::remove_dir(&directory);
        }
        set.map(|()| directory)
    }

    fn write_limits(&self, directory: &Path, limits: &EffectiveLimits) -> io::Result<()> {
        let write = |file: &str, value: String| fs::write(directory.join(file), value);
        if let (Some(memory), true) = (limits.memory, self.controllers.memory) {
            write("memory.max", enforced_memory(memory).to_string())?;
            swap::write_swap_limit(&directory.join(SWAP_LIMIT_FILE), "0")?;
        }
        if let (Some(processes), true) = (limits.processes, self.controllers.processes) {
            write("pids.max", (u64::from(processes) + self.own_processes).to_string())?;
        }
        Ok(())
    }
}

pub(super) fn set_cpu_rate(directory: &Path, rate: Millicores) -> io::Result<()> {
    let (quota, period) = share_of(rate);
    fs::write(directory.join("cpu.max"), format!("{quota} {period}"))
}

/// The group a process is in, by what the kernel tells of it.
pub(super) fn find_group(mounts: &str, theirs: &str, own: &str) -> Option<PathBuf> {
    let top = mount_point(mounts, |kind, _| kind == "cgroup2")?;
    let directory = resolve_group(&top, theirs);
    // Neither the root group, which has no limits, nor a group without counters; nor this process's own,
    // which the container would share.
    let alone = directory != top && directory != resolve_group(&top, own);
    (alone && directory.join("cpu.stat").exists()).then_some(directory)
}

pub(super) fn read_limits(directory: &Path) -> HeldLimits {
    let read = |file: &'static str| find_lowest(directory, |group| read_number(&group.join(file)));
    let cpu = |group: &Path| {
        let text = read_kernel_file(group.join("cpu.max")).ok()?;
        let mut parts = text.split_whitespace().map(|part| part.parse().ok());
        to_millicores(parts.next()?, parts.next()?)
    };
    HeldLimits {
        memory: read("memory.max"),
        processes: read("pids.max"),
        cpu: find_lowest(directory, cpu),
    }
}

/// Fails if no limit controller is available, as in hybrid mode, where version 1 has them all.
fn require_limit_controllers(place: &Path) -> io::Result<()> {
    let available = read_kernel_file(place.join("cgroup.controllers"))?;
    let is_wanted = |name| LIMIT_CONTROLLERS.contains(&name);
    if available.split_whitespace().any(is_wanted) {
        return Ok(());
    }
    let reason = format!("no controller is available in {}", place.display());
    Err(io::Error::new(io::ErrorKind::Unsupported, reason))
}

/// The group of a process, by what the kernel tells of it.
pub(super) fn resolve_group(top: &Path, own: &str) -> PathBuf {
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    // A group outside of what is mounted here is shown with a way out, which leads nowhere.
    if own.split('/').any(|part| part == "..") { top.to_owned() } else { top.join(own) }
}

/// Whether a group is that of a login session, of this user or of the one before `su`. In any other, somebody may have put
/// the process for its limits, which would not hold for what left it.
fn is_login_session(group: &Path) -> bool {
    let is_slice =
        |name: &&str| name.strip_prefix("user-").is_some_and(|rest| rest.ends_with(".slice"));
    let mut names = group.iter().filter_map(OsStr::to_str).skip_while(|name| !is_slice(name));
    let below = names.nth(1).unwrap_or_default();
    below.starts_with("session-") && below.ends_with(".scope")
}

/// Whether processes may be put into groups below this one: the kernel asks that of the directory that
/// both the old and the new group lie in.
fn may_enter(place: &Path) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(place.join("cgroup.procs")).map(drop)
}

/// Moves this process one group down. Fails where other processes are in the group: they are not moved.
fn make_room(inside: &Path) -> io::Result<()> {
    let members = read_kernel_file(inside.join("cgroup.procs"))?;
    let alone = members.trim() == std::process::id().to_string();
    if !alone {
        return Err(io::Error::other(format!("others are in {} too", inside.display())));
    }
    let below = inside.join(ENGINE_CGROUP);
    ensure_dir(&below)?;
    fs::write(below.join("cgroup.procs"), "0")
}

/// Switches on for the children what this directory has. A group that holds processes cannot.
fn enable_controllers(directory: &Path) -> io::Result<()> {
    let available = read_kernel_file(directory.join("cgroup.controllers"))?;
    let file = directory.join("cgroup.subtree_control");
    let on = read_kernel_file(&file)?;
    for controller in LIMIT_CONTROLLERS {
        let has = |list: &str| list.split_whitespace().any(|name| name == controller);
        if has(&available) && !has(&on) {
            fs::write(&file, format!("+{controller}"))?;
        }
    }
    Ok(())
}

pub(super) fn cpu_time(directory: &Path) -> Option<Duration> {
    read_keyed_value(&directory.join("cpu.stat"), "usage_usec").map(duration_from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_below_the_mount_and_never_outside() {
        let top = Path::new("/sys/fs/cgroup");
        assert_eq!(resolve_group(top, "1:cpu:/x\n0::/user/leaf\n"), top.join("user/leaf"));
        assert_eq!(resolve_group(top, "0::/\n"), top.join(""));
        assert_eq!(resolve_group(top, "0::/../other\n"), top);
        assert_eq!(resolve_group(top, ""), top.join(""));
    }

    #[test]
    fn nothing_is_moved_out_of_a_group_that_is_no_login_session() {
        for (group, is_one) in [
            ("user.slice/user-1000.slice/session-3.scope", true),
            ("user.slice/user-1000.slice/session-c1.scope/below", true),
            ("user.slice/user-1001.slice/session-3.scope", true),
            ("user.slice/user-1000.slice/x.scope", false),
            ("user.slice/user-1000.slice/user@1000.service/app.slice/x.scope", false),
            ("user.slice/user-1000.slice", false),
            ("system.slice/ci.service", false),
            ("session-3.scope", false),
            ("", false),
        ] {
            let group = Path::new("/sys/fs/cgroup").join(group);
            assert_eq!(is_login_session(&group), is_one, "{}", group.display());
        }
    }
}
