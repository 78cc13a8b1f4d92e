//! Which task asyncio takes for the running one, while users run without their tasks' own steps.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::calls::call_with_both;

enum Marking {
    /// From Python 3.12 on: sets the task of a loop.
    Swap(Py<PyAny>),
    /// The running task of each loop.
    Tasks(Py<PyDict>),
}

/// The running task of one loop. Users that run one after the other replace each other's.
pub struct CurrentTask {
    marking: Marking,
    event_loop: Py<PyAny>,
    is_marked: AtomicBool,
}

impl CurrentTask {
    pub fn new(event_loop: &Bound<'_, PyAny>) -> PyResult<Self> {
        let tasks = event_loop.py().import("asyncio.tasks")?;
        let marking = match tasks.getattr_opt("_swap_current_task")? {
            Some(swap) => Marking::Swap(swap.unbind()),
            None => Marking::Tasks(tasks.getattr("_current_tasks")?.downcast_into()?.unbind()),
        };
        let event_loop = event_loop.clone().unbind();
        Ok(Self { marking, event_loop, is_marked: AtomicBool::new(false) })
    }

    /// Makes this the running task until another is, or none. No task runs its own step now.
    pub fn mark(&self, task: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = task.py();
        let event_loop = self.event_loop.bind(py);
        match &self.marking {
            Marking::Swap(swap) => {
                call_with_both(swap.bind(py), event_loop, task)?;
            }
            Marking::Tasks(tasks) => tasks.bind(py).set_item(event_loop, task)?,
        }
        self.is_marked.store(true, Relaxed);
        Ok(())
    }

    /// No task runs any more; a task may run its own step now.
    pub fn clear(&self, py: Python<'_>) -> PyResult<()> {
        if !self.is_marked.swap(false, Relaxed) {
            return Ok(());
        }
        let event_loop = self.event_loop.bind(py);
        match &self.marking {
            Marking::Swap(swap) => {
                call_with_both(swap.bind(py), event_loop, py.None().bind(py))?;
            }
            Marking::Tasks(tasks) => tasks.bind(py).del_item(event_loop)?,
        }
        Ok(())
    }
}
