//! The reach of signals where no pid namespace bounds it: a Landlock domain out of which none goes.
//!
//! Each keeper stands in one of its own, and its program in one below that. So the kernel knows which
//! processes belong to an execution, and `/proc` is not read; a keeper can end all of them at once,
//! and none of them can end their keeper.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::sys;

/// A Landlock domain around this process that keeps signals inside.
#[derive(Debug, Clone, Copy)]
pub struct SignalScope(());

impl SignalScope {
    /// The one this process was started in: a process outside is out of reach.
    pub fn inherited(outside: Option<Pid>) -> rustix::io::Result<Self> {
        match test_kill_process(outside.ok_or(Errno::SRCH)?) {
            Err(Errno::PERM) => Ok(Self(())),
            Err(error) => Err(error),
            Ok(()) => Err(Errno::ACCESS),
        }
    }

    /// Enters a new one inside it: what was in reach before is not any more.
    pub fn enter(self, outside: Option<Pid>) -> rustix::io::Result<Entered> {
        test_kill_process(outside.ok_or(Errno::SRCH)?)?;
        sys::keep_signals()?;
        Self::inherited(outside).map(|_| Entered(()))
    }
}

/// Proof that this process's own signals stay among those it started. Nothing else may signal
/// everybody in reach: without it that would be every process of this user.
#[derive(Debug)]
pub struct Entered(());

impl Entered {
    /// From now on, signals everybody in reach when the agent asks.
    pub fn obey_agent(self, agent: Pid) -> std::io::Result<()> {
        sys::obey_agent(agent.as_raw_nonzero().get())
    }
}
