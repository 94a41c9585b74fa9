//! The reach of signals where no pid namespace bounds it: a Landlock domain out of which none goes.
//!
//! Each keeper stands in one of its own, and its program in one below that. So the kernel knows who
//! belongs to an execution without anybody looking at `/proc`; a keeper can end all of them at once,
//! and none of them can end their keeper.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::sys;

/// Proof that this process's signals stay inside. Nothing else may signal everybody in reach:
/// without the scope that would be every process of this user.
#[derive(Debug, Clone, Copy)]
pub struct Scope(());

impl Scope {
    /// The scope this process was started in, if a process outside is out of reach.
    pub fn inherited(outside: Option<Pid>) -> rustix::io::Result<Self> {
        match test_kill_process(outside.ok_or(Errno::SRCH)?) {
            Err(Errno::PERM) => Ok(Self(())),
            Err(error) => Err(error),
            Ok(()) => Err(Errno::ACCESS),
        }
    }

    /// Enters a new one inside it.
    pub fn enter(self, outside: Option<Pid>) -> rustix::io::Result<Self> {
        sys::keep_signals()?;
        Self::inherited(outside)
    }

    /// Kills every other process in it, at once: no fork escapes.
    pub fn kill_all(self) {
        sys::signal_all_in_reach(libc::SIGKILL);
    }

    /// From now on, signals everybody in it when the agent asks.
    pub fn obey(self, agent: Pid) -> std::io::Result<()> {
        sys::obey(agent.as_raw_nonzero().get())
    }
}

/// Kills everybody below the agent and waits until they are gone.
pub fn end_all(scope: Scope) {
    scope.kill_all();
    while sys::reap(true).is_ok() {}
}
