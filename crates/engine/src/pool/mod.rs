//! Sandboxes prepared ahead: a caller that asks for one that fits gets it at once, in its own name.
//!
//! A sandbox given to one caller is never given to another. Ready ones are leased, counted and recorded as
//! their tenant's, and die with the engine like everything else.

mod claim;
mod driver;
mod fit;
mod handover;
mod machine;
#[cfg(test)]
mod schedules;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use stockade_core::{
    BackendName, Error, ErrorCode, Result, SandboxId, SandboxSpec, TenantName, Workspace,
};

pub(crate) use claim::{Claim, ClaimAnswer, Seated};

use crate::engine::{Engine, EngineInner, lock_mutex};
use crate::host_views::WorkspaceBy;
use crate::lifecycle::{RunningSandbox, SandboxOrder};
use driver::PoolDriver;
use machine::{PoolBounds, PoolCounts};

const OPEN_OPERATION: &str = "open a pool";

/// Sandboxes to be kept ready for one spec. Its tenant is whose they are, from before anybody asks
/// for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSpec {
    /// What they are prepared for. A request for the same thing, labels aside, gets one of them.
    pub spec: SandboxSpec,
    /// How many are ready.
    pub minimum: u32,
    /// How many there are at most: ready, being made, in use and being taken down. A caller that finds all
    /// of them in use waits in the queue.
    pub maximum: u32,
    /// How long one beyond the minimum may be ready without a caller. There are such after callers that
    /// found none.
    pub idle: Duration,
    /// How long a caller may wait in line.
    pub patience: Duration,
}

/// How a pool stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// Whose sandboxes they are.
    pub tenant: TenantName,
    /// Who builds their walls.
    pub backend: BackendName,
    /// How many are to be ready.
    pub minimum: u32,
    /// How many there may be.
    pub maximum: u32,
    /// How many are ready.
    pub ready: u32,
    /// How many are being made.
    pub making: u32,
    /// How many callers have.
    pub used: u32,
    /// How many are being taken down.
    pub retiring: u32,
    /// How many callers wait.
    pub waiting: u32,
}

/// A pool of an engine. Clones are the same pool; dropping them changes nothing.
#[derive(Clone)]
pub struct Pool {
    driver: Arc<PoolDriver>,
}

impl PoolSpec {
    /// The usual numbers: two ready, eight at most, surplus ones for five minutes, callers
    /// in line for half a minute.
    pub fn of(spec: SandboxSpec) -> Self {
        let (idle, patience) = (Duration::from_secs(300), Duration::from_secs(30));
        Self { spec, minimum: 2, maximum: 8, idle, patience }
    }

    fn bounds(&self) -> Result<PoolBounds> {
        let wrong = |message: String, remedy: &str| {
            Err(Error::new(ErrorCode::Invalid, OPEN_OPERATION, message).remedy(remedy))
        };
        if self.maximum == 0 || self.minimum > self.maximum {
            let message = format!("minimum {}, maximum {}", self.minimum, self.maximum);
            return wrong(message, "take a maximum of at least 1, and of at least the minimum");
        }
        let (minimum, maximum) = (self.minimum as usize, self.maximum as usize);
        Ok(PoolBounds { minimum, maximum, idle: self.idle, patience: self.patience })
    }
}

impl Engine {
    /// Begins to prepare sandboxes for a spec; [`Engine::create`] and [`Engine::run`] take one of
    /// them where it fits.
    ///
    /// - The spec is admitted first (C-01), and everything ready counts against its tenant's quota.
    /// - Returns at once: they are made one after the other, while no caller waits for an answer.
    /// - A copy-on-write workspace belongs to one sandbox, and so cannot be prepared for.
    pub async fn open_pool(&self, pool: PoolSpec) -> Result<Pool> {
        let bounds = pool.bounds()?;
        refuse_overlay(&pool.spec)?;
        self.refuse_beyond_quota(&pool)?;
        let order = self.inner.admit_spec(&pool.spec, WorkspaceBy::Caller, None).await?;
        if !self.inner.quota_fits(&order, pool.minimum) {
            let PoolSpec { spec: SandboxSpec { tenant, .. }, minimum, .. } = &pool;
            let message =
                format!("{minimum} ready sandboxes are beyond a quota of tenant {tenant}");
            return Err(Error::new(ErrorCode::Invalid, OPEN_OPERATION, message)
                .remedy("lower the pool's minimum or its limits, or raise the quota"));
        }
        let driver = self.inner.pools.open(order, bounds, &self.inner)?;
        Ok(Pool { driver })
    }

    /// Every pool of this engine.
    pub fn pools(&self) -> Vec<Pool> {
        self.inner.pools.all().into_iter().map(|driver| Pool { driver }).collect()
    }

    fn refuse_beyond_quota(&self, pool: &PoolSpec) -> Result<()> {
        let tenant = &pool.spec.tenant;
        match self.inner.quota(tenant).sandboxes {
            Some(quota) if pool.minimum > quota => {
                let minimum = pool.minimum;
                let message =
                    format!("tenant {tenant} may have {quota} sandboxes, not {minimum} ready ones");
                Err(Error::new(ErrorCode::Invalid, OPEN_OPERATION, message)
                    .remedy("lower the pool's minimum, or raise the quota"))
            }
            Some(_) | None => Ok(()),
        }
    }
}

fn refuse_overlay(spec: &SandboxSpec) -> Result<()> {
    match spec.workspace {
        Workspace::Ephemeral | Workspace::Local(_) => Ok(()),
        Workspace::Overlay(_) => {
            let message = "a copy-on-write workspace belongs to one sandbox";
            Err(Error::new(ErrorCode::Invalid, OPEN_OPERATION, message)
                .remedy("prepare for an ephemeral workspace or for a directory"))
        }
    }
}

impl Pool {
    /// How it stands.
    pub fn status(&self) -> PoolStatus {
        let (bounds, counts) = self.driver.counts();
        let PoolCounts { ready, making, used, retiring, waiting } = counts;
        let admitted = &self.driver.template.admitted;
        PoolStatus {
            tenant: admitted.spec().tenant.clone(),
            backend: admitted.backend().clone(),
            minimum: saturate_count(bounds.minimum),
            maximum: saturate_count(bounds.maximum),
            ready: saturate_count(ready),
            making: saturate_count(making),
            used: saturate_count(used),
            retiring: saturate_count(retiring),
            waiting: saturate_count(waiting),
        }
    }

    /// Holds it to other numbers. What is ready beyond the new minimum is taken down; what callers
    /// have stays theirs.
    pub fn resize(&self, minimum: u32, maximum: u32) -> Result<()> {
        let (bounds, _) = self.driver.counts();
        let PoolBounds { idle, patience, .. } = bounds;
        let spec = SandboxSpec::default();
        self.driver.resize(PoolSpec { spec, minimum, maximum, idle, patience }.bounds()?);
        Ok(())
    }

    /// Ends it: waiting callers are refused, and nothing that was ready is left when this returns. What
    /// callers have stays theirs. Idempotent.
    pub async fn close(&self) {
        self.driver.close().await;
    }
}

fn saturate_count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The pools of one engine.
#[derive(Default)]
pub(crate) struct Pools(Mutex<Vec<Arc<PoolDriver>>>);

impl Pools {
    fn open(
        &self,
        order: SandboxOrder,
        bounds: PoolBounds,
        engine: &Arc<EngineInner>,
    ) -> Result<Arc<PoolDriver>> {
        if order.secrets.is_some() {
            let message = "sandboxes with secrets, or with rules for methods and paths, are not prepared ahead";
            return Err(Error::new(ErrorCode::Invalid, OPEN_OPERATION, message)
                .remedy("leave the secrets and those rules out of the pool's spec"));
        }
        let mut pools = lock_mutex(&self.0);
        pools.retain(|driver| !driver.is_closed());
        if pools.iter().any(|driver| driver.can_serve(&order)) {
            let message = "there is a pool for the same spec";
            return Err(
                Error::new(ErrorCode::Invalid, OPEN_OPERATION, message).remedy("resize that one")
            );
        }
        let driver = PoolDriver::open(order, bounds, engine);
        pools.push(Arc::clone(&driver));
        Ok(driver)
    }

    fn all(&self) -> Vec<Arc<PoolDriver>> {
        lock_mutex(&self.0).iter().filter(|driver| !driver.is_closed()).cloned().collect()
    }

    /// The one that has what is ordered.
    fn serving(&self, order: &SandboxOrder) -> Option<Arc<PoolDriver>> {
        let pools = lock_mutex(&self.0);
        pools.iter().find(|driver| !driver.is_closed() && driver.can_serve(order)).cloned()
    }

    /// Takes back one that is ready, of this tenant.
    pub(crate) fn make_room(&self, tenant: &TenantName) -> Option<RunningSandbox> {
        let theirs = self.all().into_iter().filter(|driver| driver.is_of(tenant));
        theirs.into_iter().find_map(|driver| driver.withdraw(|_| true))
    }

    /// Takes back this one, if it is ready.
    pub(crate) fn withdraw(&self, id: &SandboxId) -> Option<RunningSandbox> {
        self.all().iter().find_map(|driver| driver.withdraw(|live| live.sandbox.id() == id))
    }

    /// Ends all of them.
    pub(crate) async fn close(&self) {
        for driver in self.all() {
            driver.close().await;
        }
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        lock_mutex(&self.0).iter().for_each(|driver| driver.abandon_all());
    }
}
