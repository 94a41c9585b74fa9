//! A program and the connection it was started over. The program ends with the connection, unless it was
//! detached (C-15).

use bytes::Bytes;
use stockade_core::{Command, Signal};
use stockade_engine::{Execution, OutputEvent, Subscription, Watcher};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

use super::session::ClientSession;
use crate::daemon::frame::{self, SupervisorFrameError};
use crate::daemon::message::{ProgramRequest, SupervisorReply, SupervisorRequest};

/// What is to be done to a program's input.
enum QueuedInput {
    Data(Bytes),
    End,
}

/// Starts a program and stays with it to its end.
pub async fn serve_exec(
    mut session: ClientSession,
    command: Command,
    detach: bool,
) -> Result<(), SupervisorFrameError> {
    let (execution, follower) = match session.host.exec(command).await {
        Ok(started) => started,
        Err(error) => return session.fail(&error).await,
    };
    let started = started_reply(&execution);
    if detach {
        execution.detach();
        return session.reply(&started).await;
    }
    session.reply(&started).await?;
    serve_client(&mut session, execution, follower).await
}

/// What is said about a program before its events.
pub fn started_reply(program: &Watcher) -> SupervisorReply {
    SupervisorReply::Started {
        job: program.job().clone(),
        backend: program.backend().clone(),
        boundary: program.boundary(),
    }
}

async fn serve_client(
    session: &mut ClientSession,
    execution: Execution,
    follower: Subscription,
) -> Result<(), SupervisorFrameError> {
    // One piece may be on its way to the program; the next is due when that was taken.
    let (input, pieces) = mpsc::channel(2);
    let (taken, mut acknowledged) = mpsc::channel(2);
    tokio::select! {
        result = receive_requests(&mut session.reader, &execution, input) => result,
        result = send_events(&mut session.writer, follower, &mut acknowledged) => result,
        () = feed_queued_input(&execution, pieces, taken) => Ok(()),
    }
}

/// Does what the client says, until it goes away.
async fn receive_requests(
    reader: &mut OwnedReadHalf,
    execution: &Watcher,
    input: mpsc::Sender<QueuedInput>,
) -> Result<(), SupervisorFrameError> {
    while let Some((request, payload)) = frame::receive_frame(reader).await? {
        let SupervisorRequest::Program(request) = request else {
            return Err(SupervisorFrameError::Closed);
        };
        // What a program does not take any more has no effect, as after any end.
        match request {
            ProgramRequest::Stdin => queue_input(&input, QueuedInput::Data(payload))?,
            ProgramRequest::StdinEnd => queue_input(&input, QueuedInput::End)?,
            ProgramRequest::Signal { number } => drop(execution.signal(Signal(number)).await),
            ProgramRequest::Resize { size } => drop(execution.resize(size).await),
            ProgramRequest::Cancel => execution.cancel(),
        }
    }
    Ok(())
}

/// A client that sends before it is told to is not waited for: its signals would wait with it.
fn queue_input(
    input: &mpsc::Sender<QueuedInput>,
    piece: QueuedInput,
) -> Result<(), SupervisorFrameError> {
    input.try_send(piece).map_err(|_| SupervisorFrameError::Closed)
}

async fn feed_queued_input(
    execution: &Watcher,
    mut pieces: mpsc::Receiver<QueuedInput>,
    taken: mpsc::Sender<()>,
) {
    while let Some(piece) = pieces.recv().await {
        match piece {
            QueuedInput::Data(data) => {
                let _ = execution.write_stdin(data).await;
                if taken.send(()).await.is_err() {
                    break;
                }
            }
            QueuedInput::End => drop(execution.close_stdin().await),
        }
    }
    std::future::pending().await
}

/// Tells the client what the program does, to its end.
async fn send_events(
    writer: &mut OwnedWriteHalf,
    mut follower: Subscription,
    taken: &mut mpsc::Receiver<()>,
) -> Result<(), SupervisorFrameError> {
    loop {
        tokio::select! {
            event = follower.next() => {
                let Some(event) = event else { return Ok(()) };
                send_event(writer, event).await?;
            }
            Some(()) = taken.recv() => frame::send_frame(writer, &SupervisorReply::Taken, &[]).await?,
        }
    }
}

/// Sends one event, in pieces that fit a frame.
pub async fn send_event(
    writer: &mut OwnedWriteHalf,
    event: OutputEvent,
) -> Result<(), SupervisorFrameError> {
    match event {
        OutputEvent::Output { seq, stream, data } => {
            for piece in data.chunks(frame::MAX_PAYLOAD) {
                frame::send_frame(writer, &SupervisorReply::Output { seq, stream }, piece).await?;
            }
            Ok(())
        }
        OutputEvent::Gap { events, bytes } => {
            frame::send_frame(writer, &SupervisorReply::Gap { events, bytes }, &[]).await
        }
        OutputEvent::End(outcome) => {
            frame::send_frame(writer, &SupervisorReply::End(Box::new(outcome)), &[]).await
        }
    }
}
