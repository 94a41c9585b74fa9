//! Starts somebody else's runtime where a sandbox's walls want it: in its control groups from its first
//! instruction, in a session of its own, with mounts that go with it, and never outliving the thread that
//! started it. Builds no wall.
#![allow(unsafe_code, reason = "what a child does before it becomes another program is unsafe")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;
use rustix::process::{
    Pid, Signal, geteuid, getpid, getppid, set_parent_process_death_signal, setsid,
};
use rustix::thread::UnshareFlags;

use crate::plan::Cgroup;
use crate::{ground, sys};

/// Starts a command in these control groups. It is killed when the calling *thread* ends, which must
/// therefore be one that stays. What root's command mounts is gone with its last process: runtimes leave
/// mounts behind that nobody could remove their directories with.
pub fn start_in(mut command: Command, cgroup: Option<&Cgroup>) -> io::Result<Child> {
    let lists = cgroup.map_or_else(|| Ok(Vec::new()), member_lists)?;
    let parent = getpid();
    // SAFETY: the closure only makes system calls on what was opened before; it neither allocates nor
    // takes a lock, so it may run between fork and exec of a process with many threads.
    unsafe { command.pre_exec(move || Ok(settle(&lists, parent)?)) };
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

fn settle(lists: &[File], parent: Pid) -> Result<(), Errno> {
    setsid()?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have gone before the asking.
    if getppid() != Some(parent) {
        return Err(Errno::SRCH);
    }
    for list in lists {
        rustix::io::write(list, b"0")?;
    }
    // Without root it can mount nothing here.
    if geteuid().is_root() { own_mounts() } else { Ok(()) }
}

/// A copy of the host's mounts that follows the host's changes and sends none back.
fn own_mounts() -> Result<(), Errno> {
    sys::unshare(UnshareFlags::NEWNS)?;
    ground::change_all(MountPropagationFlags::DOWNSTREAM)
}
