//! How fast this processor counts: an emulated machine counts by the same clock, and has nothing else to
//! measure it by.
#![allow(unsafe_code, reason = "reading the processor's counter has no safe form")]

use std::time::{Duration, Instant};

/// Interval over which the counter is measured.
const MEASURE_INTERVAL: Duration = Duration::from_millis(50);

/// Thousands of counts in a second.
pub(super) fn measure_tsc_khz() -> u64 {
    let (begun, first) = (Instant::now(), read_tsc());
    std::thread::sleep(MEASURE_INTERVAL);
    let (last, took) = (read_tsc(), begun.elapsed());
    let counted = u128::from(last.wrapping_sub(first));
    u64::try_from(counted * 1_000_000 / took.as_nanos().max(1)).unwrap_or(u64::MAX)
}

fn read_tsc() -> u64 {
    // SAFETY: every processor of this architecture has the counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}
