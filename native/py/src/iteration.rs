//! The iterations of a virtual user: which hook runs next, and what becomes of its result.
//!
//! Hooks are Python functions, and everything rare is left to Python as well: layers of several
//! steps, checks, pacing, rows of feeds, errors. What happens in every iteration of every user is
//! done here, between two waits of the user's coroutine.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use hyperscale_core::clock;
use pyo3::exceptions::PyGeneratorExit;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::calls::{call_with, resume, throw, Sent};
use crate::exchange::Exchange;
use crate::recorder::lock;
use crate::sender::CountedFor;
use crate::user_program::{Layer, Steps, UserProgram};

/// What the pacing returns for a user that ends.
const OVER: i64 = -1;

/// How a user's coroutine is let go on.
pub enum Input {
    Go,
    Throw(PyErr),
}

/// How far it came.
pub enum Flow<'py> {
    /// It waits for this.
    Yield(Bound<'py, PyAny>),
    Over,
}

/// What a user waits for.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Its first turn of the loop.
    Start,
    /// Its next iteration.
    Turn,
    /// Rows that its slot may not use yet.
    Rows,
    Step,
    Layer,
    Judge,
    /// The others: its steps may never wait.
    Others,
}

/// What a user does next.
enum Next<'py> {
    Iterate,
    /// Begin an iteration that was due then, or is due now.
    Begin(u64),
    Layers,
    Judge,
    EndIteration,
    Await(Stage, Bound<'py, PyAny>),
    Over,
}

/// The place of a user in its loop.
pub struct Place {
    pub program: Py<UserProgram>,
    crew: Py<PyAny>,
    user: Py<PyAny>,
    instance: Py<PyAny>,
    number: u64,
    remembers: bool,
    stage: Stage,
    /// The coroutine that it waits for.
    awaited: Option<Py<PyAny>>,
    layer: usize,
    results: Option<Py<PyList>>,
    /// Steps that returned, or need not be waited for.
    done: Steps,
    /// Alternatives that were not chosen, and what depends on them.
    left_out: Steps,
    turn_ns: u64,
    /// When the iteration is due that waits for its rows; 0: now.
    due_ns: u64,
    /// When the next step began, if the clock was just read; 0 if not.
    began_ns: u64,
    iteration: u64,
    /// Of the hook that ran last: most workflows never change it.
    scope: Option<Py<PyAny>>,
}

impl Place {
    pub fn new(
        program: Bound<'_, UserProgram>,
        crew: Py<PyAny>,
        user: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let shared = program.get();
        Ok(Self {
            number: shared.enrol(),
            done: Steps::none(shared.steps),
            left_out: Steps::none(shared.steps),
            program: program.unbind(),
            crew,
            instance: user.getattr("instance")?.unbind(),
            remembers: user.getattr("remembers")?.extract()?,
            user: user.clone().unbind(),
            stage: Stage::Start,
            awaited: None,
            layer: 0,
            results: None,
            turn_ns: 0,
            due_ns: 0,
            began_ns: 0,
            iteration: 0,
            scope: None,
        })
    }

    /// Goes on until it waits or is over. `running` is the place of the step in flight, plus one.
    pub fn run<'py>(
        &mut self,
        py: Python<'py>,
        input: Input,
        running: &AtomicU32,
    ) -> PyResult<Flow<'py>> {
        let program = self.program.clone_ref(py);
        let program = program.get();
        let mut next = match (self.stage, input) {
            (Stage::Start | Stage::Others, Input::Throw(error)) => return Err(error),
            (Stage::Start, Input::Go) => self.start(py, program)?,
            (Stage::Others, Input::Go) => self.count_iteration(py)?,
            (stage, input) => {
                let Some(awaited) = self.awaited.take() else { return Ok(Flow::Over) };
                let awaited = awaited.into_bound(py);
                let counted_for = self.counted_for(program, stage);
                let sent = match input {
                    Input::Go => resume(&awaited),
                    Input::Throw(error) => throw(&awaited, error),
                };
                drop(counted_for);
                match self.take(py, program, stage, awaited, sent, running)? {
                    Ok(next) => next,
                    Err(yielded) => return Ok(Flow::Yield(yielded)),
                }
            }
        };
        loop {
            next = match next {
                Next::Iterate => self.iterate(py, program)?,
                Next::Begin(due_ns) => self.begin(py, program, due_ns)?,
                Next::Layers => self.next_layer(py, program, running)?,
                Next::Judge => self.judge(py, program)?,
                Next::EndIteration => {
                    if program.is_once {
                        Next::Over
                    } else if program.last_turn.load(Relaxed) == self.number {
                        // No other user ran since, so the steps may not have awaited anything.
                        // Without this, steps that never await would block the loop and its timers.
                        self.stage = Stage::Others;
                        return Ok(Flow::Yield(py.None().into_bound(py)));
                    } else {
                        self.count_iteration(py)?
                    }
                }
                Next::Await(stage, awaited) => {
                    self.stage = stage;
                    let counted_for = self.counted_for(program, stage);
                    let sent = resume(&awaited);
                    drop(counted_for);
                    match self.take(py, program, stage, awaited, sent, running)? {
                        Ok(next) => next,
                        Err(yielded) => return Ok(Flow::Yield(yielded)),
                    }
                }
                Next::Over => return Ok(Flow::Over),
            }
        }
    }

    /// Counts the traffic of the step that goes on for it, until the value is dropped.
    fn counted_for(&self, program: &UserProgram, stage: Stage) -> Option<CountedFor> {
        match (stage, program.layers.get(self.layer)) {
            (Stage::Step, Some(Layer::One(step))) => Some(CountedFor::new(step.traffic)),
            _ => None,
        }
    }

    /// What follows from how the awaited coroutine went on; or what it waits for.
    fn take<'py>(
        &mut self,
        py: Python<'py>,
        program: &UserProgram,
        stage: Stage,
        awaited: Bound<'py, PyAny>,
        sent: Sent<'py>,
        running: &AtomicU32,
    ) -> PyResult<Result<Next<'py>, Bound<'py, PyAny>>> {
        let returned = match sent {
            Sent::Yielded(yielded) => {
                self.awaited = Some(awaited.unbind());
                return Ok(Err(yielded));
            }
            Sent::Returned(value) => Ok(value),
            Sent::Raised(error) => Err(error),
        };
        Ok(Ok(match stage {
            Stage::Step => self.settle(py, program, returned, running)?,
            Stage::Turn => match returned?.extract::<i64>()? {
                OVER => Next::Over,
                due_ns => Next::Begin(due_ns.unsigned_abs()),
            },
            Stage::Rows => {
                returned?;
                if program.is_stopping() {
                    Next::Over
                } else {
                    Next::Begin(self.due_ns)
                }
            }
            Stage::Layer => {
                let steps = Steps::from_bits(&returned?, program.steps)?;
                self.done.insert_all(&steps);
                self.layer += 1;
                if program.is_cut() {
                    Next::Over
                } else {
                    Next::Layers
                }
            }
            Stage::Judge => returned.map(|_| Next::EndIteration)?,
            Stage::Start | Stage::Others => Next::Over,
        }))
    }

    fn start<'py>(&self, py: Python<'py>, program: &UserProgram) -> PyResult<Next<'py>> {
        if let Some(feeds) = &program.feeds {
            let begin = feeds.bind(py).call_method1(intern!(py, "begin"), (&self.instance,))?;
            if !begin.is_truthy()? {
                return Ok(Next::Over);
            }
        }
        Ok(Next::Iterate)
    }

    fn iterate<'py>(&self, py: Python<'py>, program: &UserProgram) -> PyResult<Next<'py>> {
        if program.is_stopping() {
            return Ok(Next::Over);
        }
        // A change of the load may have brought the pacing.
        match program.pacing(py) {
            Some(pacing) => {
                let turn = pacing.call_method1(intern!(py, "turn"), (&self.user,))?;
                Ok(Next::Await(Stage::Turn, turn))
            }
            None => Ok(Next::Begin(0)),
        }
    }

    fn begin<'py>(
        &mut self,
        py: Python<'py>,
        program: &UserProgram,
        due_ns: u64,
    ) -> PyResult<Next<'py>> {
        if let Some(feeds) = &program.feeds {
            let feeds = feeds.bind(py);
            if feeds.getattr(intern!(py, "is_short"))?.is_truthy()? {
                self.due_ns = due_ns;
                let rows = feeds.call_method0(intern!(py, "wait"))?;
                return Ok(Next::Await(Stage::Rows, rows));
            }
            let turn = feeds.call_method1(intern!(py, "turn"), (&self.instance,))?;
            if !turn.is_truthy()? {
                if let Some(pacing) = program.pacing(py) {
                    // There is no row for anyone else either.
                    pacing.call_method0(intern!(py, "stop"))?;
                }
                return Ok(Next::Over);
            }
        }
        if !program.take_iteration() {
            return Ok(Next::Over);
        }
        (self.turn_ns, self.began_ns) = if due_ns == 0 {
            let now_ns = clock::now_ns();
            (now_ns, now_ns)
        } else {
            (due_ns, 0)
        };
        program.last_turn.store(self.number, Relaxed);
        let results = self.fresh_results(py, program)?;
        self.done.clear();
        if let Some(choices) = &program.choices {
            let left_out = choices.bind(py).call_method0(intern!(py, "next"))?;
            self.left_out = Steps::from_bits(&left_out, program.steps)?;
            self.done.insert_all(&self.left_out);
        }
        if program.is_open {
            results.set_item(program.size - 2, due_ns)?;
        }
        if self.turn_ns < lock(&program.recorder).counted_from_ns() {
            // As if it had been noted: the warm-up is not counted.
            results.set_item(program.size - 1, true)?;
        }
        self.results = Some(results.unbind());
        self.layer = 0;
        Ok(Next::Layers)
    }

    /// A list without results: that of the last iteration, unless something has kept it.
    fn fresh_results<'py>(
        &mut self,
        py: Python<'py>,
        program: &UserProgram,
    ) -> PyResult<Bound<'py, PyList>> {
        if let Some(results) = self.results.take() {
            let results = results.into_bound(py);
            if results.get_refcnt() == 1 {
                for place in 0..program.size {
                    results.set_item(place, py.None())?;
                }
                return Ok(results);
            }
        }
        PyList::new(py, (0..program.size).map(|_| py.None()))
    }

    fn next_layer<'py>(
        &mut self,
        py: Python<'py>,
        program: &UserProgram,
        running: &AtomicU32,
    ) -> PyResult<Next<'py>> {
        let Some(layer) = program.layers.get(self.layer) else {
            let mut recorder = lock(&program.recorder);
            let from_ns = recorder.counted_from_ns();
            recorder.iterations.end(self.turn_ns, clock::now_ns(), from_ns);
            return Ok(Next::Judge);
        };
        if program.is_stopping() {
            return Ok(Next::Judge);
        }
        let Some(results) = &self.results else { return Ok(Next::Over) };
        let step = match layer {
            Layer::One(step) => step,
            Layer::Several(several) => {
                (self.scope, self.began_ns) = (None, 0);
                let (done, left_out) = (self.done.to_bits(py)?, self.left_out.to_bits(py)?);
                let run_layer = program.functions.run_layer.bind(py);
                let arguments = (&self.crew, &self.user, several, results, done, left_out);
                return Ok(Next::Await(Stage::Layer, run_layer.call1(arguments)?));
            }
        };
        if self.left_out.contains(step.index) {
            self.layer += 1;
            return Ok(Next::Layers);
        }
        let index = step.index as u32;
        if !self.done.contains_all(&step.needs) {
            if let Some(counts) = lock(&program.recorder).counts_mut(index) {
                counts.skipped += 1;
            }
            self.layer += 1;
            return Ok(Next::Layers);
        }
        let results = results.bind(py).clone();
        self.set_scope(py, program, &step.scope)?;
        running.store(index + 1, Relaxed);
        if self.began_ns == 0 {
            self.began_ns = clock::now_ns();
        }
        let counted_for = CountedFor::new(step.traffic);
        let returned = step.call(self.instance.bind(py), &results);
        drop(counted_for);
        match returned {
            Ok(result) if step.is_async => {
                if result.get_type().is(&program.coroutine_type) {
                    Ok(Next::Await(Stage::Step, result))
                } else {
                    let waiting = call_with(program.functions.wait.bind(py), &result)?;
                    Ok(Next::Await(Stage::Step, waiting))
                }
            }
            returned => self.settle(py, program, returned, running),
        }
    }

    /// Records what a step returned or raised.
    fn settle<'py>(
        &mut self,
        py: Python<'py>,
        program: &UserProgram,
        returned: PyResult<Bound<'py, PyAny>>,
        running: &AtomicU32,
    ) -> PyResult<Next<'py>> {
        let (Some(Layer::One(step)), Some(results)) =
            (program.layers.get(self.layer), &self.results)
        else {
            return Ok(Next::Over);
        };
        if returned.as_ref().is_err_and(|error| error.is_instance_of::<PyGeneratorExit>(py)) {
            return returned.map(|_| Next::Over);
        }
        if program.is_cut() {
            return Ok(Next::Over);
        }
        running.store(0, Relaxed);
        self.layer += 1;
        let began_ns = std::mem::take(&mut self.began_ns);
        let results = results.bind(py);
        let outcomes = program.outcomes.bind(py);
        let result = match returned {
            Ok(result) => result,
            Err(error) => {
                let error = error.into_value(py);
                outcomes.call_method1(intern!(py, "fail"), (&step.hook, &error, results))?;
                program.functions.forgive.bind(py).call1((error,))?;
                return Ok(Next::Layers);
            }
        };
        self.done.insert(step.index);
        results.set_item(step.index, &result)?;
        if step.is_strict && !program.is_open && result.get_type().is(&program.response_type) {
            let exchange = result.getattr(intern!(py, "exchange"))?;
            let exchange = exchange.downcast::<Exchange>()?;
            let exchange = &exchange.get().inner;
            let mut recorder = lock(&program.recorder);
            recorder.record_exchange(step.index as u32, exchange, false, exchange.ended_ns);
        } else {
            let took_ns = clock::now_ns().saturating_sub(began_ns);
            let arguments = (&step.hook, &result, took_ns, results);
            outcomes.call_method1(intern!(py, "settle"), arguments)?;
        }
        if self.remembers {
            let remember = program.functions.remember.bind(py);
            remember.call1((&self.instance, &step.name, result))?;
        }
        Ok(Next::Layers)
    }

    /// Runs the checks and metrics of an iteration.
    fn judge<'py>(&mut self, py: Python<'py>, program: &UserProgram) -> PyResult<Next<'py>> {
        let (false, Some(results)) = (program.judges.is_empty(), &self.results) else {
            return Ok(Next::EndIteration);
        };
        let results = results.bind(py).clone();
        // They run in the warm-up, too.
        let is_counted = self.turn_ns >= lock(&program.recorder).counted_from_ns();
        let mut tallies = program.tallies.bind(py).clone();
        if !is_counted {
            tallies = tallies.call_method0(intern!(py, "blank"))?;
        }
        self.done.remove_all(&self.left_out);
        if program.judges.are_at_once {
            self.check(py, program, &results, &tallies, is_counted)?;
            self.measure(py, program, &results, &tallies)?;
            return Ok(Next::EndIteration);
        }
        self.scope = None;
        let done = self.done.to_bits(py)?;
        let judge = program.functions.judge.bind(py);
        let judging = judge.call1((&self.crew, &self.user, results, done, tallies))?;
        Ok(Next::Await(Stage::Judge, judging))
    }

    fn check<'py>(
        &mut self,
        py: Python<'py>,
        program: &UserProgram,
        results: &Bound<'py, PyList>,
        tallies: &Bound<'py, PyAny>,
        is_counted: bool,
    ) -> PyResult<()> {
        for (check, passed) in program.judges.checks.iter().zip(&program.judges.passed) {
            if !self.done.contains_all(&check.needs) {
                continue;
            }
            self.set_scope(py, program, &check.scope)?;
            let verdict = check.call(self.instance.bind(py), results);
            let verdict = verdict
                .and_then(|verdict| Ok((verdict.is_none() || verdict.is_truthy()?, verdict)));
            match verdict {
                Ok((true, _)) => {
                    passed.fetch_add(u64::from(is_counted), Relaxed);
                }
                Ok((false, verdict)) => {
                    let reject = program.functions.reject.bind(py);
                    reject.call1((tallies, check.index, verdict))?;
                }
                Err(error) => {
                    let fail = program.functions.fail_check.bind(py);
                    fail.call1((tallies, check.index, error.into_value(py)))?;
                }
            }
        }
        Ok(())
    }

    fn measure<'py>(
        &mut self,
        py: Python<'py>,
        program: &UserProgram,
        results: &Bound<'py, PyList>,
        tallies: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        for metric in &program.judges.metrics {
            if !self.done.contains_all(&metric.needs) {
                continue;
            }
            self.set_scope(py, program, &metric.scope)?;
            let added = metric.call(self.instance.bind(py), results).and_then(|value| {
                let tally = tallies.getattr(intern!(py, "metrics"))?.get_item(metric.index)?;
                tally.call_method1(intern!(py, "add"), (value,))
            });
            if let Err(error) = added {
                let error = error.into_value(py);
                let outcomes = program.outcomes.bind(py);
                outcomes
                    .call_method1(intern!(py, "note_raised"), (&metric.name, &error, results))?;
                program.functions.forgive.bind(py).call1((error,))?;
            }
        }
        Ok(())
    }

    /// Sets the step for which traffic is counted, unless it was set already.
    fn set_scope(
        &mut self,
        py: Python<'_>,
        program: &UserProgram,
        scope: &Py<PyAny>,
    ) -> PyResult<()> {
        if !self.scope.as_ref().is_some_and(|set| set.is(scope)) {
            call_with(program.set_step.bind(py), scope.bind(py))?;
            self.scope = Some(scope.clone_ref(py));
        }
        Ok(())
    }

    fn count_iteration<'py>(&mut self, py: Python<'py>) -> PyResult<Next<'py>> {
        self.iteration += 1;
        let number = self.iteration.into_pyobject(py)?;
        let name = intern!(py, "iteration");
        // Users may not set attributes of theirs; `object.__setattr__` does not ask.
        // SAFETY: all three are live objects.
        let failed = unsafe {
            ffi::PyObject_GenericSetAttr(self.instance.as_ptr(), name.as_ptr(), number.as_ptr())
        };
        if failed != 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(Next::Iterate)
    }
}
