//! The time, read by the worker and handed to everything else.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Monotonic, from any origin.
    pub ns: u64,
    /// What to add to `ns` for Unix time.
    pub unix_offset_ns: u64,
}

impl Now {
    #[must_use]
    pub fn unix_s(self) -> u64 {
        (self.ns + self.unix_offset_ns) / 1_000_000_000
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    unix_offset_ns: u64,
}

impl Clock {
    #[must_use]
    pub fn start() -> Self {
        let mut clock = Self { origin: Instant::now(), unix_offset_ns: 0 };
        clock.follow_wall_clock();
        clock
    }

    /// Called now and then, because the wall clock may be set.
    pub fn follow_wall_clock(&mut self) {
        let unix_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        self.unix_offset_ns = (unix_ns as u64).saturating_sub(self.now().ns);
    }

    #[must_use]
    pub fn now(&self) -> Now {
        Now { ns: self.origin.elapsed().as_nanos() as u64, unix_offset_ns: self.unix_offset_ns }
    }
}
