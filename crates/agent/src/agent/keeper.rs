//! The keeper: a small process between the agent and one program, to which every descendant of the program
//! that loses its parent is reparented. It makes "everything this execution started" a thing the kernel
//! knows: the keeper's descendants, no matter how they hide.
//!
//! It reports over a pipe when the program runs, failed to or ended, and reaps until no process is left.

use std::os::fd::OwnedFd;

use rustix::io::{Errno, write};
use rustix::process::{Pid, Signal};

use super::program::{ProgramImage, StartStep, Stdio, Surroundings};
use super::sys;

/// What a keeper says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeeperReport {
    /// The program runs.
    Started(i32),
    /// It never will: the step that failed, and the error number.
    Failed(StartStep, i32),
    /// It ended: wait status, processor time in µs, peak memory in KiB.
    Exited(i32, u64, u64),
}

/// The size of every report, so that it is written and read whole.
pub const REPORT_BYTES: usize = 24;

impl KeeperReport {
    pub fn encode(self) -> [u8; REPORT_BYTES] {
        let (kind, step, number, cpu, peak) = match self {
            Self::Started(pid) => (1, 0, pid, 0, 0),
            Self::Failed(step, errno) => (2, step as u8, errno, 0, 0),
            Self::Exited(status, cpu, peak) => (3, 0, status, cpu, peak),
        };
        let mut bytes = [0; REPORT_BYTES];
        bytes[0] = kind;
        bytes[1] = step;
        bytes[4..8].copy_from_slice(&i32::to_le_bytes(number));
        bytes[8..16].copy_from_slice(&u64::to_le_bytes(cpu));
        bytes[16..].copy_from_slice(&u64::to_le_bytes(peak));
        bytes
    }

    pub fn decode(bytes: &[u8; REPORT_BYTES]) -> Option<Self> {
        let long = |at| bytes[at..].first_chunk().map(|part| u64::from_le_bytes(*part));
        let number = i32::from_le_bytes(*bytes[4..].first_chunk()?);
        match bytes[0] {
            1 => Some(Self::Started(number)),
            2 => Some(Self::Failed(*StartStep::ALL.get(usize::from(bytes[1]))?, number)),
            3 => Some(Self::Exited(number, long(8)?, long(16)?)),
            _ => None,
        }
    }
}

/// What the keeper of one program was given.
pub struct Keeper<'a> {
    pub image: &'a ProgramImage,
    pub stdio: Stdio,
    pub surroundings: &'a Surroundings,
    /// Where it reports.
    pub report: OwnedFd,
    /// Its parent: if that is gone, the keeper has no purpose.
    pub agent: Pid,
}

impl Keeper<'_> {
    /// Runs in a process of its own, until no process is left to keep.
    pub fn run(self) -> ! {
        let code = match self.settle_in() {
            Ok(()) => self.keep_program(),
            Err(error) => {
                send_report(
                    &self.report,
                    KeeperReport::Failed(StartStep::Fork, error.raw_os_error()),
                );
                0
            }
        };
        sys::exit_now(code)
    }

    fn settle_in(&self) -> rustix::io::Result<()> {
        let [stdin, stdout, stderr] = &self.stdio.0;
        sys::close_all_but(&mut sys::raw_fds(&[stdin, stdout, stderr, &self.report]));
        match self.surroundings.apart {
            // With the agent, which is the first process of all, everybody ends.
            Some(apart) => return apart.restore_user(),
            None => rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?,
        }
        die_with(self.agent)?;
        if let Some(scope) = self.surroundings.scope {
            let own = scope.enter(Some(self.agent))?;
            own.obey_agent(self.agent)
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        }
        Ok(())
    }

    fn keep_program(self) -> i32 {
        let report = match self.start_program() {
            Ok((pid, report)) => {
                send_report(&report, KeeperReport::Started(pid));
                reap_children(pid, &report);
                report
            }
            Err((report, step, errno)) => {
                send_report(&report, KeeperReport::Failed(step, errno));
                report
            }
        };
        // All started processes are gone by now, except that of a failed start: it is reaped here.
        while sys::reap_child(true).is_ok() {}
        drop(report);
        0
    }

    /// Starts the program. When this returns it runs or failed to. Gives up the program's own streams,
    /// so that their end is seen when the program's side closes.
    fn start_program(self) -> Result<(i32, OwnedFd), (OwnedFd, StartStep, i32)> {
        let keeper = rustix::process::getpid();
        let mut failure = None;
        let forked = sys::fork_and_wait(&mut || {
            let orphan = die_with(keeper).err();
            let orphan = orphan.map(|errno| (StartStep::Fork, errno.raw_os_error()));
            failure = Some(
                orphan.unwrap_or_else(|| self.image.become_it(&self.stdio, self.surroundings)),
            );
        });
        match (forked, failure) {
            (Ok(pid), None) => Ok((pid, self.report)),
            (Ok(_), Some((step, errno))) => Err((self.report, step, errno)),
            (Err(error), _) => {
                Err((self.report, StartStep::Fork, error.raw_os_error().unwrap_or(libc::EIO)))
            }
        }
    }
}

/// Asks the kernel to be killed when the parent dies, and makes sure that it has not yet.
fn die_with(parent: Pid) -> rustix::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH) }
}

/// Reaps everybody, and reports the program's end as soon as it comes.
fn reap_children(program: i32, report: &OwnedFd) {
    while let Ok(reaped) = sys::reap_child(true) {
        if let Some((pid, status)) = reaped
            && pid == program
        {
            let (cpu, peak) = sys::usage_of_children();
            send_report(report, KeeperReport::Exited(status, cpu, peak));
        }
    }
}

/// One write, short enough to be atomic on a pipe. An error is ignored: the agent is gone then.
fn send_report(to: &OwnedFd, report: KeeperReport) {
    let _ = write(to, &report.encode());
}
