//! Which code held the event loop, and for how long.
//!
//! The loop's thread notes each *turn*, the moment at which one stretch of Python code has ended
//! and the next may begin (`Turns`). A thread of its own (`spawn`) looks at the last turn every
//! few milliseconds. If it is old, the loop is idle or held: the thread asks the loop through a
//! descriptor that an idle loop answers at once. If the loop is held, the thread asks `look` which
//! code runs. So only code that does hold the loop pays for being watched.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{eventfd, EventfdFlags};

use crate::clock;

/// Shorter stretches are the normal work of an event loop.
pub const HOLD_NS: u64 = 10_000_000;
const TICK_NS: u64 = 5_000_000;
/// Holds of one tick are one or two; more are kept only while the watching thread gets no core.
const ENDED_MAX: usize = 256;
const STACK_BYTES: usize = 512 << 10;

/// A stretch in which the loop did not turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The turn before it.
    pub turn_ns: u64,
    pub began_ns: u64,
    pub ended_ns: u64,
}

/// The turns of an event loop, written by its thread.
#[derive(Debug, Default)]
pub struct Turns {
    turned_ns: AtomicU64,
    /// When the loop was asked whether it is idle; 0 if it has answered.
    asked_ns: AtomicU64,
    /// A batch of callbacks runs, so the loop is not idle.
    is_calling: AtomicBool,
    /// When the last hold ended.
    held_ns: AtomicU64,
    ended: Mutex<Vec<Hold>>,
}

impl Turns {
    /// The loop waited for descriptors until now, or ran code that notes no turns.
    pub fn woke(&self, now_ns: u64) {
        let turn_ns = self.turned_ns.swap(now_ns, Relaxed);
        let asked_ns = self.asked_ns.swap(0, Relaxed);
        if asked_ns != 0 && now_ns.saturating_sub(turn_ns) >= HOLD_NS {
            // It began after the last turn and before the question.
            let began_ns = turn_ns + asked_ns.saturating_sub(turn_ns) / 2;
            self.note(Hold { turn_ns, began_ns, ended_ns: now_ns });
        }
    }

    /// Callbacks follow, each of which ends with `called`.
    pub fn begin_calls(&self, now_ns: u64) {
        self.turned_ns.store(now_ns, Relaxed);
        self.is_calling.store(true, Relaxed);
    }

    pub fn called(&self, now_ns: u64) {
        let turn_ns = self.turned_ns.swap(now_ns, Relaxed);
        if now_ns.saturating_sub(turn_ns) >= HOLD_NS {
            self.note(Hold { turn_ns, began_ns: turn_ns, ended_ns: now_ns });
        }
    }

    pub fn end_calls(&self) {
        self.is_calling.store(false, Relaxed);
    }

    /// When the last hold of the loop ended; 0 if there was none.
    #[must_use]
    pub fn held_ns(&self) -> u64 {
        self.held_ns.load(Relaxed)
    }

    fn note(&self, hold: Hold) {
        self.held_ns.store(hold.ended_ns, Relaxed);
        let mut ended = self.ended();
        if ended.len() < ENDED_MAX {
            ended.push(hold);
        }
    }

    fn ended(&self) -> MutexGuard<'_, Vec<Hold>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// CPU time that a thread has used, and time that it was ready to run and waited for a core.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    pub cpu_ns: u64,
    pub wait_ns: u64,
}

/// What the watching thread does next.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Rest,
    /// Find out whether the loop is idle.
    Ask,
    /// Find out which code holds the loop since that turn.
    Look(u64),
}

/// The code that was seen to hold the loop.
#[derive(Clone, Debug)]
pub struct Holder<N> {
    pub name: N,
    /// The task it runs in: with another one, another stretch has begun.
    pub task: u64,
}

/// A stretch of one task within a hold; the loop may have run several tasks without a turn.
#[derive(Debug)]
struct Stretch<N> {
    holder: Option<Holder<N>>,
    /// When it was first seen, and what the thread had used until then.
    seen_ns: u64,
    usage: Usage,
}

/// A hold with its name. Time in which the thread waited for a core is not part of it.
#[derive(Debug, PartialEq, Eq)]
pub struct NamedHold<N> {
    pub name: N,
    pub held_ns: u64,
    pub cpu_ns: u64,
}

/// Decides at each tick; has no clock and no thread.
#[derive(Debug)]
struct Watch<N> {
    /// The turn since which the loop is held, and what was seen since.
    turn_ns: u64,
    stretches: Vec<Stretch<N>>,
}

impl<N> Watch<N> {
    fn new() -> Self {
        Self { turn_ns: 0, stretches: Vec::new() }
    }

    /// Returns the holds that have ended.
    fn ended(
        &mut self,
        turns: &Turns,
        now_ns: u64,
        usage: impl Fn() -> Usage,
    ) -> Vec<NamedHold<N>> {
        let holds = std::mem::take(&mut *turns.ended());
        let Some(hold) = holds.into_iter().find(|hold| hold.turn_ns == self.turn_ns) else {
            return Vec::new(); // nothing was seen of the others: they were hardly long enough
        };
        let usage = usage();
        // The kernel adds the time that a thread waited for a core when the thread runs again, so
        // a wait that went on when the hold was first seen is part of the difference.
        let before = self.stretches.first().map_or(usage, |stretch| stretch.usage);
        let waited_ns = usage.wait_ns.saturating_sub(before.wait_ns);
        let long_ns = hold.ended_ns.saturating_sub(hold.began_ns).max(1);
        let mut named = Vec::new();
        let (mut ended_ns, mut after_ns, mut after) = (hold.ended_ns, now_ns, usage);
        while let Some(stretch) = self.stretches.pop() {
            let is_first = self.stretches.is_empty();
            let from_ns = if is_first { hold.began_ns } else { stretch.seen_ns };
            let wall_ns = ended_ns.saturating_sub(from_ns);
            let held_ns = part_of(wall_ns, long_ns.saturating_sub(waited_ns), long_ns);
            // From when it was seen to when it had ended, and while the thread had a core or
            // needed none.
            let seen_ns = after_ns.saturating_sub(stretch.seen_ns);
            let seen_ns =
                seen_ns.saturating_sub(after.wait_ns.saturating_sub(stretch.usage.wait_ns));
            let cpu_ns = after.cpu_ns.saturating_sub(stretch.usage.cpu_ns);
            (ended_ns, after_ns, after) = (from_ns, stretch.seen_ns, stretch.usage);
            if let Some(holder) = stretch.holder.filter(|_| held_ns >= HOLD_NS) {
                let cpu_ns = part_of(held_ns, cpu_ns, seen_ns);
                named.push(NamedHold { name: holder.name, held_ns, cpu_ns });
            }
        }
        named
    }

    fn tick(turns: &Turns, now_ns: u64) -> Next {
        let turn_ns = turns.turned_ns.load(Relaxed);
        let is_asked = turns.asked_ns.load(Relaxed) != 0;
        let is_old = now_ns.saturating_sub(turn_ns) >= TICK_NS;
        if is_old && (is_asked || turns.is_calling.load(Relaxed)) {
            return Next::Look(turn_ns);
        }
        if is_old {
            Next::Ask
        } else {
            Next::Rest
        }
    }

    /// Notes the code that held the loop since a turn; None if it is not the user's.
    fn seen(&mut self, turn_ns: u64, holder: Option<Holder<N>>, now_ns: u64, usage: Usage) {
        if self.turn_ns != turn_ns {
            self.turn_ns = turn_ns;
            self.stretches.clear();
        }
        let task = |holder: &Option<Holder<N>>| holder.as_ref().map(|holder| holder.task);
        match self.stretches.last_mut() {
            Some(stretch) if task(&stretch.holder) == task(&holder) => stretch.holder = holder,
            _ => self.stretches.push(Stretch { holder, seen_ns: now_ns, usage }),
        }
    }
}

/// `whole * part / all`, without overflow.
#[allow(clippy::cast_possible_truncation)] // `part` is at most `all`
fn part_of(whole: u64, part: u64, all: u64) -> u64 {
    (u128::from(whole) * u128::from(part.min(all)) / u128::from(all.max(1))) as u64
}

/// Watches the thread that calls `spawn` until `stop`.
#[derive(Debug)]
pub struct LoopWatch {
    turns: Arc<Turns>,
    question: Arc<OwnedFd>,
    stop: Arc<(Mutex<bool>, Condvar)>,
}

impl LoopWatch {
    /// `look` returns the code that runs on the loop's thread, None if it is not the user's;
    /// `add` gets every hold of 10 ms and more that has a name.
    ///
    /// # Errors
    /// There is no descriptor or no thread left.
    pub fn spawn<N: 'static>(
        turns: Arc<Turns>,
        mut look: impl FnMut() -> Option<Holder<N>> + Send + 'static,
        mut add: impl FnMut(&NamedHold<N>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let question = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let usage = UsageFile::of_this_thread();
        turns.asked_ns.store(0, Relaxed);
        turns.turned_ns.store(clock::now_ns(), Relaxed);
        let made = Self {
            turns: Arc::clone(&turns),
            question: Arc::clone(&question),
            stop: Arc::clone(&stop),
        };
        let watch = move || {
            let mut watch = Watch::new();
            while !is_stopped(&stop) {
                let now_ns = clock::now_ns();
                watch.ended(&turns, now_ns, || usage.read()).iter().for_each(&mut add);
                match Watch::<N>::tick(&turns, now_ns) {
                    Next::Rest => {}
                    Next::Ask => {
                        turns.asked_ns.store(now_ns, Relaxed);
                        // It cannot fail: it is read before the counter is full.
                        let _ = rustix::io::write(question.as_fd(), &1_u64.to_ne_bytes());
                    }
                    Next::Look(turn_ns) => {
                        let used = usage.read();
                        let holder = look();
                        if turns.turned_ns.load(Relaxed) == turn_ns {
                            watch.seen(turn_ns, holder, now_ns, used);
                        }
                    }
                }
            }
        };
        std::thread::Builder::new()
            .name("loop watch".into())
            .stack_size(STACK_BYTES)
            .spawn(watch)?;
        Ok(made)
    }

    /// Readable when the loop is to call `answer`.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.question.as_raw_fd()
    }

    pub fn answer(&self) {
        let mut counter = [0; 8];
        let _ = rustix::io::read(self.question.as_fd(), &mut counter);
        self.turns.woke(clock::now_ns());
    }

    pub fn stop(&self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
    }
}

impl Drop for LoopWatch {
    fn drop(&mut self) {
        self.stop();
    }
}

fn is_stopped((flag, changed): &(Mutex<bool>, Condvar)) -> bool {
    let flag = flag.lock().unwrap_or_else(PoisonError::into_inner);
    let tick = Duration::from_nanos(TICK_NS);
    let waited = changed.wait_timeout_while(flag, tick, |is_stopped| !*is_stopped);
    *waited.unwrap_or_else(PoisonError::into_inner).0
}

/// The kernel's own figures of a thread. All zero where the kernel keeps none: then every hold
/// looks like a blocking call, and time without a core is part of it.
struct UsageFile(Option<File>);

impl UsageFile {
    fn of_this_thread() -> Self {
        Self(File::open("/proc/thread-self/schedstat").ok())
    }

    fn read(&self) -> Usage {
        let mut text = [0; 96];
        let read = self.0.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let text = std::str::from_utf8(text.get(..read.unwrap_or(0)).unwrap_or_default());
        let mut figures = text.unwrap_or_default().split_ascii_whitespace();
        let mut next = || figures.next().and_then(|figure| figure.parse().ok()).unwrap_or(0);
        Usage { cpu_ns: next(), wait_ns: next() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::{Holder, NamedHold, Next, Turns, Usage, Watch};

    const MS: u64 = 1_000_000;

    fn used(cpu_ms: u64, wait_ms: u64) -> Usage {
        Usage { cpu_ns: cpu_ms * MS, wait_ns: wait_ms * MS }
    }

    /// A hold from 100 ms on, looked at every 5 ms: each tick sees the task given for it, and the
    /// thread used `cpu_ms` more. After it the thread has waited for a core for `wait_ms`.
    fn hold(tasks: &[u64], cpu_ms: u64, wait_ms: u64) -> Vec<NamedHold<u64>> {
        let turns = Turns::default();
        let mut watch = Watch::new();
        turns.begin_calls(100 * MS);
        let (mut now_ns, mut cpu) = (100 * MS, 0);
        for &task in tasks {
            (now_ns, cpu) = (now_ns + 5 * MS, cpu + cpu_ms);
            let usage = used(cpu, 0);
            assert!(watch.ended(&turns, now_ns, || usage).is_empty());
            assert_eq!(Watch::<u64>::tick(&turns, now_ns), Next::Look(100 * MS));
            watch.seen(100 * MS, Some(Holder { name: task, task }), now_ns, usage);
        }
        turns.called(now_ns + 5 * MS);
        turns.end_calls();
        watch.ended(&turns, now_ns + 7 * MS, || used(cpu + cpu_ms, wait_ms))
    }

    #[test]
    fn a_blocking_stretch_is_measured_and_uses_no_cpu_time() {
        let expected = NamedHold { name: 7, held_ns: 30 * MS, cpu_ns: 0 };
        assert_eq!(hold(&[7, 7, 7, 7, 7], 0, 0), [expected]);
    }

    #[test]
    fn a_computing_stretch_uses_cpu_time() {
        let found = &hold(&[7, 7, 7, 7, 7], 5, 0)[0];
        assert!(found.cpu_ns > 25 * MS && found.cpu_ns <= found.held_ns);
        let starved = &hold(&[7, 7, 7, 7, 7, 7, 7, 7], 2, 25)[0];
        assert!(starved.cpu_ns > starved.held_ns / 2);
    }

    #[test]
    fn tasks_that_run_one_after_the_other_hold_the_loop_each_for_itself() {
        let holds = hold(&[7, 7, 7, 8, 8, 8, 8], 0, 0);
        let found: Vec<_> = holds.iter().map(|hold| (hold.name, hold.held_ns / MS)).collect();
        assert_eq!(found, [(8, 20), (7, 20)]);
    }

    #[test]
    fn waiting_for_a_core_is_not_a_hold() {
        assert_eq!(hold(&[7, 7, 7, 7, 7], 1, 8)[0].held_ns, 22 * MS);
        assert!(hold(&[7, 7, 7, 7, 7], 1, 25).is_empty());
    }

    #[test]
    fn an_idle_loop_is_asked_and_holds_nothing() {
        let turns = Turns::default();
        let mut watch: Watch<u64> = Watch::new();
        turns.woke(100 * MS);
        assert_eq!(Watch::<u64>::tick(&turns, 103 * MS), Next::Rest);
        assert_eq!(Watch::<u64>::tick(&turns, 106 * MS), Next::Ask);
        turns.asked_ns.store(106 * MS, super::Relaxed);
        turns.woke(106 * MS + 1);
        assert_eq!(Watch::<u64>::tick(&turns, 108 * MS), Next::Rest);
        turns.woke(400 * MS); // nobody asked
        assert!(watch.ended(&turns, 401 * MS, || used(0, 0)).is_empty());
    }

    #[test]
    fn a_loop_that_does_not_answer_is_held_by_the_code_that_runs() {
        let turns = Turns::default();
        let mut watch = Watch::new();
        turns.woke(100 * MS);
        assert_eq!(Watch::<u64>::tick(&turns, 106 * MS), Next::Ask);
        turns.asked_ns.store(106 * MS, super::Relaxed);
        assert_eq!(Watch::<u64>::tick(&turns, 111 * MS), Next::Look(100 * MS));
        watch.seen(100 * MS, Some(Holder { name: 1, task: 1 }), 111 * MS, used(0, 0));
        turns.woke(133 * MS);
        let holds = watch.ended(&turns, 134 * MS, || used(0, 0));
        assert_eq!((holds[0].name, holds[0].held_ns), (1, 30 * MS));
    }
}
