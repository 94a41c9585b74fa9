//! One channel as the client sees it: what may arrive on it, what arrived, and how it ended.
//!
//! Memory is bounded by credit: what the agent may send is what there is room for.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use stockade_core::{Entry, ErrorCode, Exit, ExitStatus, Signal};
use tokio::sync::Notify;

use super::mux::{Closed, Mux};
use crate::protocol::{FileErrorKind, MAX_DATA, Stream, ToAgent, WINDOW_BYTES, charge};

/// What a channel is for, and so what may arrive on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelKind {
    /// A program, with or without input.
    Run,
    /// A request answered by an entry.
    Entry,
    /// A request answered by at most so many bytes.
    Data(u32),
    /// A request answered by success alone.
    Plain,
    /// A request that yields output before its success.
    Stream,
    /// A request that yields output after its success.
    Watch,
}

/// How a channel ended.
#[derive(Debug, Clone)]
pub enum Finish {
    Exit(Exit),
    Entry(Entry),
    Data(Bytes),
    Done,
    Failed(FileFailure),
    Closed(Closed),
}

/// Why the agent could not do what was asked.
#[derive(Debug, Clone)]
pub struct FileFailure {
    pub kind: FileErrorKind,
    pub path: String,
    pub detail: String,
}

/// One channel.
pub struct ClientChannel {
    pub kind: ChannelKind,
    state: Mutex<ChannelState>,
    changed: Notify,
}

/// What is known about a channel.
pub struct ChannelState {
    output: VecDeque<(Stream, Bytes)>,
    /// What the agent may still send, per stream.
    credit: [u32; 2],
    /// What was consumed and not yet given back, per stream.
    owed: [u32; 2],
    /// What may still be sent to the agent.
    input: u32,
    input_closed: bool,
    /// The output has no reader any more.
    unread: bool,
    /// The agent has answered a watch.
    pub confirmed: bool,
    /// The process number of a program that runs, as its sandbox counts.
    pub pid: Option<u32>,
    /// No process of it is left.
    pub ended: bool,
    /// Some of its processes may have got away.
    pub lost: bool,
    pub finish: Option<Finish>,
}

fn stream_index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

impl ClientChannel {
    pub fn new(kind: ChannelKind) -> Self {
        let state = ChannelState {
            output: VecDeque::new(),
            credit: [WINDOW_BYTES; 2],
            owed: [0; 2],
            input: WINDOW_BYTES,
            input_closed: false,
            unread: false,
            confirmed: false,
            pid: None,
            ended: false,
            lost: false,
            finish: None,
        };
        Self { kind, state: Mutex::new(state), changed: Notify::new() }
    }

    fn lock_state(&self) -> MutexGuard<'_, ChannelState> {
        // Nothing panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process number of its program, once that runs.
    pub fn pid(&self) -> Option<u32> {
        self.lock_state().pid
    }

    /// Changes the state and wakes all tasks that wait for it.
    pub fn update_state<T>(&self, change: impl FnOnce(&mut ChannelState) -> T) -> T {
        let result = change(&mut self.lock_state());
        self.changed.notify_waiters();
        result
    }

    /// Waits until the check yields something.
    pub async fn wait_until<T>(&self, mut check: impl FnMut(&mut ChannelState) -> Option<T>) -> T {
        // An agent that floods always has output ready: its reader must still come to its timers.
        tokio::task::consume_budget().await;
        loop {
            let notified = self.changed.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if let Some(found) = check(&mut self.lock_state()) {
                return found;
            }
            notified.await;
        }
    }

    /// Waits for the end of a request.
    pub async fn wait_for_finish(&self) -> Finish {
        self.wait_until(|state| state.finish.clone()).await
    }

    /// The pipe is gone.
    pub fn fail_channel(&self, closed: &Closed) {
        self.update_state(|state| {
            state.ended = true;
            state.finish.get_or_insert_with(|| match self.kind {
                ChannelKind::Run => Finish::Exit(ExitStatus::Lost(closed.message.clone()).into()),
                ChannelKind::Entry
                | ChannelKind::Data(_)
                | ChannelKind::Plain
                | ChannelKind::Stream
                | ChannelKind::Watch => Finish::Closed(closed.clone()),
            });
        });
    }

    /// The agent is as it was before this began: a program is gone, which is known, and a request is lost.
    pub fn undo_channel(&self) {
        if self.kind == ChannelKind::Run {
            return self.update_state(|state| {
                state.ended = true;
                let killed = ExitStatus::Signalled(Signal::KILL);
                state.finish.get_or_insert(Finish::Exit(killed.into()));
            });
        }
        let message = "the sandbox was restored to a state from before this request";
        self.fail_channel(&Closed::new(ErrorCode::Gone, message));
    }

    /// Output arrived. Returns the credit to give back at once, where it has no reader.
    pub fn push_output(&self, stream: Stream, data: Bytes) -> Result<Option<u32>, Closed> {
        let kind_fits = match self.kind {
            ChannelKind::Run | ChannelKind::Stream | ChannelKind::Watch => true,
            ChannelKind::Entry | ChannelKind::Data(_) | ChannelKind::Plain => false,
        };
        self.update_state(|state| {
            if state.finish.is_some() || !kind_fits || data.is_empty() {
                return Err(Closed::broken("there was output where none may be"));
            }
            let cost = charge(data.len());
            let credit = &mut state.credit[stream_index(stream)];
            *credit =
                credit.checked_sub(cost).ok_or_else(|| Closed::broken("output beyond credit"))?;
            if state.unread {
                *credit += cost;
                return Ok(Some(cost));
            }
            state.output.push_back((stream, data));
            Ok(None)
        })
    }

    /// The next piece of output; after the last, how it ended. Gives credit back as it goes. Safe to
    /// drop half-way.
    pub async fn next_output(&self, number: u32, mux: &Mux) -> Result<(Stream, Bytes), Finish> {
        let (piece, grant) = self
            .wait_until(|state| match state.output.pop_front() {
                Some((stream, data)) => {
                    Some((Ok((stream, data.clone())), state.account_for_read(stream, &data)))
                }
                None => state.finish.clone().map(|finish| (Err(finish), None)),
            })
            .await;
        if let Some((stream, amount)) = grant {
            mux.send(&ToAgent::Credit(number, stream, amount));
        }
        piece
    }

    /// No reader is left: queued output is dropped, and the agent told to end it. All credit goes back, so
    /// that the agent can get rid of the rest and come to the end.
    pub fn abandon_channel(&self, number: u32, mux: &Mux) {
        let grants = self.update_state(ChannelState::discard_output);
        for (stream, amount) in grants.into_iter().flatten().filter(|grant| grant.1 > 0) {
            mux.send(&ToAgent::Credit(number, stream, amount));
        }
        if grants.is_some() {
            mux.send(&ToAgent::Kill(number));
        }
    }

    /// Whether it is a program that has not ended, as far as is known here.
    pub fn goes_on(&self) -> bool {
        let state = self.lock_state();
        self.kind == ChannelKind::Run && state.finish.is_none() && !state.unread
    }

    /// The agent goes on without any credit in either direction. Returns what it may send of each stream:
    /// what there is room for beside what waits here.
    pub fn start_over(&self) -> [(Stream, u32); 2] {
        self.update_state(|state| {
            let waits = |stream| {
                let of_it = state.output.iter().filter(|(of, _)| *of == stream);
                of_it.fold(0u32, |sum, (_, data)| sum.saturating_add(charge(data.len())))
            };
            let room = [Stream::Stdout, Stream::Stderr]
                .map(|stream| WINDOW_BYTES - waits(stream).min(WINDOW_BYTES));
            (state.credit, state.owed, state.input) = (room, [0; 2], 0);
            [(Stream::Stdout, room[0]), (Stream::Stderr, room[1])]
        })
    }

    /// The agent takes more input.
    pub fn grant_input(&self, amount: u32) -> Result<(), Closed> {
        self.update_state(|state| {
            let sum = state.input.checked_add(amount).filter(|sum| *sum <= WINDOW_BYTES);
            state.input = sum.ok_or_else(|| Closed::broken("more credit than was ever given"))?;
            Ok(())
        })
    }

    /// Sends input, waiting while the peer does not read. Returns false where the peer
    /// will not read any more.
    pub async fn write_input(&self, number: u32, mux: &Mux, mut data: Bytes) -> bool {
        while !data.is_empty() {
            if mux.wait_for_room().await.is_err() {
                return false;
            }
            let open = self.wait_until(|state| state.send_some(number, mux, &mut data)).await;
            if !open {
                return false;
            }
        }
        true
    }

    /// Ends the input. Idempotent.
    pub fn close_input(&self, number: u32, mux: &Mux) {
        self.update_state(|state| {
            if !std::mem::replace(&mut state.input_closed, true) && state.finish.is_none() {
                mux.send(&ToAgent::StdinEnd(number));
            }
        });
    }

    /// There never was any input.
    pub fn without_input(&self) {
        self.update_state(|state| state.input_closed = true);
    }

    /// Whether input can still be sent.
    pub fn takes_input(&self) -> bool {
        let state = self.lock_state();
        !state.input_closed || state.finish.is_some()
    }
}

impl ChannelState {
    /// Accounts for a piece that was read. Credit goes back in larger amounts than it is used.
    fn account_for_read(&mut self, stream: Stream, data: &Bytes) -> Option<(Stream, u32)> {
        let owed = &mut self.owed[stream_index(stream)];
        *owed += charge(data.len());
        if *owed < WINDOW_BYTES / 4 || self.finish.is_some() {
            return None;
        }
        let amount = std::mem::take(owed);
        self.credit[stream_index(stream)] += amount;
        Some((stream, amount))
    }

    /// Throws away what waits. Returns the credit to give back, if the channel is still live.
    fn discard_output(&mut self) -> Option<[(Stream, u32); 2]> {
        self.unread = true;
        for (stream, data) in std::mem::take(&mut self.output) {
            self.owed[stream_index(stream)] += charge(data.len());
        }
        if self.finish.is_some() {
            return None;
        }
        let mut give_back = |stream| {
            let amount = std::mem::take(&mut self.owed[stream_index(stream)]);
            self.credit[stream_index(stream)] += amount;
            (stream, amount)
        };
        Some([give_back(Stream::Stdout), give_back(Stream::Stderr)])
    }

    /// Sends as much as there is credit for, with the state locked, so that nothing comes after the
    /// end of input. Nothing: wait. False: the input is over.
    fn send_some(&mut self, number: u32, mux: &Mux, data: &mut Bytes) -> Option<bool> {
        if self.input_closed || self.finish.is_some() {
            return Some(false);
        }
        let most = data.len().min(self.input as usize).min(MAX_DATA);
        if most == 0 {
            return None;
        }
        let piece = data.split_to(most);
        self.input -= most as u32;
        mux.send(&ToAgent::Stdin(number, &piece));
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abandoned_channel_holds_nothing_and_has_all_its_credit() {
        let (channel, mux) = (ClientChannel::new(ChannelKind::Run), Mux::new(tokio::io::sink()));
        let piece = Bytes::from_static(&[0; 1000]);
        while channel.push_output(Stream::Stdout, piece.clone()).is_ok() {}
        channel.abandon_channel(1, &mux);
        let (credit, waiting) = channel.update_state(|state| (state.credit, state.output.len()));
        assert_eq!((credit, waiting), ([WINDOW_BYTES; 2], 0));
        for _ in 0..1000 {
            assert_eq!(channel.push_output(Stream::Stdout, piece.clone()).unwrap(), Some(1000));
        }
    }
}
