use std::sync::{Arc, Mutex, MutexGuard};

use hyperscale_core::clock;
use hyperscale_core::recorder::{self, Detail, Outcome};
use hyperscale_core::report;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::exchange::Exchange;
use crate::report::{CheckReport, MetricReport, Report};

/// Shared with the engine, which counts what goes over the wire.
pub type Shared = Arc<Mutex<recorder::Recorder>>;

pub fn lock(shared: &Shared) -> MutexGuard<'_, recorder::Recorder> {
    // Counters are valid after any panic: there is no half-written state to fear.
    shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub fn to_py(error: hyperscale_core::hist::HistError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

#[pyclass(frozen, module = "hyperscale._native")]
pub struct Recorder {
    pub shared: Shared,
}

#[pymethods]
impl Recorder {
    #[new]
    fn new(steps: usize) -> Self {
        Self { shared: Arc::new(Mutex::new(recorder::Recorder::new(steps))) }
    }

    fn begin(&self) {
        lock(&self.shared).begin();
    }

    #[pyo3(signature = (step, ok, latency_ns = None, status = None, error = None))]
    fn record(
        &self,
        step: u32,
        ok: bool,
        latency_ns: Option<u64>,
        status: Option<u16>,
        error: Option<&str>,
    ) -> PyResult<()> {
        let outcome = Outcome { ok, latency_ns, status, error, ..Outcome::default() };
        lock(&self.shared).record(step, &outcome, clock::now_ns()).map_err(to_py)
    }

    /// Counts an HTTP exchange; `accepted` lets a status of 400 or more pass. True if ok.
    fn record_exchange(&self, step: u32, exchange: &Exchange, accepted: bool) -> PyResult<bool> {
        let outcome = exchange.inner.outcome(accepted);
        lock(&self.shared).record(step, &outcome, clock::now_ns()).map_err(to_py)?;
        Ok(outcome.ok)
    }

    #[pyo3(signature = (step, count = 1))]
    fn add_cut(&self, step: u32, count: u64) {
        if let Some(counts) = lock(&self.shared).counts_mut(step) {
            counts.cut += count;
        }
    }

    #[pyo3(signature = (step, count = 1))]
    fn add_skipped(&self, step: u32, count: u64) {
        if let Some(counts) = lock(&self.shared).counts_mut(step) {
            counts.skipped += count;
        }
    }

    fn add_sent(&self, step: u32, requests: u64, bytes_sent: u64, bytes_received: u64) {
        if let Some(counts) = lock(&self.shared).counts_mut(step) {
            counts.sent += requests;
            counts.bytes_sent += bytes_sent;
            counts.bytes_received += bytes_received;
        }
    }

    /// The report of everything counted so far. The steps have the names given, in order.
    #[pyo3(signature = (
        names, *, workflow, slot, sequence, elapsed_s, vus = 0, iterations = 0, histograms = false,
        series_from = 0, offset_s = 0, checks = Vec::new(), metrics = Vec::new(), cpu_s = 0.0,
        loop_lag_s = 0.0, rss_bytes = 0, cpu_wait_s = 0.0
    ))]
    #[allow(clippy::too_many_arguments)] // all of them named by the caller
    fn report(
        &self,
        names: Vec<String>,
        workflow: &str,
        slot: u32,
        sequence: u64,
        elapsed_s: f64,
        vus: u64,
        iterations: u64,
        histograms: bool,
        series_from: u32,
        offset_s: u32,
        checks: Vec<CheckReport>,
        metrics: Vec<MetricReport>,
        cpu_s: f64,
        loop_lag_s: f64,
        rss_bytes: u64,
        cpu_wait_s: f64,
    ) -> PyResult<Report> {
        let mut report = report::Report {
            workflow: workflow.into(),
            slot,
            sequence,
            elapsed_s,
            vus,
            iterations,
            checks: checks.into_iter().map(|check| check.inner).collect(),
            metrics: metrics.into_iter().map(|metric| metric.inner).collect(),
            cpu_s,
            loop_lag_s,
            rss_bytes,
            cpu_wait_s,
            series_s: 1,
            ..report::Report::default()
        };
        let detail = histograms.then_some(Detail { series_from, offset_s });
        lock(&self.shared).report_steps(&mut report, &names, detail).map_err(to_py)?;
        Ok(Report::of(report))
    }
}
