//! Plain child processes: started, read and killed, each by itself and none of its descendants.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::{Bytes as Data, BytesMut};
use rustix::process::{Pid, kill_process};
use stockade_core::{
    Command, Error, ErrorCode, ExitStatus, Process, ProcessControl, ProcessEvent, ProcessEvents,
    Result, Signal, StartFailure, StreamId, TerminalSize,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin};
use tokio::sync::{mpsc, watch};

/// Size of one read from an output pipe.
const READ_CHUNK_BYTES: usize = 64 << 10;
/// Events that wait for a reader before the pipe is no longer read.
const EVENT_QUEUE_LENGTH: usize = 16;

/// The children of one sandbox.
#[derive(Default)]
pub(super) struct Children(Mutex<Vec<Arc<PlainControl>>>);

impl Children {
    fn all(&self) -> Vec<Arc<PlainControl>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) async fn spawn(&self, command: &Command, dir: &Path) -> Result<Process> {
        let mut child = match spawn_child(command, dir) {
            Ok(child) => child,
            Err(failure) => return Ok(never_started(failure)),
        };
        let (events, events_out) = mpsc::channel(EVENT_QUEUE_LENGTH);
        let (ended, ended_out) = watch::channel(false);
        let control = Arc::new(PlainControl {
            pid: child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)),
            stdin: tokio::sync::Mutex::new(child.stdin.take()),
            ended: ended_out,
        });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&control));
        tokio::spawn(watch_over(child, events, ended));
        Ok(Process { events: Box::new(PlainEvents(events_out)), control })
    }

    pub(super) fn signal_all(&self, signal: rustix::process::Signal) {
        self.all().iter().for_each(|child| child.send_signal(signal));
    }

    pub(super) async fn kill_all(&self) -> Result<()> {
        for child in self.all() {
            child.kill().await?;
            // The channel closes with the task that waits for the child, which is as good.
            let _ = child.ended.clone().wait_for(|ended| *ended).await;
        }
        Ok(())
    }
}

fn spawn_child(command: &Command, dir: &Path) -> std::result::Result<Child, StartFailure> {
    if !dir.is_dir() {
        return Err(StartFailure::BadDirectory(format!("`{}` is no directory", dir.display())));
    }
    let argv = command.argv();
    let name = argv.first().map_or("", String::as_str);
    // Resolved here: the standard library would look relative programs up from its own directory.
    let program = if name.contains('/') { dir.join(name) } else { name.into() };
    let mut plain = tokio::process::Command::new(program);
    plain.args(&argv[1..]).current_dir(dir).kill_on_drop(true);
    plain.envs(command.env.iter().map(|(name, value)| (name.as_str(), value)));
    let stdin =
        if command.stdin == stockade_core::Stdin::None { Stdio::null() } else { Stdio::piped() };
    plain.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    plain.spawn().map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            return StartFailure::NotFound(format!("there is no `{name}`"));
        }
        StartFailure::NotExecutable(format!("`{name}`: {error}"))
    })
}

fn never_started(failure: StartFailure) -> Process {
    let (events, events_out) = mpsc::channel(1);
    let (_, ended) = watch::channel(true);
    let _ = events.try_send(ProcessEvent::Exit(ExitStatus::StartFailed(failure).into()));
    let control = PlainControl { pid: None, stdin: tokio::sync::Mutex::new(None), ended };
    Process { events: Box::new(PlainEvents(events_out)), control: Arc::new(control) }
}

/// Passes output on until both streams end, then the exit.
async fn watch_over(
    mut child: Child,
    events: mpsc::Sender<ProcessEvent>,
    ended: watch::Sender<bool>,
) {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let waiting = async {
        let status = child.wait().await;
        ended.send_replace(true);
        status
    };
    let ((), (), status) = tokio::join!(
        forward_output(stdout, StreamId::Stdout, events.clone()),
        forward_output(stderr, StreamId::Stderr, events.clone()),
        waiting
    );
    let status = match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => ExitStatus::Exited(code),
            (None, Some(signal)) => ExitStatus::Signalled(Signal(signal)),
            (None, None) => ExitStatus::Lost("neither code nor signal".into()),
        },
        Err(error) => ExitStatus::Lost(error.to_string()),
    };
    let _ = events.send(ProcessEvent::Exit(status.into())).await;
}

async fn forward_output(
    stream: Option<impl AsyncRead + Unpin>,
    id: StreamId,
    events: mpsc::Sender<ProcessEvent>,
) {
    let Some(mut stream) = stream else { return };
    loop {
        let mut buffer = BytesMut::with_capacity(READ_CHUNK_BYTES);
        match stream.read_buf(&mut buffer).await {
            Ok(count) if count > 0 => {
                // No reader is left: the pipe closes with the stream.
                if events.send(ProcessEvent::Output(id, buffer.freeze())).await.is_err() {
                    return;
                }
            }
            Ok(_) | Err(_) => return,
        }
    }
}

struct PlainEvents(mpsc::Receiver<ProcessEvent>);

#[async_trait]
impl ProcessEvents for PlainEvents {
    async fn next(&mut self) -> Option<ProcessEvent> {
        self.0.recv().await
    }
}

pub(super) struct PlainControl {
    pid: Option<Pid>,
    stdin: tokio::sync::Mutex<Option<ChildStdin>>,
    ended: watch::Receiver<bool>,
}

impl PlainControl {
    fn send_signal(&self, signal: rustix::process::Signal) {
        if let (Some(pid), false) = (self.pid, *self.ended.borrow()) {
            // It may end at the same moment; then there is nothing to signal.
            let _ = kill_process(pid, signal);
        }
    }
}

#[async_trait]
impl ProcessControl for PlainControl {
    async fn kill(&self) -> Result<()> {
        self.send_signal(rustix::process::Signal::KILL);
        Ok(())
    }

    async fn signal(&self, signal: Signal) -> Result<()> {
        if let Some(signal) = rustix::process::Signal::from_named_raw(signal.0) {
            self.send_signal(signal);
        }
        Ok(())
    }

    async fn write_stdin(&self, data: Data) -> Result<()> {
        let mut stdin = self.stdin.lock().await;
        let gone = || Error::new(ErrorCode::Gone, "write to stdin", "it was closed");
        let written = stdin.as_mut().ok_or_else(gone)?.write_all(&data).await;
        written.map_err(|error| gone().source(error))
    }

    async fn close_stdin(&self) -> Result<()> {
        self.stdin.lock().await.take();
        Ok(())
    }

    async fn resize(&self, _size: TerminalSize) -> Result<()> {
        Ok(())
    }
}
