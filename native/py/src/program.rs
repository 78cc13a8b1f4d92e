//! Static workflows, looped natively in slices with the interpreter released.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hyperscale_core::engine::program::{self, ProgramStep};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::recorder::{lock, Recorder, Shared};
use crate::template::{to_addresses, to_ns, to_options, Template};

/// A workflow of only static steps, looped natively in slices.
#[pyclass(frozen, module = "hyperscale._native")]
pub struct Program {
    core: Mutex<program::Program>,
    recorder: Shared,
}

impl Program {
    fn core(&self) -> MutexGuard<'_, program::Program> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// template, row in the recorder, positions it depends on, accepted statuses
type StepArguments<'py> = (Bound<'py, Template>, u32, Vec<usize>, Vec<u16>);

#[pymethods]
impl Program {
    #[new]
    #[pyo3(signature = (
        recorder, layers, vus, *,
        iterations = None, connections = "per-vu", connecting_max = 256, shared_max = 128,
    ))]
    fn new(
        recorder: &Recorder,
        layers: Vec<Vec<StepArguments<'_>>>,
        vus: usize,
        iterations: Option<u64>,
        connections: &str,
        connecting_max: usize,
        shared_max: usize,
    ) -> PyResult<Self> {
        let to_step = |(template, step, after, accepts): StepArguments<'_>| ProgramStep {
            template: template.get().inner.clone(),
            step,
            after,
            accepts,
        };
        let layers = layers.into_iter().map(|layer| layer.into_iter().map(to_step).collect());
        let options = to_options(connections, connecting_max, shared_max)?;
        let core = program::Program::new(options, layers.collect(), vus, iterations)?;
        Ok(Self { core: Mutex::new(core), recorder: recorder.shared.clone() })
    }

    fn pin(&self, template: &Template, addresses: Vec<String>) -> PyResult<()> {
        self.core().pin(&template.inner, to_addresses(addresses)?);
        Ok(())
    }

    /// Runs up to `slice_s` with the interpreter released. False once all have stopped.
    fn run(&self, py: Python<'_>, slice_s: f64) -> PyResult<bool> {
        let slice_ns = to_ns(slice_s)?;
        let ran = py.detach(|| self.core().run(slice_ns, &mut lock(&self.recorder)));
        ran.map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// After `in_s` nothing new begins.
    fn stop_in(&self, in_s: f64) -> PyResult<()> {
        let at_ns = hyperscale_core::clock::now_ns().saturating_add(to_ns(in_s)?);
        self.core().stop_at(at_ns);
        Ok(())
    }

    /// After `in_s` nothing new begins, unless this is called again before.
    fn lease_in(&self, in_s: f64) -> PyResult<()> {
        let at_ns = hyperscale_core::clock::now_ns().saturating_add(to_ns(in_s)?);
        self.core().lease_until(at_ns);
        Ok(())
    }

    /// Drops what is under way and counts it as cut.
    fn cut(&self) {
        self.core().cut(&mut lock(&self.recorder));
    }

    #[getter]
    fn active(&self) -> usize {
        self.core().active()
    }

    #[getter]
    fn iterations(&self) -> u64 {
        self.core().iterations()
    }
}
