//! One execution as the agent sees it: a keeper, what it reported, and what was told to the engine.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::channel::{Channel, ChannelWork};
use super::keeper::{Keeper, KeeperReport, REPORT_BYTES};
use super::link::Link;
use super::pid_namespace::KeeperNamespace;
use super::program::{ProgramImage, Stdio};
use super::start::open_null;
use super::streams::{InputPump, OutputPump};
use super::sys::{self, Fork};
use super::{Agent, terminal, tree};
use crate::protocol::{End, FromAgent, Size, Spawn, StartKind, Stream};

/// Room for this much output before the writer waits: fewer, larger moves.
const PIPE_SIZE: usize = 256 * 1024;
/// The most of a name that is repeated in a message about it.
const MAX_QUOTED_BYTES: usize = 4096;

/// One execution.
pub struct AgentExecution {
    /// Its keeper, until that was reaped.
    pub keeper: Option<i32>,
    /// Whether everything of it is to be ended.
    pub killing: bool,
    /// Whether the keeper itself signals those it keeps.
    scoped: bool,
    pub report: OwnedFd,
    pub phase: ProgramPhase,
    terminal: Option<OwnedFd>,
    program: String,
    dir: String,
}

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramPhase {
    /// It starts or runs.
    Live,
    /// It ended; output may still be on its way.
    Ended(End, u64, u64),
    /// The end was told.
    Told,
    /// It never ran, and that was told.
    Failed,
}

/// The agent's ends of a program's streams.
struct Ours {
    outputs: [Option<OwnedFd>; 2],
    input: Option<OwnedFd>,
    terminal: Option<OwnedFd>,
}

impl AgentExecution {
    pub fn is_draining(&self) -> bool {
        matches!(self.phase, ProgramPhase::Ended(..))
    }

    /// Whether its exit, or that it never ran, was told.
    pub fn is_end_told(&self) -> bool {
        matches!(self.phase, ProgramPhase::Told | ProgramPhase::Failed)
    }

    /// Tells the end once all output was passed on. Returns whether nothing is left to do.
    pub fn try_finish(
        &mut self,
        number: u32,
        link: &mut Link,
        output_pumps: &[OutputPump; 2],
    ) -> bool {
        if let ProgramPhase::Ended(end, cpu_us, peak_kib) = self.phase
            && output_pumps.iter().all(OutputPump::is_done)
        {
            let unsent = output_pumps.each_ref().map(OutputPump::unsent);
            link.send(&FromAgent::Exited { channel: number, end, cpu_us, peak_kib, unsent });
            self.phase = ProgramPhase::Told;
        }
        self.is_end_told() && self.keeper.is_none()
    }

    /// Deals with what the keeper said since the last time.
    pub fn read_reports(&mut self, number: u32, link: &mut Link) {
        let mut bytes = [0; REPORT_BYTES];
        while let Ok(REPORT_BYTES) = rustix::io::read(&self.report, &mut bytes) {
            match KeeperReport::decode(&bytes) {
                Some(KeeperReport::Started(pid)) => {
                    link.send(&FromAgent::Started(number, pid.unsigned_abs()));
                }
                Some(KeeperReport::Failed(step, errno)) => {
                    let sentence = step.describe_failure(&self.program, &self.dir, errno);
                    let kind = step.failure_kind(errno);
                    link.send(&FromAgent::StartFailed(number, kind, errno, &sentence));
                    self.phase = ProgramPhase::Failed;
                }
                Some(KeeperReport::Exited(status, cpu, peak)) => {
                    self.phase = ProgramPhase::Ended(decode_wait_status(status), cpu, peak);
                }
                None => {}
            }
        }
    }

    /// The keeper is gone, which is told. Returns whether it was killed before its time.
    pub fn keeper_ended(&mut self, number: u32, link: &mut Link, status: i32) -> bool {
        self.read_reports(number, link);
        self.keeper = None;
        self.killing = false;
        if self.phase == ProgramPhase::Live {
            self.phase = ProgramPhase::Ended(End::Lost, 0, 0);
        }
        let lost = decode_wait_status(status) != End::Code(0);
        if lost && self.phase != ProgramPhase::Failed {
            link.send(&FromAgent::KeeperLost(number));
        } else if self.phase != ProgramPhase::Failed {
            link.send(&FromAgent::Ended(number));
        }
        lost
    }

    pub fn resize(&self, size: Size) {
        if let Some(terminal) = &self.terminal {
            // The only failure is a terminal that is gone, which needs no size.
            let _ = terminal::resize_terminal(terminal, size);
        }
    }

    /// Sends a signal to the program and its descendants.
    pub fn signal_tree(&self, number: u8) {
        match self.keeper {
            Some(keeper) if self.scoped => sys::request_signal(keeper, number.into()),
            Some(keeper) => tree::signal_descendants(keeper, number.into()),
            None => {}
        }
    }

    /// Ends all of its processes that can be found now.
    pub fn kill_tree(&self) {
        match self.keeper {
            Some(keeper) if self.scoped => sys::request_signal(keeper, libc::SIGKILL),
            Some(keeper) => {
                tree::kill_descendants(keeper);
                // A keeper that was stopped from inside could not reap.
                sys::send_signal(keeper, libc::SIGCONT);
            }
            None => {}
        }
    }
}

fn decode_wait_status(status: i32) -> End {
    if libc::WIFSIGNALED(status) {
        End::Signal(libc::WTERMSIG(status))
    } else {
        End::Code(libc::WEXITSTATUS(status))
    }
}

impl Agent {
    /// Starts a program, or says why not.
    pub fn spawn(&mut self, number: u32, spawn: &Spawn<'_>) {
        let Some(image) = ProgramImage::new(spawn) else {
            let sentence = "the command names no program";
            return self.refuse_start(number, StartKind::NotFound, libc::EINVAL, sentence);
        };
        match self.start_keeper(spawn, &image) {
            Ok(channel) => {
                self.channels.insert(number, channel);
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                let sentence = format!("there is no room for another process: {error}");
                self.refuse_start(number, StartKind::NoResources, errno, &sentence);
            }
        }
    }

    pub fn refuse_start(&mut self, number: u32, kind: StartKind, errno: i32, sentence: &str) {
        self.link.send(&FromAgent::StartFailed(number, kind, errno, sentence));
    }

    fn start_keeper(&self, spawn: &Spawn<'_>, image: &ProgramImage) -> io::Result<Channel> {
        let (stdio, ours) = open_streams(spawn)?;
        let (report, reports) = pipe_with(PipeFlags::CLOEXEC)?;
        set_nonblocking(&report)?;
        let agent = rustix::process::getpid();
        let surroundings = &self.surroundings;
        let forked = surroundings.apart.map_or_else(sys::fork, KeeperNamespace::fork)?;
        let keeper = match forked {
            Fork::Child => Keeper { image, stdio, surroundings, report: reports, agent }.run(),
            Fork::Parent(pid) => pid,
        };
        let [stdout, stderr] = ours.outputs;
        let mut input_pump = InputPump::new(ours.input, spawn.terminal.is_some());
        if !spawn.stdin {
            input_pump.end();
            input_pump.pump();
        }
        let program = spawn.argv.first().copied().unwrap_or_default();
        let run = AgentExecution {
            keeper: Some(keeper),
            killing: false,
            scoped: self.scope.is_some(),
            report,
            phase: ProgramPhase::Live,
            terminal: ours.terminal,
            program: quote_text(program),
            dir: quote_text(spawn.dir),
        };
        let output_pumps =
            [OutputPump::new(Stream::Stdout, stdout), OutputPump::new(Stream::Stderr, stderr)];
        Ok(Channel { output_pumps, input_pump, work: ChannelWork::Run(run) })
    }
}

fn quote_text(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_QUOTED_BYTES)].to_owned()
}

fn open_streams(spawn: &Spawn<'_>) -> io::Result<(Stdio, Ours)> {
    if let Some(size) = spawn.terminal {
        return open_terminal(size);
    }
    let (stdin, input) = if spawn.stdin {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        set_nonblocking(&ours)?;
        (theirs, Some(ours))
    } else {
        (open_null().or_else(|_| pipe_with(PipeFlags::CLOEXEC).map(|(read, _)| read))?, None)
    };
    let (out, stdout) = output_pipe()?;
    let (err, stderr) = output_pipe()?;
    let ours = Ours { outputs: [Some(out), Some(err)], input, terminal: None };
    Ok((Stdio([stdin, stdout, stderr]), ours))
}

fn open_terminal(size: Size) -> io::Result<(Stdio, Ours)> {
    let (ours, theirs) = terminal::open_terminal(size)?;
    set_nonblocking(&ours)?;
    let stdio = Stdio([theirs.try_clone()?, theirs.try_clone()?, theirs]);
    let input = Some(ours.try_clone()?);
    let terminal = Some(ours.try_clone()?);
    Ok((stdio, Ours { outputs: [Some(ours), None], input, terminal }))
}

/// The agent's end and the program's.
pub fn output_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    set_nonblocking(&ours)?;
    // The user's share of pipe memory may be used up; the usual size works as well.
    let _ = fcntl_setpipe_size(&ours, PIPE_SIZE);
    Ok((ours, theirs))
}

/// Makes reading or writing return rather than wait. Not seen by the other end.
pub fn set_nonblocking(fd: impl AsFd) -> io::Result<()> {
    let fd = fd.as_fd();
    Ok(fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{MAX_DATA, WINDOW_BYTES, split_frame};

    /// A channel whose program has closed its input, with input that waits; `phase`: how far the program has come.
    fn channel_with_waiting_input(phase: ProgramPhase) -> Channel {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (report, _) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        set_nonblocking(&writer).unwrap();
        let mut input_pump = InputPump::new(Some(writer), false);
        for _ in 0..WINDOW_BYTES as usize / MAX_DATA {
            input_pump.push(&[0; MAX_DATA]).unwrap();
        }
        drop(reader);
        let run = AgentExecution {
            keeper: None,
            killing: false,
            scoped: false,
            report,
            phase,
            terminal: None,
            program: String::new(),
            dir: String::new(),
        };
        let output_pumps = [Stream::Stdout, Stream::Stderr].map(|of| OutputPump::new(of, None));
        Channel { output_pumps, input_pump, work: ChannelWork::Run(run) }
    }

    /// Whether credit is given back for input that is thrown away.
    fn gives_credit_back(phase: ProgramPhase) -> bool {
        crate::agent::sys::ignore_broken_pipes();
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut link = Link::new(open_null().unwrap(), write, false);
        channel_with_waiting_input(phase).feed_program(7, &mut link);
        link.flush().unwrap();
        drop(link);
        let mut sent = Vec::new();
        io::Read::read_to_end(&mut std::fs::File::from(read), &mut sent).unwrap();
        let message = split_frame(&sent).unwrap().map(|(body, _)| FromAgent::decode(body).unwrap());
        message == Some(FromAgent::StdinCredit(7, WINDOW_BYTES))
    }

    #[test]
    fn no_credit_for_input_is_given_after_the_end_was_told() {
        assert!(gives_credit_back(ProgramPhase::Live));
        assert!(gives_credit_back(ProgramPhase::Ended(End::Code(0), 0, 0)));
        assert!(!gives_credit_back(ProgramPhase::Told));
        assert!(!gives_credit_back(ProgramPhase::Failed));
    }
}
