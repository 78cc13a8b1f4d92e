//! The merge of reports, and what is read from it.

use std::collections::BTreeMap;
use std::sync::Arc;

use hyperscale_core::recorder::Phase;
use hyperscale_core::report::{self, Merge, Telling};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::hist::Histogram;
use crate::report::{refused, CheckReport, Report};

#[pyclass(frozen, eq, module = "hyperscale._native")]
#[derive(PartialEq)]
pub struct StepCounts {
    inner: report::Counts,
}

#[pymethods]
impl StepCounts {
    #[getter]
    fn total(&self) -> u64 {
        self.inner.total
    }

    #[getter]
    fn ok(&self) -> u64 {
        self.inner.ok
    }

    #[getter]
    fn failed(&self) -> u64 {
        self.inner.failed
    }

    #[getter]
    fn held(&self) -> u64 {
        self.inner.held
    }

    #[getter]
    fn none(&self) -> u64 {
        self.inner.none
    }

    #[getter]
    fn cut(&self) -> u64 {
        self.inner.cut
    }

    #[getter]
    fn skipped(&self) -> u64 {
        self.inner.skipped
    }

    #[getter]
    fn sent(&self) -> u64 {
        self.inner.sent
    }

    #[getter]
    fn bytes_sent(&self) -> u64 {
        self.inner.bytes_sent
    }

    #[getter]
    fn bytes_received(&self) -> u64 {
        self.inner.bytes_received
    }

    #[getter]
    fn status_codes(&self) -> BTreeMap<u16, u64> {
        self.inner.status_codes.clone()
    }

    #[getter]
    fn errors(&self) -> BTreeMap<String, u64> {
        self.inner.errors.clone()
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.inner)
    }
}

#[pyclass(frozen, eq, module = "hyperscale._native")]
#[derive(PartialEq)]
pub struct SeriesValue {
    inner: report::SeriesValue,
}

#[pymethods]
impl SeriesValue {
    #[getter]
    fn at_s(&self) -> u32 {
        self.inner.at_s
    }

    #[getter]
    fn total(&self) -> u64 {
        self.inner.total
    }

    #[getter]
    fn failed(&self) -> u64 {
        self.inner.failed
    }

    #[getter]
    fn sent(&self) -> u64 {
        self.inner.sent
    }

    #[getter]
    fn p50_ms(&self) -> Option<f64> {
        self.inner.p50_ms
    }

    #[getter]
    fn p90_ms(&self) -> Option<f64> {
        self.inner.p90_ms
    }

    #[getter]
    fn p95_ms(&self) -> Option<f64> {
        self.inner.p95_ms
    }

    #[getter]
    fn p99_ms(&self) -> Option<f64> {
        self.inner.p99_ms
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.inner)
    }
}

fn shown(values: Vec<report::SeriesValue>) -> Vec<SeriesValue> {
    values.into_iter().map(|inner| SeriesValue { inner }).collect()
}

/// What finished within some seconds.
#[pyclass(frozen, get_all, module = "hyperscale._native")]
pub struct Window {
    begins_s: u32,
    seconds: u32,
    step_s: u32,
    total: u64,
    failed: u64,
    latency: Py<Histogram>,
}

/// How often and how long one hook held the loop.
#[pyclass(frozen, get_all, module = "hyperscale._native")]
pub struct HoldReport {
    name: String,
    count: u64,
    seconds: f64,
    max_s: f64,
    cpu_s: f64,
    location: String,
}

impl HoldReport {
    fn of(hold: report::HoldReport) -> Self {
        Self {
            name: hold.name.into(),
            count: hold.count,
            seconds: hold.seconds,
            max_s: hold.max_s,
            cpu_s: hold.cpu_s,
            location: hold.location.into(),
        }
    }
}

/// A custom metric over all parts.
#[pyclass(frozen, get_all, module = "hyperscale._native")]
pub struct MetricTotal {
    count: u64,
    sum: f64,
    min: f64,
    max: f64,
    last: f64,
    distribution: Option<Py<Histogram>>,
}

/// One message of failures of a step, and a sample of it.
#[pyclass(frozen, get_all, module = "hyperscale._native")]
pub struct FailureRow {
    error: String,
    message: String,
    count: u64,
    has_sample: bool,
    request: String,
    status: u16,
    latency_ns: u64,
    phases_ns: BTreeMap<&'static str, u64>,
    headers: String,
    body: String,
    trace: String,
}

impl FailureRow {
    fn of(row: report::FailureRow) -> Self {
        let has_sample = row.sample.is_some();
        let sample = row.sample.unwrap_or_default();
        let phases = Phase::ALL.into_iter().map(Phase::name).zip(sample.phases_ns);
        Self {
            error: row.class.into(),
            message: row.message.into(),
            count: row.count,
            has_sample,
            request: sample.request.to_string(),
            status: sample.status,
            latency_ns: sample.latency_ns,
            phases_ns: phases.filter(|&(_, ns)| ns > 0).collect(),
            headers: sample.headers.to_string(),
            body: sample.body.to_string(),
            trace: sample.trace.to_string(),
        }
    }
}

#[pyclass(subclass, module = "hyperscale._native")]
pub struct ReportMerge {
    merge: Merge,
    /// The places of the steps that the headline is made of.
    headline: Vec<usize>,
    /// The places of the steps whose requests are the load.
    senders: Vec<usize>,
    checks: Vec<String>,
    /// What was decoded, and of which version.
    latencies: BTreeMap<usize, (u64, Py<Histogram>)>,
}

impl ReportMerge {
    fn of(merge: Merge, checks: Vec<String>) -> Self {
        let (headline, senders) = (Vec::new(), Vec::new());
        Self { merge, headline, senders, checks, latencies: BTreeMap::new() }
    }

    fn places(&self, steps: &[String]) -> Vec<usize> {
        steps.iter().filter_map(|step| self.merge.place(step)).collect()
    }

    fn place(&self, step: &str) -> PyResult<usize> {
        self.merge.place(step).ok_or_else(|| PyKeyError::new_err(step.to_owned()))
    }

    fn summed(&self, places: impl Iterator<Item = usize>) -> StepCounts {
        let mut sum = report::Counts::default();
        for counts in places.filter_map(|place| self.merge.counts(place)) {
            sum.add(counts);
        }
        StepCounts { inner: sum }
    }

    fn latency_at(&mut self, py: Python<'_>, place: usize) -> PyResult<Py<Histogram>> {
        let version = self.merge.histograms_version(place);
        if let Some((known, histogram)) = self.latencies.get(&place) {
            if *known == version {
                return Ok(histogram.clone_ref(py));
            }
        }
        let histogram = Py::new(py, Histogram { inner: self.merge.latency(place) })?;
        self.latencies.insert(place, (version, histogram.clone_ref(py)));
        Ok(histogram)
    }
}

#[pymethods]
impl ReportMerge {
    #[new]
    #[pyo3(signature = (
        workflow, steps, *, headline = Vec::new(), senders = Vec::new(), checks = Vec::new()
    ))]
    fn new(
        workflow: &str,
        steps: Vec<String>,
        headline: Vec<String>,
        senders: Vec<String>,
        checks: Vec<String>,
    ) -> Self {
        let mut made = Self::of(Merge::of_workflow(workflow, &steps), checks);
        (made.headline, made.senders) = (made.places(&headline), made.places(&senders));
        made
    }

    #[staticmethod]
    #[pyo3(signature = (workflow, *, recent_s, histograms_max))]
    fn of_part(workflow: &str, recent_s: u32, histograms_max: usize) -> Self {
        Self::of(Merge::of_part(workflow, recent_s, histograms_max), Vec::new())
    }

    #[pyo3(signature = (report, *, attempt = 0, parts = None))]
    fn apply<'py>(
        &mut self,
        report: &Bound<'py, PyAny>,
        attempt: u32,
        parts: Option<usize>,
    ) -> PyResult<Option<Bound<'py, Report>>> {
        let report = match report.downcast::<Report>() {
            Ok(report) => report.clone(),
            Err(_) => Bound::new(report.py(), Report::decode(report.extract()?)?)?,
        };
        let is_newer = self.merge.apply(&report.get().inner, attempt, parts);
        Ok(is_newer.map_err(|error| refused(&error))?.then_some(report))
    }

    #[getter]
    fn version(&self) -> u64 {
        self.merge.version()
    }

    #[getter]
    fn parts(&self) -> usize {
        self.merge.parts()
    }

    #[getter]
    fn histograms(&self) -> usize {
        self.merge.histograms()
    }

    #[getter]
    fn elapsed_s(&self) -> f64 {
        self.merge.elapsed_s()
    }

    #[getter]
    fn finished_s(&self) -> u32 {
        self.merge.finished_s()
    }

    #[getter]
    fn vus(&self) -> u64 {
        self.merge.vus()
    }

    /// Virtual users over time, as changes: second, count.
    fn users(&self) -> report::Users {
        self.merge.users()
    }

    #[getter]
    fn iterations(&self) -> u64 {
        self.merge.iterations()
    }

    /// Rows of failures and how many have other messages.
    fn failures(&self, step: &str) -> PyResult<(Vec<FailureRow>, u64)> {
        let failures = self.merge.failures(self.place(step)?);
        Ok((failures.rows.into_iter().map(FailureRow::of).collect(), failures.other))
    }

    #[getter]
    fn raised(&self) -> u64 {
        self.merge.raised()
    }

    fn counts(&self, step: &str) -> PyResult<StepCounts> {
        Ok(self.summed(std::iter::once(self.place(step)?)))
    }

    fn headline_counts(&self) -> StepCounts {
        self.summed(self.headline.iter().copied())
    }

    fn load_counts(&self) -> StepCounts {
        self.summed(self.senders.iter().copied())
    }

    fn total_counts(&self) -> StepCounts {
        self.summed(0..self.merge.steps())
    }

    fn latency(&mut self, py: Python<'_>, step: &str) -> PyResult<Py<Histogram>> {
        let place = self.place(step)?;
        self.latency_at(py, place)
    }

    fn headline_latency(&mut self, py: Python<'_>) -> PyResult<Histogram> {
        let mut merged = Histogram::default();
        for place in self.headline.clone() {
            let latency = self.latency_at(py, place)?;
            merged.inner.merge(&latency.borrow(py).inner).map_err(|error| refused(&error))?;
        }
        Ok(merged)
    }

    fn cut(&self, step: &str) -> PyResult<Histogram> {
        Ok(Histogram { inner: self.merge.cut(self.place(step)?) })
    }

    fn service(&self, step: &str) -> PyResult<Histogram> {
        Ok(Histogram { inner: self.merge.service(self.place(step)?) })
    }

    fn phases(&self, step: &str) -> PyResult<BTreeMap<&'static str, Histogram>> {
        let phases = self.merge.phases(self.place(step)?).into_iter();
        Ok(phases.map(|(name, inner)| (name, Histogram { inner })).collect())
    }

    #[getter]
    fn series_interval_s(&self) -> u32 {
        self.merge.series_interval_s()
    }

    fn series(&self, step: &str) -> PyResult<Vec<SeriesValue>> {
        Ok(shown(self.merge.series(self.place(step)?)))
    }

    #[pyo3(signature = (until_s = None))]
    fn headline_series(&mut self, until_s: Option<u32>) -> Vec<SeriesValue> {
        shown(self.merge.headline_series(&self.headline, &self.senders, until_s))
    }

    #[pyo3(signature = (steps, *, from_s, span_s))]
    fn window(
        &self,
        py: Python<'_>,
        steps: Vec<String>,
        from_s: u32,
        span_s: u32,
    ) -> PyResult<Window> {
        let found = self.merge.window(&self.places(&steps), from_s, span_s);
        Ok(Window {
            begins_s: found.begins_s,
            seconds: found.seconds,
            step_s: found.step_s,
            total: found.total,
            failed: found.failed,
            latency: Py::new(py, Histogram { inner: found.latency })?,
        })
    }

    fn checks(&self) -> Vec<CheckReport> {
        let checks = self.merge.checks(&self.checks).into_iter();
        checks.map(|inner| CheckReport { inner }).collect()
    }

    fn holds(&self) -> Vec<HoldReport> {
        self.merge.holds().into_iter().map(HoldReport::of).collect()
    }

    #[getter]
    fn loop_s(&self) -> f64 {
        self.merge.loop_s()
    }

    fn metric_total(&self, py: Python<'_>, name: &str) -> PyResult<MetricTotal> {
        let total = self.merge.metric(name);
        let distribution = total.distribution.map(|inner| Py::new(py, Histogram { inner }));
        Ok(MetricTotal {
            count: total.count,
            sum: total.sum,
            min: total.min,
            max: total.max,
            last: total.last,
            distribution: distribution.transpose()?,
        })
    }

    #[pyo3(signature = (*, slot, sequence, histograms = false, phases = false, seconds = 0))]
    fn merged(
        &mut self,
        slot: u32,
        sequence: u64,
        histograms: bool,
        phases: bool,
        seconds: usize,
    ) -> Option<Report> {
        let telling = if seconds == 0 { Telling::Nothing } else { Telling::Newest(seconds) };
        self.merge.merged(slot, sequence, histograms, phases, telling).map(Report::of)
    }

    #[pyo3(signature = (*, slot, sequence, points_max))]
    fn whole(&mut self, slot: u32, sequence: u64, points_max: usize) -> Option<Report> {
        self.merge.merged(slot, sequence, true, true, Telling::Whole(points_max)).map(Report::of)
    }

    fn acknowledge(&mut self) {
        self.merge.acknowledge();
    }

    fn retell(&mut self) {
        self.merge.retell();
    }

    fn latest(&self, slot: u32, attempt: u32) -> Option<Report> {
        self.merge.latest(slot, attempt).map(|inner| Report { inner: Arc::clone(inner) })
    }

    fn checkpoint<'py>(&self, py: Python<'py>, slot: u32, attempt: u32) -> Bound<'py, PyBytes> {
        encoded(py, self.merge.checkpoint(slot, attempt))
    }

    fn last_report<'py>(&self, py: Python<'py>, slot: u32, attempt: u32) -> Bound<'py, PyBytes> {
        encoded(py, self.merge.last_report(slot, attempt))
    }

    fn end_attempt(&mut self, slot: u32, attempt: u32) {
        self.merge.end_attempt(slot, attempt);
    }
}

fn encoded(py: Python<'_>, report: Option<report::Report>) -> Bound<'_, PyBytes> {
    PyBytes::new(py, &report.map(|report| report.encode()).unwrap_or_default())
}
