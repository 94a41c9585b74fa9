//! A program's input and output: bounded queues between the thread that runs it and its readers and writers.
//! A program that is not read waits, as it would at a full pipe.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes as Data;
use stockade_core::{ProcessEvent, StreamId};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc::{OwnedPermit, Receiver, Sender};
use wasmtime_wasi::async_trait;
use wasmtime_wasi::cli::{IsTerminal, StdinStream, StdoutStream};
use wasmtime_wasi::p2::{InputStream, OutputStream, Pollable, StreamError, StreamResult};

/// Largest chunk of output.
const OUTPUT_CHUNK_BYTES: usize = 64 << 10;

/// Where output goes.
#[derive(Clone)]
pub(super) struct EventOutlet {
    events: Sender<ProcessEvent>,
    stream: StreamId,
}

impl EventOutlet {
    pub(super) fn new(events: Sender<ProcessEvent>, stream: StreamId) -> Self {
        Self { events, stream }
    }
}

impl IsTerminal for EventOutlet {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for EventOutlet {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        // For an interface that is not offered.
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(OutletWriter { outlet: self.clone(), permit: None })
    }
}

/// One handle to the output, with a place in the queue if it has one.
struct OutletWriter {
    outlet: EventOutlet,
    permit: Option<OwnedPermit<ProcessEvent>>,
}

#[async_trait]
impl Pollable for OutletWriter {
    async fn ready(&mut self) {
        if self.permit.is_none() {
            // An error means that no reader is left: the next check reports it.
            self.permit = self.outlet.events.clone().reserve_owned().await.ok();
        }
    }
}

impl OutputStream for OutletWriter {
    fn write(&mut self, bytes: Data) -> StreamResult<()> {
        let permit = self.permit.take().ok_or(StreamError::Closed)?;
        if !bytes.is_empty() {
            permit.send(ProcessEvent::Output(self.outlet.stream, bytes));
        }
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        use tokio::sync::mpsc::error::TrySendError;
        if self.permit.is_none() {
            match self.outlet.events.clone().try_reserve_owned() {
                Ok(permit) => self.permit = Some(permit),
                Err(TrySendError::Full(_)) => return Ok(0),
                Err(TrySendError::Closed(_)) => return Err(StreamError::Closed),
            }
        }
        Ok(OUTPUT_CHUNK_BYTES)
    }
}

/// Where input comes from; every handle reads from the same.
#[derive(Clone)]
pub(super) struct Inlet(Arc<Mutex<Inbox>>);

struct Inbox {
    queue: Receiver<Data>,
    waiting: Data,
    ended: bool,
}

impl Inlet {
    pub(super) fn new(queue: Receiver<Data>) -> Self {
        Self(Arc::new(Mutex::new(Inbox { queue, waiting: Data::new(), ended: false })))
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    /// Ready when there is something to read, or the end.
    fn poll_input(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.waiting.is_empty() && !self.ended {
            match self.queue.poll_recv(context) {
                Poll::Ready(Some(data)) => self.waiting = data,
                Poll::Ready(None) => self.ended = true,
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }

    fn take_input(&mut self, most: usize) -> StreamResult<Data> {
        while self.waiting.is_empty() && !self.ended {
            use tokio::sync::mpsc::error::TryRecvError;
            match self.queue.try_recv() {
                Ok(data) => self.waiting = data,
                Err(TryRecvError::Empty) => return Ok(Data::new()),
                Err(TryRecvError::Disconnected) => self.ended = true,
            }
        }
        if self.waiting.is_empty() {
            return Err(StreamError::Closed);
        }
        let most = most.min(self.waiting.len());
        Ok(self.waiting.split_to(most))
    }
}

impl IsTerminal for Inlet {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdinStream for Inlet {
    fn async_stream(&self) -> Box<dyn AsyncRead + Send + Sync> {
        // For an interface that is not offered.
        Box::new(tokio::io::empty())
    }

    fn p2_stream(&self) -> Box<dyn InputStream> {
        Box::new(InletReader(self.clone()))
    }
}

struct InletReader(Inlet);

#[async_trait]
impl Pollable for InletReader {
    async fn ready(&mut self) {
        poll_fn(|context| self.0.lock().poll_input(context)).await;
    }
}

#[async_trait]
impl InputStream for InletReader {
    fn read(&mut self, size: usize) -> StreamResult<Data> {
        self.0.lock().take_input(size)
    }
}
