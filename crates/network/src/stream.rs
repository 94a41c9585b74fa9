//! One connection of a program inside, as a byte stream. Memory is bounded by credit in both directions.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, BytesMut};
use stockade_agent::protocol::network::{
    MAX_STREAM_DATA, RefusalKind, STREAM_WINDOW_BYTES, ToHelper,
};
use stockade_core::clean_foreign;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use crate::limits::EgressMeter;
use crate::outbox::HelperOutbox;

/// The open streams of one helper.
#[derive(Default)]
pub struct Streams {
    open: Mutex<HashMap<u32, Arc<StreamShared>>>,
}

/// What the relay and the connection share.
pub struct StreamShared {
    state: Mutex<GuestStreamState>,
}

struct GuestStreamState {
    /// What the program has sent and was not read yet.
    inbound: BytesMut,
    inbound_ended: bool,
    /// Bytes that were read and for which no credit was given back yet.
    owed: u32,
    /// How many bytes may still be sent to the program.
    credit: u32,
    outbound_ended: bool,
    /// The connection is gone.
    reset: bool,
    /// The helper has connected, where that was asked of it.
    opened: bool,
    sent: u64,
    received: u64,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// Told when the program has ended its direction, or both.
    ended: Arc<Notify>,
}

/// The other side broke the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the network helper broke the protocol: {0}")]
pub struct BrokenProtocol(pub &'static str);

/// A connection of a program inside. Dropping it before both directions have ended resets it.
pub struct GuestStream {
    number: u32,
    shared: Arc<StreamShared>,
    streams: Arc<Streams>,
    outbox: Arc<HelperOutbox>,
    /// What bounds its bytes. Absent for connections to ports inside.
    meter: Option<Arc<EgressMeter>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics half-way through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Streams {
    /// How many are open that programs inside have opened: those with odd numbers.
    pub fn count_opened_inside(&self) -> usize {
        lock(&self.open).keys().filter(|number| *number % 2 == 1).count()
    }

    /// Whether one with this number is open.
    pub fn is_open(&self, number: u32) -> bool {
        lock(&self.open).contains_key(&number)
    }

    /// Opens one.
    pub fn open(self: &Arc<Self>, number: u32, outbox: &Arc<HelperOutbox>) -> GuestStream {
        let shared = Arc::new(StreamShared { state: Mutex::new(GuestStreamState::new()) });
        lock(&self.open).insert(number, shared.clone());
        let (streams, outbox) = (self.clone(), outbox.clone());
        GuestStream { number, shared, streams, outbox, meter: None }
    }

    /// Changes an open stream; one that is over is left alone.
    pub fn change(
        &self,
        number: u32,
        change: impl FnOnce(&mut StreamChange<'_>) -> Result<(), BrokenProtocol>,
    ) -> Result<(), BrokenProtocol> {
        let Some(shared) = lock(&self.open).get(&number).cloned() else {
            return Ok(());
        };
        let mut state = lock(&shared.state);
        change(&mut StreamChange(&mut state))
    }

    /// Ends all of them.
    pub fn reset_all(&self) {
        for (_, shared) in lock(&self.open).drain() {
            StreamChange(&mut lock(&shared.state)).reset();
        }
    }
}

/// A stream's state while a message about it is handled.
pub struct StreamChange<'a>(&'a mut GuestStreamState);

impl StreamChange<'_> {
    /// Bytes of the program have come.
    pub fn push(&mut self, data: &[u8]) -> Result<(), BrokenProtocol> {
        let StreamChange(state) = self;
        if state.inbound_ended {
            return Err(BrokenProtocol("data after the end of a stream"));
        }
        let outstanding = state.inbound.len() + data.len() + state.owed as usize;
        if outstanding > STREAM_WINDOW_BYTES as usize {
            return Err(BrokenProtocol("data beyond credit"));
        }
        state.inbound.extend_from_slice(data);
        state.sent += data.len() as u64;
        state.wake_reader();
        Ok(())
    }

    /// No more bytes of the program come.
    pub fn end(&mut self) {
        self.0.inbound_ended = true;
        self.0.wake_reader();
        self.0.ended.notify_one();
    }

    /// The connection is gone.
    pub fn reset(&mut self) {
        self.0.reset = true;
        self.0.wake_reader();
        self.0.wake_writer();
        self.0.ended.notify_one();
    }

    /// The helper has connected.
    pub fn opened(&mut self) {
        self.0.opened = true;
        self.0.wake_writer();
    }

    /// More may be sent.
    pub fn grant(&mut self, amount: u32) -> Result<(), BrokenProtocol> {
        let sum = self.0.credit.checked_add(amount).filter(|sum| *sum <= STREAM_WINDOW_BYTES);
        self.0.credit = sum.ok_or(BrokenProtocol("more credit than was ever given"))?;
        self.0.wake_writer();
        Ok(())
    }
}

impl GuestStreamState {
    fn new() -> Self {
        Self {
            inbound: BytesMut::new(),
            inbound_ended: false,
            owed: 0,
            credit: STREAM_WINDOW_BYTES,
            outbound_ended: false,
            reset: false,
            opened: false,
            sent: 0,
            received: 0,
            reader: None,
            writer: None,
            ended: Arc::default(),
        }
    }

    fn wake_reader(&mut self) {
        self.reader.take().into_iter().for_each(Waker::wake);
    }

    fn wake_writer(&mut self) {
        self.writer.take().into_iter().for_each(Waker::wake);
    }
}

fn reset_error() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

impl GuestStream {
    /// The same stream, whose bytes are counted.
    pub fn metered(mut self, meter: Arc<EgressMeter>) -> Self {
        self.meter = Some(meter);
        self
    }

    /// How many of these bytes may pass. With none a transfer waits: the connection is about to be cut.
    fn take_bytes(&self, wanted: usize) -> usize {
        self.meter.as_ref().map_or(wanted, |meter| meter.take_bytes(wanted))
    }

    /// Tells the program that its connection stands.
    pub fn accept(&self) {
        self.outbox.send(&ToHelper::Opened(self.number));
    }

    /// Tells the program that there is none, and why.
    pub fn refuse(self, kind: RefusalKind, reason: &str) {
        self.outbox.send(&ToHelper::Refused(self.number, kind, &clean_foreign(reason)));
        lock(&self.shared.state).reset = true;
    }

    /// Waits until the helper has connected to a port inside.
    pub async fn wait_until_opened(&self) -> io::Result<()> {
        std::future::poll_fn(|context| {
            let mut state = lock(&self.shared.state);
            if state.reset {
                return Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()));
            }
            if state.opened {
                return Poll::Ready(Ok(()));
            }
            state.writer = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Looks at what the program has sent so far, without taking it, until the check yields something. It is
    /// told whether no more will come.
    pub async fn peek<T>(&self, mut check: impl FnMut(&[u8], bool) -> Option<T>) -> io::Result<T> {
        std::future::poll_fn(|context| {
            let mut state = lock(&self.shared.state);
            if state.reset {
                return Poll::Ready(Err(reset_error()));
            }
            if let Some(found) = check(&state.inbound, state.inbound_ended) {
                return Poll::Ready(Ok(found));
            }
            if state.inbound_ended {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            state.reader = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Told once the program has ended its direction, or both, also while nothing is read.
    pub fn watch_end(&self) -> Arc<Notify> {
        lock(&self.shared.state).ended.clone()
    }

    /// Bytes from the program and for it, up to now.
    pub fn counts(&self) -> ByteCounts {
        ByteCounts(self.shared.clone())
    }
}

/// Counts the bytes of a stream, also after its end.
pub struct ByteCounts(Arc<StreamShared>);

impl ByteCounts {
    /// From the program, and for it.
    pub fn get(&self) -> (u64, u64) {
        let state = lock(&self.0.state);
        (state.sent, state.received)
    }
}

impl AsyncRead for GuestStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = lock(&self.shared.state);
        if state.inbound.is_empty() {
            if state.inbound_ended {
                return Poll::Ready(Ok(()));
            }
            if state.reset {
                return Poll::Ready(Err(reset_error()));
            }
            state.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let wanted = buffer.remaining().min(state.inbound.len());
        let count = self.take_bytes(wanted);
        if count == 0 && wanted > 0 {
            return Poll::Pending;
        }
        buffer.put_slice(&state.inbound[..count]);
        state.inbound.advance(count);
        state.owed += count as u32;
        let pays = state.owed >= STREAM_WINDOW_BYTES / 4 && !state.inbound_ended;
        let credit = if pays { std::mem::take(&mut state.owed) } else { 0 };
        drop(state);
        if credit > 0 {
            self.outbox.send(&ToHelper::Credit(self.number, credit));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for GuestStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        if !ready!(self.outbox.poll_room(context)) {
            return Poll::Ready(Err(reset_error()));
        }
        let mut state = lock(&self.shared.state);
        if state.reset || state.outbound_ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let wanted = data.len().min(state.credit as usize).min(MAX_STREAM_DATA);
        if wanted == 0 && !data.is_empty() {
            state.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = self.take_bytes(wanted);
        if count == 0 && wanted > 0 {
            return Poll::Pending;
        }
        state.credit -= count as u32;
        state.received += count as u64;
        // With the state locked, so that nothing comes after the end.
        self.outbox.send(&ToHelper::Data(self.number, &data[..count]));
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = lock(&self.shared.state);
        if !std::mem::replace(&mut state.outbound_ended, true) && !state.reset {
            self.outbox.send(&ToHelper::End(self.number));
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for GuestStream {
    fn drop(&mut self) {
        lock(&self.streams.open).remove(&self.number);
        let state = lock(&self.shared.state);
        let is_over = state.reset || (state.inbound_ended && state.outbound_ended);
        drop(state);
        if !is_over {
            self.outbox.send(&ToHelper::Reset(self.number));
        }
    }
}
