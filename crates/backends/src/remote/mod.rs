//! Sandboxes of another daemon: `stockade serve`, here or on another host, builds the walls, and this side uses
//! them over its API. What that side can enforce is what it says it has measured.
//!
//! The other end is not trusted: every operation has one deadline, every answer a bound, and every text is cleaned.
//! Nothing of this host is named to it. `docs/backends/remote.md` says what this does not protect from.

mod client;
mod create;
#[cfg(feature = "factory")]
pub mod factory;
mod files;
mod probe;
mod process;
mod sandbox;
mod sse;
mod tls;
mod url;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use stockade_core::{Admitted, BackendName, Capabilities, ErrorCode, Result, Sandbox, SandboxId};

use crate::linux::lock;
use crate::managed::{Cancellation, Managed, WallBuilder};
use client::{DaemonCall, DaemonClient, protocol_error};
use probe::FarBackend;
use sandbox::DaemonHold;
use tls::DaemonTls;
pub use url::{DaemonUrl, TlsHost};

/// The remote backend's name.
pub const NAME: BackendName = BackendName::literal("remote");

/// Timeout for taking a sandbox down: longer than the daemon takes to say that it could not.
const TAKE_DOWN_TIMEOUT: Duration = Duration::from_secs(60);
/// The same for what another engine has left: its connection is gone, so that the daemon has begun by itself.
const FOREIGN_TAKE_DOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// The most names that a daemon lists.
const MAX_LISTED_NAMES: usize = 65_536;

/// The remote backend.
pub type DaemonBackend = Managed<DaemonWalls>;

/// Which daemon, and how it is used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DaemonOptions {
    /// Where it listens.
    pub url: Option<DaemonUrl>,
    /// A file with the token for it, which only this user can read.
    pub token_file: Option<PathBuf>,
    /// A file with the certificates of authorities that may vouch for it; absent: those that this host trusts.
    pub ca_file: Option<PathBuf>,
    /// Which of its backends builds the walls; absent: the one that it would choose itself.
    pub backend: Option<BackendName>,
}

/// What has a daemon build walls.
pub struct DaemonWalls {
    client: Option<DaemonClient>,
    /// Which of its backends was named.
    named: Option<BackendName>,
    /// Which of its backends was measured.
    measured: Mutex<Option<FarBackend>>,
    live: Mutex<HashMap<SandboxId, DaemonHold>>,
}

#[derive(Deserialize)]
struct AttachedList {
    names: Vec<SandboxId>,
}

impl DaemonBackend {
    /// A backend that has not connected to anything yet.
    pub fn new(options: DaemonOptions) -> Self {
        let DaemonOptions { url, token_file, ca_file, backend } = options;
        let client = url.map(|url| DaemonClient { url, token_file, tls: DaemonTls::new(ca_file) });
        let (measured, live) = (Mutex::default(), Mutex::default());
        Self::of(DaemonWalls { client, named: backend, measured, live })
    }
}

impl DaemonWalls {
    fn client(&self) -> Result<&DaemonClient> {
        self.client.as_ref().ok_or_else(probe::no_daemon_error)
    }

    /// The daemon's backend that builds the walls, as it was last measured.
    async fn find_far_backend(&self) -> Result<FarBackend> {
        if let Some(measured) = lock(&self.measured).clone() {
            return Ok(measured);
        }
        probe::find_far_backend(self.client()?, self.named.as_ref()).await
    }
}

#[async_trait]
impl WallBuilder for DaemonWalls {
    const NAME: BackendName = NAME;

    async fn probe(self: Arc<Self>) -> Capabilities {
        let Ok(client) = self.client() else { return probe::nothing_configured() };
        match probe::find_far_backend(client, self.named.as_ref()).await {
            Ok(found) => {
                let adapted = probe::adapt_capabilities(&found, &client.url);
                *lock(&self.measured) = Some(found);
                adapted
            }
            Err(error) => probe::not_usable(&error),
        }
    }

    fn only_by_name(&self) -> Option<String> {
        Some(probe::ONLY_BY_NAME.into())
    }

    async fn build(
        self: Arc<Self>,
        id: &SandboxId,
        admitted: &Admitted,
        _: &Cancellation,
    ) -> Result<Arc<dyn Sandbox>> {
        let far = self.find_far_backend().await?;
        let (sandbox, hold) = create::create_sandbox(self.client()?, &far, id, admitted).await?;
        lock(&self.live).insert(id.clone(), hold);
        Ok(Arc::new(sandbox))
    }

    /// The daemon answers when nothing is left of it, nor of one that is still being made.
    async fn take_down(&self, id: &SandboxId) -> Result<()> {
        // Without its connection it ends, whatever becomes of the request.
        let is_own = lock(&self.live).remove(id).is_some();
        let timeout = if is_own { TAKE_DOWN_TIMEOUT } else { FOREIGN_TAKE_DOWN_TIMEOUT };
        let call = DaemonCall::delete("destroy", format!("/v1/attached?name={id}"));
        self.client()?.ask(call.within(timeout)).await.map(drop)
    }

    /// A daemon that could not be reached has begun nothing, or takes it down when it misses the connection.
    async fn clear_unfinished(&self, id: &SandboxId, why: &stockade_core::Error) -> Result<()> {
        match self.take_down(id).await {
            Err(error)
                if [&error, why].iter().all(|error| error.code() == ErrorCode::Unavailable) =>
            {
                Ok(())
            }
            cleared => cleared,
        }
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        let Ok(client) = self.client() else { return Ok(Vec::new()) };
        let listed: AttachedList = client.ask_json(DaemonCall::get("list", "/v1/attached")).await?;
        match listed.names.len() <= MAX_LISTED_NAMES {
            true => Ok(listed.names),
            false => Err(protocol_error("list", "it lists more sandboxes than it can have")),
        }
    }
}
