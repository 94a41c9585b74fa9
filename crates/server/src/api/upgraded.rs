//! Connections that go on as something else than HTTP. One holds the room of its request and of its connection until it
//! ends, and is cut off when its token is revoked or the daemon has ended.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::caller::ApiCaller;
use super::tokens::TokenStore;

/// How often is looked whether the token of a request that goes on was revoked.
const REVOCATION_INTERVAL: Duration = Duration::from_millis(500);

/// Ends when the token of a request is revoked.
pub(crate) type Revocation = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Ends when the token of a caller is revoked, or cannot be looked up any more.
pub(crate) fn watch_revocation(tokens: &Arc<TokenStore>, caller: &ApiCaller) -> Revocation {
    let ApiCaller::Holder(token) = caller else { return Box::pin(std::future::pending()) };
    let (tokens, token) = (Arc::clone(tokens), token.clone());
    Box::pin(async move {
        while tokens.is_known(&token).unwrap_or(false) {
            tokio::time::sleep(REVOCATION_INTERVAL).await;
        }
    })
}

/// What one connection was upgraded to. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConnectionUpgrades {
    running: TaskTracker,
    cut_off: CancellationToken,
}

impl ConnectionUpgrades {
    /// Waits until all has ended. There is no request left that could begin more.
    pub(crate) async fn wait(&self) {
        self.running.close();
        self.running.wait().await;
    }

    /// Cuts off what runs when the connection is no longer served.
    pub(crate) fn cut_off_when_dropped(&self) -> DropGuard {
        self.cut_off.clone().drop_guard()
    }
}

/// What a request gives to the work that its connection is upgraded to.
#[derive(Clone)]
pub(crate) struct UpgradeHold {
    /// The connection is waited for until this is dropped.
    _running: TaskTrackerToken,
    cut_off: CancellationToken,
    /// The room of the request.
    _room: Option<Arc<OwnedSemaphorePermit>>,
    tokens: Arc<TokenStore>,
    caller: ApiCaller,
}

impl UpgradeHold {
    /// What a request of this caller holds.
    pub(crate) fn new(
        upgrades: &ConnectionUpgrades,
        room: Option<Arc<OwnedSemaphorePermit>>,
        tokens: &Arc<TokenStore>,
        caller: &ApiCaller,
    ) -> Self {
        Self {
            _running: upgrades.running.token(),
            cut_off: upgrades.cut_off.clone(),
            _room: room,
            tokens: Arc::clone(tokens),
            caller: caller.clone(),
        }
    }

    /// Does the work, and drops it half-way when the token is revoked or the daemon has ended.
    pub(crate) async fn run(self, work: impl Future<Output = ()>) {
        tokio::select! {
            () = work => {}
            () = watch_revocation(&self.tokens, &self.caller) => {}
            () = self.cut_off.cancelled() => {}
        }
    }
}
