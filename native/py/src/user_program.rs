//! What the loops of a slot's virtual users share: the steps in order, and the flags that end them.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyTuple, PyType};

use crate::calls::call_with;
use crate::judges::Judges;
use crate::recorder::{Recorder, Shared};
use crate::sender::Traffic;

const NO_LIMIT: i64 = -1;
const WORD_BYTES: usize = 8;

/// Steps by their place in the recorder. Python has them as the bits of an int.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps(Vec<u64>);

impl Steps {
    pub fn none(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    pub fn from_bits(bits: &Bound<'_, PyAny>, count: usize) -> PyResult<Self> {
        if count <= 64 {
            return Ok(Self(vec![bits.extract()?; count.div_ceil(64)]));
        }
        let size = count.div_ceil(64) * WORD_BYTES;
        let bytes = bits.call_method1(intern!(bits.py(), "to_bytes"), (size, "little"))?;
        let words = bytes.extract::<&[u8]>()?.chunks_exact(WORD_BYTES);
        let words =
            words.map(|word| word.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)));
        Ok(Self(words.collect()))
    }

    pub fn to_bits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let [word] = self.0.as_slice() {
            return Ok(word.into_pyobject(py)?.into_any());
        }
        let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_le_bytes()).collect();
        py.get_type::<PyInt>().call_method1(intern!(py, "from_bytes"), (bytes.as_slice(), "little"))
    }

    pub fn insert(&mut self, step: usize) {
        if let Some(word) = self.0.get_mut(step / 64) {
            *word |= 1 << (step % 64);
        }
    }

    pub fn clear(&mut self) {
        self.0.fill(0);
    }

    pub fn contains(&self, step: usize) -> bool {
        self.0.get(step / 64).is_some_and(|word| word >> (step % 64) & 1 == 1)
    }

    pub fn contains_all(&self, others: &Self) -> bool {
        self.0.iter().zip(&others.0).all(|(own, other)| other & !own == 0)
    }

    pub fn insert_all(&mut self, others: &Self) {
        for (own, other) in self.0.iter_mut().zip(&others.0) {
            *own |= other;
        }
    }

    pub fn remove_all(&mut self, others: &Self) {
        for (own, other) in self.0.iter_mut().zip(&others.0) {
            *own &= !other;
        }
    }
}

/// A step that is alone in its layer; `hook` is its `HookCall`.
pub struct Step {
    pub hook: Py<PyAny>,
    pub name: Py<PyAny>,
    pub function: Py<PyAny>,
    pub scope: Py<PyAny>,
    pub traffic: Traffic,
    pub index: usize,
    pub needs: Steps,
    pub is_plain: bool,
    pub is_async: bool,
    /// No status of 400 or more is accepted.
    pub is_strict: bool,
}

impl Step {
    fn new(hook: &Bound<'_, PyAny>, count: usize) -> PyResult<Self> {
        Ok(Self {
            name: hook.getattr("name")?.unbind(),
            function: hook.getattr("function")?.unbind(),
            scope: hook.getattr("scope")?.unbind(),
            traffic: hook.getattr("scope")?.extract()?,
            index: hook.getattr("index")?.extract()?,
            needs: Steps::from_bits(&hook.getattr("needs")?, count)?,
            is_plain: hook.getattr("is_plain")?.extract()?,
            is_async: hook.getattr("is_async")?.extract()?,
            is_strict: hook.getattr("accept")?.is_none(),
            hook: hook.clone().unbind(),
        })
    }

    /// Calls the hook; one that is async returns what to wait for.
    pub fn call<'py>(
        &self,
        instance: &Bound<'py, PyAny>,
        results: &Bound<'py, PyList>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = instance.py();
        let function = self.function.bind(py);
        if self.is_plain {
            return call_with(function, instance);
        }
        let arguments =
            self.hook.bind(py).call_method1(intern!(py, "arguments"), (instance, results))?;
        function.call((instance,), Some(arguments.downcast()?))
    }
}

pub enum Layer {
    One(Step),
    Several(Py<PyTuple>),
}

/// The functions of `hyperscale.execution.virtual_users` that do what is rare.
pub struct Functions {
    /// Awaits something that is no coroutine.
    pub wait: Py<PyAny>,
    pub run_layer: Py<PyAny>,
    pub judge: Py<PyAny>,
    pub reject: Py<PyAny>,
    pub fail_check: Py<PyAny>,
    pub forgive: Py<PyAny>,
    pub remember: Py<PyAny>,
}

/// What the loops of a slot's virtual users share: the program, and the flags that end them.
#[pyclass(frozen, module = "hyperscale._native")]
pub struct UserProgram {
    pub event_loop: Py<PyAny>,
    /// Runs a user that waited for a call, inside the user's context.
    pub go_on: Py<PyAny>,
    pub coroutine_type: Py<PyAny>,
    pub recorder: Shared,
    pub layers: Vec<Layer>,
    /// Places for the results of an iteration. In the last one stands whether a hook raised, in the
    /// one before, if users wait for arrivals, when the iteration was due.
    pub size: usize,
    pub steps: usize,
    pub judges: Judges,
    pub is_open: bool,
    pub is_once: bool,
    pub response_type: Py<PyType>,
    pub set_step: Py<PyAny>,
    pub outcomes: Py<PyAny>,
    pub tallies: Py<PyAny>,
    pub feeds: Option<Py<PyAny>>,
    pub choices: Option<Py<PyAny>>,
    pub functions: Functions,
    pub pacing: Mutex<Option<Py<PyAny>>>,
    /// Iterations that are left for all users together.
    pub remaining: AtomicI64,
    pub is_stopping: AtomicBool,
    pub is_cut: AtomicBool,
    /// The user that began an iteration last.
    pub last_turn: AtomicU64,
    pub users: AtomicU64,
}

impl UserProgram {
    pub fn pacing<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let pacing = self.pacing.lock().unwrap_or_else(PoisonError::into_inner);
        pacing.as_ref().map(|pacing| pacing.bind(py).clone())
    }

    /// A number for one more user.
    pub fn enrol(&self) -> u64 {
        self.users.fetch_add(1, Relaxed) + 1
    }

    /// Takes one of the iterations that are left; False if there is none.
    pub fn take_iteration(&self) -> bool {
        match self.remaining.load(Relaxed) {
            NO_LIMIT => true,
            0 => false,
            left => {
                self.remaining.store(left - 1, Relaxed);
                true
            }
        }
    }
}

#[pymethods]
impl UserProgram {
    #[new]
    #[pyo3(signature = (
        recorder, event_loop, program, *, response_type, set_step, outcomes, tallies, feeds, choices,
        iterations, is_open, is_once, wait, run_layer, judge, reject, fail_check, forgive, remember,
    ))]
    #[allow(clippy::too_many_arguments)] // all but three named by the caller
    fn new(
        recorder: &Recorder,
        event_loop: Bound<'_, PyAny>,
        program: &Bound<'_, PyAny>,
        response_type: Py<PyType>,
        set_step: Py<PyAny>,
        outcomes: Py<PyAny>,
        tallies: Py<PyAny>,
        feeds: Option<Py<PyAny>>,
        choices: Option<Py<PyAny>>,
        iterations: Option<i64>,
        is_open: bool,
        is_once: bool,
        wait: Py<PyAny>,
        run_layer: Py<PyAny>,
        judge: Py<PyAny>,
        reject: Py<PyAny>,
        fail_check: Py<PyAny>,
        forgive: Py<PyAny>,
        remember: Py<PyAny>,
    ) -> PyResult<Self> {
        let py = event_loop.py();
        let size: usize = program.getattr("size")?.extract()?;
        let steps = size - 1;
        let mut layers = Vec::new();
        for layer in program.getattr("layers")?.try_iter()? {
            let layer = layer?;
            layers.push(match layer.downcast_into::<PyTuple>() {
                Ok(several) => Layer::Several(several.unbind()),
                Err(other) => Layer::One(Step::new(&other.into_inner(), steps)?),
            });
        }
        Ok(Self {
            event_loop: event_loop.unbind(),
            go_on: py.import("hyperscale._native")?.getattr("_go_on")?.unbind(),
            coroutine_type: py.import("types")?.getattr("CoroutineType")?.unbind(),
            recorder: recorder.shared.clone(),
            layers,
            size: size + usize::from(is_open),
            steps,
            judges: Judges::new(program, steps)?,
            is_open,
            is_once,
            response_type,
            set_step,
            outcomes,
            tallies,
            feeds,
            choices,
            functions: Functions { wait, run_layer, judge, reject, fail_check, forgive, remember },
            pacing: Mutex::new(None),
            remaining: AtomicI64::new(iterations.unwrap_or(NO_LIMIT)),
            is_stopping: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
            last_turn: AtomicU64::new(0),
            users: AtomicU64::new(0),
        })
    }

    /// When users begin their iterations; None: they loop without a pause.
    fn set_pacing(&self, pacing: Option<Py<PyAny>>) {
        *self.pacing.lock().unwrap_or_else(PoisonError::into_inner) = pacing;
    }

    /// How often each check has passed since this was asked last.
    fn take_passed(&self) -> Vec<u64> {
        self.judges.passed.iter().map(|passed| passed.swap(0, Relaxed)).collect()
    }

    /// Starts no more steps.
    fn stop(&self) {
        self.is_stopping.store(true, Relaxed);
    }

    /// Counts no more outcomes.
    fn cut(&self) {
        self.is_cut.store(true, Relaxed);
    }

    #[getter]
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Relaxed)
    }

    #[getter]
    pub fn is_cut(&self) -> bool {
        self.is_cut.load(Relaxed)
    }
}
