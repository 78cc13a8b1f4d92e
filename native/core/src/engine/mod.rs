//! The load engine: many exchanges on one thread and one epoll set, in layers.
//!
//! - `transport`: sockets, TLS and arrival times. Knows no protocol.
//! - `protocol`: the interface of a protocol and the list of all; each is a directory (`http1`).
//! - `serving`, `connecting`, `following`, `ending`: the way of a request from its call through
//!   names, connections and redirects to its end.
//!
//! `send` begins a request, `poll` moves everything that is ready, `take_done` hands out what ended
//! and `take_part` what requests deliver before they end. Timing is taken here, next to the system
//! calls. The engine knows requests, connections and virtual users (as numbers); what a step is, and
//! who waits for an answer, is the caller's (`T`).

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
pub mod draws;
mod ending;
pub mod error;
pub mod exchange;
mod following;
pub mod http;
pub mod http1;
pub mod http2;
pub mod http3;
pub mod pacing;
pub mod program;
pub mod protocol;
pub mod raw;
pub mod replay;
pub mod request;
mod serving;
pub mod streams;
#[cfg(test)]
mod tests;
mod timers;
pub mod transport;
pub mod websocket;

use conn::Conn;
use error::{ErrorClass, Failure};
use exchange::Exchange;
use http::template::{Origin, Template};
use protocol::Session;
use request::{expect, Caller, Part, Request, RequestKey, Requests};
use timers::Timers;
use transport::kernel_times::ClockPair;
use transport::resolve::Resolver;
use transport::tls::TlsConfigs;
use transport::Scratch;

const EVENTS_MAX: usize = 512;
/// Reads of one connection in one go, so that a fast sender cannot starve the others.
const READS_MAX: u32 = 16;
/// Requests that are kept to be used again, so that none is allocated while the load is even.
const SPARE_MAX: usize = 1024;
/// A failed look-up is believed for so long.
const DNS_FAILURE_NS: u64 = 1_000_000_000;

/// Of a connection, as long as it is open. Edge-triggered: an event says that something is new, so
/// what is left unread or unwritten is not reported again.
const WATCHED: epoll::EventFlags = epoll::EventFlags::IN
    .union(epoll::EventFlags::OUT)
    .union(epoll::EventFlags::RDHUP)
    .union(epoll::EventFlags::ET);

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

/// A request that has ended. `Engine::reuse` takes it back when its exchange is no longer needed.
#[derive(Debug)]
pub struct Done<T> {
    request: Box<Request>,
    token: Option<T>,
}

impl<T> Done<T> {
    #[must_use]
    pub fn exchange(&self) -> &Exchange {
        &self.request.exchange
    }

    /// The caller's token, if it was not taken before.
    pub fn take_token(&mut self) -> Option<T> {
        self.token.take()
    }

    /// The exchange by value; an empty one stays behind.
    pub fn take_exchange(&mut self) -> Exchange {
        let exchange = &mut self.request.exchange;
        let empty = Exchange::new(exchange.step, exchange.template.clone());
        std::mem::replace(exchange, empty)
    }
}

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
    /// Shared mode: connections that requests may begin on, and how many there are in all.
    listed: Vec<u32>,
    open: usize,
}

#[derive(Debug, Default)]
struct Vu {
    /// Connections that requests may begin on, each with its origin.
    listed: Vec<(u32, u32)>,
    jar: Option<Box<CookieStore>>,
}

pub struct Engine<T> {
    id: u32,
    options: Options,
    epoll: OwnedFd,
    timer: OwnedFd,
    timer_at_ns: Option<u64>,
    timers: Timers,
    /// Timers of transports, by the number of the connection.
    wakes: Timers,
    resolver: Resolver,
    tls: TlsConfigs,
    origins: Vec<OriginState>,
    origin_numbers: HashMap<Origin, u32>,
    conns: Slab<Conn>,
    requests: Requests,
    /// Of each request, by its slot.
    tokens: Vec<Option<T>>,
    #[allow(clippy::vec_box)] // they move in and out of the table by pointer
    spare: Vec<Box<Request>>,
    vus: Vec<Vu>,
    connecting: usize,
    connect_queue: VecDeque<RequestKey>,
    /// Requests waiting for a connection that is being opened, by its number.
    joined: HashMap<u32, Vec<RequestKey>>,
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
    holds_writes: bool,
    /// Connections with requests that were held back.
    held_writes: Vec<u32>,
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
            wakes: Timers::default(),
            resolver,
            tls: TlsConfigs::default(),
            origins: Vec::new(),
            origin_numbers: HashMap::new(),
            conns: Slab::new(),
            requests: Requests::default(),
            tokens: Vec::new(),
            spare: Vec::new(),
            vus: Vec::new(),
            connecting: 0,
            connect_queue: VecDeque::new(),
            joined: HashMap::new(),
            generation: 0,
            done: VecDeque::new(),
            scratch: Scratch::default(),
            clocks: ClockPair::default(),
            ready: Vec::with_capacity(EVENTS_MAX),
            handled: 0,
            is_timer_due: false,
            held_until_ns: 0,
            holds_writes: false,
            held_writes: Vec::new(),
        })
    }

    /// Readable whenever `poll` has something to do.
    pub fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    pub fn in_flight(&self) -> usize {
        self.requests.table.len()
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
            self.spare.push(done.request);
        }
    }

    /// The first part that a request delivered and that was not taken yet.
    pub fn take_part(&mut self) -> Option<(RequestKey, Part)> {
        self.requests.parts.pop_front()
    }

    /// The token of a request that was not taken yet.
    pub fn token(&self, key: RequestKey) -> Option<&T> {
        if self.is_live(key) {
            return self.tokens.get(key.slot as usize)?.as_ref();
        }
        let ended = self.done.iter().find(|done| done.request.generation == key.generation)?;
        ended.token.as_ref()
    }

    /// Hands a part to a request, as far as its protocol takes any. One that has no connection yet
    /// gets it with its beginning.
    pub fn push(
        &mut self,
        key: RequestKey,
        part: Part,
        recorder: &mut Recorder,
    ) -> Result<(), Failure> {
        let ended = || Failure::new(ErrorClass::Reset, "the call has ended");
        let live = self.requests.table.get_mut(key.slot as usize);
        let request = live.filter(|request| request.generation == key.generation);
        let request = request.ok_or_else(ended)?;
        let conn = request.conn.and_then(|number| self.conns.get_mut(number as usize));
        let Some((number, session)) = request.conn.zip(conn.and_then(|conn| conn.session.as_mut()))
        else {
            request.queued.push(part);
            return Ok(());
        };
        session.push(key.slot, part)?;
        self.write(number, recorder);
        Ok(())
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
                request.renew(template, caller, expect);
                request
            }
            None => Box::new(Request::new(template, caller, expect)),
        };
        request.origin = self.origin_number(template);
        request.generation = generation;
        request.submit(now);
        let deadline_ns = request.deadline_ns;
        let slot = self.requests.table.insert(request) as u32;
        if self.tokens.len() <= slot as usize {
            self.tokens.resize_with(slot as usize + 1, || None);
        }
        if let Some(place) = self.tokens.get_mut(slot as usize) {
            *place = Some(token);
        }
        self.timers.arm(slot, deadline_ns);
        self.dispatch(slot, recorder);
        self.rearm_timer();
        RequestKey { slot, generation }
    }

    /// Forgets a request; its connection, if it has one, is closed.
    pub fn abort(&mut self, key: RequestKey, recorder: &mut Recorder) -> Option<T> {
        if !self.is_live(key) {
            return None;
        }
        self.drop_request(key.slot, recorder)
    }

    /// Forgets every request, and notes how long each had taken.
    pub fn cut_all(&mut self, recorder: &mut Recorder) -> Vec<T> {
        // Nobody is left to be served by what becomes free.
        self.connect_queue.clear();
        for origin in &mut self.origins {
            origin.waiting.clear();
        }
        self.joined.clear();
        let now = now_ns();
        for (_, request) in &self.requests.table {
            recorder.record_cut(request.caller.step, now.saturating_sub(request.since_ns()));
        }
        let slots: Vec<u32> = self.requests.table.iter().map(|(slot, _)| slot as u32).collect();
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
