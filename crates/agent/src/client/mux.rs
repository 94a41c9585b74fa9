//! What the tasks and handles of one connection share: the open channels and what waits to be sent.
//!
//! Lock order: a channel, then the writer, then the mux's core; never the other way round.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stockade_core::{Error, ErrorCode, Result};
use tokio::io::AsyncWrite;
use tokio::sync::Notify;

use super::channel::{ChannelKind, ClientChannel};
use super::pipe_writer::{BatchWriter, PipeWriter};
use crate::protocol::{Hello, MAX_CHANNELS, MAX_FRAME, PROTOCOL_VERSION, ToAgent};

/// The high-water mark of the outbox: while more is waiting to be sent, data waits with its sender.
const HIGH_WATER_BYTES: usize = 512 * 1024;
/// The most that may wait to be sent. Small messages never wait, so an agent that does not read is
/// noticed here.
const MAX_OUTBOX_BYTES: usize = 8 * 1024 * 1024;

/// How long an agent that does not read may hold up a new request.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a pipe is closed.
#[derive(Debug, Clone)]
pub struct Closed {
    code: ErrorCode,
    pub message: String,
}

impl Closed {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The peer broke the protocol.
    pub fn broken(what: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::Protocol, format!("the agent broke the protocol: {what}"))
    }

    pub fn to_error(&self, operation: &'static str) -> Error {
        Error::new(self.code, operation, self.message.clone())
    }
}

/// The agent did not answer in time.
pub fn too_slow(operation: &'static str) -> Error {
    Error::new(ErrorCode::TooSlow, operation, "the agent does not answer in time")
        .remedy("destroy the sandbox if it stays so")
}

fn hello_message() -> ToAgent<'static> {
    ToAgent::Hello(Hello { version: PROTOCOL_VERSION, max_frame: MAX_FRAME as u32 })
}

/// What one connection's tasks and handles share.
pub struct Mux {
    core: Mutex<Core>,
    writer: BatchWriter,
    /// Something waits to be sent and could not be sent at once.
    to_send: Notify,
    /// There is room again, the agent said hello, or the pipe was closed.
    changed: Notify,
}

#[derive(Default)]
struct Core {
    outbox: Vec<u8>,
    channels: HashMap<u32, Arc<ClientChannel>>,
    last: u32,
    greeted: bool,
    /// Another pipe takes the place of the one that was there: what is meant for that is dropped.
    renewing: bool,
    /// The send queue is too long. Dealt with by the reading task: the caller that noticed may hold a channel's
    /// lock.
    overfull: bool,
    closed: Option<Closed>,
}

impl Mux {
    pub fn new(writer: impl AsyncWrite + Unpin + Send + 'static) -> Self {
        Self {
            core: Mutex::default(),
            writer: BatchWriter::new(Box::new(writer)),
            to_send: Notify::new(),
            changed: Notify::new(),
        }
    }

    fn lock_core(&self) -> MutexGuard<'_, Core> {
        // Nothing below panics half-way through a change.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the check yields something.
    async fn wait_until<T>(&self, mut check: impl FnMut(&mut Core) -> Option<T>) -> T {
        loop {
            let notified = self.changed.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if let Some(found) = check(&mut self.lock_core()) {
                return found;
            }
            notified.await;
        }
    }

    /// Queues a small message. After the end of the pipe it goes nowhere.
    pub fn send(&self, message: &ToAgent<'_>) {
        let mut core = self.lock_core();
        if core.closed.is_some() || core.renewing {
            return;
        }
        // Those sent here are of fixed size, or cut to size before.
        let _ = message.encode(&mut core.outbox);
        core.overfull |= core.outbox.len() > MAX_OUTBOX_BYTES;
        let overfull = core.overfull;
        drop(core);
        self.flush();
        if overfull {
            self.changed.notify_waiters();
        }
    }

    /// Waits until there is room for data.
    pub async fn wait_for_room(&self) -> Result<(), Closed> {
        self.wait_until(|core| match &core.closed {
            Some(closed) => Some(Err(closed.clone())),
            None => (!core.renewing && core.outbox.len() < HIGH_WATER_BYTES).then_some(Ok(())),
        })
        .await
    }

    /// Opens a channel with a first message, which `message` builds from the channel's number.
    pub async fn open<'m>(
        &self,
        operation: &'static str,
        kind: ChannelKind,
        message: impl FnOnce(u32) -> ToAgent<'m>,
    ) -> Result<(u32, Arc<ClientChannel>)> {
        let room = tokio::time::timeout(OPEN_TIMEOUT, self.wait_for_room()).await;
        room.map_err(|_| too_slow(operation))?.map_err(|closed| closed.to_error(operation))?;
        let mut core = self.lock_core();
        if let Some(closed) = &core.closed {
            return Err(closed.to_error(operation));
        }
        if core.renewing {
            let message = "the sandbox is being restored from a snapshot";
            return Err(Error::new(ErrorCode::Gone, operation, message));
        }
        let number = core.last.saturating_add(1);
        if core.channels.len() >= MAX_CHANNELS || number == u32::MAX {
            let message = format!("more than {MAX_CHANNELS} processes and requests at once");
            return Err(Error::new(ErrorCode::TooLarge, operation, message));
        }
        message(number).encode(&mut core.outbox).map_err(|too_long| {
            let message = "arguments and environment, or the path, are too long";
            Error::new(ErrorCode::TooLarge, operation, message).source(too_long)
        })?;
        core.last = number;
        let channel = Arc::new(ClientChannel::new(kind));
        core.channels.insert(number, channel.clone());
        drop(core);
        self.flush();
        Ok((number, channel))
    }

    /// The last number that was used.
    pub fn last_channel(&self) -> u32 {
        self.lock_core().last
    }

    /// Begins with what every connection begins with.
    pub fn greet_agent(&self) {
        self.send(&hello_message());
    }

    /// Greets an agent that had another client before; `last` was that client's last channel. Programs on the `carried`
    /// channels continue here.
    pub fn greet_copy(&self, last: u32, carried: &[u32]) -> Vec<(u32, Arc<ClientChannel>)> {
        let channels: Vec<_> = carried
            .iter()
            .map(|number| (*number, Arc::new(ClientChannel::new(ChannelKind::Run))))
            .collect();
        let mut core = self.lock_core();
        core.last = last;
        core.channels.extend(channels.iter().cloned());
        drop(core);
        self.send(&hello_message());
        self.send(&ToAgent::Keep(last, carried.to_vec()));
        for (number, channel) in &channels {
            for (stream, room) in channel.start_over() {
                self.send(&ToAgent::Credit(*number, stream, room));
            }
        }
        channels
    }

    /// Goes on over another pipe, with an agent that is as it was when this was the last number; `own`: the
    /// numbers that it knows are those given out here.
    pub fn renew_link(&self, writer: PipeWriter, last: u32, own: bool) {
        let mut core = self.lock_core();
        core.last = core.last.max(last);
        (core.renewing, core.greeted, core.overfull) = (true, false, false);
        core.outbox.clear();
        let channels = std::mem::take(&mut core.channels);
        drop(core);
        self.writer.replace_writer(writer);
        let (kept, gone): (HashMap<_, _>, HashMap<_, _>) = channels
            .into_iter()
            .partition(|(number, channel)| own && *number <= last && channel.goes_on());
        gone.into_values().for_each(|channel| channel.undo_channel());
        let credit: Vec<_> =
            kept.iter().map(|(number, channel)| (*number, channel.start_over())).collect();
        let mut core = self.lock_core();
        let mut messages =
            vec![hello_message(), ToAgent::Keep(core.last, kept.keys().copied().collect())];
        for (number, streams) in credit {
            messages.extend(streams.map(|(stream, room)| ToAgent::Credit(number, stream, room)));
        }
        // Numbers of at most so many channels fit.
        let outbox = &mut core.outbox;
        for message in &messages {
            let _ = message.encode(outbox);
        }
        core.channels.extend(kept);
        core.renewing = false;
        drop(core);
        self.flush();
        self.changed.notify_waiters();
    }

    /// An open channel.
    pub fn find_channel(&self, number: u32) -> Result<Arc<ClientChannel>, Closed> {
        let found = self.lock_core().channels.get(&number).cloned();
        found.ok_or_else(|| Closed::broken(format_args!("there is no channel {number}")))
    }

    /// Forgets a channel that is over.
    pub fn forget_channel(&self, number: u32) {
        self.lock_core().channels.remove(&number);
    }

    /// The agent said hello. Only once.
    pub fn note_hello(&self) -> Result<(), Closed> {
        let twice = std::mem::replace(&mut self.lock_core().greeted, true);
        self.changed.notify_waiters();
        if twice { Err(Closed::broken("it sent Hello twice")) } else { Ok(()) }
    }

    /// Whether the agent said hello.
    pub fn is_greeted(&self) -> bool {
        self.lock_core().greeted
    }

    /// Waits for the agent's hello.
    pub async fn wait_for_hello(&self) -> Result<(), Closed> {
        self.wait_until(|core| match &core.closed {
            Some(closed) => Some(Err(closed.clone())),
            None => core.greeted.then_some(Ok(())),
        })
        .await
    }

    /// Waits until so much waits to be sent that the agent cannot be reading.
    pub async fn wait_until_overfull(&self) -> Closed {
        self.wait_until(|core| core.overfull.then(|| Closed::broken("it does not read"))).await
    }

    /// Whether the pipe is there.
    pub fn is_open(&self) -> bool {
        self.lock_core().closed.is_none()
    }

    /// Waits for the end of the pipe.
    pub async fn wait_until_closed(&self) -> Closed {
        self.wait_until(|core| core.closed.clone()).await
    }

    /// Closes the pipe: every channel ends here. Only the first reason counts.
    pub fn fail_all(&self, closed: Closed) {
        let mut core = self.lock_core();
        if core.closed.is_some() {
            return;
        }
        core.closed = Some(closed.clone());
        core.outbox = Vec::new();
        let channels = std::mem::take(&mut core.channels);
        drop(core);
        channels.into_values().for_each(|channel| channel.fail_channel(&closed));
        self.changed.notify_waiters();
    }

    /// Sends what is queued whenever a caller could not do so at once, until the pipe is closed.
    pub async fn write_outbox(&self) {
        let closed = tokio::select! {
            error = self.write_all() => {
                Closed::new(ErrorCode::Gone, format!("the agent cannot be written to: {error}"))
            }
            closed = self.wait_until_closed() => closed,
        };
        self.fail_all(closed);
        self.writer.close();
    }

    async fn write_all(&self) -> std::io::Error {
        loop {
            let all = std::future::poll_fn(|context| {
                self.writer.poll(context, |batch| self.refill_batch(batch))
            });
            // Woken also while it waits for the pipe: a caller that tried meanwhile has replaced its waker.
            tokio::select! {
                sent = all => match sent {
                    Ok(()) => self.to_send.notified().await,
                    Err(error) => return error,
                },
                () = self.to_send.notified() => {}
            }
        }
    }

    /// Exchanges the batch that was sent for what was queued meanwhile.
    fn refill_batch(&self, batch: &mut Vec<u8>) {
        let mut core = self.lock_core();
        std::mem::swap(batch, &mut core.outbox);
        drop(core);
        if batch.len() >= HIGH_WATER_BYTES {
            self.changed.notify_waiters();
        }
    }

    /// Sends at once, or has the writing task do it.
    fn flush(&self) {
        if !self.writer.try_all(|batch| self.refill_batch(batch)) {
            self.to_send.notify_one();
        }
    }
}
