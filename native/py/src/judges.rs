//! Checks and metrics, which run after the steps of an iteration.

use std::sync::atomic::AtomicU64;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::calls::call_with_both;
use crate::user_program::Steps;

/// A check or a metric; `hook` is its `HookCall`.
pub struct Judge {
    hook: Py<PyAny>,
    function: Py<PyAny>,
    pub name: Py<PyAny>,
    pub scope: Py<PyAny>,
    /// Its place in the tallies.
    pub index: usize,
    pub needs: Steps,
    /// The place of the result that is its only argument.
    only: Option<usize>,
}

impl Judge {
    fn new(hook: &Bound<'_, PyAny>, steps: usize) -> PyResult<Self> {
        Ok(Self {
            function: hook.getattr("function")?.unbind(),
            name: hook.getattr("name")?.unbind(),
            scope: hook.getattr("scope")?.unbind(),
            index: hook.getattr("index")?.extract()?,
            needs: Steps::from_bits(&hook.getattr("needs")?, steps)?,
            only: hook.getattr("only")?.extract()?,
            hook: hook.clone().unbind(),
        })
    }

    pub fn call<'py>(
        &self,
        instance: &Bound<'py, PyAny>,
        results: &Bound<'py, PyList>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = instance.py();
        let function = self.function.bind(py);
        if let Some(only) = self.only {
            return call_with_both(function, instance, &results.get_item(only)?);
        }
        let arguments =
            self.hook.bind(py).call_method1(intern!(py, "arguments"), (instance, results))?;
        function.call((instance,), Some(arguments.downcast()?))
    }
}

/// Those of a workflow.
pub struct Judges {
    pub checks: Vec<Judge>,
    pub metrics: Vec<Judge>,
    /// How often each check has passed and its tally does not know yet.
    pub passed: Vec<AtomicU64>,
    /// None of them awaits anything.
    pub are_at_once: bool,
}

impl Judges {
    pub fn new(program: &Bound<'_, PyAny>, steps: usize) -> PyResult<Self> {
        let read = |name: &str| -> PyResult<Vec<Judge>> {
            let hooks = program.getattr(name)?;
            hooks.try_iter()?.map(|hook| Judge::new(&hook?, steps)).collect()
        };
        let checks = read("checks")?;
        Ok(Self {
            passed: checks.iter().map(|_| AtomicU64::new(0)).collect(),
            checks,
            metrics: read("metrics")?,
            are_at_once: program.getattr("judges_at_once")?.extract()?,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.checks.is_empty() && self.metrics.is_empty()
    }
}
