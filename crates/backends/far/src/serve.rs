//! One connection: reads, writes, and ends everything when the other side is not heard any more.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use stockade_backends::across::frame::{Frame, FrameError};
use stockade_backends::across::words::HELLO;
use stockade_backends::native::Native;
use stockade_core::Result;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use crate::agent::PATIENCE;
use crate::base::Base;
use crate::session::Session;
use crate::streams::{self, Input, Output};

/// The other side says something every two seconds. After this long it is gone.
const SILENCE: Duration = Duration::from_secs(10);
/// How many frames may wait in either direction.
const WAITING: usize = 8;

/// Where frames for the other side go.
#[derive(Clone)]
pub struct Outbox(mpsc::Sender<Bytes>);

impl Outbox {
    /// Waits while the other side does not read.
    pub async fn send(&self, frame: Frame) -> Result<(), FrameError> {
        let gone = |_| FrameError::Io(io::ErrorKind::BrokenPipe.into());
        self.0.send(frame.encode()?).await.map_err(gone)
    }
}

/// Where bytes for the agent go, once there is one.
pub type ToAgent = Arc<OnceLock<mpsc::Sender<Bytes>>>;

/// Serves one sandbox. Nothing of it is left when this returns.
pub async fn serve(native: Native, base: Result<Base>) -> io::Result<()> {
    let (input, mut output) = (streams::input()?, streams::output()?);
    output.write_all(HELLO).await?;
    let (outbox, waiting) = mpsc::channel(WAITING);
    let (requests, asked) = mpsc::channel(WAITING);
    let (over, to_agent) = (Arc::new(Notify::new()), ToAgent::default());
    tokio::spawn(write(waiting, output, Arc::clone(&over)));
    tokio::spawn(read(input, requests, Arc::clone(&to_agent), Arc::clone(&over)));
    let mut session = Session::new(native, base, Outbox(outbox), to_agent);
    tokio::select! {
        () = over.notified() => {}
        () = session.run(asked) => {}
    }
    session.end().await
}

async fn write(mut waiting: mpsc::Receiver<Bytes>, mut output: Output, over: Arc<Notify>) {
    while let Some(bytes) = waiting.recv().await {
        if output.write_all(&bytes).await.is_err() {
            break;
        }
    }
    over.notify_one();
}

async fn read(input: Input, requests: mpsc::Sender<Frame>, agent: ToAgent, over: Arc<Notify>) {
    let mut input = BufReader::with_capacity(64 * 1024, input);
    while let Ok(Ok(Some(frame))) = timeout(SILENCE, Frame::read(&mut input)).await {
        let went = match frame {
            Frame::Beat => true,
            Frame::Agent(data) => tell(&agent, data).await,
            Frame::Word(_) | Frame::Tree(_) => requests.send(frame).await.is_ok(),
        };
        if !went {
            break;
        }
    }
    over.notify_one();
}

/// An agent that does not read what it is told is not one that can be kept.
async fn tell(agent: &ToAgent, data: Bytes) -> bool {
    let Some(inbox) = agent.get() else { return false };
    // One that has ended already is asked about later.
    timeout(PATIENCE, inbox.send(data)).await.is_ok()
}
