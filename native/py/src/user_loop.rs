//! The coroutine of a virtual user's task, which is also the future that the task waits for while
//! the user waits for a call.
//!
//! The task starts the coroutine and runs it whenever the user has waited for something of
//! asyncio's. A `Call` wakes the user without the task (`UserLoop::wake`): in the task's context,
//! with the task as the current one, but without its bookkeeping. When the user then waits for
//! something else than a call, or ends, the task is woken and is given just that. A cancellation of
//! the task reaches the loop as the future that the task waits for.

use std::mem;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::call::Call;
use crate::calls::{call_with, run_in};
use crate::current_task::CurrentTask;
use crate::iteration::{Flow, Input, Place};
use crate::user_program::UserProgram;

pyo3::import_exception!(asyncio, CancelledError);

enum Standing {
    /// The task runs it, or waits for something of asyncio's on its behalf.
    OfTask,
    /// It waits for a call, and the task waits for it.
    Waiting(Py<Call>),
    /// A call has woken it, and the task still waits for it.
    Running { is_cancelled: bool },
    /// The task will be given this to wait for.
    HandingOver(Py<PyAny>),
    /// The task will be told that the loop has ended.
    Ended(PyResult<()>),
    /// The task will raise CancelledError in it.
    Cancelled,
}

struct Inner {
    standing: Standing,
    /// None while it runs, and once it has ended.
    place: Option<Box<Place>>,
    task: Option<Py<PyAny>>,
    /// Wakes the task; and its context.
    wake_task: Option<(Py<PyAny>, Option<Py<PyAny>>)>,
    is_blocking: bool,
}

#[pyclass(frozen, module = "hyperscale._native")]
pub struct UserLoop {
    inner: Mutex<Inner>,
    event_loop: Py<PyAny>,
    /// The step in flight, as its place in the recorder plus one; 0 if there is none.
    running: AtomicU32,
}

/// Runs a user that a call has woken, in the context of its task. True if it waits for another call,
/// False if its task has to be woken.
#[pyfunction]
pub fn _go_on(user_loop: &Bound<'_, UserLoop>) -> PyResult<bool> {
    let this = user_loop.get();
    let py = user_loop.py();
    let mut inner = this.lock();
    let Some(mut place) = inner.place.take() else {
        return Err(PyRuntimeError::new_err("the loop of a virtual user was woken twice"));
    };
    inner.standing = Standing::Running { is_cancelled: false };
    drop(inner);
    let flow = place.run(py, Input::Go, &this.running);
    let mut inner = this.lock();
    inner.standing = match flow {
        Ok(Flow::Yield(yielded)) => {
            inner.place = Some(place);
            let is_cancelled = matches!(inner.standing, Standing::Running { is_cancelled: true });
            match yielded.downcast_into_exact::<Call>() {
                Ok(call) if !is_cancelled && Call::lend(&call, user_loop) => {
                    inner.standing = Standing::Waiting(call.unbind());
                    return Ok(true);
                }
                Ok(call) => Standing::HandingOver(call.into_any().unbind()),
                Err(other) => Standing::HandingOver(other.into_inner().unbind()),
            }
        }
        Ok(Flow::Over) => Standing::Ended(Ok(())),
        Err(error) => Standing::Ended(Err(error)),
    };
    Ok(false)
}

/// Calls a function in a context, or in the one of the caller.
fn run<'py>(
    context: Option<&Bound<'py, PyAny>>,
    function: &Bound<'py, PyAny>,
    argument: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    match context {
        Some(context) => run_in(context, function, argument),
        None => call_with(function, argument),
    }
}

impl UserLoop {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the user go on: the call that it waited for has ended. No task runs its own step now.
    pub fn wake(slf: &Bound<'_, Self>, current: &CurrentTask) -> PyResult<()> {
        let py = slf.py();
        let inner = slf.get().lock();
        let (Standing::Waiting(_), Some(place), Some(task), Some((_, context))) =
            (&inner.standing, &inner.place, &inner.task, &inner.wake_task)
        else {
            return Ok(());
        };
        let go_on = place.program.get().go_on.bind(py).clone();
        let context = context.as_ref().map(|context| context.bind(py).clone());
        let task = task.bind(py).clone();
        drop(inner);
        current.mark(&task)?;
        let waits = run(context.as_ref(), &go_on, slf.as_any())?;
        if waits.is_truthy()? {
            return Ok(());
        }
        current.clear(py)?;
        let wake_task = slf.get().lock().wake_task.take();
        if let Some((wake_task, _)) = wake_task {
            run(context.as_ref(), wake_task.bind(py), slf.as_any())?;
        }
        Ok(())
    }

    /// Has the task raise CancelledError in the user: the call that it waits for was cancelled.
    pub fn call_cancelled(slf: &Bound<'_, Self>) -> PyResult<()> {
        let mut inner = slf.get().lock();
        if !matches!(inner.standing, Standing::Waiting(_)) {
            return Ok(());
        }
        inner.standing = Standing::Cancelled;
        let wake_task = inner.wake_task.take();
        drop(inner);
        if let Some((wake_task, context)) = wake_task {
            slf.get().call_soon(slf, wake_task, context)?;
        }
        Ok(())
    }

    fn call_soon(
        &self,
        slf: &Bound<'_, Self>,
        callback: Py<PyAny>,
        context: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let kwargs = PyDict::new(slf.py());
        if let Some(context) = context {
            kwargs.set_item("context", context)?;
        }
        let event_loop = self.event_loop.bind(slf.py());
        event_loop.call_method("call_soon", (callback, slf), Some(&kwargs))?;
        Ok(())
    }

    /// A step of the task.
    fn step<'py>(slf: &Bound<'py, Self>, input: Input) -> PyResult<Bound<'py, PyAny>> {
        let (this, py) = (slf.get(), slf.py());
        let mut inner = this.lock();
        match (mem::replace(&mut inner.standing, Standing::OfTask), &input) {
            (Standing::HandingOver(awaited), Input::Go) => return Ok(awaited.into_bound(py)),
            (Standing::HandingOver(awaited), Input::Throw(_)) => {
                // The task was cancelled before it could wait for this.
                drop(inner);
                if !awaited.is_none(py) {
                    awaited.call_method0(py, intern!(py, "cancel"))?;
                }
                inner = this.lock();
            }
            (Standing::Ended(ended), _) => return Self::end(py, inner, ended),
            (Standing::OfTask | Standing::Cancelled, _) => {}
            (other @ (Standing::Waiting(_) | Standing::Running { .. }), _) => {
                inner.standing = other;
                return Err(PyRuntimeError::new_err("a virtual user is already running"));
            }
        }
        let Some(mut place) = inner.place.take() else {
            return Err(PyRuntimeError::new_err("the loop of a virtual user has ended"));
        };
        drop(inner);
        let flow = place.run(py, input, &this.running);
        let mut inner = this.lock();
        match flow {
            Ok(Flow::Yield(yielded)) => {
                inner.place = Some(place);
                match yielded.downcast_into_exact::<Call>() {
                    Ok(call) if Call::lend(&call, slf) => {
                        inner.standing = Standing::Waiting(call.unbind());
                        inner.is_blocking = true;
                        Ok(slf.clone().into_any())
                    }
                    Ok(call) => Ok(call.into_any()),
                    Err(other) => Ok(other.into_inner()),
                }
            }
            Ok(Flow::Over) => Self::end(py, inner, Ok(())),
            Err(error) => Self::end(py, inner, Err(error)),
        }
    }

    /// Ends the coroutine, and with it the task, which keeps nothing of the user.
    fn end<'py>(
        py: Python<'py>,
        mut inner: MutexGuard<'_, Inner>,
        ended: PyResult<()>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let kept = (inner.place.take(), inner.task.take(), inner.wake_task.take());
        drop(inner);
        drop(kept);
        ended?;
        Err(PyStopIteration::new_err(py.None()))
    }
}

#[pymethods]
impl UserLoop {
    #[new]
    fn new(
        program: Bound<'_, UserProgram>,
        crew: Py<PyAny>,
        user: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let event_loop = program.get().event_loop.clone_ref(program.py());
        let place = Some(Box::new(Place::new(program, crew, user)?));
        let standing = Standing::OfTask;
        let inner = Inner { standing, place, task: None, wake_task: None, is_blocking: false };
        Ok(Self { inner: Mutex::new(inner), event_loop, running: AtomicU32::new(0) })
    }

    /// Names the task that runs this, before its first step.
    fn bind(&self, task: Py<PyAny>) {
        self.lock().task = Some(task);
    }

    /// The place of the step in flight in the recorder, which is then no longer in flight.
    fn take_running(&self) -> Option<u32> {
        self.running.swap(0, Relaxed).checked_sub(1)
    }

    // --- a coroutine, to the task -----------------------------------------------------------

    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::step(slf, Input::Go)
    }

    fn send<'py>(
        slf: &Bound<'py, Self>,
        _value: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::step(slf, Input::Go)
    }

    #[pyo3(signature = (error, value = None, traceback = None))]
    fn throw<'py>(
        slf: &Bound<'py, Self>,
        error: Bound<'py, PyAny>,
        value: Option<Bound<'py, PyAny>>,
        traceback: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = traceback; // it is the raised error's own already
        Self::step(slf, Input::Throw(PyErr::from_value(value.unwrap_or(error))))
    }

    /// Drops the user where it is; the hook in flight gets a GeneratorExit.
    fn close(&self) {
        let mut inner = self.lock();
        let kept = (inner.place.take(), inner.task.take(), inner.wake_task.take());
        drop(inner);
        drop(kept);
    }

    // --- a future, to the task --------------------------------------------------------------

    #[getter(_asyncio_future_blocking)]
    fn is_blocking(&self) -> bool {
        self.lock().is_blocking
    }

    #[setter(_asyncio_future_blocking)]
    fn set_blocking(&self, value: bool) {
        self.lock().is_blocking = value;
    }

    fn get_loop<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.event_loop.bind(py).clone()
    }

    #[pyo3(signature = (callback, *, context = None))]
    fn add_done_callback(&self, callback: Py<PyAny>, context: Option<Py<PyAny>>) {
        self.lock().wake_task = Some((callback, context));
    }

    #[pyo3(signature = (msg = None))]
    fn cancel(slf: &Bound<'_, Self>, msg: Option<Py<PyAny>>) -> PyResult<bool> {
        let _ = msg; // asyncio passes it; a request has no use for it
        let mut inner = slf.get().lock();
        let call = match &mut inner.standing {
            Standing::Waiting(call) => call.bind(slf.py()).clone(),
            Standing::Running { is_cancelled } => {
                *is_cancelled = true; // the task raises CancelledError at the next wait
                return Ok(false);
            }
            _ => return Ok(false),
        };
        drop(inner);
        Call::abandon(&call)
    }

    fn result(&self) -> PyResult<()> {
        match self.lock().standing {
            Standing::Cancelled => Err(CancelledError::new_err(())),
            _ => Ok(()),
        }
    }
}
