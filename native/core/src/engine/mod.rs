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
pub mod pacing;
pub mod program;
pub mod resolve;
pub mod response;
pub mod template;
mod timers;
pub mod tls;

use conn::Conn;
use exchange::Exchange;
use resolve::Resolver;
use response::{Expect, Keep, Response};
use template::{Origin, Template};
use timers::Timers;
use tls::TlsConfigs;

const SCRATCH_BYTES: usize = 64 * 1024;
const EVENTS_MAX: usize = 512;
/// Reads of one connection in one go, so that a fast sender cannot starve the others.
const READS_MAX: u32 = 16;
/// A failed look-up is believed for so long.
const DNS_FAILURE_NS: u64 = 1_000_000_000;

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
}

impl Default for Options {
    fn default() -> Self {
        Self { mode: Mode::PerVu, connecting_max: 256, shared_max: 128 }
    }
}

/// Names a request for as long as it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKey {
    slot: u32,
    generation: u32,
}

#[derive(Debug)]
pub struct Done<T> {
    pub token: T,
    pub exchange: Exchange,
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
    token: T,
    template: Arc<Template>,
    caller: Caller,
    origin: u32,
    response: Response,
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
    phases_ns: [Option<u64>; 4],
    bytes_sent: u64,
    bytes_received: u64,
    redirects: u32,
    hops: Vec<Exchange>,
    addresses_tried: usize,
    retried: bool,
    remote: Option<SocketAddr>,
}

impl<T> Request<T> {
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
    requests: Slab<Request<T>>,
    vus: Vec<Vu>,
    connecting: usize,
    connect_queue: VecDeque<RequestKey>,
    generation: u32,
    done: Vec<Done<T>>,
    scratch: Box<[u8]>,
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
            vus: Vec::new(),
            connecting: 0,
            connect_queue: VecDeque::new(),
            generation: 0,
            done: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
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

    pub fn take_done(&mut self) -> Vec<Done<T>> {
        std::mem::take(&mut self.done)
    }

    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
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
        template: Arc<Template>,
        caller: Caller,
        token: T,
        recorder: &mut Recorder,
    ) -> RequestKey {
        let now = now_ns();
        let origin = self.origin_number(&template);
        let generation = self.next_generation();
        let total_deadline_ns = now.saturating_add(template.limits.total_ns);
        let response = Response::new(expect(&template, caller, recorder));
        let slot = self.requests.insert(Request {
            token,
            template,
            caller,
            origin,
            response,
            conn: None,
            generation,
            submitted_ns: now,
            waiting_since_ns: now,
            phase_since_ns: now,
            started_ns: None,
            hop_started_ns: now,
            deadline_ns: total_deadline_ns,
            total_deadline_ns,
            phases_ns: [None; 4],
            bytes_sent: 0,
            bytes_received: 0,
            redirects: 0,
            hops: Vec::new(),
            addresses_tried: 0,
            retried: false,
            remote: None,
        }) as u32;
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

    /// Moves everything that is ready, waiting up to `wait_ns` for the first of it.
    pub fn poll(&mut self, wait_ns: u64, recorder: &mut Recorder) -> io::Result<()> {
        let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        let timeout = Timespec {
            tv_sec: (wait_ns / 1_000_000_000) as i64,
            tv_nsec: (wait_ns % 1_000_000_000) as i64,
        };
        let events: &[epoll::Event] = match epoll::wait(&self.epoll, &mut room, Some(&timeout)) {
            Ok((events, _)) => events,
            Err(rustix::io::Errno::INTR) => &[],
            Err(error) => return Err(error.into()),
        };
        for event in events {
            match event.data.u64() {
                TIMER_KEY => self.on_timer(recorder),
                WAKE_KEY => self.on_names(recorder),
                key => self.on_ready(key as u32, (key >> 32) as u32, event.flags, recorder),
            }
        }
        self.rearm_timer();
        Ok(())
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
