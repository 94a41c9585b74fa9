//! Starts a foreign runtime where a sandbox's walls want it: in its control groups from its first
//! instruction, in a session of its own, with mounts that go with it, and never outliving the thread that
//! started it. Builds no wall but one: what the runtime may only read is read-only by the kernel too.
#![allow(unsafe_code, reason = "what a child does before it becomes another program is unsafe")]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;
use rustix::process::{
    Pid, Signal, getegid, geteuid, getpid, getppid, set_parent_process_death_signal, setsid,
};
use rustix::thread::UnshareFlags;

use crate::plan::Cgroup;
use crate::{base_namespaces, fs, sys};

const NO_LINK_FLAGS: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);

/// A directory or file of the host, shown read-only at another path that is of the same kind.
#[derive(Debug, Clone)]
pub struct ReadOnlyView {
    /// What is shown.
    pub source: PathBuf,
    /// Where.
    pub target: PathBuf,
}

/// Starts a command in these control groups, with these views. It is killed when the calling *thread* ends,
/// which must therefore be one that stays. What it mounts, and the views, are gone with its last process:
/// runtimes leave mounts behind that keep their directories from being removed. Without root it gets a user
/// namespace for that, if there are views.
pub fn start_in(
    mut command: Command,
    cgroup: Option<&Cgroup>,
    views: &[ReadOnlyView],
) -> io::Result<Child> {
    let lists = cgroup.map_or_else(|| Ok(Vec::new()), member_lists)?;
    let (mounts, parent) = (ViewMounts::new(views)?, getpid());
    // SAFETY: the closure only makes system calls on what was opened and written before; it neither allocates
    // nor takes a lock, so it may run between fork and exec of a process with many threads.
    unsafe {
        command.pre_exec(move || {
            Ok(mounts.mount_views().and_then(|()| set_up_child(&lists, parent))?)
        })
    };
    command.spawn()
}

/// The lists to join. Of the older hierarchies that of threads: see `walls::cgroup`.
fn member_lists(cgroup: &Cgroup) -> io::Result<Vec<File>> {
    let list = match cgroup {
        Cgroup::V2(_) => "cgroup.procs",
        Cgroup::V1(_) => "tasks",
    };
    let open =
        |directory: &std::path::PathBuf| OpenOptions::new().write(true).open(directory.join(list));
    cgroup.directories().iter().map(open).collect()
}

fn set_up_child(lists: &[File], parent: Pid) -> Result<(), Errno> {
    setsid()?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have gone before the asking.
    if getppid() != Some(parent) {
        return Err(Errno::SRCH);
    }
    for list in lists {
        rustix::io::write(list, b"0")?;
    }
    Ok(())
}

/// The mounts of a command, with everything written that laying them takes.
struct ViewMounts {
    /// Source and target.
    views: Vec<(CString, CString)>,
    /// The kernel's files that give this user its own identity in a user namespace.
    identity: [(&'static str, String); 3],
}

impl ViewMounts {
    fn new(views: &[ReadOnlyView]) -> io::Result<Self> {
        let text = |path: &Path| CString::new(path.as_os_str().as_bytes());
        let views = views.iter().map(|view| Ok((text(&view.source)?, text(&view.target)?)));
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let identity = [
            ("/proc/self/setgroups", "deny".to_owned()),
            ("/proc/self/gid_map", format!("{gid} {gid} 1")),
            ("/proc/self/uid_map", format!("{uid} {uid} 1")),
        ];
        Ok(Self { views: views.collect::<io::Result<_>>()?, identity })
    }

    /// A copy of the host's mounts that follows the host's changes and sends none back, and the views in it.
    fn mount_views(&self) -> Result<(), Errno> {
        if geteuid().is_root() {
            sys::unshare_namespaces(UnshareFlags::NEWNS)?;
        } else if self.views.is_empty() {
            return Ok(());
        } else {
            sys::unshare_namespaces(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
            for (file, text) in &self.identity {
                base_namespaces::write_file(file, text)?;
            }
        }
        base_namespaces::change_all(MountPropagationFlags::DOWNSTREAM)?;
        for (source, target) in &self.views {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            // It was checked by this path: a link that leads elsewhere was not. Without `stockade_fs`, which
            // may allocate: other threads' locks stay taken between fork and exec.
            let source = openat2(CWD, source.as_c_str(), flags, Mode::empty(), NO_LINK_FLAGS)?;
            let target = openat(CWD, target.as_c_str(), flags, Mode::empty())?;
            fs::attach_mount(copy_of(&source)?, target)?;
        }
        Ok(())
    }
}

/// A read-only copy of what is there, without what is mounted below it. An ordinary user may not take those
/// apart, and gets them read-only too.
fn copy_of(source: &OwnedFd) -> Result<OwnedFd, Errno> {
    match fs::clone_single(source, fs::READ_ONLY_MOUNT) {
        Err(Errno::INVAL) => fs::clone_with(source, "", fs::READ_ONLY_MOUNT),
        copied => copied,
    }
}
