//! Carries out what the machine decides: makes, hands out, takes down, and wakes it in time. Decides
//! nothing itself. Its lock is never held while something is dropped or waited for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use stockade_core::{Error, ErrorCode, Result, TenantName};
use stockade_fs::fresh_id;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use super::claim::{Asking, Claim, Seated};
use super::fit::{HostPlaces, same_walls};
use super::machine::{
    Moment, PoolAct, PoolAsker, PoolBounds, PoolCounts, PoolMachine, PoolSeat, Why,
};
use crate::engine::{EngineInner, lock_mutex};
use crate::lifecycle::{RunningSandbox, SandboxOrder};

/// Interval at which ready sandboxes are checked.
const READY_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Sleep where nothing is planned; a notification ends it earlier.
const IDLE_WAKE_INTERVAL: Duration = Duration::from_secs(3600);

const CLAIM_OPERATION: &str = "claim a sandbox";

pub(crate) struct PoolDriver {
    pub(super) template: SandboxOrder,
    state: Mutex<PoolDriverState>,
    begun: Instant,
    runtime: Handle,
    engine: Weak<EngineInner>,
    wake: Arc<Notify>,
    /// Set once: what is being made is given up.
    closing: watch::Sender<bool>,
    /// How many tasks are at work.
    busy: watch::Sender<usize>,
}

struct PoolDriverState {
    machine: PoolMachine,
    idle_sandboxes: HashMap<PoolSeat, IdleSandbox>,
    line: HashMap<PoolAsker, oneshot::Sender<Result<Claim>>>,
    askers: PoolAsker,
}

/// A ready sandbox, and what it was made of.
struct IdleSandbox {
    live: RunningSandbox,
    places: HostPlaces,
}

impl IdleSandbox {
    fn is_fit(&self) -> bool {
        self.live.sandbox.alive() && self.places.still_there()
    }
}

/// What is left to do once the lock is free.
enum PoolEffect {
    Make(PoolSeat),
    Answer(oneshot::Sender<Result<Claim>>, Result<Claim>),
    Destroy(RunningSandbox),
}

impl PoolDriver {
    /// Begins to prepare. Ends with the engine, or when it is closed.
    pub(super) fn open(
        template: SandboxOrder,
        bounds: PoolBounds,
        engine: &Arc<EngineInner>,
    ) -> Arc<Self> {
        let state = PoolDriverState {
            machine: PoolMachine::new(bounds),
            idle_sandboxes: HashMap::new(),
            line: HashMap::new(),
            askers: 0,
        };
        let driver = Arc::new(Self {
            template,
            state: Mutex::new(state),
            begun: Instant::now(),
            runtime: Handle::current(),
            engine: Arc::downgrade(engine),
            wake: Arc::default(),
            closing: watch::Sender::new(false),
            busy: watch::Sender::new(0),
        });
        driver.runtime.spawn(run_driver(Arc::downgrade(&driver), Arc::clone(&driver.wake)));
        driver
    }

    /// Whether it has what is ordered. Nothing is prepared to start with a captured state, with secrets, or with an
    /// authority of its own.
    pub(super) fn can_serve(&self, order: &SandboxOrder) -> bool {
        order.from.is_none()
            && order.secrets.is_none()
            && same_walls(&self.template.admitted, &order.admitted)
    }

    pub(super) fn is_of(&self, tenant: &TenantName) -> bool {
        self.template.admitted.spec().tenant == *tenant
    }

    pub(super) fn counts(&self) -> (PoolBounds, PoolCounts) {
        let state = lock_mutex(&self.state);
        (state.machine.bounds(), state.machine.counts())
    }

    pub(super) fn is_closed(&self) -> bool {
        *self.closing.borrow()
    }

    /// A sandbox in the caller's name: a ready one, or as soon as there is one.
    pub(crate) async fn claim(self: &Arc<Self>, order: &SandboxOrder) -> Result<Claim> {
        let (answer, answered) = oneshot::channel();
        let asking = Asking { driver: self, asker: self.ask(answer) };
        let claim = answered.await.map_err(|_| build_closed_error())??;
        drop(asking);
        claim.assign_to(order)
    }

    fn ask(self: &Arc<Self>, answer: oneshot::Sender<Result<Claim>>) -> PoolAsker {
        let mut asker = 0;
        self.tell_machine(None, |state, now| {
            let mut acts = state.unfit_on_top(now);
            state.askers += 1;
            asker = state.askers;
            state.line.insert(asker, answer);
            acts.extend(state.machine.ask(now, asker));
            acts
        });
        asker
    }

    pub(super) fn gave_up(self: &Arc<Self>, asker: PoolAsker) {
        self.tell_machine(None, |state, now| {
            state.line.remove(&asker);
            state.machine.give_up(now, asker)
        });
    }

    pub(super) fn answered(self: &Arc<Self>, seat: PoolSeat) {
        self.tell_machine(None, |state, now| state.machine.answered(now, seat));
    }

    pub(super) fn ended(self: &Arc<Self>, seat: PoolSeat) {
        self.tell_machine(None, |state, now| state.machine.ended(now, seat));
    }

    pub(super) fn resize(self: &Arc<Self>, bounds: PoolBounds) {
        self.tell_machine(None, |state, now| state.machine.resize(now, bounds));
    }

    /// Takes back a ready one that fits, for its place to be used otherwise; the oldest first. It is
    /// the caller's to take down.
    pub(super) fn withdraw(
        self: &Arc<Self>,
        wanted: impl Fn(&RunningSandbox) -> bool,
    ) -> Option<RunningSandbox> {
        let mut taken = None;
        self.tell_machine(None, |state, now| {
            let is_wanted =
                |seat: &PoolSeat| state.idle_sandboxes.get(seat).is_some_and(|it| wanted(&it.live));
            let Some(seat) = state.machine.ready().find(is_wanted) else { return Vec::new() };
            taken = state.idle_sandboxes.remove(&seat);
            state.machine.withdraw(now, seat)
        });
        taken.map(|idle| idle.live)
    }

    /// Refuses waiting callers, and takes down what no caller has. What callers have is theirs.
    pub(super) async fn close(self: &Arc<Self>) {
        self.closing.send_replace(true);
        self.tell_machine(None, |state, _| state.machine.close());
        // The sender lives in `self`, so the channel cannot close.
        let _ = self.busy.subscribe().wait_for(|busy| *busy == 0).await;
    }

    /// Drops everything at once, since the engine is gone: a reaper finds the leases.
    pub(super) fn abandon_all(&self) {
        self.closing.send_replace(true);
        let mut state = lock_mutex(&self.state);
        state.machine.close();
        let held = (std::mem::take(&mut state.idle_sandboxes), std::mem::take(&mut state.line));
        drop(state);
        drop(held);
        self.wake.notify_one();
    }

    /// Tells the machine what happened, and does what it says. The error is what a caller is told
    /// whose sandbox could not be made.
    fn tell_machine(
        self: &Arc<Self>,
        failure: Option<Error>,
        happened: impl FnOnce(&mut PoolDriverState, Moment) -> Vec<PoolAct>,
    ) {
        let mut state = lock_mutex(&self.state);
        let planned = state.plan();
        let acts = happened(&mut state, self.begun.elapsed());
        let deed = |act| self.deed(&mut state, act, failure.as_ref());
        let deeds: Vec<_> = acts.into_iter().filter_map(deed).collect();
        let changed = planned != state.plan();
        drop(state);
        deeds.into_iter().for_each(|deed| self.perform(deed));
        if changed {
            self.wake.notify_one();
        }
    }

    fn deed(
        self: &Arc<Self>,
        state: &mut PoolDriverState,
        act: PoolAct,
        failure: Option<&Error>,
    ) -> Option<PoolEffect> {
        Some(match act {
            PoolAct::Make(seat) => PoolEffect::Make(seat),
            PoolAct::Retire(seat) => PoolEffect::Destroy(state.idle_sandboxes.remove(&seat)?.live),
            PoolAct::Give(asker, seat) => {
                let live = state.idle_sandboxes.remove(&seat)?.live;
                match state.line.remove(&asker) {
                    Some(answer) => PoolEffect::Answer(answer, Ok(Claim::new(self, seat, live))),
                    None => PoolEffect::Destroy(live),
                }
            }
            PoolAct::Refuse(asker, why) => {
                let bounds = state.machine.bounds();
                PoolEffect::Answer(
                    state.line.remove(&asker)?,
                    Err(self.refusal(why, bounds, failure)),
                )
            }
        })
    }

    fn perform(self: &Arc<Self>, deed: PoolEffect) {
        match deed {
            PoolEffect::Make(seat) => {
                drop(self.runtime.spawn(Arc::clone(self).make(seat, self.work())))
            }
            PoolEffect::Destroy(live) => self.destroy(live),
            // One who has gone away leaves its sandbox to be taken down, as the answer is dropped.
            PoolEffect::Answer(to, answer) => drop(to.send(answer)),
        }
    }

    fn work(self: &Arc<Self>) -> Working {
        self.busy.send_modify(|busy| *busy += 1);
        Working(Arc::clone(self))
    }

    async fn make(self: Arc<Self>, seat: PoolSeat, _working: Working) {
        // Should this task end before its time, the seat is free again.
        let seated = Seated::new(&self, seat);
        match self.prepare().await {
            Ok(mut idle) => {
                idle.live.seat = Some(seated);
                self.tell_machine(None, |state, now| {
                    state.idle_sandboxes.insert(seat, idle);
                    state.machine.made(now, seat)
                });
            }
            Err(error) => {
                self.tell_machine(Some(error), |state, now| state.machine.failed(now, seat))
            }
        }
    }

    async fn prepare(&self) -> Result<IdleSandbox> {
        let engine = self.engine.upgrade().ok_or_else(build_closed_error)?;
        // Looked at before anything is made of it, so that a change meanwhile is noticed.
        let places = HostPlaces::of(self.template.admitted.spec());
        let live =
            engine.prepare_sandbox(&self.template, fresh_id()?, self.closing.subscribe()).await?;
        Ok(IdleSandbox { live, places })
    }

    /// Destroys a sandbox that no caller will get any more.
    pub(super) fn destroy(self: &Arc<Self>, live: RunningSandbox) {
        let working = self.work();
        let engine = self.engine.upgrade();
        self.runtime.spawn(async move {
            if let Some(engine) = engine {
                // Recorded, and known to the engine if it failed.
                let _ = engine.destroy_unclaimed(live).await;
            }
            drop(working);
        });
    }

    /// Looks at those that are ready, lets time pass, and says how long there is nothing to do.
    fn step(self: &Arc<Self>) -> Option<Duration> {
        if self.is_closed() || self.engine.strong_count() == 0 {
            return None;
        }
        self.tell_machine(None, |state, now| {
            let mut acts = state.unfit(now);
            acts.extend(state.machine.tick(now));
            acts
        });
        let (wake, has_idle) = lock_mutex(&self.state).plan();
        let wake =
            wake.map_or(IDLE_WAKE_INTERVAL, |wake| wake.saturating_sub(self.begun.elapsed()));
        Some(if has_idle { wake.min(READY_CHECK_INTERVAL) } else { wake })
    }

    fn refusal(&self, why: Why, bounds: PoolBounds, failure: Option<&Error>) -> Error {
        match (why, failure) {
            (Why::Closed, _) => build_closed_error(),
            (Why::Failed, Some(error)) => error.clone(),
            (Why::Failed, None) => {
                Error::new(ErrorCode::System, CLAIM_OPERATION, "its creation was aborted")
                    .backend(self.template.admitted.backend().clone())
                    .remedy("try again")
            }
            (Why::Exhausted, _) => {
                let PoolBounds { maximum, patience, .. } = bounds;
                let tenant = &self.template.admitted.spec().tenant;
                let message = format!(
                    "the pool of tenant {tenant} has {maximum} sandboxes at most, and none became \
                     free in {} ms",
                    patience.as_millis()
                );
                Error::new(ErrorCode::QuotaExceeded, CLAIM_OPERATION, message)
                    .remedy("destroy one, wait longer, or raise the pool's maximum")
            }
        }
    }
}

impl PoolDriverState {
    /// What its task sleeps by: when to wake the machine, and whether there is something to look at.
    fn plan(&self) -> (Option<Moment>, bool) {
        (self.machine.wakes_at(), !self.idle_sandboxes.is_empty())
    }

    /// Takes away what is dead or of yesterday, down to the first that may be given.
    fn unfit_on_top(&mut self, now: Moment) -> Vec<PoolAct> {
        let mut acts = Vec::new();
        while let Some(seat) = self.machine.next_ready()
            && !self.idle_sandboxes.get(&seat).is_some_and(IdleSandbox::is_fit)
        {
            acts.extend(self.machine.spoiled(now, seat));
        }
        acts
    }

    fn unfit(&mut self, now: Moment) -> Vec<PoolAct> {
        let spoiled =
            |seat: &PoolSeat| !self.idle_sandboxes.get(seat).is_some_and(IdleSandbox::is_fit);
        let unfit: Vec<_> = self.machine.ready().filter(spoiled).collect();
        unfit.into_iter().flat_map(|seat| self.machine.spoiled(now, seat)).collect()
    }
}

/// One task at work; the pool is not closed before it is done.
struct Working(Arc<PoolDriver>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.busy.send_modify(|busy| *busy -= 1);
    }
}

async fn run_driver(driver: Weak<PoolDriver>, wake: Arc<Notify>) {
    loop {
        let Some(next) = driver.upgrade().and_then(|driver| driver.step()) else { return };
        tokio::select! {
            () = tokio::time::sleep(next) => {}
            () = wake.notified() => {}
        }
    }
}

pub(super) fn build_closed_error() -> Error {
    Error::new(ErrorCode::Gone, CLAIM_OPERATION, "its pool was closed")
        .remedy("ask again: without the pool, one is made")
}
