//! A request of a step that is under way.

use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hyperscale_core::clock;
use hyperscale_core::engine::request::{Part, PartKind, RequestKey};
use pyo3::exceptions::{PyConnectionError, PyStopIteration};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyType};

use crate::calls::{call_with, run_in};
use crate::engine::Engine;
use crate::recorder::lock;
use crate::user_loop::UserLoop;

pyo3::import_exception!(asyncio, CancelledError);
pyo3::import_exception!(asyncio, InvalidStateError);

pub(crate) enum State {
    Pending,
    /// What the step receives.
    Done(Py<PyAny>),
    /// What it is raised.
    Failed(Py<PyAny>),
    Cancelled,
}

/// A callback, and the context to run it in.
type Callback = (Py<PyAny>, Option<Py<PyAny>>);

pub(crate) struct Inner {
    state: State,
    pub(crate) key: Option<RequestKey>,
    /// The virtual user that waits.
    user: Option<Py<UserLoop>>,
    /// The task that waits: mostly there is one, and it needs no memory of its own.
    callback: Option<Callback>,
    further: Vec<Callback>,
    is_blocking: bool,
}

impl Inner {
    fn take_callbacks(&mut self) -> impl Iterator<Item = Callback> {
        self.callback.take().into_iter().chain(std::mem::take(&mut self.further))
    }
}

/// A request under way. Speaks the protocol asyncio expects of futures, so a task can
/// wait on it, cancel it, gather it; ending it wakes the task without a loop round trip.
#[pyclass(frozen, module = "hyperscale._native")]
pub struct Call {
    inner: Mutex<Inner>,
    engine: Py<Engine>,
    /// What the step receives, if it is not the engine's usual response.
    pub(crate) response_type: Option<Py<PyType>>,
    /// Called with every piece of the body.
    on_part: Option<Py<PyAny>>,
}

impl Call {
    pub(crate) fn new(
        engine: Py<Engine>,
        response_type: Option<Py<PyType>>,
        on_part: Option<Py<PyAny>>,
    ) -> Self {
        let inner = Inner {
            state: State::Pending,
            key: None,
            user: None,
            callback: None,
            further: Vec::new(),
            is_blocking: false,
        };
        Self { inner: Mutex::new(inner), engine, response_type, on_part }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the call wake a virtual user when it ends. False if it has ended, or another waits.
    pub fn lend(slf: &Bound<'_, Self>, user: &Bound<'_, UserLoop>) -> bool {
        let mut inner = slf.get().lock();
        if inner.user.is_some() || !matches!(inner.state, State::Pending) {
            return false;
        }
        inner.user = Some(user.clone().unbind());
        inner.is_blocking = false;
        true
    }

    /// Drops the request; whoever waits is cancelled. False if it has ended.
    pub fn abandon(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let key = slf.get().lock().key;
        if !Self::give_up(slf)? {
            return Ok(false);
        }
        let engine = slf.get().engine.get();
        if let Some(key) = key {
            let _dropped = engine.core().abort(key, &mut lock(&engine.recorder));
        }
        Ok(true)
    }

    /// Gives the caller a piece of the body.
    pub(crate) fn receive(
        &self,
        slf: &Bound<'_, Self>,
        part: &Part,
        engine: &Engine,
    ) -> PyResult<()> {
        let Some(on_part) = &self.on_part else { return Ok(()) };
        let bytes = PyBytes::new(slf.py(), &part.bytes);
        match call_with(on_part.bind(slf.py()), bytes.as_any()) {
            Ok(_) => Ok(()),
            Err(error) => report(slf, engine, error),
        }
    }

    /// Marks it cancelled. Whoever waits is told from the loop, never from here: the
    /// caller may itself be a task, and tasks do not nest.
    pub(crate) fn give_up(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let this = slf.get();
        let mut inner = this.lock();
        if !matches!(inner.state, State::Pending) {
            return Ok(false);
        }
        inner.state = State::Cancelled;
        let user = inner.user.take();
        let callbacks = inner.take_callbacks();
        drop(inner);
        if let Some(user) = user {
            UserLoop::call_cancelled(user.bind(slf.py()))?;
        }
        for (callback, context) in callbacks {
            this.call_soon(slf, callback, context)?;
        }
        Ok(true)
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
        let event_loop = self.engine.get().event_loop.bind(slf.py());
        event_loop.call_method("call_soon", (callback, slf), Some(&kwargs))?;
        Ok(())
    }

    /// Ends it from within a callback of the loop, where no task runs: a task that
    /// waits goes on at once, without another round of the loop.
    pub(crate) fn end(slf: &Bound<'_, Self>, state: State, engine: &Engine) -> PyResult<()> {
        let mut inner = slf.get().lock();
        if !matches!(inner.state, State::Pending) {
            return Ok(());
        }
        inner.state = state;
        let user = inner.user.take();
        let callbacks = inner.take_callbacks();
        drop(inner);
        if let Some(user) = user {
            if let Err(error) = UserLoop::wake(&user.into_bound(slf.py()), &engine.current) {
                report(slf, engine, error)?;
            }
        }
        for (callback, context) in callbacks {
            engine.current.clear(slf.py())?;
            let callback = callback.bind(slf.py());
            let ran = match context {
                Some(context) => run_in(context.bind(slf.py()), callback, slf.as_any()),
                None => call_with(callback, slf.as_any()),
            };
            if let Err(error) = ran {
                report(slf, engine, error)?;
            }
        }
        Ok(())
    }
}

/// A callback raised: the loop's own handler decides, as for any future.
fn report(call: &Bound<'_, Call>, engine: &Engine, error: PyErr) -> PyResult<()> {
    let py = call.py();
    if !error.is_instance_of::<pyo3::exceptions::PyException>(py) {
        return Err(error);
    }
    let context = PyDict::new(py);
    context.set_item("message", "a callback of a request raised")?;
    context.set_item("exception", error.into_value(py))?;
    engine.event_loop.bind(py).call_method1("call_exception_handler", (context,))?;
    Ok(())
}

#[pymethods]
impl Call {
    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// With `throw` and `close`, what `asyncio.create_task` asks of a coroutine.
    fn send<'py>(slf: Bound<'py, Self>, _value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        if slf.get().done() {
            return Err(PyStopIteration::new_err(slf.get().result(slf.py())?));
        }
        slf.get().set_blocking(true);
        Ok(slf)
    }

    #[pyo3(signature = (error, value = None, traceback = None))]
    fn throw(
        slf: &Bound<'_, Self>,
        error: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let _ = traceback; // it is the raised error's own already
        Self::cancel(slf, None)?;
        Err(PyErr::from_value(value.unwrap_or(error)))
    }

    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        Self::cancel(slf, None).map(|_| ())
    }

    /// Raises StopIteration without an exception object, which the interpreter does not need.
    fn __next__(slf: Bound<'_, Self>) -> PyResult<*mut ffi::PyObject> {
        let mut inner = slf.get().lock();
        if matches!(inner.state, State::Pending) {
            inner.is_blocking = true;
            drop(inner);
            return Ok(slf.into_ptr());
        }
        drop(inner);
        let result = slf.get().result(slf.py())?;
        // SAFETY: both are live objects. A null pointer says that an error is set.
        unsafe { ffi::PyErr_SetObject(ffi::PyExc_StopIteration, result.as_ptr()) };
        Ok(ptr::null_mut())
    }

    #[getter(_asyncio_future_blocking)]
    fn is_blocking(&self) -> bool {
        self.lock().is_blocking
    }

    #[setter(_asyncio_future_blocking)]
    fn set_blocking(&self, value: bool) {
        self.lock().is_blocking = value;
    }

    fn get_loop<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.engine.get().event_loop.bind(py).clone()
    }

    #[pyo3(signature = (callback, *, context = None))]
    fn add_done_callback(
        slf: &Bound<'_, Self>,
        callback: Py<PyAny>,
        context: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let this = slf.get();
        let mut inner = this.lock();
        if matches!(inner.state, State::Pending) {
            if inner.callback.is_none() {
                inner.callback = Some((callback, context));
            } else {
                inner.further.push((callback, context));
            }
            return Ok(());
        }
        drop(inner);
        this.call_soon(slf, callback, context)
    }

    fn remove_done_callback(&self, py: Python<'_>, callback: &Bound<'_, PyAny>) -> PyResult<usize> {
        let held: Vec<Callback> = self.lock().take_callbacks().collect();
        let before = held.len();
        let mut kept = Vec::with_capacity(before);
        for entry in held {
            if !entry.0.bind(py).eq(callback)? {
                kept.push(entry);
            }
        }
        let removed = before - kept.len();
        let mut inner = self.lock();
        let mut kept = kept.into_iter();
        inner.callback = kept.next();
        inner.further = kept.collect();
        Ok(removed)
    }

    #[pyo3(signature = (msg = None))]
    fn cancel(slf: &Bound<'_, Self>, msg: Option<Py<PyAny>>) -> PyResult<bool> {
        let _ = msg; // asyncio passes it; a request has no use for it
        Self::abandon(slf)
    }

    /// Hands a piece of the request's body over; an empty one ends it. Raises `ConnectionError` if
    /// the call has ended.
    fn push(slf: &Bound<'_, Self>, data: &[u8]) -> PyResult<()> {
        let Some(key) = slf.get().lock().key else {
            return Err(PyConnectionError::new_err("the call has ended"));
        };
        let engine = slf.get().engine.get();
        let part = Part { kind: PartKind::Data, bytes: data.to_vec(), at_ns: clock::now_ns() };
        let mut core = engine.core();
        let pushed = core.push(key, part, &mut lock(&engine.recorder));
        let has_done = core.has_done();
        drop(core);
        if has_done {
            Engine::deliver_soon(slf.get().engine.bind(slf.py()))?;
        }
        pushed.map_err(|failure| PyConnectionError::new_err(failure.to_string()))
    }

    fn done(&self) -> bool {
        !matches!(self.lock().state, State::Pending)
    }

    fn cancelled(&self) -> bool {
        matches!(self.lock().state, State::Cancelled)
    }

    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match &self.lock().state {
            State::Pending => Err(InvalidStateError::new_err("the request is still under way")),
            State::Cancelled => Err(CancelledError::new_err(())),
            State::Done(value) => Ok(value.clone_ref(py)),
            State::Failed(error) => Err(PyErr::from_value(error.bind(py).clone())),
        }
    }

    fn exception(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match &self.lock().state {
            State::Pending => Err(InvalidStateError::new_err("the request is still under way")),
            State::Cancelled => Err(CancelledError::new_err(())),
            State::Done(_) => Ok(None),
            State::Failed(error) => Ok(Some(error.clone_ref(py))),
        }
    }
}
