//! All parts as one report: what an agent sends of its executors.

use std::collections::HashMap;

use super::super::series::{tier_for, width_of};
use super::super::totals::metric_reports;
use super::super::{joined, Report, StepReport, Unknown};
use super::Merge;
use crate::recorder::{Phase, CUT, SERVICE};

/// Which seconds go with a merged report.
#[derive(Clone, Copy, Debug)]
pub enum Telling {
    /// None at all.
    Nothing,
    /// The newest of those the receiver does not have, at most this many of each step.
    Newest(usize),
    /// All of them, for a receiver that has nothing: at most this many with histograms, of all
    /// steps together, and `COUNTED_PER_TIMED` times as many without.
    Whole(usize),
}

/// A point without its histogram is that much smaller.
const COUNTED_PER_TIMED: usize = 10;

impl Merge {
    /// All parts as one report of slot `slot`. None if nothing was reported yet.
    pub fn merged(
        &mut self,
        slot: u32,
        sequence: u64,
        with_histograms: bool,
        with_phases: bool,
        telling: Telling,
    ) -> Option<Report> {
        if self.parts.is_empty() {
            return None;
        }
        let mut report = Report {
            workflow: self.workflow.clone(),
            slot,
            sequence,
            elapsed_s: self.elapsed_s(),
            vus: self.vus(),
            users: self.users(),
            iterations: self.iterations(),
            raised: self.raised(),
            checks: self.checks(&[]),
            metrics: metric_reports(self.in_order(), with_histograms),
            holds: self.holds(),
            loop_s: self.loop_s(),
            cpu_s: self.parts.iter().map(|part| part.latest.cpu_s).sum(),
            loop_lag_s: std::mem::take(&mut self.loop_lag_s),
            rss_bytes: self.sum(|report| report.rss_bytes),
            cpu_wait_s: self.parts.iter().map(|part| part.latest.cpu_wait_s).sum(),
            series_s: 1,
            ..Report::default()
        };
        for part in self.in_order() {
            report.unknown.adopt(&part.latest.unknown);
        }
        let mut unknown = self.unknown_of_steps();
        let places = self.reported_places();
        for &place in &places {
            let step = self.merged_step(place, with_histograms, with_phases);
            report.steps.extend(step.map(|step| StepReport {
                unknown: unknown.remove(&place).unwrap_or_default(),
                ..step
            }));
        }
        self.tell(&mut report, &places, telling);
        Some(report)
    }

    /// The steps of the latest reports, in the order in which they come.
    fn reported_places(&self) -> Vec<usize> {
        let mut is_known = vec![false; self.steps.len()];
        let mut found = Vec::new();
        for &place in self.in_order().flat_map(|part| &part.places) {
            if let Some(known) = is_known.get_mut(place) {
                if !std::mem::replace(known, true) {
                    found.push(place);
                }
            }
        }
        found
    }

    fn unknown_of_steps(&self) -> HashMap<usize, Unknown> {
        let mut found: HashMap<usize, Unknown> = HashMap::new();
        for part in self.in_order() {
            for (step, &place) in part.latest.steps.iter().zip(&part.places) {
                if !step.unknown.is_empty() {
                    found.entry(place).or_default().adopt(&step.unknown);
                }
            }
        }
        found
    }

    fn merged_step(
        &self,
        place: usize,
        with_histograms: bool,
        with_phases: bool,
    ) -> Option<StepReport> {
        let step = self.steps.get(place)?;
        let latencies = self.in_order().filter_map(|part| part.latency(place));
        let names = Phase::ALL.into_iter().map(Phase::name).chain([CUT, SERVICE]);
        let phases = names.filter_map(|name| Some((name.into(), joined(self.phase(place, name))?)));
        Some(StepReport {
            name: step.name.clone(),
            counts: step.counts.clone(),
            latency: with_histograms.then(|| joined(latencies)).flatten(),
            phases: with_phases.then(|| phases.collect()),
            series: Vec::new(),
            failures: with_phases.then(|| self.failures(place).into()),
            unknown: Unknown::default(),
        })
    }

    fn tell(&mut self, report: &mut Report, places: &[usize], telling: Telling) {
        for step in &mut self.steps {
            step.series.lose(); // nothing more is heard of the last report
        }
        let timed_max = match telling {
            Telling::Nothing => return,
            Telling::Newest(count) => count,
            Telling::Whole(points_max) => points_max / self.steps.len().max(1),
        };
        let tier = tier_for(report.elapsed_s);
        for (told, &place) in report.steps.iter_mut().zip(places) {
            let Some(step) = self.steps.get_mut(place) else { continue };
            if let Telling::Newest(_) = telling {
                told.series = step.series.tell(timed_max);
                continue;
            }
            told.series = step.series.past(tier);
            if !told.series.is_empty() {
                report.series_s = width_of(tier);
            }
            told.series.extend(step.series.tell_all(timed_max));
        }
        if let Telling::Whole(points_max) = telling {
            report.keep_timed(timed_max);
            report.keep_points(points_max.saturating_mul(COUNTED_PER_TIMED));
        }
    }

    /// The receiver has the seconds of the last merged report.
    pub fn acknowledge(&mut self) {
        self.steps.iter_mut().for_each(|step| step.series.take());
    }

    /// There is a new receiver, which has no seconds yet.
    pub fn retell(&mut self) {
        self.steps.iter_mut().for_each(|step| step.series.forget_told());
    }
}
