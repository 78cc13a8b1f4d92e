//! Reports made small: for the log, and for messages that would be too long. Histograms of old
//! seconds go first; counts always stay.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::series::{start_of, widened, TIERS_S};
use super::Report;

/// Points of all steps together in the final report of a part, as it is committed...
const TIMED_POINTS_MAX: usize = 4_000;
const COUNTED_POINTS_MAX: usize = 40_000;
/// ... and of all parts of a workflow together. A point takes some 500 bytes with its histogram
/// and 40 without.
const TIMED_POINTS_OF_ALL: usize = 64_000;
const COUNTED_POINTS_OF_ALL: usize = 400_000;
/// Failures of all steps and parts of a workflow together.
const FAILURES_BYTES_OF_ALL: usize = 2 << 20;

impl Report {
    /// Keeps the histograms of the newest `timed_max` points of each step, and the counts of all.
    pub fn keep_timed(&mut self, timed_max: usize) {
        for step in &mut self.steps {
            let old = step.series.len().saturating_sub(timed_max);
            for point in step.series.iter_mut().take(old) {
                point.latency = None;
            }
        }
    }

    /// Makes points that share a wider interval one, until all steps together have at most
    /// `points_max`; at the widest, one point for each step and interval stays.
    pub fn keep_points(&mut self, points_max: usize) {
        let width_s = self.width_for(points_max);
        if width_s > 1 {
            for step in &mut self.steps {
                step.series = widened(step.series.iter(), width_s);
            }
            self.series_s = self.series_s.max(width_s);
        }
    }

    fn width_for(&self, points_max: usize) -> u32 {
        let points_at = |width_s: u32| -> usize {
            let starts = |series: &[super::Point]| {
                series.iter().map(|p| start_of(p.second, width_s)).collect::<BTreeSet<_>>().len()
            };
            self.steps.iter().map(|step| starts(&step.series)).sum()
        };
        let fits = |&&width_s: &&u32| points_at(width_s) <= points_max;
        TIERS_S.iter().find(fits).or(TIERS_S.last()).copied().unwrap_or(1)
    }

    /// Bounds the final report of a part for the log, where all `parts` of its workflow must fit.
    pub fn bound_for_log(&mut self, parts: usize) {
        let (parts, steps) = (parts.max(1), self.steps.len().max(1));
        let timed_max = TIMED_POINTS_MAX.min(TIMED_POINTS_OF_ALL / parts) / steps;
        let counted_max = COUNTED_POINTS_MAX.min(COUNTED_POINTS_OF_ALL / parts);
        // Histograms that would not stay are not merged into wider ones either.
        self.keep_timed(timed_max.saturating_mul(self.width_for(counted_max) as usize));
        self.keep_points(counted_max);
        self.keep_timed(timed_max);
        self.bound_failures(FAILURES_BYTES_OF_ALL / parts / steps);
    }

    /// Keeps as much of the failures of each step as fits into `bytes_max`.
    fn bound_failures(&mut self, bytes_max: usize) {
        for failures in self.steps.iter_mut().filter_map(|step| step.failures.as_mut()) {
            if failures.size_hint() > bytes_max {
                Arc::make_mut(failures).bound(bytes_max);
            }
        }
    }
}

type Shed = fn(&mut Report);

/// What is taken out of reports that are too long, in this order.
const SHEDDING: [Shed; 9] = [
    |report| report.keep_timed(300),
    |report| report.keep_timed(60),
    |report| report.keep_timed(15),
    |report| report.bound_failures(4_000),
    |report| report.keep_timed(0),
    |report| report.steps.iter_mut().for_each(|step| step.phases = None),
    |report| {
        report.steps.iter_mut().for_each(|step| step.latency = None);
        report.metrics.iter_mut().for_each(|metric| metric.distribution = None);
    },
    |report| report.steps.iter_mut().for_each(|step| step.failures = None),
    |report| report.steps.iter_mut().for_each(|step| step.series.clear()),
];

/// Takes detail out of the reports until they have at most `bytes_max` together, or nothing but
/// counts is left. Returns them encoded.
pub fn shed(reports: &mut [Report], bytes_max: usize) -> Vec<Vec<u8>> {
    let mut encoded: Vec<Vec<u8>> = reports.iter().map(Report::encode).collect();
    for detail in SHEDDING {
        if encoded.iter().map(Vec::len).sum::<usize>() <= bytes_max {
            break;
        }
        reports.iter_mut().for_each(detail);
        encoded = reports.iter().map(Report::encode).collect();
    }
    encoded
}
