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
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use cookie_store::{CookieStore, RawCookie};
use rustix::event::epoll;
use rustix::time::{
    timerfd_create, timerfd_settime, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags,
    Timespec,
};
use slab::Slab;

use crate::clock::now_ns;
use crate::recorder::Recorder;

mod conn;
pub mod decode;
pub mod error;
pub mod exchange;
pub mod program;
pub mod resolve;
pub mod response;
pub mod template;
mod timers;
pub mod tls;

use conn::{Conn, Stage, Written};
use error::{ErrorClass, Failure};
use exchange::Exchange;
use resolve::Resolver;
use response::{Expect, Keep, Progress, Response};
use template::{Origin, Template};
use timers::Timers;
use tls::{TlsConfigs, TlsProfile};

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
    addresses_tried: usize,
    retried: bool,
    remote: Option<SocketAddr>,
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
        let response = Response::new(expect(&template, caller));
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

    /// Forgets every request.
    pub fn abort_all(&mut self, recorder: &mut Recorder) -> Vec<T> {
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

    // ------------------------------------------------------------- origins and names

    fn origin_number(&mut self, template: &Template) -> u32 {
        if let Some(number) = template.origin_in(self.id) {
            return number;
        }
        let number = match self.origin_numbers.get(&template.origin) {
            Some(&number) => number,
            None => {
                let number = self.origins.len() as u32;
                let names = match template.origin.host.parse() {
                    Ok(address) => {
                        Names::Known(vec![SocketAddr::new(address, template.origin.port)])
                    }
                    Err(_) => Names::Unknown,
                };
                self.origins.push(OriginState {
                    origin: template.origin.clone(),
                    names,
                    next_address: 0,
                    waiting: VecDeque::new(),
                    idle: Vec::new(),
                    open: 0,
                });
                self.origin_numbers.insert(template.origin.clone(), number);
                number
            }
        };
        template.remember_origin(self.id, number);
        number
    }

    fn on_names(&mut self, recorder: &mut Recorder) {
        for (number, answer) in self.resolver.take() {
            let Some(origin) = self.origins.get_mut(number as usize) else { continue };
            origin.names = match answer {
                Ok(addresses) => Names::Known(addresses),
                Err(reason) => Names::Failed { reason, until_ns: now_ns() + DNS_FAILURE_NS },
            };
            let waiting = std::mem::take(&mut origin.waiting);
            for key in waiting {
                if self.is_live(key) {
                    self.dispatch(key.slot, recorder);
                }
            }
        }
    }

    // --------------------------------------------------------- finding a connection

    /// Brings a request to a connection: an idle one, a new one, or a queue for one.
    fn dispatch(&mut self, slot: u32, recorder: &mut Recorder) {
        let Some(request) = self.requests.get(slot as usize) else { return };
        let key = RequestKey { slot, generation: request.generation };
        let (number, vu, fresh) = (request.origin, request.caller.vu, request.retried);
        let Some(origin) = self.origins.get_mut(number as usize) else { return };
        match &origin.names {
            Names::Known(_) => {}
            Names::Failed { reason, until_ns } if *until_ns > now_ns() => {
                let failure = Failure::new(ErrorClass::Dns, reason.clone());
                return self.finish(slot, Some(failure), recorder);
            }
            Names::Asking => return origin.waiting.push_back(key),
            Names::Unknown | Names::Failed { .. } => {
                origin.waiting.push_back(key);
                origin.names = Names::Asking;
                let (host, port) = (origin.origin.host.clone(), origin.origin.port);
                if let Err(error) = self.resolver.start(number, &host, port) {
                    if let Some(origin) = self.origins.get_mut(number as usize) {
                        origin.names = Names::Unknown;
                        origin.waiting.pop_back();
                    }
                    let failure = Failure::new(ErrorClass::Dns, error.to_string());
                    self.finish(slot, Some(failure), recorder);
                }
                return;
            }
        }
        let idle = match self.options.mode {
            _ if fresh => None,
            Mode::PerRequest => None,
            Mode::Shared => origin.idle.pop(),
            Mode::PerVu => self.vus.get_mut(vu as usize).and_then(|vu| {
                let at = vu.idle.iter().rposition(|&(origin, _)| origin == number)?;
                Some(vu.idle.swap_remove(at).1)
            }),
        };
        match idle {
            Some(conn) => self.start(slot, conn, recorder),
            None if self.options.mode == Mode::Shared && origin.open >= self.options.shared_max => {
                origin.waiting.push_back(key);
            }
            None => self.connect(key, recorder),
        }
    }

    fn connect(&mut self, key: RequestKey, recorder: &mut Recorder) {
        if self.connecting >= self.options.connecting_max {
            self.connect_queue.push_back(key);
            return;
        }
        let Some(request) = self.requests.get_mut(key.slot as usize) else { return };
        let now = now_ns();
        if request.addresses_tried == 0 {
            add(&mut request.phases_ns, BLOCKED, now - request.waiting_since_ns);
            request.phase_since_ns = now;
        }
        let Some(origin) = self.origins.get_mut(request.origin as usize) else { return };
        let Names::Known(addresses) = &origin.names else { return };
        // Every record in turn, so that load spreads as the target's DNS intends.
        let Some(&address) = addresses.get(origin.next_address % addresses.len().max(1)) else {
            let failure = Failure::new(ErrorClass::Dns, "no address");
            return self.finish(key.slot, Some(failure), recorder);
        };
        origin.next_address = origin.next_address.wrapping_add(1);
        request.addresses_tried += 1;
        request.remote = Some(address);
        let deadline = now.saturating_add(request.template.limits.connect_ns);
        request.deadline_ns = deadline.min(request.total_deadline_ns);
        self.timers.arm(key.slot, request.deadline_ns);
        let tls = match &origin.origin.tls {
            None => None,
            Some(profile) => match self.tls.get(profile) {
                Ok(config) => Some((config, origin.origin.host.as_str())),
                Err(error) => {
                    let failure = Failure::new(ErrorClass::Tls, error.to_string());
                    return self.finish(key.slot, Some(failure), recorder);
                }
            },
        };
        self.generation = self.generation.wrapping_add(1).max(1);
        let generation = self.generation;
        let (number, vu) = (request.origin, request.caller.vu);
        let opened = Conn::open(address, tls, number, vu, key.slot, generation);
        let opened = opened.and_then(|conn| {
            let slot = self.conns.vacant_key() as u32;
            let data = epoll::EventData::new_u64(u64::from(generation) << 32 | u64::from(slot));
            epoll::add(&self.epoll, &conn.socket, data, epoll::EventFlags::OUT)?;
            Ok(conn)
        });
        match opened {
            Ok(conn) => {
                origin.open += 1;
                self.connecting += 1;
                let number = self.conns.insert(conn) as u32;
                request.conn = Some(number);
            }
            Err(error) => self.connect_failed(key.slot, &error, recorder),
        }
    }

    /// A connection under way came to nothing.
    fn connect_broke(
        &mut self,
        slot: u32,
        number: u32,
        error: &io::Error,
        recorder: &mut Recorder,
    ) {
        self.close_after(slot, number, recorder);
        if let Some(request) = self.requests.get_mut(slot as usize) {
            request.conn = None;
        }
        self.connect_failed(slot, error, recorder);
    }

    fn has_untried_address(&self, request: &Request<T>) -> bool {
        match self.origins.get(request.origin as usize).map(|o| &o.names) {
            Some(Names::Known(addresses)) => request.addresses_tried < addresses.len(),
            _ => false,
        }
    }

    /// The next address, if there is one left; else the request has failed.
    fn connect_failed(&mut self, slot: u32, error: &io::Error, recorder: &mut Recorder) {
        let Some(request) = self.requests.get(slot as usize) else { return };
        let key = RequestKey { slot, generation: request.generation };
        if self.has_untried_address(request) {
            return self.connect(key, recorder);
        }
        let address = request.remote.map(|a| a.to_string()).unwrap_or_default();
        let failure = Failure::new(ErrorClass::Connect, format!("{address}: {error}"));
        self.finish(slot, Some(failure), recorder);
    }

    /// A connect ended, well or not: the next in the queue may begin.
    fn connect_ended(&mut self, recorder: &mut Recorder) {
        self.connecting -= 1;
        while self.connecting < self.options.connecting_max {
            let Some(key) = self.connect_queue.pop_front() else { return };
            if self.is_live(key) {
                self.connect(key, recorder);
            }
        }
    }

    // ------------------------------------------------------------------- exchanging

    /// Puts a request on an open connection.
    fn start(&mut self, slot: u32, number: u32, recorder: &mut Recorder) {
        let (Some(request), Some(conn)) =
            (self.requests.get_mut(slot as usize), self.conns.get_mut(number as usize))
        else {
            return;
        };
        request.conn = Some(number);
        conn.request = Some(slot);
        conn.stage = Stage::Busy;
        let template = &request.template;
        let jar = self.vus.get(request.caller.vu as usize).and_then(|vu| vu.jar.as_deref());
        let close = self.options.mode == Mode::PerRequest;
        conn.load(template.body.as_ref().map(|body| body.bytes.clone()), |head| {
            head.extend_from_slice(&template.head);
            if jar.is_some() || template.cookies.is_some() {
                write_cookies(head, template, jar);
            }
            head.extend_from_slice(if close { b"Connection: close\r\n\r\n" } else { b"\r\n" });
        });
        let now = now_ns();
        if conn.uses > 0 {
            add(&mut request.phases_ns, BLOCKED, now - request.waiting_since_ns);
            request.remote = Some(conn.remote);
        }
        request.hop_started_ns = now;
        request.started_ns.get_or_insert(now);
        self.touch(slot, now);
        self.write(number, recorder);
    }

    /// Something happened on a request: its silence starts anew.
    fn touch(&mut self, slot: u32, now: u64) {
        if let Some(request) = self.requests.get_mut(slot as usize) {
            let deadline = now.saturating_add(request.template.limits.read_ns);
            request.deadline_ns = deadline.min(request.total_deadline_ns);
            self.timers.arm(slot, request.deadline_ns);
        }
    }

    fn write(&mut self, number: u32, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        let Some(slot) = conn.request else { return };
        let (result, bytes) = conn.write();
        if let Some(request) = self.requests.get_mut(slot as usize) {
            request.bytes_sent += bytes;
            match result {
                Ok(Written::All) => {
                    if let Some(counts) = recorder.counts_mut(request.caller.step) {
                        counts.sent += 1;
                    }
                    self.watch(number, false);
                }
                Ok(Written::Blocked) => self.watch(number, true),
                // An answer may have come before the server closed; reading tells.
                Err(_) => self.read(number, recorder),
            }
        }
    }

    /// Always listens for reading; for writing only while something is held back.
    fn watch(&mut self, number: u32, write: bool) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        if conn.wants_write != write {
            conn.wants_write = write;
            let mut flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
            if write {
                flags |= epoll::EventFlags::OUT;
            }
            let data = u64::from(conn.generation) << 32 | u64::from(number);
            // Fails only for a descriptor that is not in the set, which ours is.
            let _ =
                epoll::modify(&self.epoll, &conn.socket, epoll::EventData::new_u64(data), flags);
        }
    }

    fn on_ready(
        &mut self,
        number: u32,
        generation: u32,
        flags: epoll::EventFlags,
        recorder: &mut Recorder,
    ) {
        let Some(conn) = self.conns.get(number as usize) else { return };
        // The descriptor may have been closed and its place reused within this batch.
        if conn.generation != generation {
            return;
        }
        let writable = flags.intersects(epoll::EventFlags::OUT);
        let readable = flags.intersects(
            epoll::EventFlags::IN
                | epoll::EventFlags::RDHUP
                | epoll::EventFlags::HUP
                | epoll::EventFlags::ERR,
        );
        match conn.stage {
            Stage::Connecting => self.on_connected(number, recorder),
            Stage::Handshaking => self.handshake(number, recorder),
            // Closed by the server, or speaking out of turn: of no use either way.
            Stage::Idle => self.close(number),
            Stage::Busy => {
                if writable && conn.wants_write {
                    self.write(number, recorder);
                }
                if readable && self.is_same(number, generation) {
                    self.read(number, recorder);
                }
            }
        }
    }

    fn on_connected(&mut self, number: u32, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        let Some(slot) = conn.request else { return self.close(number) };
        match conn.socket.take_error() {
            Ok(None) => {
                let now = now_ns();
                conn.stage = Stage::Handshaking;
                if let Some(request) = self.requests.get_mut(slot as usize) {
                    add(&mut request.phases_ns, CONNECT, now - request.phase_since_ns);
                    request.phase_since_ns = now;
                }
                self.handshake(number, recorder);
            }
            Ok(Some(error)) | Err(error) => self.connect_broke(slot, number, &error, recorder),
        }
    }

    fn handshake(&mut self, number: u32, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        let Some(slot) = conn.request else { return };
        let is_tls = conn.is_tls();
        match conn.handshake() {
            Ok(true) => {
                if is_tls {
                    let now = now_ns();
                    if let Some(request) = self.requests.get_mut(slot as usize) {
                        add(&mut request.phases_ns, TLS, now - request.phase_since_ns);
                    }
                }
                // The first write goes out at once, so the set is told only once.
                self.start(slot, number, recorder);
                self.connect_ended(recorder);
            }
            Ok(false) => {
                let blocked = conn.is_write_blocked();
                self.watch(number, blocked);
            }
            Err(error) => {
                let class = if tls::is_tls_error(&error) || is_tls {
                    ErrorClass::Tls
                } else {
                    ErrorClass::Connect
                };
                self.finish(slot, Some(Failure::new(class, error.to_string())), recorder);
            }
        }
    }

    fn read(&mut self, number: u32, recorder: &mut Recorder) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let ended = self.read_response(number, &mut scratch);
        self.scratch = scratch;
        let Some((slot, outcome)) = ended else { return };
        match outcome {
            Ok(reusable) => self.on_response(slot, number, reusable, recorder),
            Err(failure) => self.on_broken(slot, number, failure, recorder),
        }
    }

    /// Reads until the response is whole, the socket is empty or something is wrong.
    fn read_response(
        &mut self,
        number: u32,
        scratch: &mut [u8],
    ) -> Option<(u32, Result<bool, Failure>)> {
        let conn = self.conns.get_mut(number as usize)?;
        let slot = conn.request?;
        for _ in 0..READS_MAX {
            let read = conn.read(scratch);
            let now = now_ns();
            let request = self.requests.get_mut(slot as usize)?;
            let count = match read {
                Ok(0) => {
                    let whole = request.response.end().map(|()| false);
                    return Some((slot, whole));
                }
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if tls::is_tls_error(&error) => {
                    return Some((slot, Err(Failure::new(ErrorClass::Tls, error.to_string()))));
                }
                Err(error) => return Some((slot, Err(Failure::reset(&error)))),
            };
            if !request.response.has_started() {
                add(&mut request.phases_ns, FIRST_BYTE, now - request.hop_started_ns);
            }
            request.bytes_received += count as u64;
            let deadline = now.saturating_add(request.template.limits.read_ns);
            request.deadline_ns = deadline.min(request.total_deadline_ns);
            let input = scratch.get(..count).unwrap_or_default();
            match request.response.feed(input) {
                Ok(Progress::More) => {}
                // What follows a response was not asked for: such a connection is not reused.
                Ok(Progress::Done(used)) => {
                    let reusable = request.response.keep_alive && used == count;
                    return Some((slot, Ok(reusable)));
                }
                Err(failure) => return Some((slot, Err(failure))),
            }
            if count < scratch.len() && !conn.is_tls() {
                return None;
            }
        }
        None
    }

    fn on_response(&mut self, slot: u32, number: u32, reusable: bool, recorder: &mut Recorder) {
        // A request not fully written yet leaves the connection in an unknown state.
        let unsent = self.conns.get(number as usize).is_some_and(|conn| conn.wants_write);
        if let Some(request) = self.requests.get_mut(slot as usize) {
            if !request.response.set_cookies.is_empty() {
                let cookies = std::mem::take(&mut request.response.set_cookies);
                let (vu, url) = (request.caller.vu, request.template.url.clone());
                self.store_cookies(vu, &cookies, &url);
            }
        }
        let next = self.redirect(slot);
        if reusable && !unsent && self.options.mode != Mode::PerRequest {
            self.release(number, recorder);
        } else if next.is_some() {
            self.close_after(slot, number, recorder);
        }
        match next {
            None => self.finish(slot, None, recorder),
            Some(Err(failure)) => self.finish(slot, Some(failure), recorder),
            Some(Ok(template)) => {
                let origin = self.origin_number(&template);
                let now = now_ns();
                if let Some(request) = self.requests.get_mut(slot as usize) {
                    request.conn = None;
                    request.response = Response::new(expect(&template, request.caller));
                    request.template = Arc::new(template);
                    request.origin = origin;
                    request.redirects += 1;
                    request.waiting_since_ns = now;
                    request.addresses_tried = 0;
                    request.retried = false;
                }
                self.dispatch(slot, recorder);
            }
        }
    }

    /// The request a redirect asks for, or why it is not followed further.
    fn redirect(&self, slot: u32) -> Option<Result<Template, Failure>> {
        let request = self.requests.get(slot as usize)?;
        let status = request.response.status;
        let limit = request.template.limits.redirects_max;
        if !matches!(status, 301 | 302 | 303 | 307 | 308) || limit == 0 {
            return None;
        }
        let location = request.response.location.as_deref()?;
        if request.redirects >= limit {
            return Some(Err(Failure::protocol(format!("more than {limit} redirects"))));
        }
        let default = TlsProfile::default();
        let tls = request.template.origin.tls.as_ref().unwrap_or(&default);
        let template = request.template.redirected(status, location, tls);
        Some(template.map_err(|error| Failure::protocol(format!("bad redirect: {error}"))))
    }

    /// A connection broke or spoke nonsense under a request.
    fn on_broken(&mut self, slot: u32, number: u32, failure: Failure, recorder: &mut Recorder) {
        let reused = self.conns.get(number as usize).is_some_and(|conn| conn.uses > 0);
        let Some(request) = self.requests.get_mut(slot as usize) else { return };
        // A kept-alive connection that the server was closing as we wrote: not the
        // target's failure. Ask once more on a new one, if asking twice is harmless.
        let again = failure.class == ErrorClass::Reset
            && reused
            && !request.retried
            && !request.response.has_started()
            && request.template.is_idempotent();
        if !again {
            return self.finish(slot, Some(failure), recorder);
        }
        request.retried = true;
        request.conn = None;
        request.waiting_since_ns = now_ns();
        self.close_after(slot, number, recorder);
        self.dispatch(slot, recorder);
    }

    // ---------------------------------------------------------------------- endings

    /// An answered connection waits for its next request.
    fn release(&mut self, number: u32, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        conn.request = None;
        conn.stage = Stage::Idle;
        conn.uses += 1;
        let (origin_number, vu) = (conn.origin, conn.vu);
        match self.options.mode {
            Mode::PerVu => {
                let index = vu as usize;
                if self.vus.len() <= index {
                    self.vus.resize_with(index + 1, Vu::default);
                }
                if let Some(vu) = self.vus.get_mut(index) {
                    vu.idle.push((origin_number, number));
                }
            }
            Mode::Shared => {
                if let Some(origin) = self.origins.get_mut(origin_number as usize) {
                    origin.idle.push(number);
                }
                self.serve_waiting(origin_number, recorder);
            }
            Mode::PerRequest => self.close(number),
        }
    }

    /// Shared mode: gives idle or newly allowed connections to who waits longest.
    fn serve_waiting(&mut self, origin_number: u32, recorder: &mut Recorder) {
        loop {
            let Some(origin) = self.origins.get_mut(origin_number as usize) else { return };
            if origin.idle.is_empty() && origin.open >= self.options.shared_max {
                return;
            }
            let Some(key) = origin.waiting.pop_front() else { return };
            if self.is_live(key) {
                return self.dispatch(key.slot, recorder);
            }
        }
    }

    fn close(&mut self, number: u32) {
        let Some(conn) = self.conns.try_remove(number as usize) else { return };
        if let Some(origin) = self.origins.get_mut(conn.origin as usize) {
            origin.open = origin.open.saturating_sub(1);
            if conn.stage == Stage::Idle {
                origin.idle.retain(|&idle| idle != number);
            }
        }
        if conn.stage == Stage::Idle {
            if let Some(vu) = self.vus.get_mut(conn.vu as usize) {
                vu.idle.retain(|&(_, idle)| idle != number);
            }
        }
        // Dropping the socket takes it out of the epoll set.
    }

    /// Takes a request out, and its connection with it if it still has one.
    fn detach(&mut self, slot: u32, recorder: &mut Recorder) -> Option<Request<T>> {
        let request = self.requests.try_remove(slot as usize)?;
        if let Some(counts) = recorder.counts_mut(request.caller.step) {
            counts.bytes_sent += request.bytes_sent;
            counts.bytes_received += request.bytes_received;
        }
        Some(request)
    }

    /// Closes the connection a request leaves behind, unless it was released before.
    fn close_after(&mut self, slot: u32, number: u32, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get(number as usize) else { return };
        if conn.request != Some(slot) {
            return;
        }
        let origin = conn.origin;
        let was_connecting = matches!(conn.stage, Stage::Connecting | Stage::Handshaking);
        self.close(number);
        if was_connecting {
            self.connect_ended(recorder);
        }
        if self.options.mode == Mode::Shared {
            self.serve_waiting(origin, recorder);
        }
    }

    fn drop_request(&mut self, slot: u32, recorder: &mut Recorder) -> Option<T> {
        let request = self.detach(slot, recorder)?;
        if let Some(number) = request.conn {
            self.close_after(slot, number, recorder);
        }
        Some(request.token)
    }

    fn finish(&mut self, slot: u32, failure: Option<Failure>, recorder: &mut Recorder) {
        let now = now_ns();
        let Some(request) = self.detach(slot, recorder) else { return };
        let conn = request.conn.and_then(|number| self.conns.get(number as usize));
        let tls = conn.and_then(Conn::tls_info);
        if let Some(number) = request.conn {
            self.close_after(slot, number, recorder);
        }
        let Response { status, minor_version, head, body, encoding, .. } = request.response;
        let limit = request.template.limits.body_bytes_max;
        let (body, failure) = match (failure, encoding) {
            (None, Some(encoding)) if !body.is_empty() => {
                match decode::decode(&encoding, body, limit) {
                    Ok(body) => (body, None),
                    Err(failure) => (Vec::new(), Some(failure)),
                }
            }
            (failure, _) => (body, failure),
        };
        let since = request.started_ns.unwrap_or(request.submitted_ns);
        self.done.push(Done {
            token: request.token,
            exchange: Exchange {
                template: request.template,
                status: if failure.is_none() { status } else { 0 },
                minor_version,
                head,
                body,
                failure,
                redirects: request.redirects,
                latency_ns: now - since,
                phases_ns: request.phases_ns,
                bytes_sent: request.bytes_sent,
                bytes_received: request.bytes_received,
                remote: request.remote,
                tls,
            },
        });
    }

    fn is_live(&self, key: RequestKey) -> bool {
        self.requests.get(key.slot as usize).is_some_and(|r| r.generation == key.generation)
    }

    fn is_same(&self, number: u32, generation: u32) -> bool {
        self.conns.get(number as usize).is_some_and(|conn| conn.generation == generation)
    }

    fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1).max(1);
        self.generation
    }

    fn store_cookies(&mut self, vu: u32, cookies: &[String], url: &url::Url) {
        let index = vu as usize;
        if self.vus.len() <= index {
            self.vus.resize_with(index + 1, Vu::default);
        }
        if let Some(vu) = self.vus.get_mut(index) {
            let jar = vu.jar.get_or_insert_with(Box::default);
            let parsed = cookies.iter().filter_map(|text| RawCookie::parse(text.clone()).ok());
            jar.store_response_cookies(parsed, url);
        }
    }

    // ------------------------------------------------------------------------- time

    fn on_timer(&mut self, recorder: &mut Recorder) {
        let mut ticks = [0; 8];
        // Already read when the timer was set anew meanwhile.
        let _ = rustix::io::read(&self.timer, &mut ticks);
        self.timer_at_ns = None;
        let now = now_ns();
        while let Some(slot) = self.timers.pop(now) {
            let Some(request) = self.requests.get(slot as usize) else { continue };
            if request.deadline_ns > now {
                let deadline_ns = request.deadline_ns;
                self.timers.arm(slot, deadline_ns);
            } else {
                self.on_timeout(slot, recorder);
            }
        }
    }

    fn on_timeout(&mut self, slot: u32, recorder: &mut Recorder) {
        let Some(request) = self.requests.get(slot as usize) else { return };
        let limits = request.template.limits;
        let total = request.deadline_ns >= request.total_deadline_ns;
        let stage = request.conn.and_then(|n| self.conns.get(n as usize)).map(|conn| conn.stage);
        if let (false, Some(Stage::Connecting), Some(number), true) =
            (total, stage, request.conn, self.has_untried_address(request))
        {
            let error = io::ErrorKind::TimedOut.into();
            return self.connect_broke(slot, number, &error, recorder);
        }
        let detail = match (total, stage) {
            (true, _) => format!("no whole response within {}", seconds(limits.total_ns)),
            (false, Some(Stage::Busy)) => format!("silence for {}", seconds(limits.read_ns)),
            (false, _) => format!("no connection within {}", seconds(limits.connect_ns)),
        };
        self.finish(slot, Some(Failure::new(ErrorClass::Timeout, detail)), recorder);
    }

    fn rearm_timer(&mut self) {
        let Some(next_ns) = self.timers.next_ns() else { return };
        if self.timer_at_ns.is_some_and(|at_ns| at_ns <= next_ns) {
            return;
        }
        self.timer_at_ns = Some(next_ns);
        let at = Timespec {
            tv_sec: (next_ns / 1_000_000_000) as i64,
            tv_nsec: (next_ns % 1_000_000_000) as i64,
        };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let when = Itimerspec { it_interval: never, it_value: at };
        // A valid descriptor and a valid time: this cannot fail.
        let _ = timerfd_settime(self.timer.as_fd(), TimerfdTimerFlags::ABSTIME, &when);
    }
}

fn expect(template: &Template, caller: Caller) -> Expect {
    Expect {
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

/// The user's cookies first, then those of the jar that the user did not set.
fn write_cookies(head: &mut Vec<u8>, template: &Template, jar: Option<&CookieStore>) {
    let given = template.cookies.as_deref().unwrap_or_default();
    let is_given = |name: &str| {
        given.split(';').any(|pair| pair.split('=').next().is_some_and(|n| n.trim() == name))
    };
    let mut value = given.to_owned();
    for (name, content) in jar.into_iter().flat_map(|jar| jar.get_request_values(&template.url)) {
        if !is_given(name) {
            if !value.is_empty() {
                value.push_str("; ");
            }
            value.push_str(name);
            value.push('=');
            value.push_str(content);
        }
    }
    if !value.is_empty() {
        head.extend_from_slice(b"Cookie: ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
}

fn seconds(ns: u64) -> String {
    format!("{} s", (ns / 1_000_000) as f64 / 1000.0)
}
