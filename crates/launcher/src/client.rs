//! The owner's half: starts the launcher and asks it for sandboxes. Every request carries its own
//! reply socket, so that any number may be under way at once and giving one up disturbs no other.
#![allow(unsafe_code)] // what runs between fork and exec

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, pidfd_send_signal, waitid, waitpid,
};

use serde::Serialize;

use crate::error::{Failure, LaunchError, Wall};
use crate::plan::LaunchPlan;
use crate::server::Mode;
use crate::sockets::SocketDiag;
use crate::sys;
use crate::wire::{
    self, AGENT_FD, CONTROL_FD, LaunchReply, Launched, MESSAGE_LIMIT, Message, Proof,
};
use crate::without_namespaces::BarePlan;

/// How long a launch may take.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a launch that is given up may take to end. It takes less than a millisecond.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// The launcher's executable.
#[derive(Debug)]
pub enum Program<'fd> {
    /// A file on disk.
    Path(PathBuf),
    /// An open executable, such as a sealed memory file.
    Fd(BorrowedFd<'fd>),
}

/// A running launcher. Dropping it closes the control socket, which ends the launcher and every
/// sandbox it has launched.
#[derive(Debug)]
pub struct Launcher {
    control: Option<OwnedFd>,
    child: Pid,
}

impl Launcher {
    /// Starts the launcher. It runs in a session of its own, with an empty environment and no
    /// descriptor but the control socket and `agent`, which is a sealed copy (`sealed_memfd`).
    pub fn start(program: &Program<'_>, agent: BorrowedFd<'_>) -> io::Result<Launcher> {
        Launcher::start_as(Mode::Namespaces, program, agent)
    }

    /// Starts a launcher that does without namespaces, and takes [`BarePlan`]s alone.
    pub fn start_bare(program: &Program<'_>, agent: BorrowedFd<'_>) -> io::Result<Launcher> {
        Launcher::start_as(Mode::Bare, program, agent)
    }

    fn start_as(mode: Mode, program: &Program<'_>, agent: BorrowedFd<'_>) -> io::Result<Launcher> {
        let (ours, theirs) = wire::packet_pair()?;
        // Kept until the child has executed it, under a number that the child does not overwrite.
        let (path, _kept) = match program {
            // The launcher starts in the root directory, where a relative path means another file.
            Program::Path(path) => (std::path::absolute(path)?, None),
            Program::Fd(fd) => {
                let kept = rustix::io::fcntl_dupfd_cloexec(fd, 64)?;
                (PathBuf::from(format!("/proc/self/fd/{}", kept.as_raw_fd())), Some(kept))
            }
        };
        let mut command = Command::new(path);
        command.arg0("stockade-launcher").env_clear().current_dir("/");
        match mode {
            Mode::Namespaces | Mode::Once => {}
            Mode::Bare => drop(command.arg(Mode::BARE_ARGUMENT)),
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let (control, agent) = (theirs.as_raw_fd(), agent.as_raw_fd());
        // SAFETY: the closure makes system calls only, and touches no memory but its own copies.
        unsafe { command.pre_exec(move || hand_over(control, agent)) };
        let child = Pid::from_child(&command.spawn()?);
        Ok(Launcher::of(ours, child))
    }

    /// A launcher that runs in this child of ours.
    pub(crate) fn of(control: OwnedFd, child: Pid) -> Launcher {
        Launcher { control: Some(control), child }
    }

    /// The launcher's process id.
    pub fn pid(&self) -> u32 {
        self.child.as_raw_nonzero().get().unsigned_abs()
    }

    /// Whether it runs. Does not wait.
    pub fn is_alive(&self) -> bool {
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(waitid(WaitId::Pid(self.child), ended), Ok(None))
    }

    /// Launches and waits. Takes about a millisecond; see [`Launcher::begin`] for not waiting.
    pub fn launch(&self, plan: &LaunchPlan, pipe: OwnedFd) -> Result<Launched, LaunchError> {
        self.begin(plan, pipe)?.finish()
    }

    /// Asks for a sandbox with `pipe` as its agent's pipe, and does not wait for the answer.
    pub fn begin(&self, plan: &LaunchPlan, pipe: OwnedFd) -> Result<Pending, LaunchError> {
        self.ask(plan, pipe)
    }

    /// The same of a launcher that was started without namespaces. What comes back is the warden's
    /// process: it ends, and everything with it, when it is sent SIGTERM.
    pub fn begin_bare(&self, plan: &BarePlan, pipe: OwnedFd) -> Result<Pending, LaunchError> {
        self.ask(plan, pipe)
    }

    fn ask(&self, plan: &impl Serialize, pipe: OwnedFd) -> Result<Pending, LaunchError> {
        let text = serde_json::to_vec(plan).map_err(LaunchError::Answer)?;
        if text.len() > MESSAGE_LIMIT {
            return Err(LaunchError::TooLarge { size: text.len(), limit: MESSAGE_LIMIT });
        }
        let (ours, theirs) = wire::packet_pair().map_err(launcher_gone)?;
        let control = self.control.as_ref().ok_or_else(|| launcher_gone(Errno::PIPE))?;
        // Made here, where the host's network namespace still is.
        let host = SocketDiag::open().ok();
        let mut fds = vec![pipe.as_fd(), theirs.as_fd()];
        fds.extend(host.as_ref().map(AsFd::as_fd));
        wire::send_message(control, &text, &fds).map_err(launcher_gone)?;
        Ok(Pending { reply: ours, pid: 0, pidfd: None, walls: None, over: false })
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        drop(self.control.take());
        // The launcher ends what it launched before it ends itself; waiting proves both.
        while matches!(waitpid(Some(self.child), WaitOptions::empty()), Err(Errno::INTR)) {}
    }
}

/// A launch under way. Its descriptor becomes readable when there is news; dropping it before the end gives
/// the launch up, and waits until nothing of it is left (C-32): before its agent has its name, no search by
/// name would find it.
#[derive(Debug)]
pub struct Pending {
    reply: OwnedFd,
    pid: u32,
    pidfd: Option<OwnedFd>,
    walls: Option<Vec<Proof>>,
    /// Whether there is nothing left to give up.
    over: bool,
}

impl AsFd for Pending {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reply.as_fd()
    }
}

impl Pending {
    /// Waits for the end, at most ten seconds: a building that takes longer hangs on something, such
    /// as a dead network file system.
    pub fn finish(mut self) -> Result<Launched, LaunchError> {
        let deadline = Instant::now() + LAUNCH_TIMEOUT;
        loop {
            // The end alone is waited for; by then all news has come.
            wait_for(&self.reply, PollFlags::RDHUP, deadline)?;
            if let Some(launched) = self.try_finish()? {
                return Ok(launched);
            }
        }
    }

    /// Takes what news there is and does not wait; nothing while the walls are still being built.
    pub fn try_finish(&mut self) -> Result<Option<Launched>, LaunchError> {
        loop {
            match wire::receive_message(&self.reply, RecvFlags::DONTWAIT) {
                Ok(Some(message)) => self.take(message)?,
                Ok(None) => return self.finish_launch().map(Some),
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(launcher_gone(errno)),
            }
        }
    }

    fn take(&mut self, message: Message) -> Result<(), LaunchError> {
        match serde_json::from_slice(&message.text).map_err(LaunchError::Answer)? {
            LaunchReply::Begun { pid } => {
                self.pid = pid;
                self.pidfd = message.fds.into_iter().next();
                Ok(())
            }
            LaunchReply::Proved(walls) => {
                self.walls = Some(walls);
                Ok(())
            }
            LaunchReply::Failed(failure) => Err(LaunchError::Failed(failure)),
        }
    }

    /// The socket's last holder is gone: replaced by the agent if it had proved its walls.
    fn finish_launch(&mut self) -> Result<Launched, LaunchError> {
        let Some(walls) = self.walls.take() else { return Err(self.cut_short()) };
        let pidfd = self.pidfd.take().ok_or_else(|| launcher_gone(Errno::PIPE))?;
        self.over = true;
        Ok(Launched { pid: self.pid, pidfd, walls })
    }

    /// Why there is no proof: the launcher went before there was a process, or the process itself did.
    fn cut_short(&self) -> LaunchError {
        let detail = "the process ended while building";
        match self.pidfd {
            None => launcher_gone(Errno::PIPE),
            Some(_) => LaunchError::Failed(Failure::without_errno(Wall::Namespaces, detail)),
        }
    }

    /// Ends the process, once it is known, and waits for the end of all who build with it.
    fn give_up(&mut self) -> Result<(), LaunchError> {
        let deadline = Instant::now() + CANCEL_TIMEOUT;
        while self.pidfd.is_none() {
            wait_for(&self.reply, PollFlags::IN, deadline)?;
            match wire::receive_message(&self.reply, RecvFlags::DONTWAIT).map_err(launcher_gone)? {
                Some(message) => self.take(message)?,
                None => return Ok(()),
            }
        }
        if let Some(pidfd) = &self.pidfd {
            // Gone already, if it failed by itself.
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
            wait_for(pidfd, PollFlags::IN, deadline)?;
        }
        wait_for(&self.reply, PollFlags::RDHUP, deadline)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.over {
            // An error is ignored: the caller destroys the sandbox next, and finds what may be left.
            let _ = self.give_up();
        }
    }
}

/// Waits until a descriptor is ready.
fn wait_for(fd: impl AsFd, what: PollFlags, deadline: Instant) -> Result<(), LaunchError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(|_| launcher_gone(Errno::INVAL))?;
        match poll(&mut [PollFd::new(&fd, what)], Some(&timeout)) {
            Ok(0) => return Err(too_long()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(launcher_gone(errno)),
            Ok(_) => return Ok(()),
        }
    }
}

fn too_long() -> LaunchError {
    let detail = format!("the walls were not built within {} s", LAUNCH_TIMEOUT.as_secs());
    LaunchError::Failed(Failure::new(Wall::Request, Errno::TIMEDOUT, detail))
}

fn launcher_gone(errno: Errno) -> LaunchError {
    LaunchError::Gone(errno.into())
}

/// In the child, before execution: puts the two descriptors where the launcher expects them.
fn hand_over(control: RawFd, agent: RawFd) -> io::Result<()> {
    rustix::process::setsid()?;
    let (control, agent) = (out_of_the_way(control)?, out_of_the_way(agent)?);
    sys::close_from(3, false)?;
    sys::duplicate_onto(control, CONTROL_FD, false)?;
    sys::duplicate_onto(agent, AGENT_FD, false)?;
    Ok(())
}

/// A copy far above the numbers that are about to be overwritten.
fn out_of_the_way(fd: RawFd) -> io::Result<RawFd> {
    // SAFETY: the descriptor is open here: it belongs to the caller of `start`, which is waiting.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 64) };
    if copy < 0 { Err(io::Error::last_os_error()) } else { Ok(copy) }
}
