//! Iterations and arrivals of one workflow on one executor. They travel as metrics of reserved
//! names, so every receiver merges them, also one that does not know them.

use crate::hist::{HistError, Histogram};
use crate::report::MetricReport;

/// An arrival that began this long after it was due is late.
pub const LATE_NS: u64 = 10_000_000;

/// How long iterations took, in nanoseconds. No method has a name with a dot.
pub const ITERATION: &str = "hyperscale.iteration";
pub const BEGUN: &str = "hyperscale.begun";
pub const LATE: &str = "hyperscale.late";
pub const DROPPED: &str = "hyperscale.dropped";

#[derive(Debug, Default)]
pub struct Iterations {
    /// All that ended, those of the warm-up included.
    pub ended: u64,
    /// Those that began after the warm-up and ended.
    pub counted: u64,
    took: Histogram,
    arrivals: Option<ArrivalCounts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ArrivalCounts {
    begun: u64,
    late: u64,
    dropped: u64,
}

impl Iterations {
    pub fn end(&mut self, began_ns: u64, now_ns: u64, counted_from_ns: u64) {
        self.ended += 1;
        if began_ns >= counted_from_ns {
            self.counted += 1;
            self.took.record(now_ns.saturating_sub(began_ns), 1);
        }
    }

    /// Counts an arrival that begins now.
    pub fn arrive(&mut self, due_ns: u64, now_ns: u64, counted_from_ns: u64) {
        let arrivals = self.arrivals.get_or_insert_default();
        if due_ns >= counted_from_ns {
            arrivals.begun += 1;
            arrivals.late += u64::from(now_ns.saturating_sub(due_ns) > LATE_NS);
        }
    }

    /// Counts arrivals that no user was free for, or for which there was no time.
    pub fn drop(&mut self, due_ns: u64, count: u64, counted_from_ns: u64) {
        let arrivals = self.arrivals.get_or_insert_default();
        if due_ns >= counted_from_ns {
            arrivals.dropped += count;
        }
    }

    /// As metrics for a report.
    #[allow(clippy::cast_precision_loss)]
    pub fn metrics(&self, with_histograms: bool) -> Result<Vec<MetricReport>, HistError> {
        let took = (with_histograms && self.counted > 0).then(|| self.took.encode()).transpose()?;
        let mut found = vec![MetricReport {
            name: ITERATION.into(),
            kind: "timer".into(),
            count: self.counted,
            distribution: took.map(Into::into),
            ..MetricReport::default()
        }];
        if let Some(ArrivalCounts { begun, late, dropped }) = self.arrivals {
            found.extend([(BEGUN, begun), (LATE, late), (DROPPED, dropped)].map(
                |(name, count)| MetricReport {
                    name: name.into(),
                    kind: "count".into(),
                    count,
                    sum: count as f64,
                    ..MetricReport::default()
                },
            ));
        }
        Ok(found)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{Iterations, LATE_NS};

    #[test]
    fn the_warm_up_is_not_counted() {
        let mut iterations = Iterations::default();
        iterations.end(5, 20, 10);
        iterations.end(15, 20, 10);
        iterations.arrive(5, 6, 10);
        iterations.arrive(15, 16 + LATE_NS, 10);
        iterations.drop(16, 3, 10);
        let found = iterations.metrics(true).unwrap();
        let counts: Vec<_> = found.iter().map(|metric| metric.count).collect();
        assert_eq!((iterations.ended, counts), (2, vec![1, 1, 1, 3]));
    }
}
