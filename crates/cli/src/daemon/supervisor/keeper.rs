//! Looks after one sandbox: builds it, listens for it, decides when it has lived long enough, and
//! takes it down with everything that belongs to it.

use std::sync::Arc;
use std::time::Duration;

use stockade_backends::native::{Native, release_idle_memory};
use stockade_core::{Result, WorkspaceSource};
use stockade_engine::{Engine, SandboxRequest, Watcher};
use stockade_server::life::Activity;
use stockade_workspaces::SandboxWorkspaces;
use tokio::net::UnixListener;

use super::host::SupervisorHost;
use super::session;
use crate::config::Settings;
use crate::daemon::message::{SandboxReady, SupervisorOrder};
use crate::daemon::socket::SupervisorSockets;
use crate::daemon::wire_error::WireError;
use crate::project_cache::{HeldCache, hold_caches};
use crate::registry;
use crate::terminal::interrupts::Interrupts;
use crate::workspace::reopen_source;

/// Most connections at once.
const MAX_SESSIONS: usize = 256;
/// Timeout for the open sessions to hear that the sandbox ended.
const SESSIONS_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without a session after which memory that is not needed is given back.
const IDLE_MEMORY_DELAY: Duration = Duration::from_secs(1);

/// Looks after one sandbox.
pub struct SandboxKeeper {
    host: Arc<SupervisorHost>,
    sockets: SupervisorSockets,
    sessions: Arc<Activity>,
    accepting: tokio::task::AbortHandle,
    interrupts: tokio::sync::Mutex<Interrupts>,
    /// The program the sandbox was made for: it ends with it.
    first: Option<Watcher>,
    /// The package caches that it shows.
    #[allow(dead_code, reason = "held for their locks")]
    caches: Vec<HeldCache>,
}

impl SandboxKeeper {
    /// Builds the sandbox. If that fails nothing is left.
    pub async fn build(
        order: SupervisorOrder,
        native: Native,
        settings: &Settings,
    ) -> Result<Self> {
        let interrupts = Interrupts::listen()?;
        let sockets = SupervisorSockets::open(&settings.state_dir()?)?;
        let workspace =
            order.workspace.as_ref().map(|id| reopen_source(id, settings)).transpose()?;
        let mut settings = settings.clone();
        let caches = hold_caches(&order.spec, &mut settings)?;
        let engine = registry::persistent_engine(native, &settings, &order.spec.backend).await?;
        let built = Self::build_sandbox(&engine, order, sockets, interrupts, workspace).await;
        match built {
            Ok(built) => Ok(Self { caches, ..built }),
            Err(error) => {
                engine.close().await?;
                Err(error)
            }
        }
    }

    async fn build_sandbox(
        engine: &Engine,
        order: SupervisorOrder,
        sockets: SupervisorSockets,
        interrupts: Interrupts,
        workspace: Option<SandboxWorkspaces>,
    ) -> Result<Self> {
        engine.hold_secrets(&order.spec.tenant, order.secrets.clone());
        if order.from.is_some() {
            engine.snapshots().trust(&order.verified);
        }
        let workspaces = workspace.as_ref().map(|source| source.workspaces().clone());
        let workspace = workspace.map(|source| Arc::new(source) as Arc<dyn WorkspaceSource>);
        let (spec, from) = (order.spec.clone(), order.from.clone());
        let shares_workspace = order.shares_workspace;
        let request = SandboxRequest { spec, workspace, from, shares_workspace };
        let id = engine.create(request).await?;
        let host = SupervisorHost::new(engine.clone(), id.clone(), &order, workspaces);
        host.look_after_carried()?;
        let first = match order.command {
            Some(command) => Some(host.exec(command).await?.0.detach()),
            None => None,
        };
        let listener = sockets.bind(&id)?;
        let sessions = Activity::new();
        let accept = accept_sessions(Arc::clone(&host), listener, Arc::clone(&sessions));
        let accepting = tokio::spawn(accept).abort_handle();
        let interrupts = tokio::sync::Mutex::new(interrupts);
        let caches = Vec::new();
        Ok(Self { host, sockets, sessions, accepting, interrupts, first, caches })
    }

    /// What was made.
    pub fn ready(&self) -> SandboxReady {
        let job = self.first.as_ref().map(|first| first.job().clone());
        // A sandbox that has ended already has nothing to be told of.
        let limits = self.host.engine.limits(&self.host.id).unwrap_or_default();
        SandboxReady { id: self.host.id.clone(), job, limits }
    }

    /// Returns when the sandbox has lived long enough.
    pub async fn keep(&self) {
        let mut interrupts = self.interrupts.lock().await;
        // Idle from now on: before, nobody knew of it.
        drop(self.host.life.begin_use());
        tokio::select! {
            () = self.host.asked_to_end() => {}
            _ = self.host.life.expired() => {}
            () = self.first_is_over() => {}
            () = self.release_memory_when_idle() => {}
            _ = interrupts.next() => {}
        }
    }

    /// Never returns.
    async fn release_memory_when_idle(&self) {
        loop {
            self.sessions.none_for(IDLE_MEMORY_DELAY).await;
            release_idle_memory();
            self.sessions.some().await;
        }
    }

    async fn first_is_over(&self) {
        match &self.first {
            Some(first) => drop(first.outcome().await),
            None => std::future::pending().await,
        }
    }

    /// Takes everything down, and lets those who are connected hear of it.
    pub async fn end(self) {
        let ended = self.host.engine.close().await;
        // The socket is removed last, so that a client that connects now waits for the end of the sandbox.
        let _ = self.sockets.remove(&self.host.id);
        self.accepting.abort();
        self.host.set_ended(ended.map_err(|error| WireError::from(&error)));
        let _ = tokio::time::timeout(SESSIONS_CLOSE_TIMEOUT, self.sessions.none()).await;
    }
}

async fn accept_sessions(
    host: Arc<SupervisorHost>,
    listener: UnixListener,
    sessions: Arc<Activity>,
) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: sessions that end give some back.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        if sessions.uses() >= MAX_SESSIONS {
            continue;
        }
        let (host, here) = (Arc::clone(&host), sessions.begin());
        tokio::spawn(async move {
            session::serve_session(host, stream).await;
            drop(here);
        });
    }
}
