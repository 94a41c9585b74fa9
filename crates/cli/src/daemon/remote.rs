//! A program behind a supervisor, as the streaming code sees one: events to read, control to use.

use std::sync::Arc;

use bytes::Bytes;
use stockade_core::{
    BackendName, Boundary, Command, JobId, Result, SandboxId, Signal, TerminalSize,
};
use stockade_engine::OutputEvent;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Semaphore, mpsc};

use super::client::{SupervisorConnection, receive_reply};
use super::frame::{self, SupervisorFrameError};
use super::message::{ProgramRequest, SupervisorReply, SupervisorRequest};
use super::wire_error::{broken_connection_error, out_of_turn};
use crate::terminal::stdio_loop::{ProgramControl, ProgramEvents};

/// Length of the queue to the supervisor, in messages.
const SEND_QUEUE_MESSAGES: usize = 4;

/// What a program behind a supervisor does, in order.
pub struct RemoteEvents {
    reader: OwnedReadHalf,
    operation: &'static str,
    credit: Arc<Semaphore>,
    over: bool,
}

/// How to influence it. Dropping both halves ends it, unless it was detached.
pub struct RemoteControl {
    /// To the task that writes: a caller who gives up half-way must not leave half a frame.
    outbox: mpsc::Sender<(ProgramRequest, Bytes)>,
    operation: &'static str,
    /// One piece of input may be on its way.
    credit: Arc<Semaphore>,
}

/// A program that was started, or whose output is read.
pub struct Remote {
    /// Its record.
    pub job: JobId,
    /// The sandbox it runs in.
    pub sandbox: SandboxId,
    /// Who built its walls.
    pub backend: BackendName,
    /// What stands between it and the host's kernel.
    pub boundary: Boundary,
    /// What it does.
    pub events: RemoteEvents,
    /// How to influence it.
    pub control: RemoteControl,
}

impl Remote {
    /// Starts a program.
    pub async fn exec(
        connection: SupervisorConnection,
        command: Command,
        detach: bool,
    ) -> Result<Self> {
        Self::open(connection, &SupervisorRequest::Exec { command: Box::new(command), detach })
            .await
    }

    /// Reads what a program has written.
    pub async fn logs(
        connection: SupervisorConnection,
        job: Option<JobId>,
        follow: bool,
    ) -> Result<Self> {
        Self::open(connection, &SupervisorRequest::Logs { job, from: 0, follow }).await
    }

    async fn open(
        mut connection: SupervisorConnection,
        request: &SupervisorRequest,
    ) -> Result<Self> {
        let (SupervisorReply::Started { job, backend, boundary }, _) =
            connection.ask(request).await?
        else {
            return Err(out_of_turn(connection.operation));
        };
        let SupervisorConnection { reader, writer, operation, sandbox } = connection;
        let (outbox, letters) = mpsc::channel(SEND_QUEUE_MESSAGES);
        tokio::spawn(write_requests(writer, letters));
        let credit = Arc::new(Semaphore::new(1));
        let control = RemoteControl { outbox, operation, credit: Arc::clone(&credit) };
        let events = RemoteEvents { reader, operation, credit, over: false };
        Ok(Self { job, sandbox, backend, boundary, events, control })
    }
}

impl ProgramEvents for RemoteEvents {
    /// `None` also where there is no more for now, and the request did not ask to wait.
    async fn next(&mut self) -> Result<Option<OutputEvent>> {
        while !self.over {
            let (reply, data) = receive_reply(&mut self.reader, self.operation).await?;
            match reply {
                SupervisorReply::Output { seq, stream } => {
                    return Ok(Some(OutputEvent::Output { seq, stream, data }));
                }
                SupervisorReply::Gap { events, bytes } => {
                    return Ok(Some(OutputEvent::Gap { events, bytes }));
                }
                SupervisorReply::End(outcome) => {
                    self.over = true;
                    return Ok(Some(OutputEvent::End(*outcome)));
                }
                SupervisorReply::SoFar => self.over = true,
                SupervisorReply::Taken => self.credit.add_permits(1),
                SupervisorReply::Hello { .. }
                | SupervisorReply::Info(_)
                | SupervisorReply::Started { .. }
                | SupervisorReply::Entry(_)
                | SupervisorReply::Entries { .. }
                | SupervisorReply::Data
                | SupervisorReply::Snapshot(_)
                | SupervisorReply::Described(_)
                | SupervisorReply::Network(_)
                | SupervisorReply::Done
                | SupervisorReply::Failed(_) => return Err(out_of_turn(self.operation)),
            }
        }
        Ok(None)
    }
}

impl ProgramControl for RemoteControl {
    async fn signal(&self, signal: Signal) -> Result<()> {
        self.send_request(ProgramRequest::Signal { number: signal.0 }, Bytes::new()).await
    }

    async fn write_stdin(&self, mut data: Bytes) -> Result<()> {
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(frame::MAX_PAYLOAD));
            // The semaphore is never closed.
            let _ = self.credit.acquire().await.map(|permit| permit.forget());
            self.send_request(ProgramRequest::Stdin, piece).await?;
        }
        Ok(())
    }

    async fn close_stdin(&self) -> Result<()> {
        self.send_request(ProgramRequest::StdinEnd, Bytes::new()).await
    }

    async fn resize(&self, size: TerminalSize) -> Result<()> {
        self.send_request(ProgramRequest::Resize { size }, Bytes::new()).await
    }
}

impl RemoteControl {
    /// Ends it with everything it started.
    pub async fn cancel(&self) -> Result<()> {
        self.send_request(ProgramRequest::Cancel, Bytes::new()).await
    }

    async fn send_request(&self, request: ProgramRequest, data: Bytes) -> Result<()> {
        let sent = self.outbox.send((request, data)).await;
        sent.map_err(|_| broken_connection_error(self.operation, SupervisorFrameError::Closed))
    }
}

async fn write_requests(
    mut writer: OwnedWriteHalf,
    mut letters: mpsc::Receiver<(ProgramRequest, Bytes)>,
) {
    while let Some((request, data)) = letters.recv().await {
        let request = SupervisorRequest::Program(request);
        if frame::send_frame(&mut writer, &request, &data).await.is_err() {
            return;
        }
    }
}
