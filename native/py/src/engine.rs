//! The engine inside an asyncio loop: its descriptor is watched by the loop, and what
//! a step awaits is a `Call`, which asyncio takes for a future of its own kind.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyperscale_core::clock;
use hyperscale_core::engine::http::reply::Keep;
use hyperscale_core::engine::request::{Caller, Part, PartKind, RequestKey};
use hyperscale_core::engine::{self, Options};
use hyperscale_core::loop_watch::Turns;
use pyo3::exceptions::{PyConnectionError, PyRuntimeError, PyStopIteration};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyType};

use crate::calls::{call_with, run_in};
use crate::current_task::CurrentTask;
use crate::exchange::Exchange;
use crate::recorder::{lock, Recorder, Shared};
use crate::template::{to_addresses, to_options, Template};
use crate::user_loop::UserLoop;

pyo3::import_exception!(asyncio, CancelledError);
pyo3::import_exception!(asyncio, InvalidStateError);

type Core = engine::Engine<Py<Call>>;

#[pyclass(frozen, module = "hyperscale._native")]
pub struct Engine {
    thread: usize,
    core: Mutex<Core>,
    recorder: Shared,
    turns: Arc<Turns>,
    event_loop: Py<PyAny>,
    current: CurrentTask,
    /// Nothing is written that users send.
    is_halted: AtomicBool,
    /// What a step receives. Instances are made without a call of `__init__`: the engine sets
    /// their one attribute, `exchange`.
    response_type: Py<PyType>,
    /// Makes what a step is raised from an `Exchange`.
    error_type: Py<PyAny>,
    /// Called with every exchange, if it is given.
    trace: Option<Py<PyAny>>,
}

/// Rounds of delivery before the loop has its turn: calls that end as they are made must not hold it.
const ROUNDS_MAX: usize = 16;

thread_local! {
    static MARK: u8 = const { 0 };
}

/// A number that no other living thread has.
fn thread_number() -> usize {
    MARK.with(|mark| ptr::from_ref(mark) as usize)
}

impl Engine {
    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False if the engine was halted, which the handler of a signal may do that has just come.
    fn may_write(&self, py: Python<'_>) -> PyResult<bool> {
        py.check_signals()?;
        Ok(!self.is_halted.load(Relaxed))
    }

    /// Wakes whoever waits. The engine is not locked: what wakes may send again.
    fn deliver(slf: &Bound<'_, Self>) -> PyResult<usize> {
        let this = slf.get();
        this.turns.begin_calls(clock::now_ns());
        // Steps that wake up together send their next requests together.
        this.core().hold_writes();
        let delivered = this.deliver_all(slf.py());
        this.current.clear(slf.py())?;
        if this.may_write(slf.py())? {
            this.core().release_writes(&mut lock(&this.recorder));
        }
        this.turns.end_calls();
        if this.core().has_done() {
            Self::deliver_soon(slf)?;
        }
        delivered
    }

    /// Has the loop deliver what ended without an event of a socket.
    fn deliver_soon(slf: &Bound<'_, Self>) -> PyResult<()> {
        let deliver = slf.getattr("_deliver")?;
        slf.get().event_loop.bind(slf.py()).call_method1("call_soon", (deliver,))?;
        Ok(())
    }

    /// What the step receives, or is raised.
    fn outcome<'py>(
        &self,
        failed: bool,
        exchange: &Bound<'py, PyAny>,
        call: &Call,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = exchange.py();
        if let Some(trace) = &self.trace {
            call_with(trace.bind(py), exchange)?;
        }
        if failed {
            return call_with(self.error_type.bind(py), exchange);
        }
        let kind = call.response_type.as_ref().unwrap_or(&self.response_type);
        let kind: *mut ffi::PyTypeObject = kind.as_ptr().cast();
        // SAFETY: a type, kept alive by `self` or the call, whose instances have nothing but attributes.
        let made = unsafe { ffi::PyType_GenericAlloc(kind, 0) };
        // SAFETY: a new reference, or null with an error set.
        let response = unsafe { Bound::from_owned_ptr_or_err(py, made) }?;
        response.setattr(intern!(py, "exchange"), exchange)?;
        Ok(response)
    }

    fn deliver_all(&self, py: Python<'_>) -> PyResult<usize> {
        let mut count = 0;
        for _ in 0..ROUNDS_MAX {
            if !self.may_write(py)? {
                break;
            }
            let mut core = self.core();
            // Calls on streams may end with what they write, or with what came before them.
            core.flush_writes(&mut lock(&self.recorder));
            let parts = take_parts(&mut core, py);
            let mut done = core.take_all_done();
            drop(core);
            if done.is_empty() && parts.is_empty() {
                break;
            }
            for (call, part) in parts {
                call.get().receive(call.bind(py), &part, self)?;
            }
            count += done.len();
            for ended in &mut done {
                let Some(call) = ended.take_token() else { continue };
                let inner = ended.take_exchange();
                let failed = inner.failure.is_some();
                let exchange = Bound::new(py, Exchange { inner })?.into_any();
                let state = match self.outcome(failed, &exchange, call.get()) {
                    Ok(value) if failed => State::Failed(value.unbind()),
                    Ok(value) => State::Done(value.unbind()),
                    Err(error) => State::Failed(error.into_value(py).into_any()),
                };
                Call::end(call.bind(py), state, self)?;
                self.turns.called(clock::now_ns());
            }
            let mut core = self.core();
            for ended in done {
                core.reuse(ended);
            }
        }
        Ok(count)
    }
}

/// The parts of bodies that calls received, each with its call.
fn take_parts(core: &mut Core, py: Python<'_>) -> Vec<(Py<Call>, Part)> {
    let mut parts = Vec::new();
    while let Some((key, part)) = core.take_part() {
        if let (Some(call), PartKind::Data) = (core.token(key), part.kind) {
            parts.push((call.clone_ref(py), part));
        }
    }
    parts
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (
        recorder, event_loop, response_type, error_type, *,
        trace = None, connections = "per-vu", connecting_max = 256, shared_max = 128,
        kernel_times = true,
    ))]
    #[allow(clippy::too_many_arguments)] // most of them named by the caller
    fn new(
        recorder: &Recorder,
        event_loop: Bound<'_, PyAny>,
        response_type: Py<PyType>,
        error_type: Py<PyAny>,
        trace: Option<Py<PyAny>>,
        connections: &str,
        connecting_max: usize,
        shared_max: usize,
        kernel_times: bool,
    ) -> PyResult<Self> {
        let options = to_options(connections, connecting_max, shared_max)?;
        let core = Core::new(Options { kernel_times, ..options })?;
        let (recorder, turns) = (recorder.shared.clone(), Arc::clone(&recorder.turns));
        Ok(Self {
            thread: thread_number(),
            core: Mutex::new(core),
            recorder,
            turns,
            current: CurrentTask::new(&event_loop)?,
            is_halted: AtomicBool::new(false),
            event_loop: event_loop.unbind(),
            response_type,
            error_type,
            trace,
        })
    }

    /// Readable when `poll` has something to do.
    fn fileno(&self) -> i32 {
        self.core().fd()
    }

    #[getter]
    fn in_flight(&self) -> usize {
        self.core().in_flight()
    }

    #[getter]
    fn connections(&self) -> usize {
        self.core().connections()
    }

    /// Gives a template's host its addresses ("ip:port"), so that none is looked up later.
    fn pin(&self, template: &Template, addresses: Vec<String>) -> PyResult<()> {
        self.core().pin(&template.inner, to_addresses(addresses)?);
        Ok(())
    }

    /// Begins a request; the returned `Call` is awaited for the response. `on_part` is called with
    /// every piece of the body, as it arrives.
    #[pyo3(signature = (template, vu, step, sees_body, on_part = None))]
    pub fn send<'py>(
        slf: &Bound<'py, Self>,
        template: &Template,
        vu: u32,
        step: u32,
        sees_body: bool,
        on_part: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, Call>> {
        let this = slf.get();
        if thread_number() != this.thread {
            let message = "a client belongs to the loop its virtual user runs in; \
                           it cannot be called from another thread";
            return Err(PyRuntimeError::new_err(message));
        }
        let response_type = template.response_type.as_ref().map(|kind| kind.clone_ref(slf.py()));
        let keep = match (&on_part, sees_body) {
            (Some(_), _) => Keep::Parts,
            (None, true) => Keep::Body,
            (None, false) => Keep::Head,
        };
        let call = Bound::new(slf.py(), Call::new(slf.clone().unbind(), response_type, on_part))?;
        let caller = Caller { vu, step, keep };
        let token = call.clone().unbind();
        let mut core = this.core();
        let now = clock::now_ns();
        let key = core.send(&template.inner, caller, token, now, &mut lock(&this.recorder));
        call.get().lock().key = Some(key);
        if core.has_done() {
            // Ended at once (an unresolvable name, no descriptor left): told from the
            // loop, as every other end is.
            drop(core);
            Self::deliver_soon(slf)?;
        }
        Ok(call)
    }

    /// Moves what is ready and wakes whoever waited for it. Returns how many calls ended.
    fn poll(slf: &Bound<'_, Self>) -> PyResult<usize> {
        let this = slf.get();
        this.turns.woke(clock::now_ns());
        let mut core = this.core();
        core.note_hold(this.turns.held_ns());
        core.poll(&mut lock(&this.recorder))?;
        drop(core);
        Self::deliver(slf)
    }

    fn _deliver(slf: &Bound<'_, Self>) -> PyResult<usize> {
        Self::deliver(slf)
    }

    /// Writes nothing more. Only sets a flag, so a signal handler may call it.
    fn halt(&self) {
        self.is_halted.store(true, Relaxed);
    }

    /// Writes again, first what was held back.
    fn resume(&self) {
        self.is_halted.store(false, Relaxed);
        self.core().release_writes(&mut lock(&self.recorder));
    }

    /// Drops every request; whoever awaits one is cancelled.
    fn cut_all(&self, py: Python<'_>) -> PyResult<usize> {
        let calls = self.core().cut_all(&mut lock(&self.recorder));
        for call in &calls {
            Call::give_up(call.bind(py))?;
        }
        Ok(calls.len())
    }
}

enum State {
    Pending,
    /// What the step receives.
    Done(Py<PyAny>),
    /// What it is raised.
    Failed(Py<PyAny>),
    Cancelled,
}

/// A callback, and the context to run it in.
type Callback = (Py<PyAny>, Option<Py<PyAny>>);

struct Inner {
    state: State,
    key: Option<RequestKey>,
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
    response_type: Option<Py<PyType>>,
    /// Called with every piece of the body.
    on_part: Option<Py<PyAny>>,
}

impl Call {
    fn new(
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

    fn lock(&self) -> MutexGuard<'_, Inner> {
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
    fn receive(&self, slf: &Bound<'_, Self>, part: &Part, engine: &Engine) -> PyResult<()> {
        let Some(on_part) = &self.on_part else { return Ok(()) };
        let bytes = PyBytes::new(slf.py(), &part.bytes);
        match call_with(on_part.bind(slf.py()), bytes.as_any()) {
            Ok(_) => Ok(()),
            Err(error) => report(slf, engine, error),
        }
    }

    /// Marks it cancelled. Whoever waits is told from the loop, never from here: the
    /// caller may itself be a task, and tasks do not nest.
    fn give_up(slf: &Bound<'_, Self>) -> PyResult<bool> {
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
    fn end(slf: &Bound<'_, Self>, state: State, engine: &Engine) -> PyResult<()> {
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
