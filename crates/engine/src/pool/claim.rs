//! What a caller gets from a pool, and how its end is noticed. A caller that goes away half-way leaves a
//! sandbox that was given to it: that one is taken down, never given to another caller.

use std::sync::{Arc, Weak};

use stockade_core::{Result, SandboxId};

use super::machine::{PoolAsker, PoolSeat};
use super::steward::Steward;
use crate::lifecycle::{RunningSandbox, SandboxOrder};

/// A sandbox that was given to a caller who has not yet taken it.
pub(crate) struct Claim {
    steward: Arc<Steward>,
    seat: PoolSeat,
    id: SandboxId,
    live: Option<RunningSandbox>,
}

impl Claim {
    pub(super) fn new(steward: &Arc<Steward>, seat: PoolSeat, live: RunningSandbox) -> Self {
        let id = live.sandbox.id().clone();
        Self { steward: Arc::clone(steward), seat, id, live: Some(live) }
    }

    pub(crate) fn id(&self) -> &SandboxId {
        &self.id
    }

    /// Whether the pool has ended meanwhile, and with it the engine.
    pub(crate) fn is_void(&self) -> bool {
        self.steward.is_closed()
    }

    /// In the caller's name from now on, on disk too.
    pub(super) fn dress(mut self, order: &SandboxOrder) -> Result<Self> {
        self.live.as_mut().map_or(Ok(()), |live| live.dress(order))?;
        Ok(self)
    }

    /// It is the caller's. Others are made ahead once the answer is dropped.
    pub(crate) fn accept(mut self) -> Option<(Arc<RunningSandbox>, ClaimAnswer)> {
        let answer = ClaimAnswer { steward: Arc::clone(&self.steward), seat: self.seat };
        Some((self.live.take()?.share(), answer))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(live) = self.live.take() {
            self.steward.destroy(live);
        }
    }
}

/// Held while a caller is being answered.
pub(crate) struct ClaimAnswer {
    steward: Arc<Steward>,
    seat: PoolSeat,
}

impl Drop for ClaimAnswer {
    fn drop(&mut self) {
        self.steward.answered(self.seat);
    }
}

/// A caller in line. It leaves the line when this is dropped.
pub(super) struct Asking<'s> {
    pub steward: &'s Arc<Steward>,
    pub asker: PoolAsker,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.steward.gave_up(self.asker);
    }
}

/// A sandbox's seat, free again when this is dropped. Weak, since the pool holds what holds this.
pub(crate) struct Seated {
    steward: Weak<Steward>,
    seat: PoolSeat,
}

impl Seated {
    pub(super) fn new(steward: &Arc<Steward>, seat: PoolSeat) -> Self {
        Self { steward: Arc::downgrade(steward), seat }
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        if let Some(steward) = self.steward.upgrade() {
            steward.ended(self.seat);
        }
    }
}
