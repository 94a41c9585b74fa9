//! What waits to be sent to the helper. Small messages never wait; data does, while much is queued.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use stockade_agent::protocol::network::ToHelper;
use tokio::sync::Notify;

/// While more is queued, data waits with its sender.
const HIGH_WATER_BYTES: usize = 512 * 1024;

/// The queue of one helper.
#[derive(Default)]
pub struct HelperOutbox {
    state: Mutex<OutboxState>,
    filled: Notify,
}

#[derive(Default)]
struct OutboxState {
    bytes: Vec<u8>,
    closed: bool,
    waiting: Vec<Waker>,
}

impl HelperOutbox {
    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        // Nothing panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message.
    pub fn send(&self, message: &ToHelper<'_>) {
        let mut state = self.lock();
        if !state.closed {
            let encoded = message.encode(&mut state.bytes);
            debug_assert!(encoded.is_ok(), "every message here is shorter than a frame");
        }
        drop(state);
        self.filled.notify_one();
    }

    /// Ready once data may be queued; false when the helper is gone.
    pub fn poll_room(&self, context: &Context<'_>) -> Poll<bool> {
        let mut state = self.lock();
        if state.closed || state.bytes.len() < HIGH_WATER_BYTES {
            return Poll::Ready(!state.closed);
        }
        if !state.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            state.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Waits until data may be queued; false when the helper is gone.
    pub async fn wait_for_room(&self) -> bool {
        std::future::poll_fn(|context| self.poll_room(context)).await
    }

    /// Everything that waits, once there is something. Nothing when the helper is gone.
    pub async fn take(&self) -> Option<Vec<u8>> {
        loop {
            let filled = self.filled.notified();
            {
                let mut state = self.lock();
                if state.closed {
                    return None;
                }
                if !state.bytes.is_empty() {
                    let bytes = std::mem::take(&mut state.bytes);
                    state.waiting.drain(..).for_each(Waker::wake);
                    return Some(bytes);
                }
            }
            filled.await;
        }
    }

    /// Whether the helper is gone.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// The helper is gone.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.bytes = Vec::new();
        state.waiting.drain(..).for_each(Waker::wake);
        drop(state);
        self.filled.notify_one();
    }
}
