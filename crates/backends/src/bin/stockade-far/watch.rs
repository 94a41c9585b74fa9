//! The executions that are held to their limits here, by the counters of this host. They are ended by way
//! of the peer, which alone speaks to the agent, or with everything else if it does not.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use stockade_backends::native::{LimitedExecution, Walls};
use stockade_backends::peer::frame::{Frame, FrameError};
use stockade_backends::peer::protocol::PeerEvent;
use stockade_core::{Error, ErrorCode, ProcessControl, Result, Span};

use crate::serve::Outbox;

/// Limit of the executions that are watched at once.
const MAX_WATCHED_EXECUTIONS: usize = 4096;
/// Timeout for the peer to end an execution.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// All of them.
pub struct Watches {
    out: Outbox,
    state: Mutex<WatchState>,
}

#[derive(Default)]
struct WatchState {
    walls: Option<Walls>,
    executions: HashMap<u32, LimitedExecution>,
}

/// Ends an execution.
struct Killer {
    out: Outbox,
    execution: u32,
}

/// Says something to the peer.
pub async fn send_tell(out: &Outbox, tell: &PeerEvent) -> Result<(), FrameError> {
    let text = serde_json::to_vec(tell).map_err(std::io::Error::from)?;
    out.send_frame(Frame::Word(text.into())).await
}

#[async_trait]
impl ProcessControl for Killer {
    /// The caller is let go when the end is told: it returns only if that does not come.
    async fn kill(&self) -> Result<()> {
        let gone = |error: FrameError| {
            Error::new(ErrorCode::Gone, "kill", "the connection is closed").source(error)
        };
        send_tell(&self.out, &PeerEvent::Kill { execution: self.execution }).await.map_err(gone)?;
        tokio::time::sleep(KILL_TIMEOUT).await;
        Err(Error::new(ErrorCode::TooSlow, "kill", "the peer did not end it in time"))
    }
}

impl Watches {
    pub fn new(out: Outbox) -> Self {
        Self { out, state: Mutex::default() }
    }

    fn lock_state(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The walls stand.
    pub fn set_walls(&self, walls: Walls) {
        self.lock_state().walls = Some(walls);
    }

    /// Holds an execution that is about to start to its limits. One that cannot be is not let run.
    pub async fn watch_execution(
        &self,
        execution: u32,
        cpu_time: Option<Span>,
    ) -> Result<(), FrameError> {
        if self.try_watch(execution, cpu_time) {
            return Ok(());
        }
        // Sent here and not by a task: a peer that asks for many of them waits for this side.
        send_tell(&self.out, &PeerEvent::Kill { execution }).await
    }

    fn try_watch(&self, execution: u32, cpu_time: Option<Span>) -> bool {
        let killer = Killer { out: self.out.clone(), execution };
        let state = &mut *self.lock_state();
        let control: Arc<dyn ProcessControl> = Arc::new(killer);
        let walls =
            state.walls.as_ref().filter(|_| state.executions.len() < MAX_WATCHED_EXECUTIONS);
        let watched = walls.and_then(|walls| walls.watch(&control, cpu_time).ok());
        let holds = watched.is_some();
        state.executions.extend(watched.map(|watched| (execution, watched)));
        holds
    }

    /// Its program runs.
    pub fn mark_started(&self, execution: u32, pid: u32) {
        if let Some(execution) = self.lock_state().executions.get(&execution) {
            execution.start(pid);
        }
    }

    /// One that has ended is not watched any more.
    pub fn remove_execution(&self, execution: u32) -> Option<LimitedExecution> {
        self.lock_state().executions.remove(&execution)
    }

    /// Nothing is watched any more, and the walls may come down.
    pub fn clear_all(&self) {
        let state = std::mem::take(&mut *self.lock_state());
        drop(state);
    }
}
