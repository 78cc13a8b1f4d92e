//! A workflow of only static steps, looped without the interpreter.
//!
//! Every virtual user walks the layers of steps again and again: the steps of a layer
//! go out together, the next layer begins when all have ended. Same rules and same
//! records as the Python loop: a step whose call failed makes its dependents skipped.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::draws::{Drawn, Draws};
use super::http::reply::Keep;
use super::http::template::Template;
use super::pacing::{Next, Pacing, PacingPlan};
use super::request::Caller;
use super::{Engine, Options};
use crate::clock::now_ns;
use crate::recorder::Recorder;

/// Virtual users started in one go, so that a slice stays short.
const STARTS_MAX: usize = 512;

#[derive(Debug)]
pub struct ProgramStep {
    /// Its request, or that of each row of a feed.
    pub templates: Vec<Arc<Template>>,
    /// The feed whose rows the requests are of.
    pub feed: Option<usize>,
    /// Its row in the recorder.
    pub step: u32,
    /// Positions (over all layers, in order) of the steps it depends on.
    pub after: Vec<usize>,
    /// Statuses of 400 or more that are not failures.
    pub accepts: Vec<u16>,
}

impl ProgramStep {
    /// The request for an iteration that has these rows of the feeds.
    fn template(&self, rows: &[usize]) -> Option<&Arc<Template>> {
        let row = self.feed.and_then(|feed| rows.get(feed)).copied().unwrap_or(0);
        self.templates.get(row)
    }
}

#[derive(Clone, Copy, Debug)]
struct Ticket {
    vu: u32,
    position: usize,
}

/// What became of a step in this iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mark {
    #[default]
    Fine,
    /// It failed or was skipped.
    Failed,
    /// Another alternative was chosen.
    LeftOut,
}

#[derive(Clone, Debug, Default)]
struct VuState {
    layer: u32,
    pending: u32,
    /// When its iteration began, or was due.
    began_ns: u64,
    /// By position.
    marks: Vec<Mark>,
    /// By feed: the row that the iteration has.
    rows: Vec<usize>,
}

pub struct Program {
    engine: Engine<Ticket>,
    steps: Vec<ProgramStep>,
    /// First position of each layer, and the end.
    bounds: Vec<usize>,
    vus: Vec<VuState>,
    started: usize,
    active: usize,
    iterations_left: Option<u64>,
    /// None: users loop without a pause.
    pacing: Option<Pacing>,
    /// None: every iteration is the same.
    draws: Option<Draws>,
    /// Users that wait until the slot may use more rows.
    short: Vec<usize>,
    is_closed: bool,
    /// When the duration is over; a change may move it.
    end_at_ns: u64,
    stop_at_ns: u64,
    lease_at_ns: u64,
}

impl Program {
    pub fn new(
        options: Options,
        layers: Vec<Vec<ProgramStep>>,
        vus: usize,
        iterations: Option<u64>,
    ) -> io::Result<Self> {
        let mut bounds = vec![0];
        let mut steps = Vec::new();
        for layer in layers {
            steps.extend(layer);
            bounds.push(steps.len());
        }
        let state = VuState { marks: vec![Mark::Fine; steps.len()], ..VuState::default() };
        let mut engine = Engine::new(options)?;
        engine.hold_writes();
        Ok(Self {
            engine,
            steps,
            bounds,
            vus: vec![state; vus],
            started: 0,
            active: 0,
            iterations_left: iterations,
            pacing: None,
            draws: None,
            short: Vec::new(),
            is_closed: false,
            end_at_ns: u64::MAX,
            stop_at_ns: u64::MAX,
            lease_at_ns: u64::MAX,
        })
    }

    pub fn pin(&mut self, template: &Template, addresses: Vec<SocketAddr>) {
        self.engine.pin(template, addresses);
    }

    /// Makes room for more users.
    pub fn resize(&mut self, vus: usize) {
        if vus > self.vus.len() {
            let state = VuState { marks: vec![Mark::Fine; self.steps.len()], ..VuState::default() };
            self.vus.resize(vus, state);
        }
    }

    /// Paces the users. The slot began at `offset_ns` of its shape, and is at `place_ns` now.
    pub fn pace(&mut self, plan: PacingPlan, offset_ns: u64, place_ns: u64) {
        let began_ns = now_ns().saturating_sub(place_ns.saturating_sub(offset_ns));
        self.pacing = Some(Pacing::new(plan, self.vus.len(), began_ns, offset_ns));
    }

    /// Lets every iteration draw its alternatives and its rows.
    pub fn draw(&mut self, draws: Draws) {
        self.draws = Some(draws);
    }

    /// Lets the slot draw for up to `limit` iterations, those of earlier attempts included.
    pub fn grant_rows(&mut self, limit: u64) {
        if let Some(draws) = &mut self.draws {
            draws.limit = draws.limit.map(|known| known.max(limit));
        }
    }

    /// Iterations that were drawn for, those of earlier attempts included.
    #[must_use]
    pub fn drawn(&self) -> u64 {
        self.draws.as_ref().map_or(0, |draws| draws.drawn)
    }

    /// Users that wait until the slot may use more rows.
    #[must_use]
    pub fn short_of_rows(&self) -> usize {
        self.short.len()
    }

    /// Changes when how many users loop. The slot is at `place_ns` of its shape now.
    pub fn change(&mut self, changes: Vec<(u64, usize)>, place_ns: u64) {
        let (vus, started) = (self.vus.len(), self.started);
        let pacing = self.pacing.get_or_insert_with(|| Pacing::of_looping(started));
        pacing.change(changes, vus, now_ns(), place_ns);
    }

    /// Changes the stages of the arrivals. The slot is at `place_s` of its shape now.
    pub fn change_arrivals(
        &mut self,
        stages: &[(f64, f64)],
        place_s: f64,
        recorder: &mut Recorder,
    ) {
        let (now, from_ns) = (now_ns(), recorder.counted_from_ns());
        if let Some(pacing) = &mut self.pacing {
            let skipped = pacing.change_arrivals(stages, now, place_s);
            recorder.iterations.drop(now, skipped, from_ns);
        }
    }

    /// Nothing begins until the next change.
    pub fn pause(&mut self) {
        if let Some(pacing) = &mut self.pacing {
            pacing.pause(now_ns());
        }
    }

    /// When the duration is over. Unlike a stop, it may be put off.
    pub fn end_at(&mut self, at_ns: u64) {
        self.end_at_ns = at_ns;
    }

    /// Virtual users that loop.
    #[must_use]
    pub fn active(&self) -> usize {
        let paced = self.pacing.as_ref().filter(|_| !self.is_closed).and_then(Pacing::users);
        paced.unwrap_or(self.active)
    }

    /// From then on nothing new begins; what is under way may end.
    pub fn stop_at(&mut self, at_ns: u64) {
        self.stop_at_ns = self.stop_at_ns.min(at_ns);
    }

    /// The same, but it may be put off again for as long as it has not come.
    pub fn lease_until(&mut self, at_ns: u64) {
        self.lease_at_ns = at_ns;
    }

    fn over_at_ns(&self) -> u64 {
        self.end_at_ns.min(self.stop_at_ns).min(self.lease_at_ns)
    }

    /// Looked at before anything is sent, so that a process which was stopped beyond its
    /// time sends nothing when it goes on.
    fn is_over(&self, now: u64) -> bool {
        now >= self.over_at_ns()
    }

    /// Drops what is under way and counts it as cut.
    pub fn cut(&mut self, recorder: &mut Recorder) {
        self.close(now_ns(), recorder);
        self.stop_at_ns = 0;
        for ticket in self.engine.cut_all(recorder) {
            if let Some(step) = self.steps.get(ticket.position) {
                if let Some(counts) = recorder.counts_mut(step.step) {
                    counts.cut += 1;
                }
            }
        }
        self.active = 0;
        self.short.clear();
    }

    /// Runs for up to `slice_ns`. False once every virtual user has stopped.
    pub fn run(&mut self, slice_ns: u64, recorder: &mut Recorder) -> io::Result<bool> {
        let end_ns = now_ns() + slice_ns;
        loop {
            // When the next user starts; None: none does.
            let start_ns = match self.pacing {
                None => self.start_vus(recorder),
                Some(_) => self.start_due(recorder),
            };
            self.resume_short(recorder);
            // What is written may end: then there is something to take, and nothing to wait for.
            self.engine.flush_writes(recorder);
            let now = now_ns();
            if self.active == 0 && start_ns.is_none() {
                return Ok(false);
            }
            if now >= end_ns {
                return Ok(true);
            }
            let until_ns = start_ns.map_or(end_ns, |start_ns| start_ns.min(end_ns));
            let wait_ns = if self.engine.has_done() { 0 } else { until_ns.saturating_sub(now) };
            self.engine.wait(wait_ns)?;
            // The next request of a user leaves as soon as a response is read.
            while self.engine.handle_next(recorder) {
                self.settle(recorder);
                self.engine.flush_writes(recorder);
            }
            self.settle(recorder); // what timed out
        }
    }

    fn start_vus(&mut self, recorder: &mut Recorder) -> Option<u64> {
        let target = (self.started + STARTS_MAX).min(self.vus.len());
        while self.started < target {
            let now = now_ns();
            if self.is_over(now) {
                return None;
            }
            let vu = self.started;
            self.started += 1;
            self.active += 1;
            self.begin_iteration(vu, now, now, recorder);
        }
        (self.started < self.vus.len() && !self.is_over(now_ns())).then_some(0)
    }

    /// Begins the iterations that are due, on users that are not busy.
    fn start_due(&mut self, recorder: &mut Recorder) -> Option<u64> {
        for _ in 0..STARTS_MAX {
            let now = now_ns();
            if self.is_over(now) || self.iterations_left == Some(0) {
                self.close(now.min(self.over_at_ns()), recorder);
                return None;
            }
            let from_ns = recorder.counted_from_ns();
            let pacing = self.pacing.as_mut()?;
            let Some(vu) = pacing.pop(now, &mut recorder.iterations, from_ns) else { break };
            let began_ns = pacing.due_ns(vu).unwrap_or(now);
            self.active += 1;
            self.begin_iteration(vu, began_ns, now, recorder);
        }
        self.pacing.as_ref().and_then(Pacing::next_ns)
    }

    /// Lets users that waited for rows go on, as far as there are rows now.
    fn resume_short(&mut self, recorder: &mut Recorder) {
        if self.short.is_empty() {
            return;
        }
        let now = now_ns();
        if self.is_over(now) {
            self.active -= self.short.len();
            self.short.clear();
        } else if !self.draws.as_ref().is_some_and(Draws::is_short) {
            for vu in std::mem::take(&mut self.short) {
                let due_ns = self.pacing.as_ref().and_then(|pacing| pacing.due_ns(vu));
                self.begin_iteration(vu, due_ns.unwrap_or(now), now, recorder);
            }
        }
    }

    /// Nothing begins any more.
    fn close(&mut self, at_ns: u64, recorder: &mut Recorder) {
        if let (Some(pacing), false) = (&mut self.pacing, self.is_closed) {
            self.is_closed = true;
            let from_ns = recorder.counted_from_ns();
            pacing.close(at_ns, &mut recorder.iterations, from_ns);
        }
    }

    /// Takes what ended, counts it, and lets its virtual users go on.
    fn settle(&mut self, recorder: &mut Recorder) {
        // Not what ends meanwhile: requests that fail at once must not keep a slice from ending.
        for _ in 0..self.engine.done_count() {
            let Some(mut done) = self.engine.take_done() else { return };
            let Some(token) = done.take_token() else { continue };
            let Some(step) = self.steps.get(token.position) else { continue };
            let exchange = done.exchange();
            let now = exchange.ended_ns;
            let accepted = step.accepts.contains(&exchange.judged_status());
            let vu = token.vu as usize;
            // Latencies of the first steps count from when the iteration was due.
            let is_root = step.after.is_empty();
            match self.pacing.as_ref().filter(|_| is_root).and_then(|pacing| pacing.due_ns(vu)) {
                None => recorder.record_exchange(step.step, exchange, accepted, now),
                Some(due_ns) => {
                    recorder.record_exchange_since(step.step, exchange, accepted, due_ns, now)
                }
            };
            let has_failed = exchange.failure.is_some();
            self.engine.reuse(done);
            let Some(state) = self.vus.get_mut(vu) else { continue };
            if let Some(mark) = state.marks.get_mut(token.position).filter(|_| has_failed) {
                *mark = Mark::Failed;
            }
            state.pending -= 1;
            if state.pending == 0 {
                state.layer += 1;
                self.advance(vu, now, recorder);
            }
        }
    }

    fn begin_iteration(&mut self, vu: usize, began_ns: u64, now: u64, recorder: &mut Recorder) {
        if self.iterations_left == Some(0) {
            self.active -= 1;
            return;
        }
        if let Some(state) = self.vus.get_mut(vu) {
            state.layer = 0;
            state.began_ns = began_ns;
            state.marks.fill(Mark::Fine);
            let marks = &mut state.marks;
            let drawn = self.draws.as_mut().map_or(Drawn::Rows, |draws| {
                draws.begin(vu, &mut state.rows, |position| {
                    if let Some(mark) = marks.get_mut(position) {
                        *mark = Mark::LeftOut;
                    }
                })
            });
            match drawn {
                Drawn::Rows => {}
                Drawn::Later => {
                    self.short.push(vu);
                    return;
                }
                Drawn::Nothing => {
                    self.active -= 1;
                    self.close(now, recorder); // there is no row for any other user either
                    return;
                }
            }
        }
        if let Some(left) = &mut self.iterations_left {
            *left -= 1;
        }
        self.advance(vu, now, recorder);
    }

    /// Sends the steps of the next layer that has any to send.
    fn advance(&mut self, vu: usize, now: u64, recorder: &mut Recorder) {
        loop {
            let Some(state) = self.vus.get_mut(vu) else { return };
            let from = self.bounds.get(state.layer as usize).copied();
            let to = self.bounds.get(state.layer as usize + 1).copied();
            let (Some(from), Some(to)) = (from, to) else {
                let from_ns = recorder.counted_from_ns();
                recorder.iterations.end(state.began_ns, now, from_ns);
                let next = self.pacing.as_mut().map(|pacing| pacing.after(vu, now));
                if next == Some(Next::Wait) || self.is_over(now) {
                    self.active -= 1;
                    return;
                }
                return self.begin_iteration(vu, now, now, recorder);
            };
            if self.is_over(now) {
                self.active -= 1;
                return;
            }
            for position in from..to {
                let Some(step) = self.steps.get(position) else { continue };
                let Some(state) = self.vus.get_mut(vu) else { return };
                if state.marks.get(position) == Some(&Mark::LeftOut) {
                    continue;
                }
                if step.after.iter().any(|&at| state.marks.get(at) == Some(&Mark::Failed)) {
                    if let Some(mark) = state.marks.get_mut(position) {
                        *mark = Mark::Failed;
                    }
                    if let Some(counts) = recorder.counts_mut(step.step) {
                        counts.skipped += 1;
                    }
                    continue;
                }
                let Some(template) = step.template(&state.rows) else { continue };
                state.pending += 1;
                let caller = Caller { vu: vu as u32, step: step.step, keep: Keep::Nothing };
                let ticket = Ticket { vu: vu as u32, position };
                self.engine.send(template, caller, ticket, now, recorder);
            }
            let Some(state) = self.vus.get_mut(vu) else { return };
            if state.pending > 0 {
                return;
            }
            state.layer += 1;
        }
    }
}
