//! Membership in the control groups the caller made. Never makes or limits one: the launcher only
//! moves its child, before anything else runs there.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::thread::UnshareFlags;

use crate::error::{At, Failure, Wall};
use crate::open::format_path;
use crate::plan::Cgroup;
use crate::sys;

/// The control groups of one sandbox, open.
#[derive(Default)]
pub(crate) struct Membership {
    /// The unified directory to be cloned into.
    pub unified: Option<OwnedFd>,
    /// The member lists to join, one per controller.
    pub lists: Vec<OwnedFd>,
}

/// Opens them; the caller stands in the host's mount namespace.
pub(crate) fn open_cgroups(cgroup: Option<&Cgroup>) -> Result<Membership, Failure> {
    let mut membership = Membership::default();
    match cgroup {
        None => {}
        Some(Cgroup::V2(directory)) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(CWD, directory, flags, Mode::empty());
            membership.unified = Some(opened.at(Wall::Cgroup, &format_path(directory))?);
        }
        Some(Cgroup::V1(directories)) => {
            for directory in directories {
                membership.lists.push(member_list(directory)?);
            }
        }
    }
    Ok(membership)
}

/// The list of threads, not of processes: moving oneself as a single thread needs no lock on every
/// process of the host, which takes some ten milliseconds to get. A new process has one thread.
fn member_list(directory: &Path) -> Result<OwnedFd, Failure> {
    let list = directory.join("tasks");
    let opened = rustix::fs::openat(CWD, &list, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    opened.at(Wall::Cgroup, &format_path(&list))
}

/// Joins, and then makes the groups joined the top of what can be seen: in the other order the
/// namespace would show the launcher's own place in the hierarchy.
pub(crate) fn join_cgroups(membership: &Membership) -> Result<(), Failure> {
    join_lists(membership)?;
    sys::unshare_namespaces(UnshareFlags::NEWCGROUP).at(Wall::Namespaces, "the cgroup namespace")
}

/// Joins where there is a list to join; a unified group was joined by birth.
pub(crate) fn join_lists(membership: &Membership) -> Result<(), Failure> {
    for list in &membership.lists {
        rustix::io::write(list, b"0").at(Wall::Cgroup, "joining a control group")?;
    }
    Ok(())
}
