//! The load engine: many HTTP/1.1 exchanges on one thread and one epoll set.
//!
//! `send` begins a request, `poll` moves everything that is ready, `take_done` hands
//! out what ended. Timing is taken here, next to the system calls. The engine knows
//! requests, connections and virtual users (as numbers); what a step is, and who waits
//! for an answer, is the caller's (`T`).

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use cookie_store::CookieStore;
use rustix::event::epoll;
use rustix::time::{timerfd_create, TimerfdClockId, TimerfdFlags, Timespec};
use slab::Slab;

use crate::clock::now_ns;
use crate::recorder::Recorder;

mod conn;
mod connecting;
pub mod decode;
mod ending;
pub mod error;
pub mod exchange;
mod exchanging;
mod kernel_times;
pub mod pacing;
pub mod program;
pub mod resolve;
pub mod response;
pub mod template;
mod timers;
pub mod tls;

use conn::{Conn, Scratch};
use exchange::Exchange;
use kernel_times::ClockPair;
use resolve::Resolver;
use response::{Expect, HeadMemo, Keep, Response};
use template::{Origin, Template};
use timers::Timers;
use tls::TlsConfigs;

const EVENTS_MAX: usize = 512;
/// Reads of one connection in one go, so that a fast sender cannot starve the others.
const READS_MAX: u32 = 16;
/// Requests that are kept to be used again, so that none is allocated while the load is even.
const SPARE_MAX: usize = 1024;
/// Steps whose last response head is remembered.
const MEMOS_MAX: usize = 1024;
/// A failed look-up is believed for so long.
const DNS_FAILURE_NS: u64 = 1_000_000_000;

/// Of a connection, as long as it is open. Edge-triggered: an event says that something is new, so
/// what is left unread or unwritten is not reported again.
const WATCHED: epoll::EventFlags = epoll::EventFlags::IN
    .union(epoll::EventFlags::OUT)
    .union(epoll::EventFlags::RDHUP)
    .union(epoll::EventFlags::ET);

/// Response bytes that a socket has room for without anything being read: less than what Linux
/// gives every TCP socket to begin with.
const COVERED_BYTES: u64 = 64 * 1024;

const TIMER_KEY: u64 = u32::MAX as u64;
const WAKE_KEY: u64 = u32::MAX as u64 - 1;

static ENGINES: AtomicU32 = AtomicU32::new(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    PerVu,
    Shared,
    PerRequest,
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub mode: Mode,
    /// Connects under way at once.
    pub connecting_max: usize,
    /// Connections per origin where they are shared.
    pub shared_max: usize,
    /// Latencies end when the kernel received the response, not when it was read.
    pub kernel_times: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { mode: Mode::PerVu, connecting_max: 256, shared_max: 128, kernel_times: false }
    }
}

/// Names a request for as long as it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKey {
    slot: u32,
    generation: u32,
}

/// A request that has ended. `Engine::reuse` takes it back when its exchange is no longer needed.
#[derive(Debug)]
pub struct Done<T>(Box<Request<T>>);

impl<T> Done<T> {
    #[must_use]
    pub fn exchange(&self) -> &Exchange {
        &self.0.exchange
    }

    /// The caller's token, if it was not taken before.
    pub fn take_token(&mut self) -> Option<T> {
        self.0.token.take()
    }

    /// The exchange by value; an empty one stays behind.
    pub fn take_exchange(&mut self) -> Exchange {
        let empty = Exchange::new(self.0.exchange.step, self.0.exchange.template.clone());
        std::mem::replace(&mut self.0.exchange, empty)
    }
}

/// Who asks, and what of the answer they can see.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub vu: u32,
    pub step: u32,
    pub keep: Keep,
}

#[derive(Debug)]
struct Request<T> {
    token: Option<T>,
    caller: Caller,
    origin: u32,
    response: Response,
    /// What is known of the call so far.
    exchange: Exchange,
    conn: Option<u32>,
    generation: u32,
    submitted_ns: u64,
    /// When this hop began to wait for a connection.
    waiting_since_ns: u64,
    phase_since_ns: u64,
    started_ns: Option<u64>,
    hop_started_ns: u64,
    deadline_ns: u64,
    total_deadline_ns: u64,
    addresses_tried: u32,
    retried: bool,
    /// The kernel said when the last of the response arrived.
    is_timed: bool,
}

impl<T> Request<T> {
    /// Whether its times are right although the loop was held: the kernel noted when the response
    /// arrived, there was room for all of it, and no connection had to be opened.
    fn is_covered(&self) -> bool {
        let [_, connect, tls, _] = self.exchange.phases_ns;
        let is_small = self.exchange.bytes_received <= COVERED_BYTES;
        self.is_timed && is_small && connect.is_none() && tls.is_none()
    }

    fn new(template: Arc<Template>, caller: Caller, expect: Expect) -> Self {
        Self {
            token: None,
            caller,
            origin: 0,
            response: Response::new(expect),
            exchange: Exchange::new(caller.step, template),
            conn: None,
            generation: 0,
            submitted_ns: 0,
            waiting_since_ns: 0,
            phase_since_ns: 0,
            started_ns: None,
            hop_started_ns: 0,
            deadline_ns: 0,
            total_deadline_ns: 0,
            addresses_tried: 0,
            retried: false,
            is_timed: false,
        }
    }

    /// Latency counts from the first byte sent, or from the call if none was.
    fn since_ns(&self) -> u64 {
        self.started_ns.unwrap_or(self.submitted_ns)
    }
}

const BLOCKED: usize = 0;
const CONNECT: usize = 1;
const TLS: usize = 2;
const FIRST_BYTE: usize = 3;

#[derive(Debug)]
enum Names {
    Unknown,
    Asking,
    Known(Vec<SocketAddr>),
    Failed { reason: String, until_ns: u64 },
}

#[derive(Debug)]
struct OriginState {
    origin: Origin,
    names: Names,
    next_address: usize,
    /// Requests waiting for names, or for a shared connection.
    waiting: VecDeque<RequestKey>,
    /// Shared mode: connections nobody uses, and how many there are in all.
    idle: Vec<u32>,
    open: usize,
}

#[derive(Debug, Default)]
struct Vu {
    idle: Vec<(u32, u32)>, // origin, connection
    jar: Option<Box<CookieStore>>,
}

pub struct Engine<T> {
    id: u32,
    options: Options,
    epoll: OwnedFd,
    timer: OwnedFd,
    timer_at_ns: Option<u64>,
    timers: Timers,
    resolver: Resolver,
    tls: TlsConfigs,
    origins: Vec<OriginState>,
    origin_numbers: HashMap<Origin, u32>,
    conns: Slab<Conn>,
    requests: Slab<Box<Request<T>>>,
    spare: Vec<Box<Request<T>>>,
    memos: Vec<HeadMemo>,
    vus: Vec<Vu>,
    connecting: usize,
    connect_queue: VecDeque<RequestKey>,
    generation: u32,
    done: VecDeque<Done<T>>,
    scratch: Scratch,
    /// Read before the sockets that are ready.
    clocks: ClockPair,
    /// What the last `wait` found ready, and how many of these were handled.
    ready: Vec<(u64, epoll::EventFlags)>,
    handled: usize,
    is_timer_due: bool,
    /// When the caller's loop was last held until.
    held_until_ns: u64,
}

impl<T> Engine<T> {
    pub fn new(options: Options) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let resolver = Resolver::new()?;
        epoll::add(&epoll, &timer, epoll::EventData::new_u64(TIMER_KEY), epoll::EventFlags::IN)?;
        let wake = epoll::EventData::new_u64(WAKE_KEY);
        epoll::add(&epoll, &*resolver.wake, wake, epoll::EventFlags::IN)?;
        Ok(Self {
            id: ENGINES.fetch_add(1, Ordering::Relaxed),
            options,
            epoll,
            timer,
            timer_at_ns: None,
            timers: Timers::default(),
            resolver,
            tls: TlsConfigs::default(),
            origins: Vec::new(),
            origin_numbers: HashMap::new(),
            conns: Slab::new(),
            requests: Slab::new(),
            spare: Vec::new(),
            memos: Vec::new(),
            vus: Vec::new(),
            connecting: 0,
            connect_queue: VecDeque::new(),
            generation: 0,
            done: VecDeque::new(),
            scratch: Scratch::default(),
            clocks: ClockPair::default(),
            ready: Vec::with_capacity(EVENTS_MAX),
            handled: 0,
            is_timer_due: false,
            held_until_ns: 0,
        })
    }

    /// Readable whenever `poll` has something to do.
    pub fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    pub fn in_flight(&self) -> usize {
        self.requests.len()
    }

    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// The request that ended first of those that were not taken yet.
    pub fn take_done(&mut self) -> Option<Done<T>> {
        self.done.pop_front()
    }

    /// All requests that ended and were not taken yet, in order.
    pub fn take_all_done(&mut self) -> VecDeque<Done<T>> {
        std::mem::take(&mut self.done)
    }

    /// Takes back a request that has ended.
    pub fn reuse(&mut self, done: Done<T>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(done.0);
        }
    }

    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// How many requests ended and were not taken yet.
    pub fn done_count(&self) -> usize {
        self.done.len()
    }

    /// Gives an origin its addresses up front, so that no look-up happens under load.
    pub fn pin(&mut self, template: &Template, addresses: Vec<SocketAddr>) {
        let number = self.origin_number(template);
        if let Some(origin) = self.origins.get_mut(number as usize) {
            origin.names = Names::Known(addresses);
        }
    }

    /// Begins a request. It ends in `take_done`, unless it is aborted.
    pub fn send(
        &mut self,
        template: &Arc<Template>,
        caller: Caller,
        token: T,
        now: u64,
        recorder: &mut Recorder,
    ) -> RequestKey {
        let generation = self.next_generation();
        let expect = expect(template, caller, recorder);
        let mut request = match self.spare.pop() {
            Some(mut request) => {
                request.response = Response::new(expect);
                request.exchange.renew(caller.step, template);
                request.caller = caller;
                request.conn = None;
                request.started_ns = None;
                request.addresses_tried = 0;
                request.retried = false;
                request.is_timed = false;
                request
            }
            None => Box::new(Request::new(template.clone(), caller, expect)),
        };
        let total_deadline_ns = now.saturating_add(template.limits.total_ns);
        request.token = Some(token);
        request.origin = self.origin_number(template);
        request.generation = generation;
        request.submitted_ns = now;
        request.waiting_since_ns = now;
        request.phase_since_ns = now;
        request.hop_started_ns = now;
        request.deadline_ns = total_deadline_ns;
        request.total_deadline_ns = total_deadline_ns;
        let slot = self.requests.insert(request) as u32;
        self.timers.arm(slot, total_deadline_ns);
        self.dispatch(slot, recorder);
        self.rearm_timer();
        RequestKey { slot, generation }
    }

    /// Forgets a request; its connection, if it has one, is closed.
    pub fn abort(&mut self, key: RequestKey, recorder: &mut Recorder) -> Option<T> {
        self.requests.get(key.slot as usize).filter(|r| r.generation == key.generation)?;
        self.drop_request(key.slot, recorder)
    }

    /// Forgets every request, and notes how long each had taken.
    pub fn cut_all(&mut self, recorder: &mut Recorder) -> Vec<T> {
        // Nobody is left to be served by what becomes free.
        self.connect_queue.clear();
        for origin in &mut self.origins {
            origin.waiting.clear();
        }
        let now = now_ns();
        for (_, request) in &self.requests {
            recorder.record_cut(request.caller.step, now.saturating_sub(request.since_ns()));
        }
        let slots: Vec<u32> = self.requests.iter().map(|(slot, _)| slot as u32).collect();
        slots.into_iter().filter_map(|slot| self.drop_request(slot, recorder)).collect()
    }

    /// The caller's code held the loop until then, so nothing was read or timed.
    pub fn note_hold(&mut self, until_ns: u64) {
        self.held_until_ns = until_ns;
    }

    /// Moves everything that is ready.
    pub fn poll(&mut self, recorder: &mut Recorder) -> io::Result<()> {
        self.wait(0)?;
        while self.handle_next(recorder) {}
        Ok(())
    }

    /// Waits up to `wait_ns` for something to be ready; `handle_next` moves it.
    pub fn wait(&mut self, wait_ns: u64) -> io::Result<()> {
        let timeout = Timespec {
            tv_sec: (wait_ns / 1_000_000_000) as i64,
            tv_nsec: (wait_ns % 1_000_000_000) as i64,
        };
        self.ready.clear();
        self.handled = 0;
        let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut room, Some(&timeout)) {
            Ok((events, _)) => {
                self.ready.extend(events.iter().map(|event| (event.data.u64(), event.flags)));
                if self.options.kernel_times {
                    self.clocks = ClockPair::now();
                }
                Ok(())
            }
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves one thing that was ready; false once all were moved.
    pub fn handle_next(&mut self, recorder: &mut Recorder) -> bool {
        let Some(&(key, flags)) = self.ready.get(self.handled) else {
            // Responses that are there are read before any request is said to have timed out.
            if self.is_timer_due && self.handled < EVENTS_MAX {
                self.is_timer_due = false;
                self.on_timer(recorder);
            }
            self.rearm_timer();
            return false;
        };
        self.handled += 1;
        match key {
            TIMER_KEY => self.is_timer_due = true,
            WAKE_KEY => self.on_names(recorder),
            key => self.on_ready(key as u32, (key >> 32) as u32, flags, recorder),
        }
        true
    }
}

fn expect(template: &Template, caller: Caller, recorder: &Recorder) -> Expect {
    Expect {
        sampled_status: recorder.sampled_status(caller.step),
        is_head: template.method == "HEAD",
        keep: caller.keep,
        body_bytes_max: template.limits.body_bytes_max,
    }
}

/// Adds to a phase: a redirected call may connect more than once.
fn add(phases_ns: &mut [Option<u64>; 4], phase: usize, ns: u64) {
    if let Some(slot) = phases_ns.get_mut(phase) {
        *slot = Some(slot.unwrap_or(0) + ns);
    }
}
