//! Sends the requests of clients, counted for the step that makes them.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use crate::calls::call_with;
use crate::engine::Engine;
use crate::template::Template;

/// The step whose traffic it is, as its place in the recorder, and whether it sees bodies.
pub type Traffic = (u32, bool);

thread_local! {
    /// Of the step that runs natively driven. All others ask the context.
    static CURRENT: Cell<Option<Traffic>> = const { Cell::new(None) };
}

/// Counts traffic for a step that runs on this thread, as long as this lives. The context of the
/// step has the same; this is only quicker to read.
pub struct CountedFor;

impl CountedFor {
    pub fn new(traffic: Traffic) -> Self {
        CURRENT.set(Some(traffic));
        Self
    }
}

impl Drop for CountedFor {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}

enum Way {
    Engine(Py<Engine>),
    /// A function that is called instead.
    Function(Py<PyAny>),
}

#[pyclass(frozen, module = "hyperscale._native")]
pub struct Sender {
    way: Mutex<Way>,
    get_step: Py<PyAny>,
    no_step: Py<PyAny>,
    sees_all: bool,
}

impl Sender {
    fn set_way(&self, way: Way) {
        *self.way.lock().unwrap_or_else(PoisonError::into_inner) = way;
    }
}

#[pymethods]
impl Sender {
    #[new]
    #[pyo3(signature = (engine, get_step, no_step, *, sees_all))]
    fn new(engine: Py<Engine>, get_step: Py<PyAny>, no_step: Py<PyAny>, sees_all: bool) -> Self {
        Self { way: Mutex::new(Way::Engine(engine)), get_step, no_step, sees_all }
    }

    #[pyo3(signature = (template, vu, needs_body, on_part = None, /))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        template: &Bound<'py, Template>,
        vu: u32,
        needs_body: bool,
        on_part: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (step, sees_body) = match CURRENT.get() {
            Some(traffic) => traffic,
            None => call_with(self.get_step.bind(py), self.no_step.bind(py))?.extract()?,
        };
        let sees_body = sees_body || needs_body || self.sees_all;
        let way = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        match &*way {
            Way::Engine(engine) => {
                let engine = engine.bind(py).clone();
                drop(way);
                let call = Engine::send(&engine, template.get(), vu, step, sees_body, on_part)?;
                Ok(call.into_any())
            }
            Way::Function(function) => {
                let function = function.bind(py).clone();
                drop(way);
                function.call1((template, vu, step, sees_body))
            }
        }
    }

    /// Calls a function for every request, instead of an engine.
    fn replace(&self, function: Py<PyAny>) {
        self.set_way(Way::Function(function));
    }

    /// Sends by an engine again.
    fn resume(&self, engine: Py<Engine>) {
        self.set_way(Way::Engine(engine));
    }
}
