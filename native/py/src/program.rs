//! Static workflows, looped natively in slices with the interpreter released.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hyperscale_core::engine::draws::{Choice, Draws, Feed, Take};
use hyperscale_core::engine::pacing::{ClosedPlan, PacingPlan};
use hyperscale_core::engine::program::{self, ProgramStep};
use hyperscale_core::shape::Arrivals;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
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

/// its template or one for each row of a feed, that feed, row in the recorder, positions it depends
/// on, accepted statuses
type StepArguments<'py> = (Vec<Bound<'py, Template>>, Option<usize>, u32, Vec<usize>, Vec<u16>);
/// seed, where shares end, positions that each alternative leaves out
type ChoiceArguments = (u64, Vec<f64>, Vec<Vec<usize>>);
/// take, whether a user has one row for good, the first row, rows, seed
type FeedArguments = (String, bool, u64, u64, u64);

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
        let to_step = |(templates, feed, step, after, accepts): StepArguments<'_>| ProgramStep {
            templates: templates.iter().map(|template| template.get().inner.clone()).collect(),
            feed,
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

    /// Lets every iteration draw one of its alternatives and take rows of feeds. Iterations of the
    /// slot have the numbers `slot`, `slot + slots`, …, without the first `drawn` of them, and so
    /// have its users from `first_vu` on. Rows that are dealt once to users leave out those of
    /// `users_before`. With `limit`, no more than so many iterations are drawn for (`grant_rows`).
    #[pyo3(signature = (
        choices, feeds, *, slots, slot, first_vu, drawn = 0, users_before = 0, limit = None
    ))]
    #[allow(clippy::too_many_arguments)] // most of them named by the caller
    fn draw(
        &self,
        choices: Vec<ChoiceArguments>,
        feeds: Vec<FeedArguments>,
        slots: u64,
        slot: u64,
        first_vu: u64,
        drawn: u64,
        users_before: u64,
        limit: Option<u64>,
    ) -> PyResult<()> {
        let to_choice = |(seed, bounds, left_out)| Choice { seed, bounds, left_out };
        let to_feed = |(take, per_vu, first, rows, seed): FeedArguments| {
            let take = match take.as_str() {
                "circular" => Take::Circular,
                "random" => Take::Random,
                "once" => Take::Once,
                _ => return Err(PyValueError::new_err(format!("take is {take:?}"))),
            };
            Ok(Feed { take, per_vu, first, rows, seed })
        };
        let choices = choices.into_iter().map(to_choice).collect();
        let feeds = feeds.into_iter().map(to_feed).collect::<PyResult<_>>()?;
        let draws = Draws { choices, feeds, slots, slot, drawn, limit, first_vu, users_before };
        self.core().draw(draws);
        Ok(())
    }

    /// Lets the slot draw for up to `limit` iterations, those of earlier attempts included.
    fn grant_rows(&self, limit: u64) {
        self.core().grant_rows(limit);
    }

    /// Iterations that were drawn for, those of earlier attempts included.
    #[getter]
    fn drawn(&self) -> u64 {
        self.core().drawn()
    }

    /// Users that wait until the slot may use more rows.
    #[getter]
    fn short_of_rows(&self) -> usize {
        self.core().short_of_rows()
    }

    /// Makes room for more users.
    fn resize(&self, vus: usize) {
        self.core().resize(vus);
    }

    /// Paces the users. The slot began at `begins_at_s` of its shape, and is at `place_s` now.
    #[pyo3(signature = (
        *, begins_at_s = 0.0, place_s = 0.0, interval_s = None, phases_s = Vec::new(), think_s = None, seed = 0,
        changes = Vec::new(), iterations_per_vu = None,
    ))]
    #[allow(clippy::too_many_arguments)] // all of them named by the caller
    fn pace(
        &self,
        begins_at_s: f64,
        place_s: f64,
        interval_s: Option<f64>,
        phases_s: Vec<f64>,
        think_s: Option<(f64, f64)>,
        seed: u64,
        changes: Vec<(f64, usize)>,
        iterations_per_vu: Option<u64>,
    ) -> PyResult<()> {
        let phases: PyResult<Vec<u64>> = phases_s.into_iter().map(to_ns).collect();
        let phases = phases?;
        let plan = ClosedPlan {
            interval: interval_s
                .map(|interval_s| Ok::<_, PyErr>((to_ns(interval_s)?, phases)))
                .transpose()?,
            think: think_s
                .map(|(least_s, most_s)| Ok::<_, PyErr>((to_ns(least_s)?, to_ns(most_s)?, seed)))
                .transpose()?,
            changes: to_changes(changes)?,
            iterations_per_vu,
        };
        self.core().pace(PacingPlan::Closed(plan), to_ns(begins_at_s)?, to_ns(place_s)?);
        Ok(())
    }

    /// Begins iterations as arrivals are due. The slot began at `begins_at_s` of its shape, and is
    /// at `place_s` now; even arrivals are shifted by `phase` of their distance. Arrivals due from `missed_from_s` up to its beginning are dropped.
    #[pyo3(signature = (
        stages, slots, slot, *,
        begins_at_s = 0.0, place_s = 0.0, missed_from_s = None, seed = None, phase = 0.0
    ))]
    #[allow(clippy::too_many_arguments)] // most of them named by the caller
    fn pace_arrivals(
        &self,
        stages: Vec<(f64, f64)>,
        slots: u32,
        slot: u32,
        begins_at_s: f64,
        place_s: f64,
        missed_from_s: Option<f64>,
        seed: Option<u64>,
        phase: f64,
    ) -> PyResult<()> {
        let mut arrivals = Arrivals::new(&stages, slots, slot, seed).shifted(phase);
        arrivals.skip_until(missed_from_s.unwrap_or(begins_at_s));
        let missed = arrivals.skip_until(begins_at_s);
        if missed > 0 {
            let mut recorder = lock(&self.recorder);
            let (now, from_ns) = (hyperscale_core::clock::now_ns(), recorder.counted_from_ns());
            recorder.iterations.drop(now, missed, from_ns);
        }
        self.core().pace(PacingPlan::Open(arrivals), to_ns(begins_at_s)?, to_ns(place_s)?);
        Ok(())
    }

    /// Changes when how many users loop. The slot is at `place_s` of its shape now.
    #[pyo3(signature = (changes, *, place_s))]
    fn change(&self, changes: Vec<(f64, usize)>, place_s: f64) -> PyResult<()> {
        self.core().change(to_changes(changes)?, to_ns(place_s)?);
        Ok(())
    }

    /// Changes the stages of the arrivals. The slot is at `place_s` of its shape now.
    #[pyo3(signature = (stages, *, place_s))]
    fn change_arrivals(&self, stages: Vec<(f64, f64)>, place_s: f64) {
        self.core().change_arrivals(&stages, place_s, &mut lock(&self.recorder));
    }

    /// Nothing begins until the next change.
    fn pause(&self) {
        self.core().pause();
    }

    /// After `in_s` nothing new begins; None: until it is called again. A later call may put it off.
    #[pyo3(signature = (in_s))]
    fn end_in(&self, in_s: Option<f64>) -> PyResult<()> {
        let in_ns = in_s.map_or(Ok(u64::MAX), to_ns)?;
        self.core().end_at(hyperscale_core::clock::now_ns().saturating_add(in_ns));
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
}

fn to_changes(changes: Vec<(f64, usize)>) -> PyResult<Vec<(u64, usize)>> {
    changes.into_iter().map(|(at_s, users)| Ok((to_ns(at_s)?, users))).collect()
}

/// The first `count` times at which arrivals of a slot are due, from `from_s` on.
#[pyfunction]
#[pyo3(signature = (stages, slots, slot, *, seed = None, from_s = 0.0, count = 1000, phase = 0.0))]
pub fn arrival_times(
    stages: Vec<(f64, f64)>,
    slots: u32,
    slot: u32,
    seed: Option<u64>,
    from_s: f64,
    count: usize,
    phase: f64,
) -> Vec<f64> {
    let mut arrivals = Arrivals::new(&stages, slots, slot, seed).shifted(phase);
    arrivals.skip_until(from_s);
    let times = std::iter::from_fn(|| {
        let due_s = arrivals.next_s()?;
        arrivals.advance();
        Some(due_s)
    });
    times.take(count).collect()
}
