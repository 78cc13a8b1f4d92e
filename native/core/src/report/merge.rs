//! Reports of any number of slots or parts, merged.
//!
//! Reports are cumulative and sequenced: applied in any order, with repeats and losses, they end
//! in the state that the highest sequences describe. Counts are summed as reports come (the old
//! ones subtracted, the new ones added); histograms stay encoded until they are read.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

mod merged;

pub use merged::Telling;

use super::history::Budget;
use super::part::Part;
use super::series::{
    tier_for, tier_of_width, values, width_of, Cell, SeriesValue, StepSeries, Window, TIERS_S,
};
use super::totals::{check_totals, hold_totals, metric_total, MetricTotal};
use super::users::{summed, Users};
use super::{merged, CheckReport, Counts, Encoded, Failures, HoldReport, MergeError, Report};
use crate::hist::Histogram;
use crate::recorder::{Phase, CUT, SERVICE};

/// A second is closed once every part is this far past it, so that the reports that complete it
/// have come...
const OPEN_S: f64 = 5.0;
/// ... but a part that is stuck holds it open no longer than this. Its points are added late.
const OPEN_S_MAX: f64 = 60.0;
/// How far a second may be ahead of the time its report gives: their clocks start apart.
const AHEAD_S: u32 = 2;

/// When seconds are closed, and which steps are taken.
#[derive(Debug)]
enum Kind {
    /// The merge of a workflow's parts. It takes the steps of the plan.
    Workflow,
    /// The merge of a part's executors. It takes any step, keeps the newest `recent_s` seconds
    /// open, and merges the histograms of older ones if there are at most `histograms_max`.
    Part { recent_s: u32, histograms_max: usize },
}

#[derive(Debug)]
struct Step {
    name: Box<str>,
    counts: Counts,
    series: StepSeries,
    /// Grows when a part has reported a new histogram.
    histograms_version: u64,
}

#[derive(Debug)]
pub struct Merge {
    workflow: Box<str>,
    kind: Kind,
    steps: Vec<Step>,
    places: HashMap<Box<str>, usize>,
    /// Slot and attempt, and the place in `parts`.
    keys: BTreeMap<(u32, u32), u32>,
    parts: Vec<Part>,
    version: u64,
    /// The widest interval of which only the whole was reported.
    series_s: u32,
    closed_at_s: Option<u32>,
    /// The worst loop lag since the last merged report.
    loop_lag_s: f64,
    headline: Vec<SeriesValue>,
    /// How many points of an attempt are kept for `last_report`, if any.
    history: Option<Budget>,
}

impl Merge {
    /// The merge of a workflow's parts.
    #[must_use]
    pub fn of_workflow(workflow: &str, steps: &[String]) -> Self {
        let mut made = Self::new(workflow, Kind::Workflow);
        for name in steps {
            made.add_step(name);
        }
        made
    }

    /// The merge of a part's executors.
    #[must_use]
    pub fn of_part(workflow: &str, recent_s: u32, histograms_max: usize) -> Self {
        Self::new(workflow, Kind::Part { recent_s, histograms_max })
    }

    fn new(workflow: &str, kind: Kind) -> Self {
        Self {
            workflow: workflow.into(),
            kind,
            steps: Vec::new(),
            places: HashMap::new(),
            keys: BTreeMap::new(),
            parts: Vec::new(),
            version: 0,
            series_s: 1,
            closed_at_s: None,
            loop_lag_s: 0.0,
            headline: Vec::new(),
            history: None,
        }
    }

    fn add_step(&mut self, name: &str) -> usize {
        let place = self.steps.len();
        self.places.insert(name.into(), place);
        self.steps.push(Step {
            name: name.into(),
            counts: Counts::default(),
            series: StepSeries::default(),
            histograms_version: 0,
        });
        place
    }

    /// How many steps are merged here.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// The place of a step that is merged here.
    #[must_use]
    pub fn place(&self, step: &str) -> Option<usize> {
        self.places.get(step).copied()
    }

    // -- feeding

    /// Merges one report of one attempt. False if the report is not newer than the last one of
    /// its attempt; its histograms and seconds are then taken if they are new. With `parts`, how
    /// many the workflow has, the seconds of each attempt are kept for `last_report`.
    ///
    /// # Errors
    /// A report of another workflow or of steps that the plan does not have changes nothing.
    pub fn apply(
        &mut self,
        report: &Arc<Report>,
        attempt: u32,
        parts: Option<usize>,
    ) -> Result<bool, MergeError> {
        let places = self.places_of(report)?;
        let key = (report.slot, attempt);
        let (index, is_newer_report) = match self.keys.get(&key) {
            Some(&index) => (index, self.replace_latest(index, report, &places)),
            None => (self.add_part(key, report, &places), true),
        };
        let history = parts.map(|parts| Budget::of(parts, self.steps.len()));
        self.history = history.or(self.history);
        self.keep(index, report, &places, history.filter(|_| is_newer_report));
        self.series_s = self.series_s.max(report.series_s);
        self.loop_lag_s = self.loop_lag_s.max(report.loop_lag_s);
        self.version += 1;
        self.close_seconds(report);
        Ok(is_newer_report)
    }

    fn places_of(&mut self, report: &Report) -> Result<Vec<usize>, MergeError> {
        if report.workflow != self.workflow {
            return Err(MergeError::Workflow {
                found: report.workflow.to_string(),
                expected: self.workflow.to_string(),
            });
        }
        let mut places = Vec::with_capacity(report.steps.len());
        for step in &report.steps {
            let place = match (self.place(&step.name), &self.kind) {
                (Some(place), _) => place,
                (None, Kind::Part { .. }) => self.add_step(&step.name),
                (None, Kind::Workflow) => {
                    return Err(MergeError::Step {
                        workflow: self.workflow.to_string(),
                        step: step.name.to_string(),
                    });
                }
            };
            places.push(place);
        }
        Ok(places)
    }

    fn add_part(&mut self, key: (u32, u32), report: &Arc<Report>, places: &[usize]) -> u32 {
        #[allow(clippy::cast_possible_truncation)] // memory ends long before
        let index = self.parts.len() as u32;
        self.keys.insert(key, index);
        self.parts.push(Part::new(report, places));
        self.count(report, places, Counts::add);
        index
    }

    /// Replaces a part's latest report if this one is newer, and the counts it had.
    fn replace_latest(&mut self, index: u32, report: &Arc<Report>, places: &[usize]) -> bool {
        let Some(part) = self.parts.get_mut(index as usize) else { return false };
        let Some((before, before_places)) = part.replace_latest(report, places) else {
            return false;
        };
        self.count(&before, &before_places, Counts::subtract);
        self.count(report, places, Counts::add);
        true
    }

    fn count(&mut self, report: &Report, places: &[usize], with: fn(&mut Counts, &Counts)) {
        for (reported, &place) in report.steps.iter().zip(places) {
            if let Some(step) = self.steps.get_mut(place) {
                with(&mut step.counts, &reported.counts);
            }
        }
    }

    /// Keeps the histograms and seconds of a report.
    fn keep(&mut self, index: u32, report: &Report, places: &[usize], history: Option<Budget>) {
        let Some(part) = self.parts.get_mut(index as usize) else { return };
        let sequence = report.sequence;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let last_s = report.elapsed_s as u32 + AHEAD_S;
        for (reported, &place) in report.steps.iter().zip(places) {
            let is_bare = reported.latency.is_none() && reported.phases.is_none();
            if is_bare && reported.series.is_empty() && reported.failures.is_none() {
                continue; // as most reports do: between two with histograms the counts run ahead
            }
            let Some(step) = self.steps.get_mut(place) else { continue };
            if part.keep_histograms(place, reported, sequence) {
                step.histograms_version += 1;
            }
            let end = reported.series.partition_point(|point| point.second <= last_s);
            let series = reported.series.get(..end).unwrap_or_default();
            step.series.offer(index, series);
            if let Some(budget) = history {
                part.keep_series(place, series, report.series_s, budget);
            }
            if reported.latency.is_some() || !reported.series.is_empty() {
                part.series_until_s = part.series_until_s.max(report.elapsed_s);
            }
        }
        for metric in &report.metrics {
            part.keep_distribution(metric, sequence);
        }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn close_seconds(&mut self, report: &Report) {
        match self.kind {
            Kind::Workflow => {
                // Once a second is enough; looking at all parts for each report is not.
                let at_s = report.elapsed_s as u32;
                if self.closed_at_s.is_some_and(|closed_s| at_s <= closed_s) {
                    return;
                }
                self.closed_at_s = Some(at_s);
                let (mut least_s, mut most_s) = (f64::MAX, 0.0_f64);
                for part in &self.parts {
                    least_s = least_s.min(part.latest.elapsed_s);
                    most_s = most_s.max(part.latest.elapsed_s);
                }
                let before_s = (least_s - OPEN_S).max(most_s - OPEN_S_MAX).max(0.0) as u32;
                for step in &mut self.steps {
                    step.series.close(before_s, true);
                }
            }
            Kind::Part { recent_s, histograms_max } => {
                let is_affordable = self.histograms() <= histograms_max;
                for step in &mut self.steps {
                    if step.series.recent() > (recent_s + TIERS_S[1]) as usize {
                        let newest_s = step.series.newest_s().unwrap_or_default();
                        step.series.close(newest_s.saturating_sub(recent_s), is_affordable);
                    }
                }
            }
        }
    }

    // -- the workflow as a whole

    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Attempts that have reported.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// How many step histograms the merge of all parts takes.
    #[must_use]
    pub fn histograms(&self) -> usize {
        self.parts.iter().map(|part| part.latest.steps.len()).sum()
    }

    #[must_use]
    pub fn elapsed_s(&self) -> f64 {
        self.parts.iter().map(|part| part.latest.elapsed_s).fold(0.0, f64::max)
    }

    /// Seconds that every part has reported whole; at most two behind the foremost part.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn finished_s(&self) -> u32 {
        let until_s = || self.parts.iter().map(|part| part.series_until_s as u32);
        let (least_s, most_s) = (until_s().min().unwrap_or(0), until_s().max().unwrap_or(0));
        least_s.max(most_s.saturating_sub(2))
    }

    /// Virtual users now looping: those of each slot's latest attempt; earlier ones are gone.
    #[must_use]
    pub fn vus(&self) -> u64 {
        let mut sum: u64 = 0;
        let mut keys = self.keys.iter().peekable();
        while let Some((&(slot, _), &index)) = keys.next() {
            if keys.peek().is_none_or(|(&(next_slot, _), _)| next_slot != slot) {
                let vus = self.parts.get(index as usize).map_or(0, |part| part.latest.vus);
                sum = sum.wrapping_add(vus);
            }
        }
        sum
    }

    /// Virtual users over time, of all parts and attempts.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn users(&self) -> Users {
        summed(self.parts.iter().map(|part| {
            // The second in which a part ended is its last.
            (&part.latest.users, part.latest.elapsed_s.ceil() as u32)
        }))
    }

    #[must_use]
    pub fn iterations(&self) -> u64 {
        self.sum(|report| report.iterations)
    }

    /// Iterations in which the test's own code raised.
    #[must_use]
    pub fn raised(&self) -> u64 {
        self.sum(|report| report.raised)
    }

    fn sum(&self, of: fn(&Report) -> u64) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.wrapping_add(of(&part.latest)))
    }

    /// Parts by slot and attempt.
    fn in_order(&self) -> impl Iterator<Item = &Part> + Clone {
        self.keys.values().filter_map(|&index| self.parts.get(index as usize))
    }

    // -- steps

    #[must_use]
    pub fn counts(&self, place: usize) -> Option<&Counts> {
        self.steps.get(place).map(|step| &step.counts)
    }

    /// Grows when the histogram of the step has changed.
    #[must_use]
    pub fn histograms_version(&self, place: usize) -> u64 {
        self.steps.get(place).map_or(0, |step| step.histograms_version)
    }

    /// The step's histogram over all parts.
    #[must_use]
    pub fn latency(&self, place: usize) -> Histogram {
        merged(self.parts.iter().filter_map(|part| part.latency(place).map(AsRef::as_ref)))
    }

    /// The histograms of the phases that happened, in the order of `Phase::ALL`.
    #[must_use]
    pub fn phases(&self, place: usize) -> Vec<(&'static str, Histogram)> {
        let named = Phase::ALL.into_iter().map(Phase::name);
        let found = named.filter_map(|name| {
            let payloads = self.phase(place, name);
            payloads.clone().next()?;
            Some((name, merged(payloads.map(AsRef::as_ref))))
        });
        found.collect()
    }

    /// How long the requests of the step that were cut had taken, over all parts.
    #[must_use]
    pub fn cut(&self, place: usize) -> Histogram {
        merged(self.phase(place, CUT).map(AsRef::as_ref))
    }

    /// The latencies of the step from the send, where others count from when a call was due.
    #[must_use]
    pub fn service(&self, place: usize) -> Histogram {
        merged(self.phase(place, SERVICE).map(AsRef::as_ref))
    }

    fn phase<'a>(
        &'a self,
        place: usize,
        name: &'a str,
    ) -> impl Iterator<Item = &'a Encoded> + Clone {
        let phases = self.in_order().filter_map(move |part| part.phases(place));
        phases.flatten().filter(move |(phase, _)| **phase == *name).map(|(_, histogram)| histogram)
    }

    /// Why calls of the step failed, over all parts.
    #[must_use]
    pub fn failures(&self, place: usize) -> Failures {
        let parts = self.parts.iter().filter_map(|part| part.failures(place));
        Failures::merged(parts.map(AsRef::as_ref))
    }

    // -- over time

    /// The finest tier that holds the run whole, and splits nothing that was reported as one.
    fn tier(&self) -> usize {
        tier_for(self.elapsed_s()).max(tier_of_width(self.series_s))
    }

    #[must_use]
    pub fn series_interval_s(&self) -> u32 {
        width_of(self.tier())
    }

    #[must_use]
    pub fn series(&self, place: usize) -> Vec<SeriesValue> {
        let tier = self.tier();
        let cells = self.steps.get(place).into_iter().flat_map(|step| step.series.cells(tier));
        values(cells, width_of(tier), self.elapsed_s(), &[])
    }

    /// The steps at `places` together, with the requests of those at `senders`, in intervals that
    /// end by `until_s`. Always asked for the same steps: values that still hold are not computed
    /// again.
    pub fn headline_series(
        &mut self,
        places: &[usize],
        senders: &[usize],
        until_s: Option<u32>,
    ) -> Vec<SeriesValue> {
        let tier = self.tier();
        let width_s = width_of(tier);
        let until_s = until_s.unwrap_or(u32::MAX);
        let is_shown = |at_s: u32| at_s.saturating_add(width_s) <= until_s;
        let cells_at = |&place: &usize| {
            let series = self.steps.get(place).map(|step| &step.series);
            series.into_iter().flat_map(move |series| series.cells(tier))
        };
        let others = senders.iter().filter(|place| !places.contains(place));
        let requests = others.flat_map(cells_at).map(Cell::of_requests);
        let cells = places.iter().flat_map(cells_at).chain(requests);
        let cells = cells.filter(|cell| is_shown(cell.at_s));
        let mut found = values(cells, width_s, self.elapsed_s(), &self.headline);
        found.retain(|value| is_shown(value.at_s));
        self.headline.clone_from(&found);
        found
    }

    /// The steps at `places` together over `span_s` seconds, from the first cell on that begins at
    /// `from_s` or later. Where only wider cells are left, the window is at least one of them.
    #[must_use]
    pub fn window(&self, places: &[usize], from_s: u32, span_s: u32) -> Window {
        let series = || places.iter().filter_map(|&place| self.steps.get(place));
        let held = series().map(|step| step.series.tier_holding(from_s)).max().unwrap_or(0);
        let tier = held.max(tier_of_width(self.series_s));
        let step_s = width_of(tier);
        let begins_s = from_s.div_ceil(step_s).saturating_mul(step_s);
        let seconds = span_s.max(step_s);
        let ends_s = begins_s.saturating_add(seconds);
        let cells = series().flat_map(|step| step.series.cells(tier));
        let cells: Vec<Cell> =
            cells.filter(|cell| (begins_s..ends_s).contains(&cell.at_s)).collect();
        let latencies = cells.iter().flat_map(|cell| &cell.latencies);
        Window {
            begins_s,
            seconds,
            step_s,
            total: cells.iter().fold(0, |sum, cell| sum.wrapping_add(cell.total)),
            failed: cells.iter().fold(0, |sum, cell| sum.wrapping_add(cell.failed)),
            latency: merged(latencies.map(|payload| &**payload)),
        }
    }

    // -- checks and metrics

    /// The checks of the plan, and any other that was reported, in that order.
    #[must_use]
    pub fn checks(&self, planned: &[String]) -> Vec<CheckReport> {
        check_totals(self.in_order(), planned)
    }

    #[must_use]
    pub fn holds(&self) -> Vec<HoldReport> {
        hold_totals(self.in_order())
    }

    #[must_use]
    pub fn loop_s(&self) -> f64 {
        self.parts.iter().map(|part| part.latest.loop_s).sum()
    }

    #[must_use]
    pub fn metric(&self, name: &str) -> MetricTotal {
        metric_total(self.in_order(), name)
    }

    // -- one attempt

    fn part(&self, slot: u32, attempt: u32) -> Option<&Part> {
        self.parts.get(*self.keys.get(&(slot, attempt))? as usize)
    }

    /// The latest report of an attempt, as it came.
    #[must_use]
    pub fn latest(&self, slot: u32, attempt: u32) -> Option<&Arc<Report>> {
        Some(&self.part(slot, attempt)?.latest)
    }

    /// The latest report of an attempt with its latest histograms, without phases and seconds.
    #[must_use]
    pub fn checkpoint(&self, slot: u32, attempt: u32) -> Option<Report> {
        Some(self.part(slot, attempt)?.checkpoint())
    }

    /// The checkpoint of an attempt with its phases and the seconds it has reported.
    #[must_use]
    pub fn last_report(&self, slot: u32, attempt: u32) -> Option<Report> {
        Some(self.part(slot, attempt)?.last_report(self.history))
    }

    /// Frees the seconds kept of an attempt that has ended.
    pub fn end_attempt(&mut self, slot: u32, attempt: u32) {
        let index = self.keys.get(&(slot, attempt)).copied();
        if let Some(part) = index.and_then(|index| self.parts.get_mut(index as usize)) {
            part.forget_series();
        }
    }
}
