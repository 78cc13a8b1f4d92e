//! Checks and custom metrics, summed over the latest reports of all parts.

use std::collections::HashMap;

use super::part::Part;
use super::{joined, merged, CheckReport, Encoded, HoldReport, MetricReport};
use crate::hist::Histogram;

/// A custom metric over all parts.
#[derive(Debug, Default)]
pub struct MetricTotal {
    pub count: u64,
    pub sum: f64,
    pub min: f64,
    pub max: f64,
    /// The value reported furthest into the run.
    pub last: f64,
    pub distribution: Option<Histogram>,
}

/// The checks of the plan, and any other that was reported, in that order.
pub(super) fn check_totals<'a>(
    parts: impl Iterator<Item = &'a Part>,
    planned: &[String],
) -> Vec<CheckReport> {
    let named = |name: &str| CheckReport { name: name.into(), ..CheckReport::default() };
    let mut merged: Vec<CheckReport> = planned.iter().map(|name| named(name)).collect();
    let planned = planned.iter().map(String::as_str).zip(0..);
    let mut places: HashMap<&str, usize> = planned.collect();
    for check in parts.flat_map(|part| &part.latest.checks) {
        let place = *places.entry(&check.name).or_insert_with(|| {
            merged.push(named(&check.name));
            merged.len() - 1
        });
        if let Some(into) = merged.get_mut(place) {
            into.passed = into.passed.wrapping_add(check.passed);
            into.failed = into.failed.wrapping_add(check.failed);
            if into.first_failure.is_none() {
                into.first_failure.clone_from(&check.first_failure);
            }
        }
    }
    merged
}

/// Who held the loops, in the order in which they were reported.
pub(super) fn hold_totals<'a>(parts: impl Iterator<Item = &'a Part>) -> Vec<HoldReport> {
    let mut found: Vec<HoldReport> = Vec::new();
    for hold in parts.flat_map(|part| &part.latest.holds) {
        match found.iter_mut().find(|known| known.name == hold.name) {
            Some(known) => known.add(hold),
            None => found.push(hold.clone()),
        }
    }
    found
}

pub(super) fn metric_total<'a>(
    parts: impl Iterator<Item = &'a Part> + Clone,
    name: &'a str,
) -> MetricTotal {
    let mut total = metric_counts(parts.clone(), name);
    let sampled = distributions(parts, name);
    if sampled.clone().next().is_some() {
        total.distribution = Some(merged(sampled.map(AsRef::as_ref)));
    }
    total
}

/// Every metric, in the order in which they were reported.
pub(super) fn metric_reports<'a>(
    parts: impl Iterator<Item = &'a Part> + Clone,
    with_histograms: bool,
) -> Vec<MetricReport> {
    let mut found: Vec<MetricReport> = Vec::new();
    for metric in parts.clone().flat_map(|part| &part.latest.metrics) {
        if found.iter().any(|known| known.name == metric.name) {
            continue;
        }
        let total = metric_counts(parts.clone(), &metric.name);
        let distribution =
            with_histograms.then(|| joined(distributions(parts.clone(), &metric.name)));
        found.push(MetricReport {
            name: metric.name.clone(),
            kind: metric.kind.clone(),
            count: total.count,
            sum: total.sum,
            min: total.min,
            max: total.max,
            last: total.last,
            distribution: distribution.flatten(),
        });
    }
    found
}

fn distributions<'a>(
    parts: impl Iterator<Item = &'a Part> + Clone,
    name: &'a str,
) -> impl Iterator<Item = &'a Encoded> + Clone {
    parts.filter_map(move |part| part.distribution(name))
}

fn metric_counts<'a>(parts: impl Iterator<Item = &'a Part>, name: &str) -> MetricTotal {
    let mut total = MetricTotal::default();
    let mut last_s = f64::NEG_INFINITY;
    for report in parts.map(|part| &part.latest) {
        let reported = report.metrics.iter();
        for metric in reported.filter(|metric| *metric.name == *name && metric.count > 0) {
            let is_first = total.count == 0;
            total.min = if is_first { metric.min } else { total.min.min(metric.min) };
            total.max = if is_first { metric.max } else { total.max.max(metric.max) };
            total.count = total.count.wrapping_add(metric.count);
            total.sum += metric.sum;
            // Each core has a last value of its own. The one reported furthest into the run
            // counts, and of equals that of the lowest slot.
            if report.elapsed_s > last_s {
                last_s = report.elapsed_s;
                total.last = metric.last;
            }
        }
    }
    total
}
