//! Processes: the agent's channels as the contract's events and control.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use stockade_core::{
    Command, Error, ErrorCode, Process, ProcessControl, ProcessEvent, ProcessEvents, Result,
    Signal, Stdin, StreamId, TerminalSize,
};

use super::channel::{ChannelKind, ChannelState, ClientChannel, Finish};
use super::mux::{Mux, too_slow};
use crate::protocol::{Limit, Size, Spawn, Stream, ToAgent};

/// How long an agent may take to end everything of an execution.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts a command.
pub async fn spawn_process(
    mux: &Arc<Mux>,
    command: &Command,
    limits: &[(Limit, u64)],
) -> Result<(u32, ProgramPid, Process)> {
    let argv = command.argv();
    let spawn = Spawn {
        argv: argv.iter().map(String::as_str).collect(),
        env: command.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect(),
        dir: command.dir.as_ref().map_or("", |dir| dir.as_str()),
        user: command.user.map(|user| (user.uid, user.gid)),
        stdin: command.stdin != Stdin::None,
        terminal: command.terminal.map(to_size),
        limits: limits.to_vec(),
    };
    if let Some((field, reason)) = command.problem() {
        return Err(Error::new(ErrorCode::Invalid, "spawn", format!("`{field}` {reason}")));
    }
    let (number, channel) =
        mux.open("spawn", ChannelKind::Run, |number| ToAgent::Spawn(number, spawn)).await?;
    let handle = ProcessHandle { mux: mux.clone(), channel, number };
    match &command.stdin {
        Stdin::None => handle.channel.without_input(),
        Stdin::Bytes(bytes) => feed_stdin(handle.clone(), Bytes::from(bytes.clone())),
        Stdin::Stream => {}
    }
    Ok((number, ProgramPid(Arc::clone(&handle.channel)), build_process(handle)))
}

/// Greets a copy of an agent whose last channel this was, and takes over the programs on these.
pub fn carry_over(mux: &Arc<Mux>, last: u32, carried: &[u32]) -> Vec<Process> {
    let channels = mux.greet_copy(last, carried);
    let handle = |(number, channel)| ProcessHandle { mux: mux.clone(), channel, number };
    channels.into_iter().map(|channel| build_process(handle(channel))).collect()
}

fn build_process(handle: ProcessHandle) -> Process {
    let control = Arc::new(AgentControl(handle.clone()));
    Process { events: Box::new(AgentEvents { handle, over: false }), control }
}

/// Sends all input there will be, in the background: the program may read it late or never.
fn feed_stdin(handle: ProcessHandle, data: Bytes) {
    tokio::spawn(async move {
        let ProcessHandle { mux, channel, number } = handle;
        channel.write_input(number, &mux, data).await;
        channel.close_input(number, &mux);
    });
}

fn to_size(size: TerminalSize) -> Size {
    Size { rows: size.rows, cols: size.cols }
}

/// The process number of a program, once it runs. It is the agent's word.
#[derive(Clone)]
pub struct ProgramPid(Arc<ClientChannel>);

impl ProgramPid {
    /// As the sandbox counts; nothing before it runs.
    pub fn get(&self) -> Option<u32> {
        self.0.pid()
    }

    /// Waits until it runs. Nothing, if it never does.
    pub async fn started(&self) -> Option<u32> {
        let known = |state: &mut ChannelState| match state.pid {
            Some(pid) => Some(Some(pid)),
            None => (state.ended || state.finish.is_some()).then_some(None),
        };
        self.0.wait_until(known).await
    }
}

#[derive(Clone)]
struct ProcessHandle {
    mux: Arc<Mux>,
    channel: Arc<ClientChannel>,
    number: u32,
}

struct AgentEvents {
    handle: ProcessHandle,
    over: bool,
}

#[async_trait]
impl ProcessEvents for AgentEvents {
    async fn next(&mut self) -> Option<ProcessEvent> {
        if self.over {
            return None;
        }
        let ProcessHandle { mux, channel, number } = &self.handle;
        match channel.next_output(*number, mux).await {
            Ok((Stream::Stdout, data)) => Some(ProcessEvent::Output(StreamId::Stdout, data)),
            Ok((Stream::Stderr, data)) => Some(ProcessEvent::Output(StreamId::Stderr, data)),
            Err(finish) => {
                self.over = true;
                match finish {
                    Finish::Exit(exit) => Some(ProcessEvent::Exit(exit)),
                    // The reader gives a program no other end.
                    Finish::Entry(_)
                    | Finish::Data(_)
                    | Finish::Done
                    | Finish::Failed(_)
                    | Finish::Closed(_) => None,
                }
            }
        }
    }
}

/// A program whose exit has no reader left is ended (C-15).
impl Drop for AgentEvents {
    fn drop(&mut self) {
        self.handle.channel.abandon_channel(self.handle.number, &self.handle.mux);
    }
}

struct AgentControl(ProcessHandle);

impl AgentControl {
    fn send(&self, message: impl FnOnce(u32) -> ToAgent<'static>) {
        self.0.mux.send(&message(self.0.number));
    }

    async fn is_over(&self) -> bool {
        self.0.channel.wait_until(|state| Some(state.ended)).await
    }
}

#[async_trait]
impl ProcessControl for AgentControl {
    /// Returns once the agent has seen the last process end; does not need the events to be read. An agent
    /// that does not say so in time is an error: the caller then ends the whole sandbox.
    async fn kill(&self) -> Result<()> {
        if !self.is_over().await {
            self.send(ToAgent::Kill);
        }
        let ended = self.0.channel.wait_until(|state| state.ended.then_some(state.lost));
        let ended = tokio::time::timeout(KILL_TIMEOUT, ended).await;
        if ended.map_err(|_| too_slow("kill"))? {
            let message = "the keeper was killed from inside: processes may have got away from it";
            return Err(
                Error::new(ErrorCode::LeftBehind, "kill", message).remedy("destroy the sandbox")
            );
        }
        Ok(())
    }

    async fn signal(&self, signal: Signal) -> Result<()> {
        let number = u8::try_from(signal.0).ok().filter(|number| (1..=64).contains(number));
        let Some(number) = number else {
            let message = format!("there is no signal {}", signal.0);
            return Err(Error::new(ErrorCode::Invalid, "signal", message));
        };
        if !self.is_over().await {
            self.send(|channel| ToAgent::Signal(channel, number));
        }
        Ok(())
    }

    async fn write_stdin(&self, data: Bytes) -> Result<()> {
        let ProcessHandle { mux, channel, number } = &self.0;
        if !channel.takes_input() {
            let message = "its input was closed, or it was started without";
            return Err(Error::new(ErrorCode::Invalid, "write to stdin", message));
        }
        // Input that came too late has no effect, as after the end of any process.
        let _ = channel.write_input(*number, mux, data).await;
        Ok(())
    }

    async fn close_stdin(&self) -> Result<()> {
        self.0.channel.close_input(self.0.number, &self.0.mux);
        Ok(())
    }

    async fn discard_output(&self) {
        if !self.is_over().await {
            self.send(ToAgent::DiscardOutput);
        }
    }

    async fn resize(&self, to: TerminalSize) -> Result<()> {
        if !self.is_over().await {
            self.send(|channel| ToAgent::Resize(channel, to_size(to)));
        }
        Ok(())
    }
}
