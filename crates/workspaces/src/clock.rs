//! The clock that files are stamped with, so that "changed since" is decided by one clock alone.

use std::time::{Duration, Instant};

use rustix::fs::Stat;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Timeout of waiting for a tick of the clock.
const TICK_TIMEOUT: Duration = Duration::from_millis(200);

/// An instant of the clock that the kernel stamps files with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClockStamp {
    sec: i64,
    nsec: i64,
}

impl ClockStamp {
    /// Instant before all others.
    pub(crate) const DISTANT_PAST: Self = Self { sec: i64::MIN, nsec: 0 };

    fn read(clock: ClockId) -> Self {
        let now = clock_gettime(clock);
        Self { sec: now.tv_sec, nsec: now.tv_nsec }
    }

    /// An instant that is later than every change made before this call, and not later than any
    /// change made after it. Takes a tick of the clock, a few milliseconds.
    pub(crate) fn start() -> Self {
        // Files are stamped with the exact time at best, and at worst with the time of the last
        // tick. Once a tick is later than this instant, so is every stamp that is still to come.
        let before = Self::read(ClockId::Realtime);
        let began = Instant::now();
        loop {
            let tick = Self::read(ClockId::RealtimeCoarse);
            // The clock may be set back meanwhile: then no tick is certain, and the timeout ends the wait.
            if tick > before || began.elapsed() > TICK_TIMEOUT {
                return tick;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    }

    /// When a file, its mode, its names or its owner last changed. No program can set this.
    pub(crate) fn changed(stat: &Stat) -> Self {
        Self { sec: stat.st_ctime, nsec: stat.st_ctime_nsec as i64 }
    }

    /// When a file's content last changed, by its own account.
    pub(crate) fn modified(stat: &Stat) -> Self {
        Self { sec: stat.st_mtime, nsec: stat.st_mtime_nsec as i64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_lies_between_what_was_before_and_what_comes_after() {
        let place = tempfile::tempdir().unwrap();
        let changed = |name: &str| {
            std::fs::write(place.path().join(name), name).unwrap();
            ClockStamp::changed(&rustix::fs::stat(place.path().join(name)).unwrap())
        };
        for _ in 0..20 {
            let before = changed("before");
            let start = ClockStamp::start();
            assert!(before < start && start <= changed("after"));
        }
    }
}
