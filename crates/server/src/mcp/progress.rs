//! How a long call goes, for a client that asked to be told. Never makes a call wait for a client
//! that does not read.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::{Peer, RoleServer};
use stockade_tools::Progress;

/// Timeout for sending a notification; after that the line is dropped.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(1);

/// Tells a client, if it gave a token.
pub struct Notify {
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
    told: AtomicU32,
}

impl Notify {
    pub fn new(peer: Peer<RoleServer>, token: Option<ProgressToken>) -> Self {
        Self { peer, token, told: AtomicU32::new(0) }
    }
}

#[async_trait]
impl Progress for Notify {
    async fn say(&self, message: String) {
        let Some(token) = self.token.clone() else { return };
        // The total is not known: the number only says that something happened.
        let step = self.told.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let told = ProgressNotificationParam::new(token, f64::from(step)).with_message(message);
        // A client that is gone is noticed by its closed connection, not here.
        let _ = tokio::time::timeout(NOTIFY_TIMEOUT, self.peer.notify_progress(told)).await;
    }
}
