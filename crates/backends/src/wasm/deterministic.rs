//! A world that is the same each time: clocks that only move when they are looked at, and randomness
//! from a seed.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtxBuilder};

/// Start of the wall clock: the first second of the year 2000.
const CLOCK_EPOCH: Duration = Duration::from_secs(946_684_800);
/// Clock step of each reading, in nanoseconds, so that a program that waits for time to pass ends.
const CLOCK_STEP_NANOS: u64 = 1_000;
/// Seed of all randomness.
const RANDOM_SEED: u64 = 0x5eed_0f57_0cad_e000;

/// Gives a program such a world.
pub(super) fn make_deterministic(builder: &mut WasiCtxBuilder) {
    let clock = Clock(Arc::new(AtomicU64::new(0)));
    builder
        .wall_clock(clock.clone())
        .monotonic_clock(clock)
        .secure_random(Seeded(RANDOM_SEED))
        .insecure_random(Seeded(RANDOM_SEED ^ 1))
        .insecure_random_seed(u128::from(RANDOM_SEED));
}

#[derive(Clone)]
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn advance_clock(&self) -> u64 {
        self.0.fetch_add(CLOCK_STEP_NANOS, Ordering::Relaxed)
    }
}

impl HostWallClock for Clock {
    fn resolution(&self) -> Duration {
        Duration::from_nanos(CLOCK_STEP_NANOS)
    }

    fn now(&self) -> Duration {
        CLOCK_EPOCH + Duration::from_nanos(self.advance_clock())
    }
}

impl HostMonotonicClock for Clock {
    fn resolution(&self) -> u64 {
        CLOCK_STEP_NANOS
    }

    fn now(&self) -> u64 {
        self.advance_clock()
    }
}

/// SplitMix64: small, well known, and never the same number twice in a row.
struct Seeded(u64);

impl Seeded {
    fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl rand_core::TryRng for Seeded {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.next_number() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.next_number())
    }

    fn try_fill_bytes(&mut self, into: &mut [u8]) -> Result<(), Infallible> {
        for piece in into.chunks_mut(8) {
            piece.copy_from_slice(&self.next_number().to_le_bytes()[..piece.len()]);
        }
        Ok(())
    }
}
