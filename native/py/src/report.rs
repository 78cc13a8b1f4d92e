//! Reports of one slot or part, and what they are made of.

use std::sync::Arc;

use hyperscale_core::report::{self, Encoded};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

pub fn refused(error: &impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
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
    pub fn decode(data: &[u8]) -> PyResult<Self> {
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
    fn raised(&self) -> u64 {
        self.inner.raised
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
    fn held_s(&self) -> f64 {
        self.inner.holds.iter().map(|hold| hold.seconds).sum()
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
    fn failed(&self) -> u64 {
        self.inner.failed()
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
