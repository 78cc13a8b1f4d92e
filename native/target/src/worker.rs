//! One thread of the server: an epoll set, its connections and their timers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{eventfd, EventfdFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{accept_with, SocketFlags};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags};
use rustls::server::ServerConfig;
use slab::Slab;

use crate::clock::Clock;
use crate::connection::{Connection, Outcome, Shared, Wants};
use crate::counts::Tally;
use crate::session::Session;

const EVENTS_MAX: usize = 512;
const ACCEPTS_MAX: usize = 256;
const INPUT_BYTES: usize = 64 * 1024;
/// How long accepting rests when the process has no descriptors left.
const ACCEPT_REST_NS: u64 = 100_000_000;

const LISTENER: u64 = u64::MAX;
const RAW_LISTENER: u64 = u64::MAX - 1;
const WAKE: u64 = u64::MAX - 2;
const TIMER: u64 = u64::MAX - 3;

/// What is spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    Http,
    /// Everything is sent back.
    Raw,
}

/// The way into a worker from other threads.
#[derive(Debug)]
pub struct Door {
    arrivals: Mutex<Vec<(TcpStream, Speaks)>>,
    stopping: AtomicBool,
    wake: OwnedFd,
}

impl Door {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            arrivals: Mutex::new(Vec::new()),
            stopping: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub fn stop(&self) {
        self.stopping.store(true, Release);
        self.ring();
    }

    fn hand_in(&self, stream: TcpStream, speaks: Speaks) {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).push((stream, speaks));
        self.ring();
    }

    fn ring(&self) {
        // It fails only when the counter is full, and then the worker is awake already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn take_arrivals(&self) -> Vec<(TcpStream, Speaks)> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        std::mem::take(&mut *self.arrivals.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The worker that also accepts, and deals connections out evenly to all of them.
pub struct Acceptor {
    pub listener: TcpListener,
    /// The port whose connections are echoed.
    pub raw_listener: Option<TcpListener>,
    pub doors: Vec<Arc<Door>>,
    pub turn: usize,
}

impl Acceptor {
    /// Each with its token.
    fn listeners(&self) -> impl Iterator<Item = (&TcpListener, u64)> {
        let raw = self.raw_listener.as_ref().map(|raw| (raw, RAW_LISTENER));
        [(&self.listener, LISTENER)].into_iter().chain(raw)
    }
}

pub struct Worker {
    epoll: OwnedFd,
    timer: OwnedFd,
    timer_set_ns: Option<u64>,
    door: Arc<Door>,
    acceptor: Option<Acceptor>,
    accepting: bool,
    tls: Option<Arc<ServerConfig>>,
    tally: Tally,
    clock: Clock,
    connections: Slab<Connection>,
    /// When, and for which connection (`None`: accepting resumes).
    timers: BinaryHeap<Reverse<(u64, Option<usize>)>>,
    input: Vec<u8>,
    out: Vec<u8>,
}

impl Worker {
    pub fn new(
        door: Arc<Door>,
        acceptor: Option<Acceptor>,
        tls: Option<Arc<ServerConfig>>,
        tally: Tally,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = rustix::time::timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        epoll::add(&epoll, &door.wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        if let Some(acceptor) = &acceptor {
            for (listener, token) in acceptor.listeners() {
                epoll::add(&epoll, listener, EventData::new_u64(token), EventFlags::IN)?;
            }
        }
        Ok(Self {
            epoll,
            timer,
            timer_set_ns: None,
            door,
            accepting: acceptor.is_some(),
            acceptor,
            tls,
            tally,
            clock: Clock::start(),
            connections: Slab::new(),
            timers: BinaryHeap::new(),
            input: vec![0; INPUT_BYTES],
            out: Vec::with_capacity(INPUT_BYTES),
        })
    }

    /// Serves until the door says stop.
    pub fn run(mut self) -> io::Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        while !self.door.stopping.load(Acquire) {
            events.clear();
            self.set_timer()?;
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            self.clock.follow_wall_clock();
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(Speaks::Http)?,
                    RAW_LISTENER => self.accept(Speaks::Raw)?,
                    WAKE => {
                        for (stream, speaks) in self.door.take_arrivals() {
                            self.admit(stream, speaks);
                        }
                    }
                    TIMER => self.fire_timers()?,
                    token => self.serve(token as usize, event.flags),
                }
            }
        }
        for connection in self.connections.drain() {
            connection.close(&self.tally);
        }
        Ok(())
    }

    fn accept(&mut self, speaks: Speaks) -> io::Result<()> {
        for _ in 0..ACCEPTS_MAX {
            let Some(acceptor) = &mut self.acceptor else { return Ok(()) };
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let listener = match speaks {
                Speaks::Http => Some(&acceptor.listener),
                Speaks::Raw => acceptor.raw_listener.as_ref(),
            };
            let Some(listener) = listener else { return Ok(()) };
            let stream = match accept_with(listener, flags) {
                Ok(socket) => TcpStream::from(socket),
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    return self.rest_accepting();
                }
                // Nothing there, or a connection that was gone before it was accepted.
                Err(_) => return Ok(()),
            };
            let turn = acceptor.turn;
            acceptor.turn = (turn + 1) % acceptor.doors.len();
            match acceptor.doors.get(turn) {
                // The first door is the acceptor's own.
                Some(door) if turn > 0 => door.hand_in(stream, speaks),
                _ => self.admit(stream, speaks),
            }
        }
        Ok(())
    }

    /// The listener stays readable while nothing can be accepted; looking away saves a busy loop.
    fn rest_accepting(&mut self) -> io::Result<()> {
        if let Some(acceptor) = &self.acceptor {
            for (listener, token) in acceptor.listeners() {
                let data = EventData::new_u64(token);
                epoll::modify(&self.epoll, listener, data, EventFlags::empty())?;
            }
            self.accepting = false;
            self.timers.push(Reverse((self.clock.now().ns + ACCEPT_REST_NS, None)));
        }
        Ok(())
    }

    fn resume_accepting(&mut self) -> io::Result<()> {
        if let (Some(acceptor), false) = (&self.acceptor, self.accepting) {
            for (listener, token) in acceptor.listeners() {
                let data = EventData::new_u64(token);
                epoll::modify(&self.epoll, listener, data, EventFlags::IN)?;
            }
            self.accepting = true;
        }
        Ok(())
    }

    fn admit(&mut self, stream: TcpStream, speaks: Speaks) {
        let session = match speaks {
            Speaks::Http => Session::new(),
            Speaks::Raw => Session::raw(),
        };
        let Ok(connection) = Connection::new(stream, self.tls.as_ref(), session) else { return };
        let flags = flags_for(connection.wants());
        let entry = self.connections.vacant_entry();
        let data = EventData::new_u64(entry.key() as u64);
        if epoll::add(&self.epoll, connection.stream(), data, flags).is_ok() {
            entry.insert(connection);
            self.tally.accepted();
        }
    }

    fn serve(&mut self, key: usize, flags: EventFlags) {
        self.drive(key, |connection, shared| {
            // An error or a full hang-up is found by reading, unless reading was not asked for.
            if flags.contains(EventFlags::OUT) {
                connection.on_writable(shared)
            } else if flags.contains(EventFlags::IN) {
                connection.on_readable(shared)
            } else {
                Outcome::Closed
            }
        });
    }

    fn drive(&mut self, key: usize, act: impl FnOnce(&mut Connection, &mut Shared<'_>) -> Outcome) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let mut shared = Shared {
            input: &mut self.input,
            out: &mut self.out,
            tally: &self.tally,
            clock: self.clock,
        };
        let mut outcome = act(connection, &mut shared);
        self.out.clear();
        if connection.wants() != connection.registered && outcome != Outcome::Closed {
            connection.registered = connection.wants();
            let data = EventData::new_u64(key as u64);
            let flags = flags_for(connection.wants());
            if epoll::modify(&self.epoll, connection.stream(), data, flags).is_err() {
                outcome = Outcome::Closed;
            }
        }
        match outcome {
            Outcome::Open(None) => {}
            Outcome::Open(Some(due_ns)) => {
                if connection.timer_ns != Some(due_ns) {
                    connection.timer_ns = Some(due_ns);
                    self.timers.push(Reverse((due_ns, Some(key))));
                }
            }
            Outcome::Closed => self.connections.remove(key).close(&self.tally),
        }
    }

    fn fire_timers(&mut self) -> io::Result<()> {
        // Setting the timer anew, at the latest before the next wait, also quiets it.
        self.timer_set_ns = None;
        let now_ns = self.clock.now().ns;
        while let Some(Reverse((due_ns, key))) = self.timers.peek().copied() {
            if due_ns > now_ns {
                break;
            }
            self.timers.pop();
            let Some(key) = key else {
                self.resume_accepting()?;
                continue;
            };
            // The connection this was set for may be gone, and another in its place; one that
            // waits for this very moment would set the same timer.
            match self.connections.get_mut(key) {
                Some(connection) if connection.timer_ns == Some(due_ns) => {
                    connection.timer_ns = None;
                    self.drive(key, Connection::on_timer);
                }
                _ => {}
            }
        }
        if self.timers.is_empty() {
            self.quiet_timer()?;
        }
        Ok(())
    }

    fn set_timer(&mut self) -> io::Result<()> {
        let Some(Reverse((due_ns, _))) = self.timers.peek().copied() else { return Ok(()) };
        if self.timer_set_ns == Some(due_ns) {
            return Ok(());
        }
        // Never zero, which would mean "off".
        let in_ns = due_ns.saturating_sub(self.clock.now().ns).max(1);
        self.write_timer(in_ns)?;
        self.timer_set_ns = Some(due_ns);
        Ok(())
    }

    fn quiet_timer(&mut self) -> io::Result<()> {
        self.write_timer(0)
    }

    fn write_timer(&mut self, in_ns: u64) -> io::Result<()> {
        let value = Timespec {
            tv_sec: (in_ns / 1_000_000_000) as i64,
            tv_nsec: (in_ns % 1_000_000_000) as _,
        };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = Itimerspec { it_interval: zero, it_value: value };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting)?;
        Ok(())
    }
}

fn flags_for(wants: Wants) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, wants.read);
    flags.set(EventFlags::OUT, wants.write);
    flags
}
