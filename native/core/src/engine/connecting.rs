//! From a request to a connection: names, idle connections, new ones and queues.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use rustix::event::epoll;

use super::conn::{Conn, Stage};
use super::error::{ErrorClass, Failure};
use super::http::template::Template;
use super::request::{add, Request, RequestKey, BLOCKED};
use super::transport::route::Peer;
use super::transport::tunnel::Tunnel;
use super::transport::{Carrier, Transport};
use super::{Engine, Mode, Names, OriginState, DNS_FAILURE_NS, WATCHED};
use crate::clock::now_ns;
use crate::recorder::Recorder;

impl OriginState {
    /// Where the connection with this number goes, and from where. Every record in turn, so that
    /// load spreads as the target's DNS intends, and every source address in turn for each of them.
    fn peer(&self, number: usize) -> Result<Peer<'_>, Failure> {
        if let Some(path) = self.origin.unix_socket() {
            return Ok(Peer::Unix(path));
        }
        let Names::Known(addresses) = &self.names else {
            return Err(Failure::new(ErrorClass::Dns, "no address"));
        };
        let count = addresses.len().max(1);
        let Some(&to) = addresses.get(number % count) else {
            return Err(Failure::new(ErrorClass::Dns, "no address"));
        };
        let from = match &self.origin.route {
            Some(route) => route
                .source(to, number / count)
                .map_err(|reason| Failure::new(ErrorClass::Connect, reason))?,
            None => None,
        };
        Ok(Peer::Address { to, from })
    }

    /// The class of a connection that failed before the server was reached.
    fn class_of(&self, class: ErrorClass) -> ErrorClass {
        if self.origin.proxy().is_some() {
            ErrorClass::Proxy
        } else {
            class
        }
    }
}

impl<T> Engine<T> {
    pub(super) fn origin_number(&mut self, template: &Template) -> u32 {
        if let Some(number) = template.origin_in(self.id) {
            return number;
        }
        let number = match self.origin_numbers.get(&template.origin) {
            Some(&number) => number,
            None => {
                let number = self.origins.len() as u32;
                let known = template.origin.known_addresses();
                let names = known.map_or(Names::Unknown, Names::Known);
                self.origins.push(OriginState {
                    origin: template.origin.clone(),
                    names,
                    next_address: 0,
                    waiting: VecDeque::new(),
                    listed: Vec::new(),
                    open: 0,
                });
                self.origin_numbers.insert(template.origin.clone(), number);
                number
            }
        };
        template.remember_origin(self.id, number);
        number
    }

    pub(super) fn on_names(&mut self, recorder: &mut Recorder) {
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

    /// Brings a request to a connection: an idle one, a new one, or a queue for one.
    pub(super) fn dispatch(&mut self, slot: u32, recorder: &mut Recorder) {
        let Some(request) = self.requests.get_mut(slot) else { return };
        let key = request.key(slot);
        let (number, vu, fresh) = (request.origin, request.caller.vu, request.retried);
        let Some(origin) = self.origins.get_mut(number as usize) else { return };
        match &origin.names {
            Names::Known(_) => {}
            Names::Failed { reason, until_ns } if *until_ns > now_ns() => {
                let failure = Failure::new(origin.class_of(ErrorClass::Dns), reason.clone());
                return self.fail(slot, failure, recorder);
            }
            Names::Asking => return origin.waiting.push_back(key),
            Names::Unknown | Names::Failed { .. } => {
                origin.waiting.push_back(key);
                origin.names = Names::Asking;
                let (host, port) = origin.origin.peer();
                if let Err(error) = self.resolver.start(number, host, port) {
                    if let Some(origin) = self.origins.get_mut(number as usize) {
                        origin.names = Names::Unknown;
                        origin.waiting.pop_back();
                    }
                    let failure = Failure::new(ErrorClass::Dns, error.to_string());
                    self.fail(slot, failure, recorder);
                }
                return;
            }
        }
        let listed = match self.options.mode {
            // Other kept-alive connections may be as stale.
            _ if fresh && !origin.origin.protocol.is_multiplexed() => None,
            Mode::PerRequest => None,
            Mode::Shared => origin.listed.pop(),
            Mode::PerVu => self.vus.get_mut(vu as usize).and_then(|vu| {
                let at = vu.listed.iter().rposition(|&(origin, _)| origin == number)?;
                Some(vu.listed.swap_remove(at).1)
            }),
        };
        match listed {
            Some(conn) => self.join(key, conn, recorder),
            None if self.options.mode == Mode::Shared && origin.open >= self.options.shared_max => {
                origin.waiting.push_back(key);
            }
            None => self.connect(key, recorder),
        }
    }

    /// Puts a request on a connection that was listed, or has it wait until that is open.
    fn join(&mut self, key: RequestKey, number: u32, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        conn.is_listed = false;
        if conn.stage == Stage::Open {
            return self.start(key.slot, number, recorder);
        }
        self.list(number);
        self.joined.entry(number).or_default().push(key);
    }

    /// Brings requests that waited for a connection to it, or elsewhere if it came to nothing.
    pub(super) fn dispatch_joined(&mut self, number: u32, recorder: &mut Recorder) {
        if self.joined.is_empty() {
            return;
        }
        for key in self.joined.remove(&number).unwrap_or_default() {
            if self.is_live(key) {
                self.dispatch(key.slot, recorder);
            }
        }
    }

    pub(super) fn connect(&mut self, key: RequestKey, recorder: &mut Recorder) {
        if self.connecting >= self.options.connecting_max {
            self.connect_queue.push_back(key);
            return;
        }
        let Some(request) = self.requests.get_mut(key.slot) else { return };
        let now = now_ns();
        if request.addresses_tried == 0 {
            add(&mut request.exchange.phases_ns, BLOCKED, now - request.waiting_since_ns);
            request.phase_since_ns = now;
        }
        let Some(origin) = self.origins.get_mut(request.origin as usize) else { return };
        let number = origin.next_address;
        origin.next_address = number.wrapping_add(1);
        let peer = match origin.peer(number) {
            Ok(peer) => peer,
            Err(failure) => return self.fail(key.slot, failure, recorder),
        };
        request.addresses_tried += 1;
        request.exchange.remote = peer.address();
        let deadline = now.saturating_add(request.exchange.template.limits.connect_ns);
        request.deadline_ns = deadline.min(request.total_deadline_ns);
        self.timers.arm(key.slot, request.deadline_ns);
        let (protocol, host) = (origin.origin.protocol, origin.origin.host.as_str());
        let carrier = match &origin.origin.tls {
            None if protocol.is_datagram() => Ok(Carrier::Udp),
            None => Ok(Carrier::Tcp),
            Some(profile) if protocol.is_quic() => {
                let config = self.tls.get_quic(profile, protocol.alpn());
                config.map(|config| Carrier::Quic(config, host))
            }
            Some(profile) => {
                let config = self.tls.get(profile, protocol.alpn());
                config.map(|config| Carrier::Tls(config, host))
            }
        };
        let carrier = match carrier {
            Ok(carrier) => carrier,
            Err(error) => {
                let failure = Failure::new(ErrorClass::Tls, error.to_string());
                return self.fail(key.slot, failure, recorder);
            }
        };
        let tunnel = origin
            .origin
            .proxy()
            .map(|proxy| Tunnel::new(proxy, &origin.origin.behind_proxy(), origin.origin.port));
        let tunnel = match tunnel.transpose() {
            Ok(tunnel) => tunnel,
            Err(failure) => return self.fail(key.slot, failure, recorder),
        };
        self.generation = self.generation.wrapping_add(1).max(1);
        let generation = self.generation;
        let opened = Transport::open(peer, tunnel, carrier, self.options.kernel_times);
        let opened = opened.and_then(|transport| {
            let slot = self.conns.vacant_key() as u32;
            let data = epoll::EventData::new_u64(u64::from(generation) << 32 | u64::from(slot));
            epoll::add(&self.epoll, &transport.socket, data, WATCHED)?;
            Ok(transport)
        });
        match opened {
            Ok(transport) => {
                origin.open += 1;
                self.connecting += 1;
                let is_multiplexed = protocol.is_multiplexed();
                let number = self.conns.insert(Conn {
                    transport,
                    session: None,
                    stage: Stage::Connecting,
                    origin: request.origin,
                    vu: request.caller.vu,
                    opener: key.slot,
                    generation,
                    was_used: false,
                    is_listed: false,
                }) as u32;
                request.conn = Some(number);
                if is_multiplexed {
                    self.list(number);
                }
            }
            Err(error) => self.connect_failed(key.slot, &error, recorder),
        }
    }

    /// A connection under way came to nothing.
    pub(super) fn connect_broke(
        &mut self,
        slot: u32,
        number: u32,
        error: &io::Error,
        recorder: &mut Recorder,
    ) {
        if let Some(request) = self.requests.get_mut(slot) {
            request.conn = None;
        }
        self.close(number, recorder);
        self.connect_failed(slot, error, recorder);
    }

    pub(super) fn has_untried_address(&self, request: &Request) -> bool {
        match self.origins.get(request.origin as usize).map(|o| &o.names) {
            Some(Names::Known(addresses)) => (request.addresses_tried as usize) < addresses.len(),
            _ => false,
        }
    }

    /// The next address, if there is one left; else the request has failed.
    pub(super) fn connect_failed(&mut self, slot: u32, error: &io::Error, recorder: &mut Recorder) {
        let Some(request) = self.requests.table.get(slot as usize) else { return };
        let key = request.key(slot);
        if self.has_untried_address(request) {
            return self.connect(key, recorder);
        }
        let Some(origin) = self.origins.get(request.origin as usize) else { return };
        let peer = match (request.exchange.remote, origin.origin.unix_socket()) {
            (Some(address), _) if origin.origin.proxy().is_some() => format!("proxy {address}"),
            (Some(address), _) => address.to_string(),
            (None, path) => path.unwrap_or(Path::new("")).display().to_string(),
        };
        let class = origin.class_of(ErrorClass::Connect);
        let failure = Failure::new(class, describe(&peer, error));
        self.fail(slot, failure, recorder);
    }

    /// A connect ended, well or not: the next in the queue may begin.
    pub(super) fn connect_ended(&mut self, recorder: &mut Recorder) {
        self.connecting -= 1;
        while self.connecting < self.options.connecting_max {
            let Some(key) = self.connect_queue.pop_front() else { return };
            if self.is_live(key) {
                self.connect(key, recorder);
            }
        }
    }
}

/// Why there is no connection, in words.
fn describe(address: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => format!("connection refused by {address}"),
        io::ErrorKind::ConnectionReset => format!("connection reset by {address}"),
        io::ErrorKind::TimedOut => format!("no answer from {address}"),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            format!("no route to {address}")
        }
        io::ErrorKind::NotFound => format!("no Unix socket {address}"),
        // Only Unix sockets do not wait for room.
        io::ErrorKind::WouldBlock => format!("the queue of the listener on {address} is full"),
        _ if error.raw_os_error() == Some(libc::EMFILE) => {
            "no free file descriptors (hint: raise ulimit -n)".to_owned()
        }
        _ if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => {
            format!("no free local port for {address}")
        }
        _ => format!("{address}: {error}"),
    }
}
