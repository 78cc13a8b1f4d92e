use hyperscale_core::loop_watch::{self, Holder, NamedHold};
use pyo3::prelude::*;

use crate::recorder::{lock, Recorder};

/// A hook, and where its code is.
type Place = (String, String);

/// Watches the loop of the thread that makes it, and records who holds it.
#[pyclass(frozen, module = "hyperscale._native")]
pub struct LoopWatch {
    inner: loop_watch::LoopWatch,
}

#[pymethods]
impl LoopWatch {
    #[new]
    fn new(recorder: &Recorder, find_holder: Py<PyAny>) -> PyResult<Self> {
        let look = move || {
            Python::attach(|py| {
                type Found = Option<(String, String, u64)>;
                let found = find_holder.call0(py).and_then(|found| found.extract::<Found>(py));
                let found = found.unwrap_or_else(|error| {
                    error.write_unraisable(py, None);
                    None
                });
                found.map(|(name, place, task)| Holder { name: (name, place), task })
            })
        };
        let shared = recorder.shared.clone();
        let add = move |hold: &NamedHold<Place>| {
            let (name, location) = &hold.name;
            let (held_s, cpu_s) = (hold.held_ns as f64 / 1e9, hold.cpu_ns as f64 / 1e9);
            lock(&shared).add_hold(name, location, held_s, cpu_s);
        };
        let inner = loop_watch::LoopWatch::spawn(recorder.turns.clone(), look, add)?;
        Ok(Self { inner })
    }

    fn fileno(&self) -> i32 {
        self.inner.fd()
    }

    fn answer(&self) {
        self.inner.answer();
    }

    fn stop(&self) {
        self.inner.stop();
    }
}
