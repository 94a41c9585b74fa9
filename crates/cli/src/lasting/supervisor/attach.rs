//! A program and the connection it was started over. Whoever goes away takes it along, unless it was
//! detached (C-15).

use bytes::Bytes;
use stockade_core::{Command, Signal};
use stockade_engine::{Execution, OutputEvent, Subscription, Watcher};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

use super::session::Session;
use crate::lasting::frame::{self, FrameError};
use crate::lasting::message::{Reply, Request};

/// What is to be done to a program's input.
enum Input {
    Data(Bytes),
    End,
}

/// Starts a program and stays with it to its end.
pub async fn exec(mut session: Session, command: Command, detach: bool) -> Result<(), FrameError> {
    let (execution, follower) = match session.host.exec(command).await {
        Ok(started) => started,
        Err(error) => return session.fail(&error).await,
    };
    let started = started(&execution);
    if detach {
        execution.detach();
        return session.reply(&started).await;
    }
    session.reply(&started).await?;
    serve_client(&mut session, execution, follower).await
}

/// What is said about a program before its events.
pub fn started(program: &Watcher) -> Reply {
    Reply::Started {
        job: program.job().clone(),
        backend: program.backend().clone(),
        boundary: program.boundary(),
    }
}

async fn serve_client(
    session: &mut Session,
    execution: Execution,
    follower: Subscription,
) -> Result<(), FrameError> {
    // One piece may be on its way to the program; the next is due when that was taken.
    let (input, pieces) = mpsc::channel(2);
    let (taken, mut acknowledged) = mpsc::channel(2);
    tokio::select! {
        result = receive_requests(&mut session.reader, &execution, input) => result,
        result = send_events(&mut session.writer, follower, &mut acknowledged) => result,
        () = feed(&execution, pieces, taken) => Ok(()),
    }
}

/// Does what the client says, until it goes away.
async fn receive_requests(
    reader: &mut OwnedReadHalf,
    execution: &Watcher,
    input: mpsc::Sender<Input>,
) -> Result<(), FrameError> {
    while let Some((request, payload)) = frame::receive(reader).await? {
        // What a program does not take any more has no effect, as after any end.
        match request {
            Request::Stdin => queue(&input, Input::Data(payload))?,
            Request::StdinEnd => queue(&input, Input::End)?,
            Request::Signal { number } => drop(execution.signal(Signal(number)).await),
            Request::Resize { size } => drop(execution.resize(size).await),
            Request::Cancel => execution.cancel(),
            Request::Hello { .. }
            | Request::Info
            | Request::Exec { .. }
            | Request::Logs { .. }
            | Request::Stat { .. }
            | Request::List { .. }
            | Request::Read { .. }
            | Request::Write { .. }
            | Request::MakeDir { .. }
            | Request::Snapshot { .. }
            | Request::Restore { .. }
            | Request::Pause
            | Request::Resume
            | Request::Describe
            | Request::Destroy => return Err(FrameError::Closed),
        }
    }
    Ok(())
}

/// A client that sends before it is told to is not waited for: its signals would wait with it.
fn queue(input: &mpsc::Sender<Input>, piece: Input) -> Result<(), FrameError> {
    input.try_send(piece).map_err(|_| FrameError::Closed)
}

async fn feed(execution: &Watcher, mut pieces: mpsc::Receiver<Input>, taken: mpsc::Sender<()>) {
    while let Some(piece) = pieces.recv().await {
        match piece {
            Input::Data(data) => {
                let _ = execution.write_stdin(data).await;
                if taken.send(()).await.is_err() {
                    break;
                }
            }
            Input::End => drop(execution.close_stdin().await),
        }
    }
    std::future::pending().await
}

/// Tells the client what the program does, to its end.
async fn send_events(
    writer: &mut OwnedWriteHalf,
    mut follower: Subscription,
    taken: &mut mpsc::Receiver<()>,
) -> Result<(), FrameError> {
    loop {
        tokio::select! {
            event = follower.next() => {
                let Some(event) = event else { return Ok(()) };
                pass(writer, event).await?;
            }
            Some(()) = taken.recv() => frame::send(writer, &Reply::Taken, &[]).await?,
        }
    }
}

/// Sends one event, in pieces that fit a frame.
pub async fn pass(writer: &mut OwnedWriteHalf, event: OutputEvent) -> Result<(), FrameError> {
    match event {
        OutputEvent::Output { seq, stream, data } => {
            for piece in data.chunks(frame::MAX_PAYLOAD) {
                frame::send(writer, &Reply::Output { seq, stream }, piece).await?;
            }
            Ok(())
        }
        OutputEvent::Gap { events, bytes } => {
            frame::send(writer, &Reply::Gap { events, bytes }, &[]).await
        }
        OutputEvent::End(outcome) => frame::send(writer, &Reply::End(Box::new(outcome)), &[]).await,
    }
}
