//! The reach of signals: a Landlock domain that no signal leaves. A process in it can kill all others in it
//! with one call, which the kernel carries out in one go: no fork escapes it.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::calls;
use crate::error::{Failure, Wall};
use crate::walls::landlock;

/// Proof that this process's signals stay among its own descendants. Only with it may everything in reach
/// be killed: without the scope that would be every process of this user.
#[derive(Clone, Copy)]
pub(super) struct LandlockScope(());

impl LandlockScope {
    /// Enters a scope of its own. `outside` is a process of the same user that must be out of reach
    /// afterwards, and is within it before.
    pub(super) fn enter(outside: Pid) -> Result<LandlockScope, Failure> {
        if test_kill_process(outside).is_err() {
            return Err(build_unproved_failure(
                "the process outside cannot be reached to begin with",
            ));
        }
        landlock::keep_signals()?;
        LandlockScope::prove(outside)
    }

    fn prove(outside: Pid) -> Result<LandlockScope, Failure> {
        match test_kill_process(outside) {
            Err(Errno::PERM) => Ok(LandlockScope(())),
            Err(errno) => Err(Failure::new(Wall::Landlock, errno, "asking for the scope")),
            Ok(()) => Err(build_unproved_failure("a process outside can be signalled")),
        }
    }

    /// Kills every other process in the scope, at once.
    pub(super) fn kill_all(self) {
        calls::kill_all_in_reach();
    }
}

/// Reads back that signals do not reach a process outside.
pub(super) fn read_back(outside: Pid) -> Result<String, Failure> {
    LandlockScope::prove(outside).map(|_| "its warden cannot be signalled".to_owned())
}

fn build_unproved_failure(detail: &str) -> Failure {
    Failure::without_errno(Wall::Landlock, detail)
}
