//! The statistics of one workflow on one executor: for each step counters, histograms and a series
//! of seconds. The engine and the runtime write them, reports read them.

use std::collections::{BTreeMap, VecDeque};

use crate::clock;
use crate::engine::exchange::Exchange;
use crate::engine::http::reply::NO_SAMPLES;
use crate::hist::{HistError, Histogram};
use crate::iterations::Iterations;
use crate::masking::{printable, MASK};
use crate::report::{
    note_users, Counts, FailureLog, HoldReport, Phases, Point, Report, Sample, StepReport, Users,
};

/// The newest seconds kept for later reports; the receiver holds the whole series.
const SERIES_SECONDS_MAX: usize = 600;
/// Error classes are few; the limit keeps hostile class names from growing memory.
const ERROR_CLASSES_MAX: usize = 64;
/// Code that is no hook may hold the loop too, under any number of names.
const HOLDERS_MAX: usize = 64;

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

/// The name, beside those of the phases, of the times that cut requests had taken.
pub const CUT: &str = "cut";
/// The same of the times from the send, where latencies count from when the call was due.
pub const SERVICE: &str = "service";

/// How one step ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome<'a> {
    pub ok: bool,
    pub latency_ns: Option<u64>,
    pub status: Option<u16>,
    pub error: Option<&'a str>,
    /// In the order of `Phase::ALL`; `None` where the phase did not happen.
    pub phases_ns: [Option<u64>; 4],
    /// From the send, if `latency_ns` counts from when the call was due.
    pub service_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct Second {
    index: u32,
    total: u64,
    failed: u64,
    sent: u64,
    latency: Histogram,
}

#[derive(Debug, Default)]
pub struct Step {
    pub counts: Counts,
    pub latency: Histogram,
    phases: [Option<Box<Histogram>>; 4],
    /// How long the requests that were cut had taken.
    cut: Option<Box<Histogram>>,
    /// Latencies from the send, where `latency` counts from when a call was due.
    service: Option<Box<Histogram>>,
    second: Second,
    series: VecDeque<Point>,
    failures: FailureLog,
    /// Of the last failure, or of the last status of 400 or more that the step accepts.
    sampled_status: u16,
}

impl Step {
    /// Finishes the current second if `index` is a later one. What is told late counts in the
    /// current second: points are in order, and a finished one does not change.
    fn advance_to(&mut self, index: u32) {
        if index <= self.second.index {
            return;
        }
        if let Some(point) = self.point() {
            if self.series.len() == SERIES_SECONDS_MAX {
                self.series.pop_front();
            }
            self.series.push_back(point);
            self.second.latency.reset();
        }
        self.second.index = index;
        (self.second.total, self.second.failed, self.second.sent) = (0, 0, 0);
    }

    /// The current second, if anything happened in it.
    fn point(&self) -> Option<Point> {
        let Second { index, total, failed, sent, latency } = &self.second;
        // A histogram that cannot be encoded (more than 2^63 samples) leaves the counts.
        let latency = (latency.count() > 0).then(|| latency.encode().ok()).flatten();
        (*total > 0 || *sent > 0).then(|| Point {
            second: *index,
            total: *total,
            failed: *failed,
            sent: *sent,
            latency: latency.map(Into::into),
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
        if let Some(service_ns) = outcome.service_ns {
            self.service.get_or_insert_with(Box::default).record(service_ns, 1);
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
        let phases = self.phases().map(|(phase, histogram)| (phase.name(), histogram));
        let cut = self.cut.as_deref().map(|histogram| (CUT, histogram));
        let service = self.service.as_deref().map(|histogram| (SERVICE, histogram));
        let encoded = phases
            .chain(cut)
            .chain(service)
            .map(|(name, histogram)| Ok((name.into(), histogram.encode()?.into())));
        encoded.collect()
    }

    /// Finished and current seconds from `from` on.
    #[must_use]
    pub fn series(&self, from: u32) -> Vec<Point> {
        let points = self.series.iter().cloned().chain(self.point());
        points.filter(|point| point.second >= from).collect()
    }
}

/// The shortest beginning of a secret that is masked where a text was cut.
const PREFIX_CHARS_MIN: usize = 3;

/// The text without the secrets, also without the beginning of one at the end of a line: texts are
/// cut to their limits before they come here.
fn masked(text: &str, secrets: &[String]) -> Box<str> {
    let mut masked = text.to_owned();
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        masked = masked.replace(secret.as_str(), MASK);
    }
    let lines = masked.split('\n').map(|line| {
        let beginning = secrets.iter().filter_map(|secret| beginning_at_end(line, secret)).max();
        match beginning.and_then(|bytes| line.get(..line.len() - bytes)) {
            Some(kept) => format!("{kept}{MASK}"),
            None => line.to_owned(),
        }
    });
    lines.collect::<Vec<_>>().join("\n").into()
}

/// The length in bytes of the longest beginning of `secret` that `line` ends with.
fn beginning_at_end(line: &str, secret: &str) -> Option<usize> {
    let ends = secret.char_indices().skip(PREFIX_CHARS_MIN).map(|(end, _)| end);
    ends.filter(|end| secret.get(..*end).is_some_and(|part| line.ends_with(part))).max()
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
    /// What began before is the warm-up, and not counted.
    counted_from_ns: u64,
    pub iterations: Iterations,
    holds: Vec<HoldReport>,
    users: Users,
    /// Values that no message and no sample may show.
    secrets: Vec<String>,
}

impl Recorder {
    #[must_use]
    pub fn new(steps: usize) -> Self {
        let steps = std::iter::repeat_with(Step::default).take(steps).collect();
        Self {
            steps,
            began_ns: clock::now_ns(),
            counted_from_ns: 0,
            iterations: Iterations::default(),
            holds: Vec::new(),
            users: Users::new(),
            secrets: Vec::new(),
        }
    }

    /// Second 0 of the series is now; what begins within `warmup_ns` is not counted.
    pub fn begin(&mut self, warmup_ns: u64) {
        self.began_ns = clock::now_ns();
        if warmup_ns > 0 {
            self.counted_from_ns = self.began_ns.saturating_add(warmup_ns);
        }
    }

    #[must_use]
    pub fn counted_from_ns(&self) -> u64 {
        self.counted_from_ns
    }

    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Counts one finished step. Calls made outside any step have an unknown index and are not
    /// counted.
    /// Returns true if it counts: it began after the warm-up.
    pub fn record(&mut self, step: u32, outcome: &Outcome<'_>, now_ns: u64) -> bool {
        if now_ns.saturating_sub(outcome.latency_ns.unwrap_or(0)) < self.counted_from_ns {
            return false;
        }
        let index = self.second_at(now_ns);
        if let Some(step) = self.steps.get_mut(step as usize) {
            step.advance_to(index);
            step.record(outcome);
        }
        true
    }

    /// Counts an HTTP exchange; `accepted` lets a status of 400 or more pass. True if ok.
    pub fn record_exchange(
        &mut self,
        step: u32,
        exchange: &Exchange,
        accepted: bool,
        now_ns: u64,
    ) -> bool {
        self.record_outcome(step, exchange, &exchange.outcome(accepted), now_ns)
    }

    /// The same; the latency counts from when the call was due.
    pub fn record_exchange_since(
        &mut self,
        step: u32,
        exchange: &Exchange,
        accepted: bool,
        due_ns: u64,
        now_ns: u64,
    ) -> bool {
        let mut outcome = exchange.outcome(accepted);
        outcome.service_ns = outcome.latency_ns;
        let since_due_ns = exchange.ended_ns.saturating_sub(due_ns);
        outcome.latency_ns = outcome.latency_ns.map(|service_ns| since_due_ns.max(service_ns));
        self.record_outcome(step, exchange, &outcome, now_ns)
    }

    fn record_outcome(
        &mut self,
        step: u32,
        exchange: &Exchange,
        outcome: &Outcome<'_>,
        now_ns: u64,
    ) -> bool {
        if !self.record(step, outcome, now_ns) {
            return outcome.ok;
        }
        if exchange.contains_hold {
            self.record_held(step);
        }
        if let (false, Some(class)) = (outcome.ok, outcome.error) {
            let make = |second| exchange.sample(second);
            self.note_failure(step, class, &exchange.failure_message(), now_ns, make);
        }
        if exchange.status >= 400 {
            if let Some(step) = self.steps.get_mut(step as usize) {
                let is_full = step.failures.is_full();
                step.sampled_status = if is_full { NO_SAMPLES } else { exchange.status };
            }
        }
        outcome.ok
    }

    /// Counts a latency that contains time in which the test's own code held the event loop.
    pub fn record_held(&mut self, step: u32) {
        if let Some(counts) = self.counts_mut(step) {
            counts.held += 1;
        }
    }

    /// Notes why a call failed; `sample` is called if the message is new.
    pub fn note_failure(
        &mut self,
        step: u32,
        class: &str,
        message: &str,
        now_ns: u64,
        sample: impl FnOnce(u32) -> Sample,
    ) {
        let (second, secrets) = (self.second_at(now_ns), &self.secrets);
        let Some(step) = self.steps.get_mut(step as usize) else { return };
        step.failures.note(class, message, |message| {
            let mut made = sample(second);
            let texts = [&mut made.request, &mut made.headers, &mut made.body, &mut made.trace];
            for text in texts {
                *text = masked(text, secrets);
            }
            (masked(&printable(message), secrets), Some(made))
        });
    }

    /// The status of which the step needs no further sample.
    #[must_use]
    pub fn sampled_status(&self, step: u32) -> u16 {
        self.steps.get(step as usize).map_or(NO_SAMPLES, |step| step.sampled_status)
    }

    /// Values that no message and no sample may show.
    pub fn set_secrets(&mut self, secrets: Vec<String>) {
        self.secrets = secrets;
    }

    /// Counts requests that were handed to the kernel whole.
    pub fn record_sent(&mut self, step: u32, count: u64, at_ns: u64) {
        if at_ns < self.counted_from_ns {
            return;
        }
        let index = self.second_at(at_ns);
        if let Some(step) = self.steps.get_mut(step as usize) {
            step.advance_to(index);
            step.counts.sent += count;
            step.second.sent += count;
        }
    }

    /// Notes how long a request had taken when it was cut.
    pub fn record_cut(&mut self, step: u32, taken_ns: u64) {
        if let Some(step) = self.steps.get_mut(step as usize) {
            step.cut.get_or_insert_with(Box::default).record(taken_ns, 1);
        }
    }

    /// The longest latency of any step; None if nothing was timed.
    #[must_use]
    pub fn longest_ns(&self) -> Option<u64> {
        let timed = self.steps.iter().filter(|step| step.latency.count() > 0);
        timed.map(|step| step.latency.max()).max()
    }

    fn second_at(&self, at_ns: u64) -> u32 {
        let elapsed_s = at_ns.saturating_sub(self.began_ns) / 1_000_000_000;
        u32::try_from(elapsed_s).unwrap_or(u32::MAX)
    }

    /// Notes how many virtual users loop at this time of the workflow. Returns all that was noted.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn note_users(&mut self, elapsed_s: f64, count: u64) -> Users {
        note_users(&mut self.users, elapsed_s as u32, count);
        self.users.clone()
    }

    /// Adds the steps, as counted so far, to a report. `detail` says which histograms and seconds
    /// go along; None leaves them out.
    pub fn report_steps(
        &self,
        report: &mut Report,
        names: &[String],
        detail: Option<Detail>,
    ) -> Result<(), HistError> {
        report.holds.clone_from(&self.holds);
        for (step, name) in self.steps.iter().zip(names) {
            let mut row = StepReport {
                name: name.as_str().into(),
                counts: step.counts.clone(),
                ..StepReport::default()
            };
            if let Some(Detail { series_from, offset_s }) = detail {
                row.latency = Some(step.latency.encode()?.into());
                row.phases = Some(step.encoded_phases()?);
                row.failures = Some(step.failures.failures().into());
                row.series = step.series(series_from);
                for point in &mut row.series {
                    point.second = point.second.saturating_add(offset_s);
                }
            }
            report.steps.push(row);
        }
        Ok(())
    }

    /// Counts one stretch in which the code of this name held the loop.
    pub fn add_hold(&mut self, name: &str, location: &str, held_s: f64, cpu_s: f64) {
        let known = self.holds.iter().position(|hold| *hold.name == *name);
        if known.is_none() && self.holds.len() < HOLDERS_MAX {
            self.holds.push(HoldReport { name: name.into(), ..HoldReport::default() });
        }
        let place = known.unwrap_or(self.holds.len() - 1);
        if let Some(hold) = self.holds.get_mut(place).filter(|hold| *hold.name == *name) {
            hold.count += 1;
            hold.seconds += held_s;
            hold.max_s = hold.max_s.max(held_s);
            hold.cpu_s += cpu_s;
            hold.location = location.into();
        }
    }

    /// The counts of a step; None during the warm-up.
    pub fn counts_mut(&mut self, step: u32) -> Option<&mut Counts> {
        if self.counted_from_ns > 0 && clock::now_ns() < self.counted_from_ns {
            return None;
        }
        self.steps.get_mut(step as usize).map(|step| &mut step.counts)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::{masked, Outcome, Recorder};
    use crate::hist::Histogram;

    #[test]
    fn a_secret_is_masked_also_where_a_text_was_cut_within_it() {
        let secrets = ["swordfish-9".to_owned()];
        assert_eq!(&*masked("a swordfish-9 b", &secrets), "a *** b");
        assert_eq!(&*masked("x: a swordf\ny: swordfish-\nsw", &secrets), "x: a ***\ny: ***\nsw");
        assert_eq!(&*masked("größe swö", &["swörd".to_owned()]), "größe ***");
    }

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
        recorder.record(0, &ok, 10);
        recorder.record(0, &ok, 1_500_000_000);
        recorder.record(0, &failed, 1_600_000_000);
        recorder.record(0, &ok, 4_000_000_000);
        let step = &recorder.steps()[0];
        assert_eq!((step.counts.total, step.counts.ok, step.counts.failed), (4, 3, 1));
        let points = step.series(0);
        let seen: Vec<_> = points.iter().map(|p| (p.second, p.total, p.failed)).collect();
        assert_eq!(seen, [(0, 1, 0), (1, 2, 1), (4, 1, 0)]);
        assert_eq!(Histogram::decode(points[1].latency.as_ref().unwrap()).unwrap().count(), 2);
        assert_eq!(step.series(2).len(), 1);
    }

    #[test]
    fn requests_count_in_the_second_they_were_sent_in() {
        let mut recorder = Recorder::new(1);
        recorder.began_ns = 0;
        recorder.record_sent(0, 1, 900_000_000);
        recorder.record_sent(0, 2, 2_100_000_000);
        let ok = Outcome { ok: true, ..Outcome::default() };
        recorder.record(0, &ok, 3_000_000_000);
        recorder.record_sent(0, 1, 2_900_000_000); // told after second 2 was finished
        let points = recorder.steps()[0].series(0);
        let seen: Vec<_> = points.iter().map(|p| (p.second, p.total, p.sent)).collect();
        assert_eq!(seen, [(0, 0, 1), (2, 0, 2), (3, 1, 1)]);
        assert_eq!((recorder.steps()[0].counts.sent, recorder.longest_ns()), (4, None));
    }

    #[test]
    fn error_classes_over_the_limit_count_as_other() {
        let mut recorder = Recorder::new(1);
        for n in 0..1000 {
            let class = format!("class {n}");
            let outcome = Outcome { error: Some(&class), ..Outcome::default() };
            recorder.record(0, &outcome, 0);
        }
        let errors = &recorder.steps()[0].counts.errors;
        assert_eq!(errors.len(), 65);
        assert_eq!(errors.values().sum::<u64>(), 1000);
    }
}
