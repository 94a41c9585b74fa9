//! What lasts between requests: toolboxes, open questions, and the seats of sessions. A client with a
//! session has a toolbox of its own, gone with the session; requests that stand alone share one, gone
//! after its idle timeout. When a desk was closed, no sandbox of it is left.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rmcp::model::Tool;
use stockade_tools::{Ask, Toolbox};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answer;
use super::pending::PendingQuestions;
use super::person::Unreachable;

/// How a desk is run.
#[derive(Clone)]
pub struct DeskOptions {
    /// Whether a client with a session gets a toolbox of its own.
    pub sessions_apart: bool,
    /// Sessions at once.
    pub sessions: usize,
    /// Calls at once; more wait.
    pub calls: usize,
    /// How long a person may take to answer.
    pub patience: Duration,
    /// Asked where a client declares no way to ask. By default no person is asked: that is a no.
    pub otherwise: Arc<dyn Ask>,
}

impl Default for DeskOptions {
    fn default() -> Self {
        Self {
            sessions_apart: false,
            sessions: 16,
            calls: 32,
            patience: Duration::from_secs(120),
            otherwise: Arc::new(Unreachable),
        }
    }
}

/// What lasts between requests.
pub struct Desk {
    open: Box<dyn Fn() -> Toolbox + Send + Sync>,
    options: DeskOptions,
    common: Mutex<Option<Common>>,
    given: Mutex<Vec<Weak<Toolbox>>>,
    seats: Arc<Semaphore>,
    clearing: TaskTracker,
    closed: CancellationToken,
    pub(super) calls: Semaphore,
    pub(super) pending: PendingQuestions,
    pub(super) tools: Vec<Tool>,
}

struct Common {
    toolbox: Arc<Toolbox>,
    used: Instant,
}

/// A session's place. Its sandboxes are cleared away when it is dropped.
pub(super) struct SessionSeat {
    toolbox: Arc<Toolbox>,
    clearing: TaskTracker,
    permit: Option<OwnedSemaphorePermit>,
}

impl Desk {
    /// A desk whose toolboxes are opened like this.
    pub fn new(
        open: impl Fn() -> Toolbox + Send + Sync + 'static,
        options: DeskOptions,
    ) -> Arc<Self> {
        let tools = open().tools().into_iter().map(answer::tool).collect();
        Arc::new(Self {
            open: Box::new(open),
            common: Mutex::default(),
            given: Mutex::default(),
            seats: Arc::new(Semaphore::new(options.sessions)),
            clearing: TaskTracker::new(),
            closed: CancellationToken::new(),
            calls: Semaphore::new(options.calls),
            pending: PendingQuestions::new(options.patience),
            tools,
            options,
        })
    }

    /// Who is asked where a client declares no way to.
    pub(super) fn otherwise(&self) -> Arc<dyn Ask> {
        Arc::clone(&self.options.otherwise)
    }

    /// Tells every call that runs to end. More are not taken.
    pub fn hurry(&self) {
        self.closed.cancel();
    }

    /// Waits until `hurry` is called.
    pub(super) async fn hurried(&self) {
        self.closed.cancelled().await;
    }

    /// Ends everything. When this returns, no sandbox is left.
    pub async fn close(&self) {
        self.hurry();
        let common = lock_ignoring_poison(&self.common).take().map(|common| common.toolbox);
        let given: Vec<_> = lock_ignoring_poison(&self.given).drain(..).collect();
        for toolbox in common.into_iter().chain(given.iter().filter_map(Weak::upgrade)) {
            toolbox.close().await;
        }
        self.clearing.close();
        self.clearing.wait().await;
    }

    /// The toolbox of requests that stand alone.
    pub(super) fn common(&self) -> Arc<Toolbox> {
        let mut common = lock_ignoring_poison(&self.common);
        let open = || Common { toolbox: Arc::new((self.open)()), used: Instant::now() };
        let common = common.get_or_insert_with(open);
        common.used = Instant::now();
        Arc::clone(&common.toolbox)
    }

    /// A place for one more session, if it is to have one; none when all are taken.
    pub(super) fn sit(&self) -> Option<Option<SessionSeat>> {
        if !self.options.sessions_apart {
            return Some(None);
        }
        let permit = Arc::clone(&self.seats).try_acquire_owned().ok()?;
        let toolbox = Arc::new((self.open)());
        let mut given = lock_ignoring_poison(&self.given);
        given.retain(|one| one.strong_count() > 0);
        given.push(Arc::downgrade(&toolbox));
        Some(Some(SessionSeat { toolbox, clearing: self.clearing.clone(), permit: Some(permit) }))
    }

    /// Closes the common toolbox whenever it has not been used for this long. Never returns.
    pub(super) async fn tidy(&self, idle: Duration) {
        loop {
            tokio::time::sleep(idle / 4).await;
            if let Some(toolbox) = self.take_unused(idle) {
                toolbox.close().await;
            }
        }
    }

    fn take_unused(&self, idle: Duration) -> Option<Arc<Toolbox>> {
        let mut common = lock_ignoring_poison(&self.common);
        let unused = common.as_ref().is_some_and(|common| {
            // A call that runs holds on to it.
            Arc::strong_count(&common.toolbox) == 1 && common.used.elapsed() >= idle
        });
        if unused { common.take().map(|common| common.toolbox) } else { None }
    }
}

impl SessionSeat {
    pub(super) fn toolbox(&self) -> Arc<Toolbox> {
        Arc::clone(&self.toolbox)
    }
}

impl Drop for SessionSeat {
    fn drop(&mut self) {
        let toolbox = Arc::clone(&self.toolbox);
        let permit = self.permit.take();
        self.clearing.spawn(async move {
            toolbox.close().await;
            // Only now: a seat is free when its sandboxes are gone.
            drop(permit);
        });
    }
}

fn lock_ignoring_poison<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}
