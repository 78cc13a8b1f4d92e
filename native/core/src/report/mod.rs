//! Reports of statistics and the one place where they are merged.
//!
//! A report is cumulative and sequenced: it holds everything that one slot or part of a workflow
//! has counted so far, so a lost, repeated or reordered report changes nothing. Executors make
//! reports (`Recorder::report`), agents merge those of a part's executors into one, job leaders,
//! local runs and results merge those of all parts (`Merge`).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::hist::Histogram;

mod codec;
mod failures;
mod failures_codec;
mod history;
mod merge;
mod msgpack;
mod part;
mod series;
#[cfg(test)]
mod tests;
mod thin;
mod totals;
mod users;

pub use failures::{FailureLog, FailureRow, Failures, Sample};
pub use merge::{Merge, Telling};
pub use series::{tier_for, SeriesValue, Window, CELLS_MAX, TIERS_S};
pub use thin::shed;
pub use totals::MetricTotal;
pub use users::{note as note_users, Users};

/// A histogram in the format of `hist`. A decoded one takes 200 KB, so those that are kept for
/// long are kept encoded.
pub type Encoded = Arc<[u8]>;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    #[error("the report ends too early")]
    Truncated,
    #[error("the report has bytes after its end")]
    Trailing,
    #[error("expected {0}")]
    Expected(&'static str),
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} is out of range")]
    Range(&'static str),
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MergeError {
    #[error("a report of workflow {found:?} among those of {expected:?}")]
    Workflow { found: String, expected: String },
    #[error("workflow {workflow:?} has no step {step:?}")]
    Step { workflow: String, step: String },
}

/// Keys of a newer version, with their values, as they arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unknown {
    pairs: Vec<(Box<str>, Box<[u8]>)>,
}

impl Unknown {
    fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Adds the pairs of `other` whose keys are not there yet.
    fn adopt(&mut self, other: &Self) {
        for (key, value) in &other.pairs {
            if !self.pairs.iter().any(|(known, _)| known == key) {
                self.pairs.push((key.clone(), value.clone()));
            }
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// ok + failed
    pub total: u64,
    pub ok: u64,
    pub failed: u64,
    /// Calls of a step that returned None, as it may: not in `total`.
    pub none: u64,
    /// Stopped at the deadline: neither ok nor failed.
    pub cut: u64,
    /// Not run because a step it depends on raised.
    pub skipped: u64,
    /// Requests handed to the kernel whole, hops and unanswered calls included.
    pub sent: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Calls whose latency contains time in which the test's own code held the event loop.
    pub held: u64,
    pub status_codes: BTreeMap<u16, u64>,
    pub errors: BTreeMap<String, u64>,
}

impl Counts {
    // A worker may claim any numbers. Sums wrap, so that subtracting what was added is exact.
    pub fn add(&mut self, other: &Self) {
        self.each(other, u64::wrapping_add);
    }

    pub fn subtract(&mut self, other: &Self) {
        self.each(other, u64::wrapping_sub);
    }

    fn each(&mut self, other: &Self, with: fn(u64, u64) -> u64) {
        self.total = with(self.total, other.total);
        self.ok = with(self.ok, other.ok);
        self.failed = with(self.failed, other.failed);
        self.none = with(self.none, other.none);
        self.cut = with(self.cut, other.cut);
        self.skipped = with(self.skipped, other.skipped);
        self.sent = with(self.sent, other.sent);
        self.bytes_sent = with(self.bytes_sent, other.bytes_sent);
        self.bytes_received = with(self.bytes_received, other.bytes_received);
        self.held = with(self.held, other.held);
        for (&status, &count) in &other.status_codes {
            let sum = self.status_codes.entry(status).or_default();
            *sum = with(*sum, count);
            if *sum == 0 {
                self.status_codes.remove(&status);
            }
        }
        for (class, &count) in &other.errors {
            let sum = match self.errors.get_mut(class) {
                Some(sum) => sum,
                None => self.errors.entry(class.clone()).or_default(),
            };
            *sum = with(*sum, count);
            if *sum == 0 {
                self.errors.remove(class);
            }
        }
    }
}

/// One second of one step, counted from the start of the workflow; in a report with `series_s`
/// above 1 it may stand for the interval of that width that begins there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Point {
    pub second: u32,
    pub total: u64,
    pub failed: u64,
    /// Requests that were handed to the kernel within it.
    pub sent: u64,
    /// None if only the counts were kept.
    pub latency: Option<Encoded>,
}

impl Point {
    /// Grows with everything that happens in the second: of two points the larger is the later.
    fn size(&self) -> u64 {
        self.total.saturating_add(self.sent)
    }
}

pub type Phases = Vec<(Box<str>, Encoded)>;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepReport {
    pub name: Box<str>,
    pub counts: Counts,
    /// Histograms travel about once a second; None means "as last reported".
    pub latency: Option<Encoded>,
    /// Those of the phases, and those named `recorder::CUT` and `recorder::SERVICE`.
    pub phases: Option<Phases>,
    /// The newest points, by second.
    pub series: Vec<Point>,
    /// They travel with the phases; None means "as last reported".
    pub failures: Option<Arc<Failures>>,
    pub unknown: Unknown,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    pub name: Box<str>,
    pub passed: u64,
    pub failed: u64,
    pub first_failure: Option<Box<str>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricReport {
    pub name: Box<str>,
    pub kind: Box<str>,
    pub count: u64,
    pub sum: f64,
    pub min: f64,
    pub max: f64,
    pub last: f64,
    /// Of value * 1e6, for the kinds that sample.
    pub distribution: Option<Encoded>,
}

/// How often and how long one hook held the event loop, for 10 ms or more each time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HoldReport {
    /// Of the hook, or of another function.
    pub name: Box<str>,
    pub count: u64,
    pub seconds: f64,
    pub max_s: f64,
    /// CPU time it used meanwhile.
    pub cpu_s: f64,
    /// File and line of the last one.
    pub location: Box<str>,
}

impl HoldReport {
    fn add(&mut self, other: &Self) {
        self.count = self.count.wrapping_add(other.count);
        self.seconds += other.seconds;
        self.max_s = self.max_s.max(other.max_s);
        self.cpu_s += other.cpu_s;
        if self.location.is_empty() {
            self.location.clone_from(&other.location);
        }
    }
}

/// Everything one slot, or one part, of a workflow has counted so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub workflow: Box<str>,
    pub slot: u32,
    pub sequence: u64,
    pub elapsed_s: f64,
    /// Virtual users now looping.
    pub vus: u64,
    /// Virtual users over time.
    pub users: Users,
    pub iterations: u64,
    /// Iterations in which the test's own code raised.
    pub raised: u64,
    pub steps: Vec<StepReport>,
    pub checks: Vec<CheckReport>,
    pub metrics: Vec<MetricReport>,
    pub holds: Vec<HoldReport>,
    /// How long virtual users ran, summed over executors.
    pub loop_s: f64,
    /// CPU time of the executor since the workflow began.
    pub cpu_s: f64,
    /// Worst delay of the executor's loop since the last report.
    pub loop_lag_s: f64,
    pub rss_bytes: u64,
    /// Time the executor was ready to run and waited for a core, since the workflow began.
    pub cpu_wait_s: f64,
    /// Seconds that the widest point of the series stands for.
    pub series_s: u32,
    pub unknown: Unknown,
}

impl Report {
    /// Requests handed to the kernel; finished steps where a protocol does not count requests.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.steps
            .iter()
            .fold(0, |sum, step| u64::wrapping_add(sum, step.counts.sent.max(step.counts.total)))
    }

    /// Finished steps.
    #[must_use]
    pub fn actions(&self) -> u64 {
        let each = self.steps.iter().map(|step| step.counts.total.wrapping_add(step.counts.none));
        each.fold(0, u64::wrapping_add)
    }

    /// Finished steps that failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.steps.iter().fold(0, |sum, step| u64::wrapping_add(sum, step.counts.failed))
    }

    /// Finished steps and iterations: the measure of progress.
    #[must_use]
    pub fn finished(&self) -> u64 {
        self.actions().wrapping_add(self.iterations)
    }
}

/// One encoded histogram of all samples behind `payloads`; None if there are none. Payloads that
/// cannot be read are left out: one broken report must not take the others with it.
fn joined<'a>(payloads: impl Iterator<Item = &'a Encoded> + Clone) -> Option<Encoded> {
    let mut few = payloads.clone();
    let first = few.next()?;
    if few.next().is_none() {
        return Some(Arc::clone(first));
    }
    let merged = merged(payloads.map(|payload| &**payload));
    merged.encode().ok().map(Into::into)
}

fn merged<'a>(payloads: impl Iterator<Item = &'a [u8]> + Clone) -> Histogram {
    match Histogram::merged(payloads.clone()) {
        Ok(merged) => merged,
        Err(_) => {
            let readable = payloads.filter(|payload| Histogram::decode(payload).is_ok());
            Histogram::merged(readable).unwrap_or_default()
        }
    }
}
