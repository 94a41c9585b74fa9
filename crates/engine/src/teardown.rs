//! The end of sandboxes: destroy, check, record, and only then give the lease back; reap what dead engines left
//! (C-30, C-31).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use stockade_core::{Backend, BackendName, Error, ErrorCode, Result, SandboxId};

use crate::engine::{EngineInner, lock_mutex};
use crate::execution::SharedExecution;
use crate::journal::Event;
use crate::lease::{Lease, LeaseBody, StaleLease};
use crate::lifecycle::{RunningSandbox, in_a_task, too_slow};

/// How long the commands of a sandbox may take to end before its walls come down.
const END_GRACE: Duration = Duration::from_secs(6);
/// How many sandboxes that other processes have ended are remembered: those of which a caller may still ask why.
const MAX_REMEMBERED_KILLS: usize = 256;

impl EngineInner {
    /// Destroys a live sandbox: first what runs in it, so that each outcome is its own, then the walls. Its
    /// workspace is released last, even where the walls may still stand.
    pub(crate) async fn destroy_live(self: Arc<Self>, live: Arc<RunningSandbox>) -> Result<()> {
        in_a_task(async move {
            let executions = end_executions(&live).await;
            let destroyed = self.destroy_walls(&live).await;
            if destroyed.is_ok() {
                all_finished(&executions).await;
            }
            live.release_workspace().await;
            destroyed?;
            // Not before: a second caller, or one who closes the engine, waits for the workspace too.
            self.forget_sandbox(&live);
            Ok(())
        })
        .await
    }

    /// Destroys a sandbox that only its task knows, after everything that runs in it.
    pub(crate) async fn destroy_with_executions(&self, live: &RunningSandbox) -> Result<()> {
        end_executions(live).await;
        self.destroy_sandbox(live).await
    }

    /// Destroys a sandbox that no caller has. If that fails it stays known, for a retry.
    pub(crate) async fn destroy_unclaimed(&self, live: RunningSandbox) -> Result<()> {
        let destroyed = self.destroy_sandbox(&live).await;
        if destroyed.is_err() {
            lock_mutex(&self.live).insert(live.sandbox.id().clone(), Arc::new(live));
        }
        destroyed
    }

    /// Destroys the walls and forgets them. What could not be destroyed stays known, so that it can be tried
    /// again.
    pub(crate) async fn destroy_sandbox(&self, live: &RunningSandbox) -> Result<()> {
        self.destroy_walls(live).await?;
        self.forget_sandbox(live);
        Ok(())
    }

    fn forget_sandbox(&self, live: &RunningSandbox) {
        lock_mutex(&self.live).remove(live.sandbox.id());
    }

    /// Destroys, checks, records, and only then gives the lease back.
    async fn destroy_walls(&self, live: &RunningSandbox) -> Result<()> {
        let id = live.sandbox.id();
        let mut held = live.lease.lock().await;
        if held.is_none() {
            return Ok(());
        }
        let destroyed = self.destroy_within_deadline(live.order.backend.as_ref(), id).await;
        // After its processes, which could not do without; before the record that it is gone.
        self.close_network(live).await;
        let detail = destroyed.as_ref().err().map(|error| error.message().to_owned());
        let event = Event::Destroyed { sandbox: id.clone(), clean: destroyed.is_ok(), detail };
        let recorded = self.record(event).await;
        // Walls that may still stand keep their lease, so that they are reaped later.
        destroyed?;
        self.remember_kill(id);
        held.take().map_or(Ok(()), Lease::release)?;
        recorded
    }

    /// Remembers a sandbox that another process is ending on purpose. The killer waits for the lease, so its
    /// request can still be read before that is released.
    fn remember_kill(&self, id: &SandboxId) {
        if !self.kill_is_requested(id) {
            return;
        }
        let mut killed = lock_mutex(&self.killed);
        if killed.len() >= MAX_REMEMBERED_KILLS {
            killed.pop_front();
        }
        killed.push_back(id.clone());
    }

    pub(crate) async fn destroy_within_deadline(
        &self,
        backend: &dyn Backend,
        id: &SandboxId,
    ) -> Result<()> {
        let destroyed =
            tokio::time::timeout(self.config.destroy_deadline, backend.destroy(id)).await;
        destroyed.unwrap_or_else(|_| Err(too_slow("destroy", backend)))
    }

    /// Destroys a sandbox that is not this engine's: nothing to do, or what a dead engine left.
    pub(crate) async fn destroy_foreign(&self, id: &SandboxId) -> Result<()> {
        if let Some(stale) = self.leases.claim_stale()?.into_iter().find(|it| it.body().id == *id) {
            let name = &stale.body().backend;
            let backend = self.registry.get(name).ok_or_else(|| backend_missing(id, name))?;
            return self.destroy_stale(backend.as_ref(), stale).await;
        }
        if self.leases.list()?.leases.iter().any(|lease| lease.body.id == *id) {
            let message = format!("sandbox `{id}` belongs to another running engine");
            return Err(Error::new(ErrorCode::Denied, "destroy", message)
                .remedy("end it through the engine that made it: `stockade kill`"));
        }
        Ok(())
    }

    /// Destroys what dead engines left. Leases of a backend that this engine does not have, or that
    /// fails, are kept for the next one: what is left of one sandbox must not stop everything else.
    pub(crate) async fn reap(&self) -> Result<Vec<SandboxId>> {
        let mut reaped = Vec::new();
        let mut silent = BTreeSet::new();
        for stale in self.leases.claim_stale()? {
            let LeaseBody { id, backend: name, .. } = stale.body().clone();
            let Some(backend) = self.registry.get(&name) else { continue };
            if silent.contains(&name) {
                continue;
            }
            match self.destroy_stale(backend.as_ref(), stale).await {
                Ok(()) => reaped.push(id),
                // Each other one would wait as long again for an answer that does not come.
                Err(error)
                    if matches!(error.code(), ErrorCode::Unavailable | ErrorCode::TooSlow) =>
                {
                    silent.insert(name);
                }
                Err(_) => {}
            }
        }
        Ok(reaped)
    }

    /// Destroys what a dead engine left of one sandbox.
    async fn destroy_stale(&self, backend: &dyn Backend, stale: StaleLease) -> Result<()> {
        let sandbox = stale.body().id.clone();
        self.destroy_within_deadline(backend, &sandbox).await?;
        let detail = Some("reaped: its engine had ended".into());
        self.journal.append(Event::Destroyed { sandbox, clean: true, detail })?;
        stale.finish()
    }
}

fn backend_missing(id: &SandboxId, backend: &BackendName) -> Error {
    let message = format!("sandbox `{id}` was made by backend `{backend}`, which is not here");
    Error::new(ErrorCode::Unavailable, "destroy", message)
        .remedy(format!("open the engine with backend `{backend}`"))
}

/// Ends what runs in a sandbox, so that each outcome is its own. What cannot be ended by itself in time ends with
/// the walls.
async fn end_executions(live: &RunningSandbox) -> Vec<Arc<SharedExecution>> {
    let executions = live.executions();
    executions.iter().for_each(|shared| shared.cancel());
    let _ = tokio::time::timeout(END_GRACE, all_finished(&executions)).await;
    executions
}

async fn all_finished(executions: &[Arc<SharedExecution>]) {
    for shared in executions {
        shared.finished().await;
    }
}
