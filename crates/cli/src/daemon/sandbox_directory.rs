//! Directory of this user's sandboxes: leases say which there are, sockets lead to their owners.

use std::path::Path;

use stockade_core::{Error, ErrorCode, Result, SandboxId};
use stockade_engine::{KillRequest, LeaseInfo, LeaseListing, Leases, StateDir};

use super::client::SupervisorConnection;
use super::socket::{self, SupervisorSockets};
use super::wire_error::unknown_sandbox_error;
use crate::args::prefix::by_prefix;
use crate::config::Settings;

/// The sandboxes of one state directory.
pub struct SandboxDirectory {
    /// The way to their owners.
    pub sockets: SupervisorSockets,
    leases: Leases,
}

impl SandboxDirectory {
    /// Opens the state directory. Nothing is reaped by looking.
    pub fn open(settings: &Settings) -> Result<Self> {
        Self::open_at(&settings.state_dir()?)
    }

    fn open_at(state: &Path) -> Result<Self> {
        let state = StateDir::open(state)?;
        let sockets = SupervisorSockets::open(state.path())?;
        Ok(Self { sockets, leases: Leases::open(&state)? })
    }

    /// Every sandbox of this user.
    pub fn list(&self) -> Result<LeaseListing> {
        self.leases.list()
    }

    /// The lease of one, if there is one.
    pub fn lease(&self, id: &SandboxId) -> Result<Option<LeaseInfo>> {
        Ok(self.list()?.leases.into_iter().find(|lease| lease.body.id == *id))
    }

    /// Says that a sandbox is about to be ended on purpose, for as long as this is held.
    pub fn request_kill(&self, id: &SandboxId) -> Result<KillRequest> {
        self.leases.request_kill(id)
    }

    /// The sandbox whose id this is, or the only one whose id begins so. Where there is none: what was given.
    pub fn resolve(&self, given: &SandboxId, operation: &'static str) -> Result<SandboxId> {
        let ids: Vec<_> = self.list()?.leases.into_iter().map(|lease| lease.body.id).collect();
        Ok(by_prefix("sandboxes", given.as_str(), ids, operation)?.unwrap_or_else(|| given.clone()))
    }

    /// Connects to the owner of a persistent sandbox, or says why that is not possible. The beginning of an
    /// id is enough; the connection has the whole.
    pub async fn reach(
        &self,
        given: &SandboxId,
        operation: &'static str,
    ) -> Result<SupervisorConnection> {
        if let Some(connection) =
            SupervisorConnection::open(&self.sockets, given, operation).await?
        {
            return Ok(connection);
        }
        let id = &self.resolve(given, operation)?;
        if id != given
            && let Some(connection) =
                SupervisorConnection::open(&self.sockets, id, operation).await?
        {
            return Ok(connection);
        }
        Err(match self.lease(id)? {
            None => unknown_sandbox_error(operation, id),
            Some(lease) if lease.alive => taken_sandbox_error(operation, &lease),
            Some(_) => orphaned_sandbox_error(operation, id),
        })
    }
}

/// Removes sockets whose owners are dead. Sockets are looked at before leases: a supervisor has its
/// lease before its socket, so a socket without a live lease has no owner.
pub fn sweep_sockets(state: &Path) {
    let sockets = socket::list_socket_ids(state);
    if sockets.is_empty() {
        return;
    }
    // A failure is ignored: the next command tries again.
    let _ = remove_unowned(state, &sockets);
}

fn remove_unowned(state: &Path, sockets: &[SandboxId]) -> Result<()> {
    let place = SandboxDirectory::open_at(state)?;
    let leases = place.list()?.leases;
    let owned = |id: &SandboxId| leases.iter().any(|one| one.alive && one.body.id == *id);
    for id in sockets.iter().filter(|id| !owned(id)) {
        let _ = place.sockets.remove(id);
    }
    Ok(())
}

/// A sandbox that is alive without a supervisor: a `run` in progress, or a program's own engine.
pub fn taken_sandbox_error(operation: &'static str, lease: &LeaseInfo) -> Error {
    let (id, owner) = (&lease.body.id, lease.body.owner);
    let message = format!("sandbox `{id}` belongs to process {owner}, which takes no commands");
    Error::new(ErrorCode::Denied, operation, message)
        .remedy("`stockade kill` ends it; `stockade create` makes one that takes commands")
}

fn orphaned_sandbox_error(operation: &'static str, id: &SandboxId) -> Error {
    let message = format!("the supervisor of sandbox `{id}` has died, and the sandbox with it");
    Error::new(ErrorCode::Gone, operation, message)
        .remedy("`stockade rm` clears it away; make a new one with `stockade create`")
}
