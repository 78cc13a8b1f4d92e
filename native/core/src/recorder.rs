//! The statistics of one workflow on one executor: for each step counters, histograms and a series
//! of seconds. The engine and the runtime write them, reports read them.

use std::collections::{BTreeMap, VecDeque};

use crate::clock;
use crate::hist::{HistError, Histogram};
use crate::report::{Counts, Phases, Point, Report, StepReport};

/// The newest seconds kept for later reports; the receiver holds the whole series.
const SERIES_SECONDS_MAX: usize = 600;
/// Error classes are few; the limit keeps hostile class names from growing memory.
const ERROR_CLASSES_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Blocked,
    Connect,
    Tls,
    FirstByte,
}

impl Phase {
    pub const ALL: [Self; 4] = [Self::Blocked, Self::Connect, Self::Tls, Self::FirstByte];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Blocked => "blocked",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::FirstByte => "first_byte",
        }
    }
}

/// How one step ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome<'a> {
    pub ok: bool,
    pub latency_ns: Option<u64>,
    pub status: Option<u16>,
    pub error: Option<&'a str>,
    /// In the order of `Phase::ALL`; `None` where the phase did not happen.
    pub phases_ns: [Option<u64>; 4],
}

#[derive(Debug, Default)]
struct Second {
    index: u32,
    total: u64,
    failed: u64,
    latency: Histogram,
}

#[derive(Debug, Default)]
pub struct Step {
    pub counts: Counts,
    pub latency: Histogram,
    phases: [Option<Box<Histogram>>; 4],
    second: Second,
    series: VecDeque<Point>,
}

impl Step {
    fn finish_second(&mut self, index: u32) -> Result<(), HistError> {
        if self.second.total > 0 {
            if self.series.len() == SERIES_SECONDS_MAX {
                self.series.pop_front();
            }
            self.series.push_back(self.point()?);
            self.second.latency.reset();
        }
        self.second.index = index;
        self.second.total = 0;
        self.second.failed = 0;
        Ok(())
    }

    fn point(&self) -> Result<Point, HistError> {
        Ok(Point {
            second: self.second.index,
            total: self.second.total,
            failed: self.second.failed,
            latency: Some(self.second.latency.encode()?.into()),
        })
    }

    fn record(&mut self, outcome: &Outcome<'_>) {
        let counts = &mut self.counts;
        counts.total += 1;
        self.second.total += 1;
        if outcome.ok {
            counts.ok += 1;
        } else {
            counts.failed += 1;
            self.second.failed += 1;
        }
        if let Some(status) = outcome.status {
            *counts.status_codes.entry(status).or_default() += 1;
        }
        if let Some(class) = outcome.error {
            count_error(&mut counts.errors, class);
        }
        if let Some(latency_ns) = outcome.latency_ns {
            self.latency.record(latency_ns, 1);
            self.second.latency.record(latency_ns, 1);
        }
        for (slot, value) in self.phases.iter_mut().zip(outcome.phases_ns) {
            if let Some(value_ns) = value {
                slot.get_or_insert_with(Box::default).record(value_ns, 1);
            }
        }
    }

    /// The phases that happened at least once.
    pub fn phases(&self) -> impl Iterator<Item = (Phase, &Histogram)> {
        let named = Phase::ALL.into_iter().zip(&self.phases);
        named.filter_map(|(phase, histogram)| histogram.as_deref().map(|h| (phase, h)))
    }

    fn encoded_phases(&self) -> Result<Phases, HistError> {
        let encoded = self
            .phases()
            .map(|(phase, histogram)| Ok((phase.name().into(), histogram.encode()?.into())));
        encoded.collect()
    }

    /// Finished and current seconds from `from` on.
    pub fn series(&self, from: u32) -> Result<Vec<Point>, HistError> {
        let mut points: Vec<Point> =
            self.series.iter().filter(|point| point.second >= from).cloned().collect();
        if self.second.total > 0 && self.second.index >= from {
            points.push(self.point()?);
        }
        Ok(points)
    }
}

fn count_error(errors: &mut BTreeMap<String, u64>, class: &str) {
    if let Some(count) = errors.get_mut(class) {
        *count += 1;
    } else if errors.len() < ERROR_CLASSES_MAX {
        errors.insert(class.to_owned(), 1);
    } else {
        *errors.entry("other".to_owned()).or_default() += 1;
    }
}

/// The seconds that go with a report that has histograms.
#[derive(Clone, Copy, Debug, Default)]
pub struct Detail {
    /// The first of them.
    pub series_from: u32,
    /// The second of the workflow that is the recorder's second 0.
    pub offset_s: u32,
}

#[derive(Debug)]
pub struct Recorder {
    steps: Vec<Step>,
    began_ns: u64,
}

impl Recorder {
    #[must_use]
    pub fn new(steps: usize) -> Self {
        let steps = std::iter::repeat_with(Step::default).take(steps).collect();
        Self { steps, began_ns: clock::now_ns() }
    }

    pub fn begin(&mut self) {
        self.began_ns = clock::now_ns();
    }

    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Counts one finished step. Calls made outside any step have an unknown index and are not
    /// counted.
    pub fn record(
        &mut self,
        step: u32,
        outcome: &Outcome<'_>,
        now_ns: u64,
    ) -> Result<(), HistError> {
        let elapsed_s = now_ns.saturating_sub(self.began_ns) / 1_000_000_000;
        let index = u32::try_from(elapsed_s).unwrap_or(u32::MAX);
        if let Some(step) = self.steps.get_mut(step as usize) {
            if step.second.index != index {
                step.finish_second(index)?;
            }
            step.record(outcome);
        }
        Ok(())
    }

    /// Adds the steps, as counted so far, to a report. `detail` says which histograms and seconds
    /// go along; None leaves them out.
    pub fn report_steps(
        &self,
        report: &mut Report,
        names: &[String],
        detail: Option<Detail>,
    ) -> Result<(), HistError> {
        for (step, name) in self.steps.iter().zip(names) {
            let mut row = StepReport {
                name: name.as_str().into(),
                counts: step.counts.clone(),
                ..StepReport::default()
            };
            if let Some(Detail { series_from, offset_s }) = detail {
                row.latency = Some(step.latency.encode()?.into());
                row.phases = Some(step.encoded_phases()?);
                row.series = step.series(series_from)?;
                for point in &mut row.series {
                    point.second = point.second.saturating_add(offset_s);
                }
            }
            report.steps.push(row);
        }
        Ok(())
    }

    pub fn counts_mut(&mut self, step: u32) -> Option<&mut Counts> {
        self.steps.get_mut(step as usize).map(|step| &mut step.counts)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::{Outcome, Recorder};
    use crate::hist::Histogram;

    #[test]
    fn each_second_is_its_own_point_and_the_totals_are_cumulative() {
        let mut recorder = Recorder::new(1);
        recorder.began_ns = 0;
        let ok = Outcome {
            ok: true,
            latency_ns: Some(1_000_000),
            status: Some(200),
            ..Outcome::default()
        };
        let failed =
            Outcome { error: Some("timeout"), latency_ns: Some(9_000_000), ..Outcome::default() };
        recorder.record(0, &ok, 10).unwrap();
        recorder.record(0, &ok, 1_500_000_000).unwrap();
        recorder.record(0, &failed, 1_600_000_000).unwrap();
        recorder.record(0, &ok, 4_000_000_000).unwrap();
        let step = &recorder.steps()[0];
        assert_eq!((step.counts.total, step.counts.ok, step.counts.failed), (4, 3, 1));
        let points = step.series(0).unwrap();
        let seen: Vec<_> = points.iter().map(|p| (p.second, p.total, p.failed)).collect();
        assert_eq!(seen, [(0, 1, 0), (1, 2, 1), (4, 1, 0)]);
        assert_eq!(Histogram::decode(points[1].latency.as_ref().unwrap()).unwrap().count(), 2);
        assert_eq!(step.series(2).unwrap().len(), 1);
    }

    #[test]
    fn error_classes_over_the_limit_count_as_other() {
        let mut recorder = Recorder::new(1);
        for n in 0..1000 {
            let class = format!("class {n}");
            let outcome = Outcome { error: Some(&class), ..Outcome::default() };
            recorder.record(0, &outcome, 0).unwrap();
        }
        let errors = &recorder.steps()[0].counts.errors;
        assert_eq!(errors.len(), 65);
        assert_eq!(errors.values().sum::<u64>(), 1000);
    }
}
