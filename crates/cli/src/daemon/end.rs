//! Ends one sandbox, whichever process owns it, and returns when nothing is left (C-30).

use std::time::{Duration, Instant};

use stockade_core::{BackendChoice, Error, ErrorCode, Result, SandboxId};
use stockade_engine::LeaseInfo;

use super::client::SupervisorConnection;
use super::message::{SupervisorReply, SupervisorRequest};
use super::sandbox_directory::SandboxDirectory;
use super::wire_error::out_of_turn;
use crate::config::Settings;
use crate::registry;

/// Timeout for an owner to see that its walls are gone, and to give the lease back.
const LEASE_RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// Poll interval of the lease: a lock has no event to wait for.
const LEASE_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Timeout for a supervisor to exit after its last reply.
const SUPERVISOR_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoundSandbox {
    /// It was alive and has been ended.
    Alive,
    /// Its owner was dead; what was left has been cleared away.
    Stale,
    /// There was none.
    Nothing,
}

/// Ends a sandbox.
pub async fn end_sandbox(
    place: &SandboxDirectory,
    settings: &Settings,
    id: &SandboxId,
    operation: &'static str,
) -> Result<FoundSandbox> {
    // Held until its lease is gone: what runs inside is recorded as killed, not as cancelled.
    let _request = match place.lease(id)? {
        Some(_) => Some(place.request_kill(id)?),
        None => None,
    };
    let connection = SupervisorConnection::open(&place.sockets, id, operation).await;
    let owned = match connection.or_else(gone_is_none)? {
        Some(connection) => by_its_owner(connection).await?,
        None => false,
    };
    match place.lease(id)? {
        None if owned => Ok(FoundSandbox::Alive),
        None => Ok(FoundSandbox::Nothing),
        Some(lease) if lease.alive => {
            from_outside(place, settings, &lease, operation).await?;
            clear_away(settings).await?;
            Ok(FoundSandbox::Alive)
        }
        Some(_) => {
            clear_away(settings).await?;
            Ok(FoundSandbox::Stale)
        }
    }
}

/// An owner that goes away while it is spoken to may have come to its own end, or died.
fn gone_is_none<T>(error: Error) -> Result<Option<T>> {
    if error.code() == ErrorCode::Gone { Ok(None) } else { Err(error) }
}

/// Has its owner end it. Whether that has left anything is for the lease to say.
async fn by_its_owner(mut connection: SupervisorConnection) -> Result<bool> {
    let answer =
        connection.ask(&SupervisorRequest::Destroy).await.map(Some).or_else(gone_is_none)?;
    match answer {
        Some((SupervisorReply::Done, _)) | None => {
            let _ = tokio::time::timeout(SUPERVISOR_EXIT_TIMEOUT, connection.gone()).await;
            Ok(true)
        }
        Some(_) => Err(out_of_turn(connection.operation)),
    }
}

/// Its owner takes no commands, but the backend needs no handle: it takes the walls away, and the
/// owner sees by the caller's request that this was meant.
async fn from_outside(
    place: &SandboxDirectory,
    settings: &Settings,
    lease: &LeaseInfo,
    operation: &'static str,
) -> Result<()> {
    let body = &lease.body;
    let named = BackendChoice::Named(body.backend.clone());
    let backends = registry::build_backends(settings, &named)?;
    let begun = Instant::now();
    while begun.elapsed() < LEASE_RELEASE_TIMEOUT {
        // Again and again: the owner may have been about to build when this began.
        for backend in backends.iter().filter(|one| one.name() == body.backend) {
            backend.destroy(&body.id).await?;
        }
        if place.lease(&body.id)?.is_none_or(|lease| !lease.alive) {
            return Ok(());
        }
        tokio::time::sleep(LEASE_POLL_INTERVAL).await;
    }
    let message = format!("its walls are gone, but process {} still holds its lease", body.owner);
    Err(Error::new(ErrorCode::LeftBehind, operation, message).remedy("end that process"))
}

/// An engine that opens reaps what dead ones left.
pub async fn clear_away(settings: &Settings) -> Result<()> {
    let engine = registry::engine(settings, &BackendChoice::Auto).await?;
    engine.close().await
}
