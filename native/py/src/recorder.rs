use std::sync::{Arc, Mutex, MutexGuard};

use hyperscale_core::clock;
use hyperscale_core::loop_watch::Turns;
use hyperscale_core::recorder::{self, Detail, Outcome};
use hyperscale_core::report::{self, Sample};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::exchange::Exchange;
use crate::report::{CheckReport, MetricReport, Report};
use crate::template::to_ns;

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
    /// Of the loop whose virtual users are recorded.
    pub turns: Arc<Turns>,
}

#[pymethods]
impl Recorder {
    #[new]
    fn new(steps: usize) -> Self {
        let shared = Arc::new(Mutex::new(recorder::Recorder::new(steps)));
        Self { shared, turns: Arc::default() }
    }

    #[pyo3(signature = (warmup_s = 0.0))]
    fn begin(&self, warmup_s: f64) -> PyResult<()> {
        lock(&self.shared).begin(to_ns(warmup_s)?);
        Ok(())
    }

    #[pyo3(signature = (
        step, ok, latency_ns = None, status = None, error = None, *, message = None, trace = "",
        service_ns = None, request = "", blocked_ns = None, connect_ns = None
    ))]
    #[allow(clippy::too_many_arguments)] // most of them named by the caller
    fn record(
        &self,
        step: u32,
        ok: bool,
        latency_ns: Option<u64>,
        status: Option<u16>,
        error: Option<&str>,
        message: Option<&str>,
        trace: &str,
        service_ns: Option<u64>,
        request: &str,
        blocked_ns: Option<u64>,
        connect_ns: Option<u64>,
    ) {
        let phases_ns = [blocked_ns, connect_ns, None, None];
        let outcome = Outcome { ok, latency_ns, status, error, service_ns, phases_ns };
        let (mut recorder, now_ns) = (lock(&self.shared), clock::now_ns());
        let is_counted = recorder.record(step, &outcome, now_ns);
        if latency_ns.is_some_and(|ns| self.turns.held_ns() > now_ns.saturating_sub(ns)) {
            recorder.record_held(step);
        }
        if is_counted && !ok {
            let class = error.unwrap_or("other");
            let sample = |second| Sample {
                second,
                latency_ns: latency_ns.unwrap_or(0),
                status: status.unwrap_or(0),
                trace: trace.into(),
                request: request.into(),
                phases_ns: phases_ns.map(|phase| phase.unwrap_or(0)),
                ..Sample::default()
            };
            recorder.note_failure(step, class, message.unwrap_or(class), now_ns, sample);
        }
    }

    /// Values that no message and no sample may show.
    fn set_secrets(&self, secrets: Vec<String>) {
        lock(&self.shared).set_secrets(secrets);
    }

    /// Counts an HTTP exchange; `accepted` lets a status of 400 or more pass. True if ok.
    fn record_exchange(&self, step: u32, exchange: &Exchange, accepted: bool) -> bool {
        let exchange = &exchange.inner;
        lock(&self.shared).record_exchange(step, exchange, accepted, exchange.ended_ns)
    }

    /// The same; the latency counts from when the call was due.
    fn record_exchange_since(
        &self,
        step: u32,
        exchange: &Exchange,
        accepted: bool,
        due_ns: u64,
    ) -> bool {
        let (mut recorder, now_ns) = (lock(&self.shared), clock::now_ns());
        recorder.record_exchange_since(step, &exchange.inner, accepted, due_ns, now_ns)
    }

    /// Counts an iteration that ends now. False if it belongs to the warm-up.
    fn end_iteration(&self, began_ns: u64) -> bool {
        let mut recorder = lock(&self.shared);
        let from_ns = recorder.counted_from_ns();
        recorder.iterations.end(began_ns, clock::now_ns(), from_ns);
        began_ns >= from_ns
    }

    /// Counts an arrival that begins now.
    fn add_arrival(&self, due_ns: u64) {
        let mut recorder = lock(&self.shared);
        let from_ns = recorder.counted_from_ns();
        recorder.iterations.arrive(due_ns, clock::now_ns(), from_ns);
    }

    /// Counts arrivals that were due and did not begin.
    #[pyo3(signature = (due_ns, count = 1))]
    fn add_dropped(&self, due_ns: u64, count: u64) {
        let mut recorder = lock(&self.shared);
        let from_ns = recorder.counted_from_ns();
        recorder.iterations.drop(due_ns, count, from_ns);
    }

    /// What began before this time of the monotonic clock is the warm-up; 0 if there is none.
    #[getter]
    fn counted_from_ns(&self) -> u64 {
        lock(&self.shared).counted_from_ns()
    }

    /// Iterations that ended, those of the warm-up included.
    #[getter]
    fn ended_iterations(&self) -> u64 {
        lock(&self.shared).iterations.ended
    }

    /// Counts a call that returned None, as its step may.
    fn add_none(&self, step: u32) {
        if let Some(counts) = lock(&self.shared).counts_mut(step) {
            counts.none += 1;
        }
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
        let mut recorder = lock(&self.shared);
        recorder.record_sent(step, requests, clock::now_ns());
        if let Some(counts) = recorder.counts_mut(step) {
            counts.bytes_sent += bytes_sent;
            counts.bytes_received += bytes_received;
        }
    }

    #[getter]
    fn longest_ns(&self) -> Option<u64> {
        lock(&self.shared).longest_ns()
    }

    /// The report of everything counted so far. The steps have the names given, in order.
    #[pyo3(signature = (
        names, *, workflow, slot, sequence, elapsed_s, vus = 0, histograms = false,
        series_from = 0, offset_s = 0, checks = Vec::new(), metrics = Vec::new(), cpu_s = 0.0,
        loop_lag_s = 0.0, rss_bytes = 0, cpu_wait_s = 0.0, loop_s = 0.0, raised = 0
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
        histograms: bool,
        series_from: u32,
        offset_s: u32,
        checks: Vec<CheckReport>,
        metrics: Vec<MetricReport>,
        cpu_s: f64,
        loop_lag_s: f64,
        rss_bytes: u64,
        cpu_wait_s: f64,
        loop_s: f64,
        raised: u64,
    ) -> PyResult<Report> {
        let mut report = report::Report {
            workflow: workflow.into(),
            slot,
            sequence,
            elapsed_s,
            vus,
            raised,
            checks: checks.into_iter().map(|check| check.inner).collect(),
            metrics: metrics.into_iter().map(|metric| metric.inner).collect(),
            cpu_s,
            loop_lag_s,
            rss_bytes,
            cpu_wait_s,
            loop_s,
            users: lock(&self.shared).note_users(elapsed_s, vus),
            series_s: 1,
            ..report::Report::default()
        };
        let detail = histograms.then_some(Detail { series_from, offset_s });
        let recorder = lock(&self.shared);
        report.iterations = recorder.iterations.counted;
        report.metrics.extend(recorder.iterations.metrics(histograms).map_err(to_py)?);
        recorder.report_steps(&mut report, &names, detail).map_err(to_py)?;
        drop(recorder);
        Ok(Report::of(report))
    }
}
