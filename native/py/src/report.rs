use std::collections::BTreeMap;
use std::sync::Arc;

use hyperscale_core::report::{self, Encoded, Merge, Telling};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::hist::Histogram;

fn refused(error: &impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

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
#[derive(Clone, PartialEq)]
pub struct CheckReport {
    pub inner: report::CheckReport,
}

#[pymethods]
impl CheckReport {
    #[new]
    #[pyo3(signature = (*, name, passed = 0, failed = 0, first_failure = None))]
    fn new(name: &str, passed: u64, failed: u64, first_failure: Option<&str>) -> Self {
        let first_failure = first_failure.map(Into::into);
        Self { inner: report::CheckReport { name: name.into(), passed, failed, first_failure } }
    }

    #[getter]
    fn name(&self) -> &str {
        &self.inner.name
    }

    #[getter]
    fn passed(&self) -> u64 {
        self.inner.passed
    }

    #[getter]
    fn failed(&self) -> u64 {
        self.inner.failed
    }

    #[getter]
    fn first_failure(&self) -> Option<&str> {
        self.inner.first_failure.as_deref()
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.inner)
    }
}

#[pyclass(frozen, eq, module = "hyperscale._native")]
#[derive(Clone, PartialEq)]
pub struct MetricReport {
    pub inner: report::MetricReport,
}

#[pymethods]
impl MetricReport {
    #[new]
    #[pyo3(signature = (
        *, name, kind, count = 0, sum = 0.0, min = 0.0, max = 0.0, last = 0.0, distribution = None
    ))]
    #[allow(clippy::too_many_arguments)] // all of them named by the caller
    fn new(
        name: &str,
        kind: &str,
        count: u64,
        sum: f64,
        min: f64,
        max: f64,
        last: f64,
        distribution: Option<&[u8]>,
    ) -> Self {
        let (name, kind) = (name.into(), kind.into());
        let distribution = distribution.map(Into::into);
        Self {
            inner: report::MetricReport { name, kind, count, sum, min, max, last, distribution },
        }
    }

    #[getter]
    fn name(&self) -> &str {
        &self.inner.name
    }

    #[getter]
    fn count(&self) -> u64 {
        self.inner.count
    }

    #[getter]
    fn sum(&self) -> f64 {
        self.inner.sum
    }

    #[getter]
    fn min(&self) -> f64 {
        self.inner.min
    }

    #[getter]
    fn max(&self) -> f64 {
        self.inner.max
    }

    #[getter]
    fn last(&self) -> f64 {
        self.inner.last
    }

    #[getter]
    fn distribution<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        bytes(py, self.inner.distribution.as_ref())
    }
}

fn bytes<'py>(py: Python<'py>, histogram: Option<&Encoded>) -> Option<Bound<'py, PyBytes>> {
    histogram.map(|histogram| PyBytes::new(py, histogram))
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
    fn p50_ms(&self) -> Option<f64> {
        self.inner.p50_ms
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

#[pyclass(frozen, eq, module = "hyperscale._native")]
#[derive(PartialEq)]
pub struct Report {
    pub inner: Arc<report::Report>,
}

impl Report {
    pub fn of(inner: report::Report) -> Self {
        Self { inner: Arc::new(inner) }
    }
}

#[pymethods]
impl Report {
    #[staticmethod]
    fn decode(data: &[u8]) -> PyResult<Self> {
        report::Report::decode(data).map(Self::of).map_err(|error| refused(&error))
    }

    fn encode<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.encode())
    }

    /// The report as small as it must be for the log to hold those of all `parts`.
    fn bounded_for_log(&self, parts: usize) -> Self {
        let mut bounded = (*self.inner).clone();
        bounded.bound_for_log(parts);
        Self::of(bounded)
    }

    fn shed(&self, bytes_max: usize) -> Self {
        let mut reports = [(*self.inner).clone()];
        report::shed(&mut reports, bytes_max);
        let [shed] = reports;
        Self::of(shed)
    }

    #[getter]
    fn workflow(&self) -> &str {
        &self.inner.workflow
    }

    #[getter]
    fn slot(&self) -> u32 {
        self.inner.slot
    }

    #[getter]
    fn sequence(&self) -> u64 {
        self.inner.sequence
    }

    #[getter]
    fn elapsed_s(&self) -> f64 {
        self.inner.elapsed_s
    }

    #[getter]
    fn vus(&self) -> u64 {
        self.inner.vus
    }

    #[getter]
    fn iterations(&self) -> u64 {
        self.inner.iterations
    }

    #[getter]
    fn cpu_s(&self) -> f64 {
        self.inner.cpu_s
    }

    #[getter]
    fn loop_lag_s(&self) -> f64 {
        self.inner.loop_lag_s
    }

    #[getter]
    fn rss_bytes(&self) -> u64 {
        self.inner.rss_bytes
    }

    #[getter]
    fn cpu_wait_s(&self) -> f64 {
        self.inner.cpu_wait_s
    }

    #[getter]
    fn series_s(&self) -> u32 {
        self.inner.series_s
    }

    #[getter]
    fn sent(&self) -> u64 {
        self.inner.sent()
    }

    #[getter]
    fn actions(&self) -> u64 {
        self.inner.actions()
    }

    #[getter]
    fn finished(&self) -> u64 {
        self.inner.finished()
    }

    #[getter]
    fn has_histograms(&self) -> bool {
        self.inner.steps.iter().any(|step| step.latency.is_some())
    }

    fn __repr__(&self) -> String {
        let report = &self.inner;
        format!("<Report of {:?} slot {} #{}>", report.workflow, report.slot, report.sequence)
    }
}

/// Takes detail out of encoded reports until they have at most `bytes_max` together.
#[pyfunction]
pub fn shed_reports<'py>(
    py: Python<'py>,
    reports: Vec<Vec<u8>>,
    bytes_max: usize,
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let decoded = reports.iter().map(|data| report::Report::decode(data));
    let decoded: Result<Vec<_>, _> = decoded.collect();
    let shed = report::shed(&mut decoded.map_err(|error| refused(&error))?, bytes_max);
    Ok(shed.iter().map(|data| PyBytes::new(py, data)).collect())
}

#[pyclass(subclass, module = "hyperscale._native")]
pub struct ReportMerge {
    merge: Merge,
    /// The places of the steps that the headline is made of.
    headline: Vec<usize>,
    checks: Vec<String>,
    /// What was decoded, and of which version.
    latencies: BTreeMap<usize, (u64, Py<Histogram>)>,
}

impl ReportMerge {
    fn of(merge: Merge, headline: Vec<usize>, checks: Vec<String>) -> Self {
        Self { merge, headline, checks, latencies: BTreeMap::new() }
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
    #[pyo3(signature = (workflow, steps, *, headline = Vec::new(), checks = Vec::new()))]
    fn new(workflow: &str, steps: Vec<String>, headline: Vec<String>, checks: Vec<String>) -> Self {
        let merge = Merge::of_workflow(workflow, &steps);
        let headline = headline.iter().filter_map(|step| merge.place(step)).collect();
        Self::of(merge, headline, checks)
    }

    #[staticmethod]
    #[pyo3(signature = (workflow, *, recent_s, histograms_max))]
    fn of_part(workflow: &str, recent_s: u32, histograms_max: usize) -> Self {
        Self::of(Merge::of_part(workflow, recent_s, histograms_max), Vec::new(), Vec::new())
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

    #[getter]
    fn iterations(&self) -> u64 {
        self.merge.iterations()
    }

    fn counts(&self, step: &str) -> PyResult<StepCounts> {
        Ok(self.summed(std::iter::once(self.place(step)?)))
    }

    fn headline_counts(&self) -> StepCounts {
        self.summed(self.headline.iter().copied())
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
        shown(self.merge.headline_series(&self.headline, until_s))
    }

    fn checks(&self) -> Vec<CheckReport> {
        let checks = self.merge.checks(&self.checks).into_iter();
        checks.map(|inner| CheckReport { inner }).collect()
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
