//! Reads every wall back, from behind all of them. `/proc` is out of reach there: what is asked of it
//! was opened before, and says what holds when it is read.

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::Pid;

use super::plan::BarePlan;
use super::scope;
use crate::error::{Failure, Wall};
use crate::walls::fds::REPORT_FD;
use crate::walls::verify::{
    ProcessFiles, ProcessStatus, parent_death, read_all, refuse_missing_wall,
};
use crate::walls::{parent, rlimits};
use crate::wire::Proof;

/// The number up to which descriptors are checked.
const CHECKED_FD_LIMIT: RawFd = 1024;

/// What to ask that cannot be opened any more later.
pub(super) struct Questions(OwnedFd);

impl Questions {
    pub(super) fn open() -> Result<Questions, Failure> {
        let process = ProcessFiles::open()?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let status = rustix::fs::openat(&process.0, "status", flags, Mode::empty());
        let refused = |errno| Failure::new(Wall::Capabilities, errno, "/proc/self/status");
        status.map(Questions).map_err(refused)
    }

    /// What this process has given up.
    pub(super) fn ask(self, privileged: bool) -> Result<Vec<Proof>, Failure> {
        let status = ProcessStatus(read_all(&self.0, "status", Wall::Capabilities)?);
        Ok(vec![
            build_proof(Wall::Capabilities, prove_capabilities(&status, privileged)?),
            build_proof(Wall::Seccomp, status.is(Wall::Seccomp, "Seccomp", "2")?),
        ])
    }
}

fn build_proof(wall: Wall, evidence: String) -> Proof {
    Proof { wall, evidence }
}

/// The bounding set is root's to empty; for other users `no_new_privs` makes it mean nothing.
fn prove_capabilities(status: &ProcessStatus, privileged: bool) -> Result<String, Failure> {
    let bounding = privileged.then_some("CapBnd");
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"].into_iter().chain(bounding) {
        status.is(Wall::Capabilities, set, "0000000000000000")?;
    }
    let privileges = status.is(Wall::Capabilities, "NoNewPrivs", "1")?;
    Ok(format!("every set that can be is empty, {privileges}"))
}

/// Everything that can be seen without `/proc`.
pub(super) fn read_back(plan: &BarePlan, warden: Pid) -> Result<Vec<Proof>, Failure> {
    Ok(vec![
        build_proof(Wall::Session, parent::prove_own_group()?),
        build_proof(Wall::ParentDeath, parent_death()?),
        build_proof(Wall::Descriptors, prove_descriptors()?),
        build_proof(Wall::Rlimits, rlimits::prove_rlimits(&plan.rlimits)?),
        build_proof(Wall::Network, prove_network()?),
        build_proof(Wall::Workspace, prove_workspace(plan)?),
        build_proof(Wall::Landlock, prove_landlock(plan, warden)?),
    ])
}

/// The three standard streams, the pipe, the agent and the report.
fn prove_descriptors() -> Result<String, Failure> {
    for number in 0..CHECKED_FD_LIMIT {
        let open = is_open(number);
        if open != (number <= REPORT_FD) {
            let state = if open { "open" } else { "closed" };
            return refuse_missing_wall(Wall::Descriptors, format!("{number} is {state}"));
        }
    }
    Ok("0-2 of its own, the pipe, and what execution closes".to_owned())
}

fn is_open(number: RawFd) -> bool {
    crate::sys::is_open(number)
}

fn prove_network() -> Result<String, Failure> {
    let families = [AddressFamily::INET, AddressFamily::INET6, AddressFamily::UNIX];
    for family in families {
        let made = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        match made.map(drop) {
            Err(Errno::AFNOSUPPORT) => {}
            Err(errno) => return Err(Failure::new(Wall::Network, errno, "refused otherwise")),
            Ok(()) => return refuse_missing_wall(Wall::Network, "a socket could be made"),
        }
    }
    Ok("no socket can be made".to_owned())
}

fn prove_workspace(plan: &BarePlan) -> Result<String, Failure> {
    match (can_make_in(&plan.workspace), plan.read_only) {
        (Ok(()), true) => refuse_missing_wall(Wall::Workspace, "a file could be made in it"),
        (Ok(()), false) => Ok("writable".to_owned()),
        (Err(Errno::ACCESS), true) => Ok("no file can be made in it".to_owned()),
        // Landlock allows it; the file system has the last word.
        (Err(errno), _) => Ok(format!("no file can be made in it: {errno}")),
    }
}

/// A file without a name, gone as it is closed.
fn can_make_in(directory: &Path) -> Result<(), Errno> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, directory, flags, Mode::RUSR).map(drop)
}

/// Asks for what only Landlock refuses: every place a process may look into and write to by its user.
fn prove_landlock(plan: &BarePlan, warden: Pid) -> Result<String, Failure> {
    let private: &Path = &plan.private;
    let root = PathBuf::from("/");
    for place in [private, &root] {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::openat(CWD, place, flags, Mode::empty()).map(drop) {
            Err(Errno::ACCESS) => {}
            Err(errno) => return Err(Failure::new(Wall::Landlock, errno, "refused otherwise")),
            Ok(()) => {
                return refuse_missing_wall(
                    Wall::Landlock,
                    format!("{} can be listed", place.display()),
                );
            }
        }
    }
    if can_make_in(private) != Err(Errno::ACCESS) {
        return refuse_missing_wall(
            Wall::Landlock,
            "a file could be created outside its writable directories",
        );
    }
    let signals = scope::read_back(warden)?;
    Ok(format!("/ cannot be listed, {signals}"))
}

/// Hands the listener of the filter to the warden.
pub(super) fn hand_over(to: BorrowedFd<'_>, listener: &OwnedFd) -> Result<(), Failure> {
    use std::os::fd::AsFd;
    crate::wire::send_message(to, b"listener", &[listener.as_fd()])
        .map_err(|errno| Failure::new(Wall::Seccomp, errno, "handing over the listener"))
}
