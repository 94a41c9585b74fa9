//! One program in a sandbox of a daemon: its events come over a connection that it ends with, its input goes over
//! another, and what else is told to it is a request each.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes as Data;
use hyper::body::{Body, Frame};
use serde::Deserialize;
use serde_json::json;
use stockade_core::{
    Bytes, Command, EffectiveLimits, Ending, ErrorCode, Exit, ExitStatus, JobId, LimitKind,
    Outcome, Process, ProcessControl, ProcessEvent, ProcessEvents, Result, Signal, Span,
    StartFailure, Stdin, StreamId, TerminalSize, Unsent, clean_foreign,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::client::{DaemonCall, DaemonClient, daemon_error, in_time, protocol_error};
use super::sandbox::DaemonPause;
use super::sse::{SseEvent, SseFault, SseReader};
use crate::linux::lock;

/// Timeout for starting a program.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for what is told to a program: longer than the daemon's own.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(40);
/// Timeout for the request to end a program, which is not waited for.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of input in one piece.
const INPUT_CHUNK_BYTES: usize = 64 << 10;

#[derive(Deserialize)]
struct StartedExecution {
    id: JobId,
}

/// What a program wrote: text, or bytes that are none.
#[derive(Deserialize)]
struct OutputData {
    text: Option<String>,
    base64: Option<String>,
}

/// Output of a program that was being ended, which came too fast.
#[derive(Deserialize)]
struct MissedOutput {
    bytes: u64,
}

/// Starts a program in the sandbox at this path.
pub(super) async fn start_process(
    client: &DaemonClient,
    sandbox: &str,
    command: &Command,
    limits: &EffectiveLimits,
    pause: Arc<DaemonPause>,
) -> Result<Process> {
    let body = serde_json::to_value(command).map_err(|error| {
        daemon_error(ErrorCode::Invalid, "spawn", "the command cannot be written").source(error)
    })?;
    let (job, stream) = in_time("spawn", START_TIMEOUT, async {
        let call = DaemonCall::post("spawn", format!("{sandbox}/attached")).json(&body);
        let mut stream = client.open_stream(call.within(START_TIMEOUT)).await?;
        Ok((read_job(&mut stream).await?, stream))
    })
    .await?;
    let path = format!("/v1/executions/{job}");
    let ended = Arc::new(AtomicBool::new(false));
    let refused = Arc::new(OnceLock::new());
    let input = (command.stdin != Stdin::None)
        .then(|| InputPipe::open(client.clone(), path.clone(), Arc::clone(&refused)));
    let (unsent, fuel) = (Unsent::default(), limits.fuel);
    let (ended_too, exit) = (Arc::clone(&ended), None);
    let events =
        DaemonProcessEvents { stream, ended: ended_too, exit, unsent, fuel, refused, pause };
    let control = DaemonProcessControl { client: client.clone(), path, ended, input };
    Ok(Process { events: Box::new(events), control: Arc::new(control) })
}

async fn read_job(stream: &mut SseReader) -> Result<JobId> {
    let failed = |fault| protocol_error("spawn", "it tells of no execution").source(fault);
    let event = stream.next().await.map_err(failed)?;
    match event.kind.as_str() {
        "started" => Ok(event.read::<StartedExecution>().map_err(failed)?.id),
        _ => Err(protocol_error("spawn", "it tells of something else than an execution")),
    }
}

/// Why a daemon did not take the input of a program, if it did not.
type RefusedInput = Arc<OnceLock<String>>;

/// What a program does. Dropped before its end, the daemon kills it.
struct DaemonProcessEvents {
    stream: SseReader,
    ended: Arc<AtomicBool>,
    /// Its exit, until that is told.
    exit: Option<Exit>,
    unsent: Unsent,
    /// The limit of instructions, above which no count is believed.
    fuel: Option<u64>,
    refused: RefusedInput,
    /// Whether its sandbox is paused, which its end may change.
    pause: Arc<DaemonPause>,
}

impl DaemonProcessEvents {
    /// What an event means; nothing if it is none of the program's.
    fn translate(&mut self, event: &SseEvent) -> Result<Option<ProcessEvent>, SseFault> {
        Ok(match event.kind.as_str() {
            "stdout" => Some(ProcessEvent::Output(StreamId::Stdout, read_output(event)?)),
            "stderr" => Some(ProcessEvent::Output(StreamId::Stderr, read_output(event)?)),
            "gap" => {
                let MissedOutput { bytes } = event.read()?;
                self.unsent.stdout = self.unsent.stdout.saturating_add(bytes);
                None
            }
            "exit" => Some(ProcessEvent::Exit(self.read_exit(event.read()?))),
            _ => None,
        })
    }

    /// How it ended. The daemon drops output beyond the same cap as this side, and counts it.
    fn read_exit(&self, outcome: Outcome) -> Exit {
        let usage = outcome.usage;
        let fuel = usage.fuel.filter(|used| self.fuel.is_some_and(|most| *used <= most));
        let Unsent { stdout, stderr } = self.unsent;
        Exit {
            status: match self.refused.get() {
                Some(reason) => ExitStatus::Lost(format!("the daemon refused its input: {reason}")),
                None => read_ending(outcome.ending),
            },
            cpu_time: usage.cpu_ms.map(Span::millis),
            peak_memory: usage.peak_memory_bytes.map(Bytes),
            fuel,
            unsent: Unsent {
                stdout: stdout.saturating_add(outcome.stdout.dropped),
                stderr: stderr.saturating_add(outcome.stderr.dropped),
            },
            limits_reached: take_distinct(outcome.limits_reached),
            network_unreachable: outcome.network_unreachable,
        }
    }
}

#[async_trait]
impl ProcessEvents for DaemonProcessEvents {
    async fn next(&mut self) -> Option<ProcessEvent> {
        if self.ended.load(Ordering::SeqCst) {
            return None;
        }
        while self.exit.is_none() {
            let event = self.stream.next().await;
            match event.and_then(|event| self.translate(&event)) {
                Ok(Some(ProcessEvent::Exit(exit))) => self.exit = Some(exit),
                Ok(Some(output)) => return Some(output),
                Ok(None) => {}
                Err(fault) => self.exit = Some(ExitStatus::Lost(fault.to_string()).into()),
            }
        }
        self.pause.ask_after_exit().await;
        self.ended.store(true, Ordering::SeqCst);
        self.exit.take().map(ProcessEvent::Exit)
    }
}

fn read_output(event: &SseEvent) -> Result<Data, SseFault> {
    match event.read()? {
        OutputData { text: Some(text), base64: None } => Ok(text.into()),
        OutputData { text: None, base64: Some(bytes) } => {
            BASE64_STANDARD.decode(bytes).map(Data::from).map_err(|_| SseFault::NotAnEvent)
        }
        OutputData { .. } => Err(SseFault::NotAnEvent),
    }
}

fn read_ending(ending: Ending) -> ExitStatus {
    match ending {
        Ending::Exited(code) => ExitStatus::Exited(code),
        Ending::Signalled(signal) => ExitStatus::Signalled(signal),
        Ending::StartFailed(failure) => ExitStatus::StartFailed(clean_failure(failure)),
        Ending::LimitExceeded(limit) => ExitStatus::LimitExceeded(limit),
        // Both sides hold it to the same time, and the daemon's begins a moment earlier.
        Ending::TimedOut => ExitStatus::LimitExceeded(LimitKind::WallTime),
        Ending::Cancelled => ExitStatus::Signalled(Signal::KILL),
        Ending::Killed => ExitStatus::Lost("its sandbox was ended on the daemon's side".into()),
        Ending::Refused(reason) => {
            ExitStatus::StartFailed(StartFailure::NoResources(clean_foreign(&reason)))
        }
        Ending::Lost(reason) => ExitStatus::Lost(clean_foreign(&reason)),
    }
}

fn clean_failure(failure: StartFailure) -> StartFailure {
    let detail = clean_foreign(failure.detail());
    match failure {
        StartFailure::NotFound(_) => StartFailure::NotFound(detail),
        StartFailure::NotExecutable(_) => StartFailure::NotExecutable(detail),
        StartFailure::BadDirectory(_) => StartFailure::BadDirectory(detail),
        StartFailure::NoResources(_) => StartFailure::NoResources(detail),
        StartFailure::NoSandbox(_) => StartFailure::NoSandbox(detail),
    }
}

/// Each limit once, however often it is told.
fn take_distinct(told: Vec<LimitKind>) -> Vec<LimitKind> {
    LimitKind::ALL.into_iter().filter(|kind| told.contains(kind)).collect()
}

/// How to influence a program.
struct DaemonProcessControl {
    client: DaemonClient,
    /// Where it is in the API.
    path: String,
    ended: Arc<AtomicBool>,
    input: Option<InputPipe>,
}

impl DaemonProcessControl {
    /// Tells the program something. One that has ended meanwhile need not hear it.
    async fn tell(&self, call: DaemonCall) -> Result<()> {
        if self.ended.load(Ordering::SeqCst) {
            return Ok(());
        }
        match self.client.ask(call).await {
            Err(_) if self.ended.load(Ordering::SeqCst) => Ok(()),
            told => told.map(drop),
        }
    }

    fn call(&self, operation: &'static str, verb: &str) -> DaemonCall {
        DaemonCall::post(operation, format!("{}/{verb}", self.path)).within(CONTROL_TIMEOUT)
    }
}

#[async_trait]
impl ProcessControl for DaemonProcessControl {
    async fn kill(&self) -> Result<()> {
        self.tell(self.call("kill", "cancel").within(KILL_TIMEOUT)).await
    }

    async fn signal(&self, signal: Signal) -> Result<()> {
        let body = json!({ "signal": signal.name() });
        self.tell(self.call("signal", "signal").json(&body)).await
    }

    async fn write_stdin(&self, data: Data) -> Result<()> {
        if let Some(input) = &self.input {
            input.write(data).await;
        }
        Ok(())
    }

    async fn close_stdin(&self) -> Result<()> {
        if let Some(input) = &self.input {
            input.close();
        }
        Ok(())
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        let body = json!({ "rows": size.rows, "cols": size.cols });
        self.tell(self.call("resize", "resize").json(&body)).await
    }
}

/// The way to a program's input. What a program does not take that has ended, or is not heard of any more, is
/// dropped: its events tell how it ended.
struct InputPipe {
    queue: Mutex<Option<mpsc::Sender<Data>>>,
    task: JoinHandle<()>,
}

impl InputPipe {
    fn open(client: DaemonClient, path: String, refused: RefusedInput) -> Self {
        let (sender, receiver) = mpsc::channel(1);
        let task = tokio::spawn(async move {
            let (stdin, body) = (format!("{path}/stdin"), InputBody(receiver));
            if let Err(error) = client.send_body("write to stdin", stdin, body).await
                && matches!(error.code(), ErrorCode::QuotaExceeded | ErrorCode::Denied)
            {
                // It would wait for its input for ever.
                let _ = refused.set(error.to_string());
                let cancel = DaemonCall::post("kill", format!("{path}/cancel"));
                let _ = client.ask(cancel.within(KILL_TIMEOUT)).await;
            }
        });
        Self { queue: Mutex::new(Some(sender)), task }
    }

    async fn write(&self, mut data: Data) {
        let Some(queue) = lock(&self.queue).clone() else { return };
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(INPUT_CHUNK_BYTES));
            if queue.send(piece).await.is_err() {
                return;
            }
        }
    }

    fn close(&self) {
        lock(&self.queue).take();
    }
}

impl Drop for InputPipe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Input as the body of a request.
struct InputBody(mpsc::Receiver<Data>);

impl Body for InputBody {
    type Data = Data;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Data>, Infallible>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_has_a_status_and_foreign_text_is_cleaned() {
        assert_eq!(read_ending(Ending::Exited(3)), ExitStatus::Exited(3));
        assert_eq!(read_ending(Ending::TimedOut), ExitStatus::LimitExceeded(LimitKind::WallTime));
        let failed = StartFailure::NotFound("a\u{1b}b".into());
        assert_eq!(
            read_ending(Ending::StartFailed(failed)),
            ExitStatus::StartFailed(StartFailure::NotFound("a\u{fffd}b".into()))
        );
        assert_eq!(read_ending(Ending::Lost("a\nb".into())), ExitStatus::Lost("a b".into()));
        assert_eq!(take_distinct(vec![LimitKind::Disk; 9]), [LimitKind::Disk]);
    }
}
