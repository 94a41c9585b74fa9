//! Ends one sandbox, whoever owns it, and returns when nothing is left (C-30).

use std::time::{Duration, Instant};

use stockade_core::{BackendChoice, Error, ErrorCode, Result, SandboxId};
use stockade_engine::LeaseInfo;

use super::client::Connection;
use super::fault::out_of_turn;
use super::message::{Reply, Request};
use super::place::Place;
use crate::config::Settings;
use crate::registry;

/// How long an owner may take to see that its walls are gone, and to give the lease back.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often that is looked at: a lock has no event to wait for.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a supervisor may take to end after its last word.
const GOODBYE: Duration = Duration::from_secs(5);

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It was alive and has been ended.
    Alive,
    /// Its owner was dead; what was left has been cleared away.
    Stale,
    /// There was none.
    Nothing,
}

/// Ends a sandbox.
pub async fn end(
    place: &Place,
    settings: &Settings,
    id: &SandboxId,
    operation: &'static str,
) -> Result<Found> {
    if let Some(connection) = Connection::open(&place.sockets, id, operation).await? {
        return by_its_owner(place, connection, id).await;
    }
    match place.lease(id)? {
        None => Ok(Found::Nothing),
        Some(lease) if lease.alive => from_outside(place, &lease, operation).await,
        Some(_) => clear_away(settings).await,
    }
}

async fn by_its_owner(place: &Place, mut connection: Connection, id: &SandboxId) -> Result<Found> {
    let operation = connection.operation;
    match connection.ask(&Request::Destroy).await {
        Ok((Reply::Done, _)) => {
            let _ = tokio::time::timeout(GOODBYE, connection.gone()).await;
            Ok(Found::Alive)
        }
        Ok(_) => Err(out_of_turn(operation)),
        // It may have come to its own end at this very moment.
        Err(error) if error.code() == ErrorCode::Gone => match place.lease(id)? {
            None => Ok(Found::Alive),
            Some(_) => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// Its owner takes no commands, but the backend needs no handle: it takes the walls away, and the
/// owner sees its program lost.
async fn from_outside(place: &Place, lease: &LeaseInfo, operation: &'static str) -> Result<Found> {
    let body = &lease.body;
    let named = BackendChoice::Named(body.backend.clone());
    let backends = registry::backends(&named)?;
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        // Again and again: the owner may have been about to build when this began.
        for backend in backends.iter().filter(|one| one.name() == body.backend) {
            backend.destroy(&body.id).await?;
        }
        if place.lease(&body.id)?.is_none_or(|lease| !lease.alive) {
            return Ok(Found::Alive);
        }
        tokio::time::sleep(PAUSE).await;
    }
    let message = format!("its walls are gone, but process {} still holds its lease", body.owner);
    Err(Error::new(ErrorCode::LeftBehind, operation, message).remedy("end that process"))
}

/// An engine that opens reaps what dead ones left.
pub async fn clear_away(settings: &Settings) -> Result<Found> {
    let engine = registry::engine(settings, &BackendChoice::Auto).await?;
    engine.close().await?;
    Ok(Found::Stale)
}
