//! When the users of a native program begin their iterations, where they do not simply loop.
//!
//! Closed: each user waits for its next start (an interval that keeps its phase, or a pause), and
//! the number of users follows a list of changes. Open: arrivals begin when they are due, each on a
//! free user; one that finds no free user is dropped.
//!
//! The shape may be changed, and paused, while the users run: all times are absolute, and `began_ns`,
//! when the workflow was at the beginning of its shape, moves by the time it was paused.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::iterations::Iterations;
use crate::shape::{Arrivals, SplitMix};

const SECOND_NS: f64 = 1e9;
/// Arrivals that a change has made due for longer than this do not begin.
const CATCH_UP_S: f64 = 0.25;

#[derive(Clone, Debug)]
pub enum PacingPlan {
    Closed(ClosedPlan),
    Open(Arrivals),
}

#[derive(Clone, Debug, Default)]
pub struct ClosedPlan {
    /// Length of the interval, and for each user where in it its iterations begin.
    pub interval: Option<(u64, Vec<u64>)>,
    /// The least and the most to pause between iterations, and the seed of the choice.
    pub think: Option<(u64, u64, u64)>,
    /// From when on (since the start) how many users loop; none: all of them from the start.
    pub changes: Vec<(u64, usize)>,
    pub iterations_per_vu: Option<u64>,
}

/// What a user does after an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Begin,
    Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UserState {
    Out,
    Waiting { due_ns: u64 },
    Busy,
}

#[derive(Debug)]
struct Closed {
    plan: ClosedPlan,
    began_ns: u64,
    users: Vec<UserState>,
    /// Iterations that each user has left.
    left: Vec<u64>,
    /// Users that have none left.
    spent: usize,
    wanted: usize,
    changed: usize,
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    random: SplitMix,
}

#[derive(Debug)]
struct Open {
    arrivals: Arrivals,
    began_ns: u64,
    free: Vec<usize>,
    /// When the arrival that each user serves was due.
    due_ns: Vec<u64>,
}

#[derive(Debug)]
pub struct Pacing {
    model: Model,
    /// Since when nothing begins.
    paused_ns: Option<u64>,
    /// Nothing begins any more.
    is_closed: bool,
}

#[derive(Debug)]
enum Model {
    Closed(Closed),
    Open(Open),
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn to_ns(seconds: f64) -> u64 {
    (seconds * SECOND_NS) as u64
}

impl Pacing {
    /// `offset_ns` is how far into its shape the workflow was at the start, at `now_ns`.
    #[must_use]
    pub fn new(plan: PacingPlan, vus: usize, now_ns: u64, offset_ns: u64) -> Self {
        let began_ns = now_ns.saturating_sub(offset_ns);
        let model = match plan {
            PacingPlan::Open(arrivals) => Model::Open(Open {
                arrivals,
                began_ns,
                free: (0..vus).rev().collect(),
                due_ns: vec![0; vus],
            }),
            PacingPlan::Closed(plan) => {
                let mut closed = Closed::new(plan, vus, began_ns);
                if closed.plan.changes.is_empty() {
                    closed.want(vus, now_ns);
                }
                Model::Closed(closed)
            }
        };
        Self { model, paused_ns: None, is_closed: false }
    }

    /// The pacing of users that have looped without one.
    #[must_use]
    pub fn of_looping(users: usize) -> Self {
        let mut closed = Closed::new(ClosedPlan::default(), users, 0);
        closed.users.fill(UserState::Busy);
        closed.wanted = users;
        Self { model: Model::Closed(closed), paused_ns: None, is_closed: false }
    }

    /// Replaces when how many users loop; `vus` is the most of them. The workflow is at `place_ns`
    /// of its shape now.
    pub fn change(&mut self, changes: Vec<(u64, usize)>, vus: usize, now_ns: u64, place_ns: u64) {
        self.paused_ns = None;
        if let Model::Closed(closed) = &mut self.model {
            closed.resize(vus);
            closed.move_to(now_ns.saturating_sub(place_ns));
            closed.changed = changes.partition_point(|&(at_ns, _)| at_ns <= place_ns);
            let last = closed.changed.checked_sub(1).and_then(|last| changes.get(last));
            let wanted = if changes.is_empty() { vus } else { last.map_or(0, |&(_, users)| users) };
            closed.plan.changes = changes;
            closed.want(wanted, now_ns);
        }
    }

    /// Replaces the stages of the arrivals. The workflow is at `place_ns` of its shape now. Returns
    /// how many arrivals are skipped.
    pub fn change_arrivals(&mut self, stages: &[(f64, f64)], now_ns: u64, place_s: f64) -> u64 {
        self.paused_ns = None;
        let Model::Open(open) = &mut self.model else { return 0 };
        open.began_ns = now_ns.saturating_sub(to_ns(place_s));
        open.arrivals.reshape(stages);
        open.arrivals.skip_until(place_s - CATCH_UP_S)
    }

    /// Nothing begins until the next change.
    pub fn pause(&mut self, now_ns: u64) {
        self.paused_ns = Some(now_ns);
    }

    /// The next user whose iteration is to begin now, if there is one.
    pub fn pop(
        &mut self,
        now_ns: u64,
        iterations: &mut Iterations,
        counted_from_ns: u64,
    ) -> Option<usize> {
        if self.paused_ns.is_some() {
            return None;
        }
        match &mut self.model {
            Model::Closed(closed) => closed.pop(now_ns),
            Model::Open(open) => loop {
                let due_ns = open.next_ns().filter(|&due_ns| due_ns <= now_ns)?;
                open.arrivals.advance();
                let Some(user) = open.free.pop() else {
                    iterations.drop(due_ns, 1, counted_from_ns);
                    continue;
                };
                iterations.arrive(due_ns, now_ns, counted_from_ns);
                if let Some(due) = open.due_ns.get_mut(user) {
                    *due = due_ns;
                }
                return Some(user);
            },
        }
    }

    /// A user has ended an iteration. `Next::Wait`: `pop` returns it when it is to go on.
    pub fn after(&mut self, user: usize, now_ns: u64) -> Next {
        match &mut self.model {
            Model::Closed(closed) => {
                let Some(paused_ns) = self.paused_ns else { return closed.after(user, now_ns) };
                // As if its iteration had ended when the pause began.
                if closed.after(user, paused_ns) == Next::Begin {
                    closed.wait(user, paused_ns);
                }
                Next::Wait
            }
            Model::Open(open) => {
                open.free.push(user);
                Next::Wait
            }
        }
    }

    /// When `pop` has to be called again; None: nothing more begins.
    #[must_use]
    pub fn next_ns(&self) -> Option<u64> {
        let next_ns = match &self.model {
            _ if self.is_closed => return None,
            Model::Closed(closed) if closed.is_spent() => return None,
            _ if self.paused_ns.is_some() => None,
            Model::Closed(closed) => closed.next_ns(),
            Model::Open(open) => open.next_ns(),
        };
        // Without one, a change may bring one, until the program ends.
        Some(next_ns.unwrap_or(u64::MAX))
    }

    /// When the iteration of a user was due, if that counts for its latencies.
    #[must_use]
    pub fn due_ns(&self, user: usize) -> Option<u64> {
        match &self.model {
            Model::Closed(_) => None,
            Model::Open(open) => open.due_ns.get(user).copied(),
        }
    }

    /// Users that loop, those that wait for their next iteration included; None: those that are
    /// busy.
    #[must_use]
    pub fn users(&self) -> Option<usize> {
        match &self.model {
            Model::Closed(closed) => {
                Some(closed.users.iter().filter(|user| **user != UserState::Out).count())
            }
            Model::Open(_) => None,
        }
    }

    /// Nothing begins after `at_ns`: arrivals that were due before are dropped.
    pub fn close(&mut self, at_ns: u64, iterations: &mut Iterations, counted_from_ns: u64) {
        self.is_closed = true;
        match &mut self.model {
            Model::Closed(closed) => {
                closed.waiting.clear();
                closed.changed = closed.plan.changes.len();
                for user in &mut closed.users {
                    if matches!(user, UserState::Waiting { .. }) {
                        *user = UserState::Out;
                    }
                }
                closed.wanted = 0;
            }
            Model::Open(open) => {
                let at_ns = if self.paused_ns.is_some() { 0 } else { at_ns };
                while let Some(due_ns) = open.next_ns().filter(|&due_ns| due_ns < at_ns) {
                    open.arrivals.advance();
                    iterations.drop(due_ns, 1, counted_from_ns);
                }
                open.arrivals = Arrivals::new(&[], 1, 0, None);
            }
        }
    }
}

impl Open {
    fn next_ns(&self) -> Option<u64> {
        self.arrivals.next_s().map(|due_s| self.began_ns + to_ns(due_s))
    }
}

/// The first of `origin_ns`, `origin_ns + interval_ns`, … that is not before `now_ns`.
fn next_on_grid(origin_ns: u64, interval_ns: u64, now_ns: u64) -> u64 {
    let periods = now_ns.saturating_sub(origin_ns).div_ceil(interval_ns.max(1));
    origin_ns + periods * interval_ns
}

impl Closed {
    fn new(plan: ClosedPlan, vus: usize, began_ns: u64) -> Self {
        let seed = plan.think.map_or(0, |(_, _, seed)| seed);
        let mut closed = Self {
            plan,
            began_ns,
            users: Vec::new(),
            left: Vec::new(),
            spent: 0,
            wanted: 0,
            changed: 0,
            waiting: BinaryHeap::new(),
            random: SplitMix::new(seed, 1),
        };
        closed.resize(vus);
        closed
    }

    /// Makes room for more users.
    fn resize(&mut self, vus: usize) {
        let vus = vus.max(self.users.len());
        self.users.resize(vus, UserState::Out);
        if let Some(each) = self.plan.iterations_per_vu {
            self.left.resize(vus, each);
        }
        if let Some((_, phases)) = &mut self.plan.interval {
            phases.resize(vus, 0);
        }
    }

    /// No user has an iteration left.
    fn is_spent(&self) -> bool {
        !self.left.is_empty() && self.spent == self.left.len()
    }

    /// Moves the beginning of the shape, and with it what waits.
    fn move_to(&mut self, began_ns: u64) {
        let (before_ns, waiting) = (self.began_ns, std::mem::take(&mut self.waiting));
        self.began_ns = began_ns;
        let moved = |due_ns: u64| (due_ns + began_ns).saturating_sub(before_ns);
        let entries =
            waiting.into_iter().map(|Reverse((due_ns, user))| Reverse((moved(due_ns), user)));
        self.waiting = entries.collect();
        for user in &mut self.users {
            if let UserState::Waiting { due_ns } = user {
                *due_ns = moved(*due_ns);
            }
        }
    }

    fn next_ns(&self) -> Option<u64> {
        let change_ns =
            self.plan.changes.get(self.changed).map(|&(at_ns, _)| self.began_ns + at_ns);
        let due_ns = self.waiting.peek().map(|&Reverse((due_ns, _))| due_ns);
        change_ns.into_iter().chain(due_ns).min()
    }

    fn pop(&mut self, now_ns: u64) -> Option<usize> {
        while let Some(&(at_ns, count)) = self.plan.changes.get(self.changed) {
            let at_ns = self.began_ns + at_ns;
            if at_ns > now_ns {
                break;
            }
            self.changed += 1;
            self.want(count, at_ns);
        }
        while let Some(&Reverse((due_ns, user))) = self.waiting.peek() {
            if due_ns > now_ns {
                return None;
            }
            self.waiting.pop();
            // The entry of a user that left is void.
            if let Some(state) = self.users.get_mut(user) {
                if *state == (UserState::Waiting { due_ns }) {
                    *state = UserState::Busy;
                    return Some(user);
                }
            }
        }
        None
    }

    /// Sets how many users loop. Users beyond that number leave after their iteration.
    fn want(&mut self, count: usize, now_ns: u64) {
        for user in self.wanted..count {
            if self.users.get(user) == Some(&UserState::Out) && self.left.get(user) != Some(&0) {
                let due_ns = self.first_ns(user, now_ns);
                self.wait(user, due_ns);
            }
        }
        for user in count..self.wanted {
            if let Some(state @ UserState::Waiting { .. }) = self.users.get_mut(user) {
                *state = UserState::Out;
            }
        }
        self.wanted = count;
    }

    fn first_ns(&mut self, user: usize, now_ns: u64) -> u64 {
        let Some((interval_ns, phases)) = &mut self.plan.interval else { return now_ns };
        let Some(phase_ns) = phases.get_mut(user) else { return now_ns };
        if !self.plan.changes.is_empty() {
            // A user that joins later begins at once, and keeps that phase.
            *phase_ns = now_ns.saturating_sub(self.began_ns) % *interval_ns;
        }
        next_on_grid(self.began_ns + *phase_ns, *interval_ns, now_ns)
    }

    fn wait(&mut self, user: usize, due_ns: u64) {
        if let Some(state) = self.users.get_mut(user) {
            *state = UserState::Waiting { due_ns };
            self.waiting.push(Reverse((due_ns, user)));
        }
    }

    #[allow(clippy::cast_precision_loss)]
    fn after(&mut self, user: usize, now_ns: u64) -> Next {
        if let Some(left) = self.left.get_mut(user) {
            *left = left.saturating_sub(1);
            self.spent += usize::from(*left == 0);
        }
        if user >= self.wanted || self.left.get(user) == Some(&0) {
            if let Some(state) = self.users.get_mut(user) {
                *state = UserState::Out;
            }
            return Next::Wait;
        }
        if let Some((interval_ns, phases)) = &self.plan.interval {
            // Starts that the iteration overlapped are missed.
            let phase_ns = self.began_ns + phases.get(user).copied().unwrap_or(0);
            let due_ns = next_on_grid(phase_ns, *interval_ns, now_ns);
            self.wait(user, due_ns);
            return Next::Wait;
        }
        if let Some((least_ns, most_ns, _)) = self.plan.think {
            let more_ns = self.random.fraction() * (most_ns - least_ns) as f64;
            self.wait(user, now_ns + least_ns + to_ns(more_ns / SECOND_NS));
            return Next::Wait;
        }
        Next::Begin
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{ClosedPlan, Next, Pacing, PacingPlan};
    use crate::iterations::Iterations;
    use crate::shape::Arrivals;

    fn popped(pacing: &mut Pacing, now_ns: u64) -> Vec<usize> {
        let mut iterations = Iterations::default();
        std::iter::from_fn(|| pacing.pop(now_ns, &mut iterations, 0)).collect()
    }

    #[test]
    fn users_of_an_interval_keep_their_phase_and_miss_the_starts_they_overlap() {
        let plan = ClosedPlan { interval: Some((100, vec![0, 50])), ..ClosedPlan::default() };
        let mut pacing = Pacing::new(PacingPlan::Closed(plan), 2, 1000, 0);
        assert_eq!(popped(&mut pacing, 1000), [0]);
        assert_eq!(popped(&mut pacing, 1050), [1]);
        assert_eq!(pacing.after(0, 1060), Next::Wait);
        assert_eq!(pacing.next_ns(), Some(1100));
        assert_eq!(popped(&mut pacing, 1100), [0]);
        assert_eq!(pacing.after(0, 1301), Next::Wait);
        assert_eq!(pacing.next_ns(), Some(1400));
        assert_eq!(pacing.after(1, 1302), Next::Wait);
        assert_eq!(pacing.next_ns(), Some(1350));
        assert_eq!(pacing.users(), Some(2));
    }

    #[test]
    fn users_join_and_leave_after_their_iteration() {
        let changes = vec![(0, 1), (10, 2), (20, 1), (30, 2), (40, 0)];
        let plan = ClosedPlan { changes, ..ClosedPlan::default() };
        let mut pacing = Pacing::new(PacingPlan::Closed(plan), 2, 0, 0);
        assert_eq!(popped(&mut pacing, 5), [0]);
        assert_eq!(popped(&mut pacing, 15), [1]);
        assert_eq!(popped(&mut pacing, 25), [] as [usize; 0]);
        assert_eq!(pacing.after(1, 26), Next::Wait);
        assert_eq!(pacing.users(), Some(1));
        assert_eq!(popped(&mut pacing, 35), [1]);
        assert_eq!(pacing.after(0, 36), Next::Begin);
        assert_eq!(popped(&mut pacing, 45), [] as [usize; 0]);
        assert_eq!((pacing.after(0, 46), pacing.after(1, 46)), (Next::Wait, Next::Wait));
        assert_eq!((pacing.next_ns(), pacing.users()), (Some(u64::MAX), Some(0)));
    }

    #[test]
    fn a_pause_moves_what_waits_and_lets_nothing_begin() {
        let plan = ClosedPlan { think: Some((10, 10, 1)), ..ClosedPlan::default() };
        let mut pacing = Pacing::new(PacingPlan::Closed(plan), 2, 100, 0);
        assert_eq!(popped(&mut pacing, 100), [0, 1]);
        assert_eq!(pacing.after(0, 105), Next::Wait); // until 115
        pacing.change(Vec::new(), 2, 110, 10);
        pacing.pause(110);
        assert_eq!(pacing.after(1, 150), Next::Wait); // 10 after it goes on
        assert_eq!(popped(&mut pacing, 200), [] as [usize; 0]);
        assert_eq!(pacing.next_ns(), Some(u64::MAX));
        pacing.change(Vec::new(), 2, 1010, 10);
        assert_eq!(pacing.next_ns(), Some(1015));
        assert_eq!(popped(&mut pacing, 1015), [0]);
        assert_eq!(popped(&mut pacing, 1020), [1]);
    }

    #[test]
    fn users_that_loop_are_paced_from_a_change_on() {
        let mut pacing = Pacing::of_looping(2);
        pacing.change(vec![(0, 2), (50, 3), (90, 0)], 3, 1060, 60);
        assert_eq!(popped(&mut pacing, 1060), [2]);
        assert_eq!(pacing.after(0, 1070), Next::Begin);
        pacing.change(vec![(0, 2), (50, 3), (70, 1), (90, 0)], 3, 1075, 75);
        assert_eq!(pacing.after(1, 1076), Next::Wait);
        assert_eq!(pacing.after(2, 1076), Next::Wait);
        assert_eq!((pacing.after(0, 1076), pacing.users()), (Next::Begin, Some(1)));
    }

    #[test]
    fn arrivals_go_on_with_other_stages_and_miss_what_was_due_for_long() {
        let arrivals = Arrivals::new(&[(0.0, 10.0), (10.0, 10.0)], 1, 0, None);
        let mut pacing = Pacing::new(PacingPlan::Open(arrivals), 100, 0, 0);
        assert_eq!(popped(&mut pacing, 1_950_000_000).len(), 20);
        let stages = [(0.0, 10.0), (1.0, 10.0), (0.0, 100.0), (9.0, 100.0)];
        assert_eq!(pacing.change_arrivals(&stages, 2_000_000_000, 2.0), 65);
        assert_eq!(popped(&mut pacing, 2_000_000_000).len(), 26);
        pacing.pause(2_000_000_000);
        assert_eq!(popped(&mut pacing, 5_000_000_000).len(), 0);
        assert_eq!(pacing.change_arrivals(&stages, 5_000_000_000, 2.0), 0);
        assert_eq!(pacing.next_ns().map(|at_ns| at_ns.div_ceil(1000)), Some(5_010_000));
    }

    #[test]
    fn a_user_ends_after_its_own_iterations() {
        let plan = ClosedPlan { iterations_per_vu: Some(2), ..ClosedPlan::default() };
        let mut pacing = Pacing::new(PacingPlan::Closed(plan), 1, 0, 0);
        assert_eq!(popped(&mut pacing, 0), [0]);
        assert_eq!(pacing.after(0, 1), Next::Begin);
        assert_eq!(pacing.after(0, 2), Next::Wait);
        assert_eq!(pacing.next_ns(), None);
    }

    #[test]
    fn an_arrival_without_a_free_user_is_dropped_and_so_are_those_left_at_the_end() {
        let arrivals = Arrivals::new(&[(0.0, 10.0), (1.0, 10.0)], 1, 0, None);
        let mut pacing = Pacing::new(PacingPlan::Open(arrivals), 1, 0, 0);
        let mut iterations = Iterations::default();
        assert_eq!(pacing.pop(150_000_000, &mut iterations, 0), Some(0));
        assert_eq!(pacing.pop(150_000_000, &mut iterations, 0), None);
        assert_eq!(pacing.due_ns(0), Some(0));
        assert_eq!(pacing.after(0, 160_000_000), Next::Wait);
        assert_eq!(pacing.pop(200_000_000, &mut iterations, 0), Some(0));
        pacing.close(450_000_000, &mut iterations, 0);
        assert_eq!(pacing.next_ns(), None);
        let found = iterations.metrics(false).unwrap();
        let counts: Vec<_> = found.iter().map(|metric| metric.count).collect();
        assert_eq!(counts, [0, 2, 1, 3]);
    }
}
