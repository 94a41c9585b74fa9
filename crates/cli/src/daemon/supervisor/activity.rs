//! Whether anybody uses the sandbox. What only looks at it (a listing) does not count as use.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// How many uses there are.
#[derive(Debug)]
pub struct Activity(watch::Sender<usize>);

/// One use, until it is dropped.
#[derive(Debug)]
pub struct Busy(Arc<Activity>);

impl Activity {
    /// No use yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(0)))
    }

    /// One more use.
    pub fn begin(self: &Arc<Self>) -> Busy {
        self.0.send_modify(|uses| *uses += 1);
        Busy(Arc::clone(self))
    }

    /// How many there are.
    pub fn uses(&self) -> usize {
        *self.0.borrow()
    }

    /// Returns at once if there is none, else when the last has ended.
    pub async fn none(&self) {
        // The sender lives in `self`, so the channel cannot close.
        let _ = self.0.subscribe().wait_for(|uses| *uses == 0).await;
    }

    /// Returns when there has been none for this long.
    pub async fn none_for(&self, span: Duration) {
        let mut uses = self.0.subscribe();
        loop {
            let _ = uses.wait_for(|uses| *uses == 0).await;
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
        self.0.0.send_modify(|uses| *uses -= 1);
    }
}
