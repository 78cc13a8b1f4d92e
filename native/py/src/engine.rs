//! The engine inside an asyncio loop: its descriptor is watched by the loop, and what
//! a step awaits is a `Call`, which asyncio takes for a future of its own kind.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyperscale_core::clock;
use hyperscale_core::engine::http::reply::Keep;
use hyperscale_core::engine::request::{Caller, Part, PartKind};
use hyperscale_core::engine::{self, Options};
use hyperscale_core::loop_watch::Turns;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::call::{Call, State};
use crate::calls::call_with;
use crate::current_task::CurrentTask;
use crate::exchange::Exchange;
use crate::recorder::{lock, Recorder, Shared};
use crate::template::{to_addresses, to_options, Template};

type Core = engine::Engine<Py<Call>>;

#[pyclass(frozen, module = "hyperscale._native")]
pub struct Engine {
    thread: usize,
    core: Mutex<Core>,
    pub(crate) recorder: Shared,
    turns: Arc<Turns>,
    pub(crate) event_loop: Py<PyAny>,
    pub(crate) current: CurrentTask,
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
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
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
    pub(crate) fn deliver_soon(slf: &Bound<'_, Self>) -> PyResult<()> {
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
