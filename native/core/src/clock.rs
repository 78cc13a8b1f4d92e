//! The one clock of the engine: monotonic nanoseconds.

use rustix::time::{clock_gettime, ClockId};

#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Both are non-negative on a monotonic clock.
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}
