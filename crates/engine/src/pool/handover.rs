//! Where a pool meets the pipeline: preparing sandboxes and handing them over.

use stockade_core::{Error, ErrorCode, Result, SandboxId};
use tokio::sync::watch;

use super::Claim;
use crate::audit::build_created_event;
use crate::engine::{EngineInner, lock_mutex};
use crate::journal::Event;
use crate::lifecycle::{RunningSandbox, SandboxOrder};

impl EngineInner {
    /// A prepared sandbox, where there is a pool for what is ordered.
    pub(crate) async fn claim(&self, order: &SandboxOrder) -> Result<Option<Claim>> {
        match self.pools.serving(order) {
            Some(driver) => driver.claim(order).await.map(Some),
            None => Ok(None),
        }
    }

    /// Makes a prepared sandbox the caller's. Dropped half-way, the claim takes it down.
    pub(crate) async fn keep_claimed(
        &self,
        claim: Claim,
        order: &SandboxOrder,
    ) -> Result<SandboxId> {
        let id = claim.id().clone();
        self.record(build_created_event(&id, order)).await?;
        let mut table = lock_mutex(&self.live);
        // Under the table's lock: who closes the engine finds it there, or has closed the pool.
        let accepted = if claim.is_void() { None } else { claim.accept() };
        let Some((live, _answer)) = accepted else {
            return Err(Error::new(ErrorCode::Gone, "create", "the engine was closed"));
        };
        table.insert(id.clone(), live);
        drop(table);
        Ok(id)
    }

    /// Builds a sandbox ahead of any caller, in the name of the tenant it is meant for.
    pub(crate) async fn prepare_sandbox(
        &self,
        order: &SandboxOrder,
        id: SandboxId,
        cancelled: watch::Receiver<bool>,
    ) -> Result<RunningSandbox> {
        let lease = self.lease(order, &id, true)?;
        if let Err(error) = self.record(build_prepared_event(&id, order)).await {
            lease.release()?;
            return Err(error);
        }
        let live = self.build_sandbox(order, &id, lease, cancelled).await?;
        if live.sandbox.alive() {
            return Ok(live);
        }
        self.destroy_unclaimed(live).await?;
        Err(Error::new(ErrorCode::Gone, "create", "it ended right after it was created")
            .backend(order.backend.name()))
    }
}

fn build_prepared_event(sandbox: &SandboxId, order: &SandboxOrder) -> Event {
    Event::Prepared {
        sandbox: sandbox.clone(),
        tenant: order.admitted.spec().tenant.clone(),
        backend: order.admitted.backend().clone(),
        boundary: order.admitted.boundary(),
    }
}
