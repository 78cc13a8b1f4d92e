//! The one clock of the engine: monotonic nanoseconds.

use rustix::time::{clock_gettime, ClockId};

#[must_use]
pub fn now_ns() -> u64 {
    read(ClockId::Monotonic)
}

/// The wall clock, which may be set: only to convert what others say in it.
#[must_use]
pub fn unix_ns() -> u64 {
    read(ClockId::Realtime)
}

fn read(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    // Both are non-negative on these clocks.
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
