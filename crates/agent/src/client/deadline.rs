//! One deadline for a whole operation with a peer, reads and writes alike. What is transferred earns more time,
//! up to an end that nothing moves: a peer that drips, floods or does not answer cannot hold a caller longer.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

/// A transfer may be no slower than this, once its first answer is due.
pub const MIN_BYTES_PER_SECOND: u64 = 256 * 1024;

/// When an operation has to be over.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    at: Instant,
    latest: Instant,
}

/// The deadline has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired;

impl Deadline {
    /// So long from now, and never longer than `longest`, however much is transferred.
    pub fn after(answer: Duration, longest: Duration) -> Self {
        let now = Instant::now();
        Self { at: now + answer, latest: now + longest.max(answer) }
    }

    /// A deadline so long from now, which transfers do not extend.
    pub fn fixed(limit: Duration) -> Self {
        Self::after(limit, limit)
    }

    /// So many bytes were transferred.
    pub fn transferred(&mut self, bytes: usize) {
        let earned = Duration::from_secs_f64(bytes as f64 / MIN_BYTES_PER_SECOND as f64);
        self.at = (self.at + earned).min(self.latest);
    }

    /// So long was waited for something here, which is not the peer's doing.
    pub fn excuse(&mut self, waited: Duration) {
        (self.at, self.latest) = (self.at + waited, self.latest + waited);
    }

    /// Waits for a part of the operation. A part that is ready counts only while there is time: a peer that
    /// floods is never waited for.
    pub async fn within<T>(&self, part: impl Future<Output = T>) -> Result<T, Expired> {
        if Instant::now() >= self.at {
            return Err(Expired);
        }
        timeout_at(self.at, part).await.map_err(|_| Expired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn parts_that_are_always_ready_end_too() {
        let deadline = Deadline::fixed(Duration::from_secs(5));
        let begun = Instant::now();
        while deadline.within(async {}).await.is_ok() {
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(begun.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_transfer_earns_time_and_dripping_does_not() {
        let second = Duration::from_secs(1);
        let lasts = async |bytes: usize| {
            let mut deadline = Deadline::after(10 * second, 100 * second);
            let begun = Instant::now();
            while deadline.within(tokio::time::sleep(second)).await.is_ok() {
                deadline.transferred(bytes);
            }
            begun.elapsed().as_secs()
        };
        assert_eq!(lasts(1).await, 10);
        assert_eq!(lasts(MIN_BYTES_PER_SECOND as usize / 2).await, 19);
        assert_eq!(lasts(1 << 30).await, 100);
    }
}
