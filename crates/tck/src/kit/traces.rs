//! Looking for what is left: by the backend's own list, by the leases, and from outside.

use std::time::Duration;

use stockade_core::SandboxId;

use super::{Kit, wait_until};
use crate::case::check;
use crate::{Stop, Verdict};

/// Time for which a marker or leftovers on the host are watched: many heartbeats.
const WATCH_DURATION: Duration = Duration::from_millis(500);

impl Kit {
    /// Every sandbox this kit's engines ever asked the backend for.
    pub fn asked_for(&self) -> Vec<SandboxId> {
        self.0.witness.created()
    }

    /// Stops the case if anything of this sandbox is left (C-30).
    pub async fn gone(&self, id: &SandboxId) -> Verdict {
        let listed = self.backend().list().await?;
        check!(!listed.contains(id), "expected {id} to be gone, but the backend lists it");
        let leased = self.engine().list().await?.leases.iter().any(|lease| lease.body.id == *id);
        check!(!leased, "expected {id} to be gone, but its lease is there");
        let observer = self.0.subject.observer();
        let sought = id.clone();
        let left = run_blocking(move || observer.leftovers(&sought)).await?;
        check!(left.is_empty(), "expected nothing of {id}, saw {left:?}");
        Ok(())
    }

    /// Stops the case if anything is left of any sandbox of this kit.
    pub async fn all_gone(&self) -> Verdict {
        for id in self.asked_for() {
            self.gone(&id).await?;
        }
        let (observer, mark) = (self.0.subject.observer(), self.mark().to_owned());
        let left = run_blocking(move || observer.marked(&mark)).await?;
        check!(left.is_empty(), "expected nothing with the kit's mark, saw {left:?}");
        Ok(())
    }

    /// Stops the case unless everything is gone soon: for ends that no caller waits for.
    pub async fn soon_all_gone(&self) -> Verdict {
        wait_until("everything is gone", || self.all_gone()).await
    }

    /// Stops the case unless everything is gone soon and nothing comes back: for what was given up
    /// half-way, and may still be under way.
    pub async fn gone_for_good(&self) -> Verdict {
        self.soon_all_gone().await?;
        let until = tokio::time::Instant::now() + WATCH_DURATION;
        while tokio::time::Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.all_gone().await?;
        }
        Ok(())
    }

    /// Whether a file in the host's side of the workspace still grows.
    pub(crate) async fn is_growing(&self, name: &str) -> Verdict<bool> {
        let size = || std::fs::metadata(self.workspace().join(name)).map_or(0, |found| found.len());
        let before = size();
        let until = tokio::time::Instant::now() + WATCH_DURATION;
        while tokio::time::Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(25)).await;
            if size() != before {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Scanning a host takes a while, and must not hold up what is being watched.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Verdict<T> {
    tokio::task::spawn_blocking(work).await.map_err(Stop::from)
}
