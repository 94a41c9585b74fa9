//! Executions that the peer watches: it counts for them, and what they have changed is
//! brought back before their end is reported.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use stockade_agent::client::{AgentClient, ProgramPid};
use stockade_core::{
    CarriedProgram, EffectiveLimits, Error, ErrorCode, Exit, ExitStatus, Process, ProcessControl,
    ProcessEvent, ProcessEvents, Result, SandboxId,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::connection::PeerLink;
use super::workspace_sync::WorkspaceSync;
use super::{HANDSHAKE_TIMEOUT, PeerConnection, lock};
use crate::agent_sandbox::{BegunExecution, Monitor, StartedProgram};
use crate::linux::control_layer::{ControlLayer, LayeredControl};
use crate::peer::guest::Identity;
use crate::peer::protocol::{ExitHint, PeerEvent, RemoteRequest};

/// The last numbers that were used: none is used twice, by copies neither.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct UsedNumbers {
    /// Whose they are.
    pub of: SandboxId,
    pub channels: u32,
    pub executions: u32,
    /// The programs that run, as far as they are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub running: Vec<RunningProgram>,
}

/// A program that runs, for copies of its sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RunningProgram {
    pub channel: u32,
    pub execution: u32,
    /// Its arguments, for people: cut where they are long.
    pub command: Vec<String>,
}

/// The most programs that are carried over to a copy. With more no state is captured: they would go on uncounted.
const MAX_CARRIED: usize = 32;
/// How much is kept of the arguments of one: what is said about a machine has to stay short.
const MAX_COMMAND_BYTES: usize = 400;

fn check_carried_count(running: usize) -> Result<()> {
    if running <= MAX_CARRIED {
        return Ok(());
    }
    let message = format!("{running} programs run in it, and {MAX_CARRIED} can go on in a copy");
    Err(Error::new(ErrorCode::Unsupported, "snapshot", message)
        .remedy("end some of them first, or take a snapshot of the files alone"))
}

/// The arguments without what a terminal would obey, cut where they are long.
fn shorten_command(command: &[String]) -> Vec<String> {
    let mut room = MAX_COMMAND_BYTES;
    let mut kept = Vec::new();
    for argument in command {
        let plain = argument.chars().filter(|c| !c.is_control());
        let cut: String = plain
            .take_while(|c| {
                let fits = c.len_utf8() < room;
                room = room.saturating_sub(c.len_utf8());
                fits
            })
            .collect();
        kept.push(cut);
        // Each takes some room, an empty one too.
        room = room.saturating_sub(8);
        if room == 0 {
            break;
        }
    }
    kept
}

impl UsedNumbers {
    /// The programs that a copy takes over. What a snapshot says about them is input: bounded, cleaned, and
    /// none with a number that was never used.
    pub fn carried_programs(&self) -> Vec<RunningProgram> {
        let mut found: Vec<RunningProgram> = Vec::new();
        for program in self.running.iter().take(MAX_CARRIED) {
            let used = (1..=self.channels).contains(&program.channel)
                && program.execution < self.executions;
            let twice = found.iter().any(|other| {
                other.channel == program.channel || other.execution == program.execution
            });
            if used && !twice {
                let command = shorten_command(&program.command);
                found.push(RunningProgram { command, ..program.clone() });
            }
        }
        found
    }
}

/// The programs that run, by the numbers of their executions.
type RunningPrograms = Arc<Mutex<BTreeMap<u32, RunningProgram>>>;

/// The executions of one sandbox.
pub(crate) struct FarExecutions {
    id: SandboxId,
    sync: Arc<WorkspaceSync>,
    client: Arc<AgentClient>,
    last: AtomicU32,
    running: RunningPrograms,
    /// Programs that went on when this was made of a copy, until a caller takes them.
    carried: Mutex<Vec<CarriedProgram>>,
}

impl FarExecutions {
    pub fn new(
        id: &SandboxId,
        sync: &Arc<WorkspaceSync>,
        client: &Arc<AgentClient>,
        used: u32,
    ) -> Arc<Self> {
        Arc::new(Self {
            id: id.clone(),
            sync: Arc::clone(sync),
            client: Arc::clone(client),
            last: AtomicU32::new(used),
            running: RunningPrograms::default(),
            carried: Mutex::default(),
        })
    }

    /// Watches programs that went on, until a caller takes them.
    pub fn carry_programs(&self, programs: Vec<(RunningProgram, Process)>) {
        let carried = programs.into_iter().map(|(program, process)| {
            let command = program.command.clone();
            self.sync.link().expect_execution(program.execution);
            let watched = self.watch_execution(program.execution);
            CarriedProgram { command, process: watched.wrap_process(program, process) }
        });
        lock(&self.carried).extend(carried);
    }

    fn watch_execution(&self, execution: u32) -> WatchedExecution {
        let (sync, running) = (Arc::clone(&self.sync), Arc::clone(&self.running));
        WatchedExecution { sync, running, execution, over: false }
    }

    /// What was used up so far. Refused where more programs run than a copy takes over.
    pub fn numbers(&self) -> Result<UsedNumbers> {
        let executions = self.last.load(Ordering::Relaxed);
        // One that has ended as far as is known here is nothing to a copy.
        let running = lock(&self.running);
        let goes_on = running.values().filter(|program| self.client.is_running(program.channel));
        let running: Vec<_> = goes_on.cloned().collect();
        check_carried_count(running.len())?;
        Ok(UsedNumbers {
            of: self.id.clone(),
            channels: self.client.last_channel(),
            executions,
            running,
        })
    }

    /// Reconnects to a restored machine, whose state is that of when `used` numbers had been used. Executions of that
    /// time continue; later ones are gone.
    pub async fn go_back(
        &self,
        connection: PeerConnection,
        identity: Identity,
        used: UsedNumbers,
    ) -> Result<()> {
        self.sync.push_changes().await?;
        // The turn is held during the switch: a task that sees an execution end then asks the new machine.
        let before = self.sync.take_turn().await;
        let (link, pipe) = PeerLink::new(before.link().peer().clone(), connection);
        let asked =
            RemoteRequest::Become { identity: Box::new(identity), shared: self.sync.is_shared() };
        link.take_turn().await.ask("restore", &asked, None).await.map(drop)?;
        let own = used.of == self.id;
        link.inherit_controls(before.link(), |execution| own && execution < used.executions);
        let (reader, writer) = tokio::io::split(pipe);
        self.client.go_back(reader, writer, HANDSHAKE_TIMEOUT, (used.channels, own)).await?;
        self.last.fetch_max(used.executions, Ordering::Relaxed);
        self.sync.replace_link(before, link).await
    }
}

#[async_trait]
impl Monitor for FarExecutions {
    async fn begin(&self, limits: &EffectiveLimits) -> Result<Box<dyn BegunExecution>> {
        self.sync.push_changes().await?;
        let execution = self.last.fetch_add(1, Ordering::Relaxed);
        let watch = RemoteRequest::Watch { execution, cpu_time: limits.cpu_time };
        // Dropped before the program has started, it tells the peer that there is none.
        let watched = self.watch_execution(execution);
        self.sync.link().expect_execution(execution);
        // Before the agent hears of it: what is sent first arrives first.
        self.sync.link().send_request(&watch).await?;
        Ok(Box::new(watched))
    }

    async fn push_changes(&self) -> Result<()> {
        self.sync.push_changes().await
    }

    async fn pull_changes(&self) -> Result<()> {
        self.sync.pull_changes().await
    }

    fn take_carried(&self) -> Vec<CarriedProgram> {
        std::mem::take(&mut *lock(&self.carried))
    }
}

impl BegunExecution for WatchedExecution {
    fn watch(self: Box<Self>, started: StartedProgram, process: Process) -> Process {
        let StartedProgram { channel, pid, arguments } = started;
        self.report_start(pid);
        let (execution, command) = (self.execution, shorten_command(&arguments));
        self.wrap_process(RunningProgram { channel, execution, command }, process)
    }
}

/// An execution that the peer watches, until it is told of the end.
struct WatchedExecution {
    sync: Arc<WorkspaceSync>,
    running: RunningPrograms,
    execution: u32,
    over: bool,
}

impl WatchedExecution {
    /// Tells the peer which process it is, once it is one, so that it is told apart from others.
    fn report_start(&self, program: ProgramPid) {
        let (link, execution) = (self.sync.link(), self.execution);
        tokio::spawn(async move {
            if let Some(pid) = program.started().await {
                // A send error is ignored: the caller that waits for a reply reports the lost connection.
                let _ = link.send_request(&RemoteRequest::Started { execution, pid }).await;
            }
        });
    }

    /// A program whose end the peer is told of.
    fn wrap_process(self, program: RunningProgram, process: Process) -> Process {
        let Process { events, control } = process;
        self.sync.link().attach_control(program.execution, &control);
        lock(&self.running).insert(program.execution, program);
        let (over, ended) = watch::channel(false);
        let killed = Arc::<AtomicBool>::default();
        let control = FarControl { inner: control, ended, killed: Arc::clone(&killed) };
        let events = FarEvents { inner: events, watched: self, ending: None, over, killed };
        Process { events: Box::new(events), control: Arc::new(LayeredControl(control)) }
    }

    /// Names the limit that ended it, and brings back what it has changed, before it is reported that it
    /// is over.
    fn report_end(&mut self, exit: Exit) -> JoinHandle<Exit> {
        self.over = true;
        lock(&self.running).remove(&self.execution);
        let (sync, execution) = (Arc::clone(&self.sync), self.execution);
        tokio::spawn(async move {
            let turn = sync.take_turn().await;
            let link = Arc::clone(turn.link());
            if link.is_gone(execution) {
                link.forget_execution(execution);
                return exit;
            }
            let (how, cpu_time) = (ExitHint::of(&exit.status), exit.cpu_time);
            let ask = RemoteRequest::Ended { execution, how, cpu_time };
            let told = sync.ask_in(turn, "take the changes over", &ask).await;
            link.forget_execution(execution);
            let verdict = match told {
                Ok(PeerEvent::Judged(verdict)) => verdict,
                Ok(PeerEvent::Done { .. } | PeerEvent::Failed(_) | PeerEvent::Kill { .. }) => {
                    return lost_exit(exit, "the peer did not report how it ended");
                }
                Err(error) => return lost_exit(exit, error.message()),
            };
            match sync.check_together() {
                // What a program that was ended half-way leaves is told of at the end.
                Err(error) if verdict.limit.is_none() => lost_exit(exit, error.message()),
                Ok(()) | Err(_) => verdict.over(exit),
            }
        })
    }
}

/// The exit of a program whose changes were not brought back: for its caller it is lost, not finished.
fn lost_exit(exit: Exit, why: &str) -> Exit {
    let status = match &exit.status {
        ExitStatus::Exited(code) => ExitStatus::Lost(format!("{why}; it had exited with {code}")),
        ExitStatus::Signalled(signal) => {
            ExitStatus::Lost(format!("{why}; it had ended by {}", signal.name()))
        }
        ExitStatus::StartFailed(_) | ExitStatus::LimitExceeded(_) => exit.status.clone(),
        ExitStatus::Lost(_) => ExitStatus::Lost(why.to_owned()),
    };
    Exit { status, ..exit }
}

impl Drop for WatchedExecution {
    fn drop(&mut self) {
        if !self.over && tokio::runtime::Handle::try_current().is_ok() {
            drop(self.report_end(ExitStatus::Lost(String::new()).into()));
        }
    }
}

struct FarEvents {
    inner: Box<dyn ProcessEvents>,
    watched: WatchedExecution,
    ending: Option<JoinHandle<Exit>>,
    /// Says that only the changes are waited for.
    over: watch::Sender<bool>,
    /// Whether it was ended from here: then its exit status means nothing.
    killed: Arc<AtomicBool>,
}

#[async_trait]
impl ProcessEvents for FarEvents {
    async fn next(&mut self) -> Option<ProcessEvent> {
        if self.ending.is_none() {
            match self.inner.next().await {
                Some(ProcessEvent::Exit(exit)) => {
                    self.over.send_replace(true);
                    self.ending = Some(self.watched.report_end(exit));
                }
                other => return other,
            }
        }
        let exit = self.ending.as_mut()?.await;
        self.ending = None;
        let exit = exit.unwrap_or_else(|error| ExitStatus::Lost(error.to_string()).into());
        let killed = self.killed.load(Ordering::Relaxed);
        if matches!(exit.status, ExitStatus::Lost(_)) && !killed {
            self.watched.sync.mark_told();
        }
        Some(ProcessEvent::Exit(exit))
    }
}

/// The agent's control of an execution, and whether it is over.
struct FarControl {
    inner: Arc<dyn ProcessControl>,
    ended: watch::Receiver<bool>,
    killed: Arc<AtomicBool>,
}

#[async_trait]
impl ControlLayer for FarControl {
    fn inner(&self) -> &dyn ProcessControl {
        self.inner.as_ref()
    }

    async fn kill(&self) -> Result<()> {
        self.killed.store(true, Ordering::Relaxed);
        self.inner.kill().await
    }

    /// Bringing back what it has changed is not its time.
    async fn ended(&self) {
        // An error means that the watching task is gone: then it is over too.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_program(channel: u32, execution: u32, command: &[&str]) -> RunningProgram {
        let command = command.iter().map(|argument| (*argument).to_owned()).collect();
        RunningProgram { channel, execution, command }
    }

    #[test]
    fn more_programs_than_a_copy_takes_over_are_not_captured() {
        check_carried_count(MAX_CARRIED).unwrap();
        let refused = check_carried_count(MAX_CARRIED + 1).unwrap_err();
        assert!(refused.hint().is_some(), "{refused}");
    }

    #[test]
    fn what_a_snapshot_says_about_programs_is_bounded_and_cleaned() {
        let long = "\u{1b}[31m\"".repeat(1000);
        let mut running = vec![
            test_program(2, 0, &["sh", "\u{1b}]0;title\u{7}"]),
            test_program(2, 1, &["the same channel"]),
            test_program(9, 1, &["a channel that was never used"]),
            test_program(0, 1, &["none"]),
            test_program(3, 7, &["an execution that there never was"]),
        ];
        let of: SandboxId = "a".parse().unwrap();
        let numbers =
            UsedNumbers { of: of.clone(), channels: 3, executions: 2, running: running.clone() };
        assert_eq!(numbers.carried_programs(), [test_program(2, 0, &["sh", "]0;title"])]);
        running = (1..=200).map(|at| test_program(at, at, &[&long, "", &long])).collect();
        let numbers = UsedNumbers { of, channels: 200, executions: 201, running };
        let carried = numbers.carried_programs();
        assert_eq!(carried.len(), MAX_CARRIED);
        let json = serde_json::to_vec(&carried).unwrap();
        assert!(json.len() < 48 << 10, "{}", json.len());
    }
}
