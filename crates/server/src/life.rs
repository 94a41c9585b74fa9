//! How long a sandbox lives: how many uses it has, and when it has to end because it was idle for too long or because
//! its lifetime is over. What only looks at it (a listing) is no use. Shared by the API and by the supervisors of
//! sandboxes that outlive their command. Nothing is ended here.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The current uses of something.
#[derive(Debug)]
pub struct Activity(watch::Sender<Uses>);

/// How many uses there are, and since when.
#[derive(Debug, Clone, Copy)]
struct Uses {
    count: usize,
    since: Instant,
}

/// One use, until it is dropped.
#[derive(Debug)]
pub struct Busy(Arc<Activity>);

impl Activity {
    /// No use yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(Uses { count: 0, since: Instant::now() })))
    }

    /// One more use.
    pub fn begin(self: &Arc<Self>) -> Busy {
        self.change(|count| count + 1);
        Busy(Arc::clone(self))
    }

    fn change(&self, count: impl FnOnce(usize) -> usize) {
        let since = Instant::now();
        self.0.send_modify(|uses| *uses = Uses { count: count(uses.count), since });
    }

    /// How many there are.
    pub fn uses(&self) -> usize {
        self.0.borrow().count
    }

    /// Since when there is none.
    fn idle_since(&self) -> Option<Instant> {
        let uses = *self.0.borrow();
        (uses.count == 0).then_some(uses.since)
    }

    /// Returns at once if there is none, else when the last has ended.
    pub async fn none(&self) {
        // The sender lives in `self`, so the channel cannot close.
        let _ = self.0.subscribe().wait_for(|uses| uses.count == 0).await;
    }

    /// Returns at once if there is one, else when the next has begun.
    pub async fn some(&self) {
        let _ = self.0.subscribe().wait_for(|uses| uses.count > 0).await;
    }

    /// Returns when there has been none for this long.
    pub async fn none_for(&self, span: Duration) {
        let mut uses = self.0.subscribe();
        loop {
            let _ = uses.wait_for(|uses| uses.count == 0).await;
            uses.mark_unchanged();
            tokio::select! {
                () = tokio::time::sleep(span) => return,
                _ = uses.changed() => {}
            }
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.change(|count| count.saturating_sub(1));
    }
}

/// Why a sandbox has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LifeEnd {
    /// It was not used for its idle timeout.
    Idle,
    /// Its lifetime is over.
    Lifetime,
}

/// How long a sandbox may live. Absent: as long as it likes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LifeBounds {
    /// Idle timeout: how long it lives while it is not used.
    pub idle: Option<Duration>,
    /// When it ends in any case.
    pub end: Option<Instant>,
}

/// An end that comes unless something changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LifeDue {
    /// Why.
    pub reason: LifeEnd,
    /// When.
    pub at: Instant,
}

/// The life of one sandbox.
#[derive(Debug)]
pub struct SandboxLife {
    activity: Arc<Activity>,
    bounds: watch::Sender<LifeBounds>,
}

impl SandboxLife {
    /// The life of a sandbox that begins now, without a use.
    pub fn new(bounds: LifeBounds) -> Self {
        Self { activity: Activity::new(), bounds: watch::Sender::new(bounds) }
    }

    /// One more use.
    pub fn begin_use(&self) -> Busy {
        self.activity.begin()
    }

    /// How long it may live.
    pub fn bounds(&self) -> LifeBounds {
        *self.bounds.borrow()
    }

    /// Sets how long it may live from now on.
    pub fn set_bounds(&self, bounds: LifeBounds) {
        self.bounds.send_replace(bounds);
    }

    /// Which end comes first, as things are.
    pub fn next_end(&self) -> Option<LifeDue> {
        let LifeBounds { idle, end } = self.bounds();
        let lifetime = end.map(|at| LifeDue { reason: LifeEnd::Lifetime, at });
        let unused = self.idle_end(idle).map(|at| LifeDue { reason: LifeEnd::Idle, at });
        [lifetime, unused].into_iter().flatten().min_by_key(|due| due.at)
    }

    /// When it will have been idle for too long; nothing while it is used.
    pub fn next_idle_end(&self) -> Option<Instant> {
        self.idle_end(self.bounds().idle)
    }

    fn idle_end(&self, idle: Option<Duration>) -> Option<Instant> {
        // What lies beyond the clock never comes.
        self.activity.idle_since()?.checked_add(idle?)
    }

    /// Returns when it has to end.
    pub async fn expired(&self) -> LifeEnd {
        self.due(Duration::ZERO, None).await.reason
    }

    /// Returns this long before it has to end, and never half of its idle timeout before: by the end that comes. The one
    /// that was told before is not told again.
    pub async fn due(&self, notice: Duration, told: Option<LifeDue>) -> LifeDue {
        let (mut uses, mut bounds) = (self.activity.0.subscribe(), self.bounds.subscribe());
        loop {
            uses.mark_unchanged();
            bounds.mark_unchanged();
            let next = self.next_end().filter(|next| Some(*next) != told);
            let wait = async {
                let Some(due) = next else { return std::future::pending().await };
                let notice = self.shorten_notice(due, notice);
                sleep_until(due.at.checked_sub(notice).unwrap_or(due.at)).await;
                due
            };
            tokio::select! {
                biased;
                // The senders live in `self`, so the channels cannot close.
                _ = uses.changed() => {}
                _ = bounds.changed() => {}
                due = wait => return due,
            }
        }
    }

    fn shorten_notice(&self, due: LifeDue, notice: Duration) -> Duration {
        match (due.reason, self.bounds().idle) {
            (LifeEnd::Idle, Some(idle)) => notice.min(idle / 2),
            (LifeEnd::Idle, None) | (LifeEnd::Lifetime, _) => notice,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn bounds(idle: Option<Duration>, lifetime: Option<Duration>) -> LifeBounds {
        LifeBounds { idle, end: lifetime.map(|lifetime| Instant::now() + lifetime) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_sandbox_ends_when_it_was_idle_or_its_lifetime_is_over() {
        let begun = Instant::now();
        let life = SandboxLife::new(bounds(Some(MINUTE), Some(10 * MINUTE)));
        assert_eq!((life.expired().await, begun.elapsed()), (LifeEnd::Idle, MINUTE));
        let busy = life.begin_use();
        assert_eq!((life.expired().await, begun.elapsed()), (LifeEnd::Lifetime, 10 * MINUTE));
        drop(busy);
        let endless = SandboxLife::new(bounds(Some(Duration::MAX), None));
        assert_eq!(endless.next_end(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_use_begins_the_idle_time_anew_and_bounds_can_be_moved() {
        let begun = Instant::now();
        let life = SandboxLife::new(bounds(Some(2 * MINUTE), Some(3 * MINUTE)));
        let (reason, ()) = tokio::join!(life.expired(), async {
            tokio::time::sleep(MINUTE).await;
            let busy = life.begin_use();
            tokio::time::sleep(MINUTE).await;
            drop(busy);
            life.set_bounds(bounds(Some(3 * MINUTE), None));
        });
        assert_eq!((reason, begun.elapsed()), (LifeEnd::Idle, 5 * MINUTE));
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_is_told_before_it_comes_once_and_again_where_it_was_moved() {
        let begun = Instant::now();
        let life = SandboxLife::new(bounds(None, Some(5 * MINUTE)));
        let told = life.due(MINUTE, None).await;
        assert_eq!((told.reason, begun.elapsed()), (LifeEnd::Lifetime, 4 * MINUTE));
        let (again, ()) = tokio::join!(life.due(MINUTE, Some(told)), async {
            tokio::time::sleep(10 * MINUTE).await;
            life.set_bounds(bounds(Some(MINUTE), None));
        });
        // It has been idle from the beginning.
        assert_eq!((again.reason, begun.elapsed()), (LifeEnd::Idle, 14 * MINUTE));
        let life = SandboxLife::new(bounds(Some(MINUTE), None));
        let begun = Instant::now();
        life.due(MINUTE, None).await;
        assert_eq!(begun.elapsed(), MINUTE / 2);
    }
}
