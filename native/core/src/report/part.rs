//! The latest that one attempt of a part, or one executor of a part, has reported.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::history::{Budget, History};
use super::{Encoded, Failures, MetricReport, Phases, Point, Report, StepReport};

/// The latest that was reported of one step of one part, each with the sequence of its report: a
/// report without histograms means "as last reported".
#[derive(Debug, Default)]
struct PartStep {
    latency: Option<(u64, Encoded)>,
    phases: Option<(u64, Phases)>,
    failures: Option<(u64, Arc<Failures>)>,
    history: History,
}

#[derive(Debug)]
pub(super) struct Part {
    pub latest: Arc<Report>,
    /// The places, in `Merge::steps`, of the steps of the latest report.
    pub places: Vec<usize>,
    /// How far into the run its seconds are known.
    pub series_until_s: f64,
    steps: Vec<PartStep>,
    /// By metric.
    distributions: BTreeMap<Box<str>, (u64, Encoded)>,
}

impl Part {
    pub fn new(report: &Arc<Report>, places: &[usize]) -> Self {
        Self {
            latest: Arc::clone(report),
            places: places.to_vec(),
            series_until_s: 0.0,
            steps: Vec::new(),
            distributions: BTreeMap::new(),
        }
    }

    pub fn latency(&self, place: usize) -> Option<&Encoded> {
        self.steps.get(place)?.latency.as_ref().map(|(_, histogram)| histogram)
    }

    pub fn phases(&self, place: usize) -> Option<&Phases> {
        self.steps.get(place)?.phases.as_ref().map(|(_, phases)| phases)
    }

    pub fn failures(&self, place: usize) -> Option<&Arc<Failures>> {
        self.steps.get(place)?.failures.as_ref().map(|(_, failures)| failures)
    }

    pub fn distribution(&self, metric: &str) -> Option<&Encoded> {
        self.distributions.get(metric).map(|(_, histogram)| histogram)
    }

    // -- feeding

    /// Replaces the latest report if this one is newer. Returns the report before and its places.
    pub fn replace_latest(
        &mut self,
        report: &Arc<Report>,
        places: &[usize],
    ) -> Option<(Arc<Report>, Vec<usize>)> {
        if report.sequence <= self.latest.sequence {
            return None;
        }
        let before = std::mem::replace(&mut self.latest, Arc::clone(report));
        Some((before, std::mem::replace(&mut self.places, places.to_vec())))
    }

    /// Keeps the histograms of a step if they are newer. True if its latency is new.
    pub fn keep_histograms(&mut self, place: usize, reported: &StepReport, sequence: u64) -> bool {
        let Some(kept) = self.step(place) else { return false };
        if let Some(phases) = &reported.phases {
            if is_newer(kept.phases.as_ref(), sequence) {
                kept.phases = Some((sequence, phases.clone()));
            }
        }
        if let Some(failures) = &reported.failures {
            if is_newer(kept.failures.as_ref(), sequence) {
                kept.failures = Some((sequence, Arc::clone(failures)));
            }
        }
        let Some(latency) = &reported.latency else { return false };
        let is_new = is_newer(kept.latency.as_ref(), sequence);
        if is_new {
            kept.latency = Some((sequence, Arc::clone(latency)));
        }
        is_new
    }

    /// Keeps the seconds of a step for `last_report`.
    pub fn keep_series(&mut self, place: usize, series: &[Point], series_s: u32, budget: Budget) {
        if let Some(kept) = self.step(place) {
            kept.history.offer(series, series_s, budget);
        }
    }

    pub fn keep_distribution(&mut self, metric: &MetricReport, sequence: u64) {
        let Some(histogram) = &metric.distribution else { return };
        match self.distributions.get_mut(&metric.name) {
            Some((known, kept)) if sequence > *known => {
                (*known, *kept) = (sequence, Arc::clone(histogram));
            }
            Some(_) => {}
            None => {
                let kept = (sequence, Arc::clone(histogram));
                self.distributions.insert(metric.name.clone(), kept);
            }
        }
    }

    fn step(&mut self, place: usize) -> Option<&mut PartStep> {
        if place >= self.steps.len() {
            self.steps.resize_with(place + 1, PartStep::default);
        }
        self.steps.get_mut(place)
    }

    /// Frees the seconds that were kept for `last_report`.
    pub fn forget_series(&mut self) {
        for step in &mut self.steps {
            step.history = History::default();
        }
    }

    // -- reports of this attempt alone

    /// The latest report with its latest histograms, without phases, seconds and failures.
    pub fn checkpoint(&self) -> Report {
        self.report(|_| (None, Vec::new()))
    }

    /// The checkpoint with its phases and the seconds that were kept within `budget`.
    pub fn last_report(&self, budget: Option<Budget>) -> Report {
        let mut series_s = 1;
        let mut report = self.report(|place| {
            let mut series: Vec<Point> = Vec::new();
            if let (Some(budget), Some(step)) = (budget, self.steps.get(place)) {
                let width_s;
                (series, width_s) = step.history.points(budget);
                series_s = series_s.max(width_s);
            }
            (self.phases(place).cloned(), series)
        });
        for (step, &place) in report.steps.iter_mut().zip(&self.places) {
            step.failures = self.failures(place).cloned();
        }
        report.series_s = series_s;
        report
    }

    fn report(&self, mut detail: impl FnMut(usize) -> (Option<Phases>, Vec<Point>)) -> Report {
        let latest = &self.latest;
        let steps = latest.steps.iter().zip(&self.places).map(|(step, &place)| {
            let (phases, series) = detail(place);
            StepReport {
                name: step.name.clone(),
                counts: step.counts.clone(),
                latency: self.latency(place).cloned(),
                phases,
                series,
                failures: None,
                unknown: step.unknown.clone(),
            }
        });
        let metrics = latest.metrics.iter().map(|metric| MetricReport {
            distribution: self.distribution(&metric.name).cloned(),
            ..metric.clone()
        });
        Report {
            steps: steps.collect(),
            metrics: metrics.collect(),
            checks: latest.checks.clone(),
            holds: latest.holds.clone(),
            users: latest.users.clone(),
            workflow: latest.workflow.clone(),
            unknown: latest.unknown.clone(),
            series_s: 1,
            ..**latest
        }
    }
}

fn is_newer<T>(known: Option<&(u64, T)>, sequence: u64) -> bool {
    known.is_none_or(|(known, _)| sequence > *known)
}
