use std::sync::{Arc, Mutex, MutexGuard};

use hyperscale_core::clock;
use hyperscale_core::recorder::{self, Outcome};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::exchange::Exchange;

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

    #[pyo3(signature = (histograms = false, series_from = None))]
    fn snapshot<'py>(
        &self,
        py: Python<'py>,
        histograms: bool,
        series_from: Option<u32>,
    ) -> PyResult<Bound<'py, PyList>> {
        let recorder = lock(&self.shared);
        let rows = PyList::empty(py);
        for step in recorder.steps() {
            let c = &step.counts;
            let counts =
                (c.total, c.ok, c.failed, c.cut, c.skipped, c.sent, c.bytes_sent, c.bytes_received);
            let (latency, phases) = if histograms {
                let phases = PyDict::new(py);
                for (phase, histogram) in step.phases() {
                    let encoded = histogram.encode().map_err(to_py)?;
                    phases.set_item(phase.name(), PyBytes::new(py, &encoded))?;
                }
                let latency = step.latency.encode().map_err(to_py)?;
                (Some(PyBytes::new(py, &latency)), Some(phases))
            } else {
                (None, None)
            };
            let series = PyList::empty(py);
            if histograms {
                for point in step.series(series_from.unwrap_or(0)).map_err(to_py)? {
                    let latency = PyBytes::new(py, &point.latency);
                    series.append((point.second, point.total, point.failed, latency))?;
                }
            }
            rows.append((counts, &c.status_codes, &c.errors, latency, phases, series))?;
        }
        Ok(rows)
    }
}
