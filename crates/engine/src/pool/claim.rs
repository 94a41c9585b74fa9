//! What a caller gets from a pool, and how its end is noticed. A caller that goes away half-way leaves a
//! sandbox that was given to it: that one is taken down, never given to another caller.

use std::sync::{Arc, Weak};

use stockade_core::{Result, SandboxId};

use super::driver::PoolDriver;
use super::machine::{PoolAsker, PoolSeat};
use crate::lifecycle::{RunningSandbox, SandboxOrder};

/// A sandbox that was given to a caller who has not yet taken it.
pub(crate) struct Claim {
    driver: Arc<PoolDriver>,
    seat: PoolSeat,
    id: SandboxId,
    live: Option<RunningSandbox>,
}

impl Claim {
    pub(super) fn new(driver: &Arc<PoolDriver>, seat: PoolSeat, live: RunningSandbox) -> Self {
        let id = live.sandbox.id().clone();
        Self { driver: Arc::clone(driver), seat, id, live: Some(live) }
    }

    pub(crate) fn id(&self) -> &SandboxId {
        &self.id
    }

    /// Whether the pool has ended meanwhile, and with it the engine.
    pub(crate) fn is_void(&self) -> bool {
        self.driver.is_closed()
    }

    /// In the caller's name from now on, on disk too.
    pub(super) fn assign_to(mut self, order: &SandboxOrder) -> Result<Self> {
        self.live.as_mut().map_or(Ok(()), |live| live.assign_to(order))?;
        Ok(self)
    }

    /// It is the caller's. Others are made ahead once the answer is dropped.
    pub(crate) fn accept(mut self) -> Option<(Arc<RunningSandbox>, ClaimAnswer)> {
        let answer = ClaimAnswer { driver: Arc::clone(&self.driver), seat: self.seat };
        Some((self.live.take()?.share(), answer))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(live) = self.live.take() {
            self.driver.destroy(live);
        }
    }
}

/// Held while a caller is being answered.
pub(crate) struct ClaimAnswer {
    driver: Arc<PoolDriver>,
    seat: PoolSeat,
}

impl Drop for ClaimAnswer {
    fn drop(&mut self) {
        self.driver.answered(self.seat);
    }
}

/// A caller in line. It leaves the line when this is dropped.
pub(super) struct Asking<'s> {
    pub driver: &'s Arc<PoolDriver>,
    pub asker: PoolAsker,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.driver.gave_up(self.asker);
    }
}

/// A sandbox's seat, free again when this is dropped. Weak, since the pool holds what holds this.
pub(crate) struct Seated {
    driver: Weak<PoolDriver>,
    seat: PoolSeat,
}

impl Seated {
    pub(super) fn new(driver: &Arc<PoolDriver>, seat: PoolSeat) -> Self {
        Self { driver: Arc::downgrade(driver), seat }
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        if let Some(driver) = self.driver.upgrade() {
            driver.ended(self.seat);
        }
    }
}
