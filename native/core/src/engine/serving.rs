//! Requests on their connections: events of sockets in, endings of requests out.

use std::io;

use rustix::event::epoll;

use super::conn::{Conn, Stage};
use super::error::{ErrorClass, Failure};
use super::protocol::{Opening, Session};
use super::request::{add, Ending, BLOCKED, CONNECT, TLS};
use super::transport::{tls, Received};
use super::{Engine, Mode, READS_MAX, WATCHED};
use crate::clock::now_ns;
use crate::recorder::Recorder;

impl<T> Engine<T> {
    pub(super) fn on_ready(
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
        let is_closed = flags
            .intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
        let is_readable = is_closed || flags.intersects(epoll::EventFlags::IN);
        match (conn.stage, &conn.session) {
            (Stage::Connecting, _) => self.on_connected(number, is_closed, recorder),
            (Stage::Tunnelling, _) => self.open_tunnel(number, is_closed, recorder),
            (Stage::Handshaking, _) => self.handshake(number, recorder),
            (Stage::Open, Some(session)) => {
                if session.is_idle() && !session.listens() {
                    // Closed by the server, or speaking out of turn: of no use either way.
                    if is_readable {
                        self.close(number, recorder);
                    }
                    return;
                }
                if session.wants_write() && flags.intersects(epoll::EventFlags::OUT) {
                    self.write(number, recorder);
                }
            }
            (Stage::Open, None) => {}
        }
        // Also what came while the connection was opened: it is not reported again.
        let is_open = |conn: &Conn| conn.generation == generation && conn.stage == Stage::Open;
        if is_readable && self.conns.get(number as usize).is_some_and(is_open) {
            self.read(number, is_closed, recorder);
        }
    }

    fn on_connected(&mut self, number: u32, is_closed: bool, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        let slot = conn.opener;
        match conn.transport.socket.take_error() {
            Ok(None) if conn.transport.is_quic() => {
                conn.stage = Stage::Handshaking;
                self.handshake(number, recorder);
            }
            Ok(None) => {
                conn.stage = Stage::Tunnelling;
                self.open_tunnel(number, is_closed, recorder);
            }
            Ok(Some(error)) | Err(error) => self.connect_broke(slot, number, &error, recorder),
        }
    }

    /// Goes on with the tunnel through a proxy, if there is one. Its time is part of connecting.
    fn open_tunnel(&mut self, number: u32, is_closed: bool, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        let slot = conn.opener;
        match conn.transport.open_tunnel(is_closed) {
            Ok(true) => {
                let now = now_ns();
                conn.stage = Stage::Handshaking;
                if let Some(request) = self.requests.get_mut(slot) {
                    add(&mut request.exchange.phases_ns, CONNECT, now - request.phase_since_ns);
                    request.phase_since_ns = now;
                }
                self.handshake(number, recorder);
            }
            Ok(false) => {} // goes on when the socket can be read or written again
            Err(failure) => self.fail(slot, failure, recorder),
        }
    }

    fn handshake(&mut self, number: u32, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        let slot = conn.opener;
        let (is_tls, is_quic) = (conn.transport.is_tls(), conn.transport.is_quic());
        match conn.transport.handshake() {
            Ok(true) => {
                if is_tls || is_quic {
                    let now = now_ns();
                    // A handshake of QUIC connects and secures at once.
                    let phase = if is_quic { CONNECT } else { TLS };
                    if let Some(request) = self.requests.get_mut(slot) {
                        add(&mut request.exchange.phases_ns, phase, now - request.phase_since_ns);
                    }
                }
                self.open(number, recorder);
            }
            // Goes on when the socket can be read or written again, or the transport's time comes.
            Ok(false) => self.arm_wake(number),
            Err(error) if is_quic && !tls::is_tls_error(&error) => {
                self.connect_broke(slot, number, &error, recorder);
            }
            Err(error) => {
                let class = if tls::is_tls_error(&error) || is_tls {
                    ErrorClass::Tls
                } else {
                    ErrorClass::Connect
                };
                self.fail(slot, Failure::new(class, tls::describe(&error)), recorder);
            }
        }
    }

    /// The connection stands: the protocol begins, with the request it was opened for.
    fn open(&mut self, number: u32, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        let Some(origin) = self.origins.get(conn.origin as usize) else { return };
        let slot = conn.opener;
        match origin.origin.protocol.open(&mut conn.transport) {
            Ok(session) => {
                conn.session = Some(session);
                conn.stage = Stage::Open;
            }
            Err(failure) => return self.fail(slot, failure, recorder),
        }
        let listens = conn.session.as_ref().is_some_and(Session::listens);
        self.start(slot, number, recorder);
        self.connect_ended(recorder);
        self.dispatch_joined(number, recorder);
        if listens {
            // What the peer said with the last of the handshake is not reported again.
            self.read(number, false, recorder);
        }
    }

    /// Puts a request on an open connection that has room.
    pub(super) fn start(&mut self, slot: u32, number: u32, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        let (Some(request), Some(session)) = (self.requests.get_mut(slot), &mut conn.session)
        else {
            return;
        };
        request.conn = Some(number);
        let jar = self.vus.get(request.caller.vu as usize).and_then(|vu| vu.jar.as_deref());
        let close = self.options.mode == Mode::PerRequest;
        session.begin(slot, request, &Opening { jar, close });
        for part in request.queued.drain(..) {
            // A protocol that takes none ends the call by itself.
            let _ = session.push(slot, part);
        }
        let now = now_ns();
        request.is_reused = conn.was_used;
        if conn.was_used {
            add(&mut request.exchange.phases_ns, BLOCKED, now - request.waiting_since_ns);
            request.exchange.remote = conn.transport.remote;
        }
        conn.was_used = true;
        if conn.transport.is_tls() || conn.transport.is_quic() {
            request.exchange.tls = conn.transport.tls_info();
        }
        request.hop_started_ns = now;
        request.started_ns.get_or_insert(now);
        request.awaits_bytes(now);
        let deadline_ns = request.deadline_ns;
        let (has_room, is_listed) = (session.has_room(), conn.is_listed);
        let is_held = self.holds_writes && session.listens();
        self.timers.arm(slot, deadline_ns);
        match (has_room, is_listed) {
            (true, false) => self.list(number),
            (false, true) => self.unlist(number),
            _ => {}
        }
        if !is_held {
            self.write(number, recorder);
        } else if self.held_writes.last() != Some(&number) {
            self.held_writes.push(number);
        }
    }

    /// From now on, requests of protocols that carry several at once leave with `flush_writes`: those
    /// that begin together on a connection then cost one system call.
    pub fn hold_writes(&mut self) {
        self.holds_writes = true;
    }

    /// Writes what was held back, and holds nothing back until the next `hold_writes`.
    pub fn release_writes(&mut self, recorder: &mut Recorder) {
        self.holds_writes = false;
        self.flush_writes(recorder);
    }

    pub fn flush_writes(&mut self, recorder: &mut Recorder) {
        while let Some(number) = self.held_writes.pop() {
            self.write(number, recorder);
        }
    }

    pub(super) fn write(&mut self, number: u32, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        let Some(session) = &mut conn.session else { return };
        if session.write(&mut conn.transport, &mut self.requests, recorder).is_err() {
            // An answer may have come before the server closed; reading tells.
            return self.read(number, true, recorder);
        }
        self.arm_wake(number);
        // Calls on streams may end with what they wrote.
        if !self.requests.ended.is_empty() {
            self.tend(number, true, recorder);
            self.settle(recorder);
        }
    }

    /// Has the timers of a connection's transport heeded.
    fn arm_wake(&mut self, number: u32) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        if let Some(at_ns) = conn.transport.wakes_at_ns() {
            self.wakes.arm(number, at_ns);
        }
    }

    /// A timer of a connection's transport has come up.
    pub(super) fn on_wake(&mut self, number: u32, now: u64, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        conn.transport.on_time(now);
        match conn.stage {
            Stage::Connecting | Stage::Tunnelling => {}
            Stage::Handshaking => self.handshake(number, recorder),
            Stage::Open => {
                self.read(number, false, recorder);
                self.write(number, recorder);
            }
        }
    }

    /// Has the set report a connection again, although nothing is new.
    fn report_again(&mut self, number: u32) {
        let Some(conn) = self.conns.get(number as usize) else { return };
        let data = u64::from(conn.generation) << 32 | u64::from(number);
        let data = epoll::EventData::new_u64(data);
        // Fails only for a descriptor that is not in the set, which ours is.
        let _ = epoll::modify(&self.epoll, &conn.transport.socket, data, WATCHED);
    }

    /// Reads until the socket is empty, or a response that excludes others is whole; `is_closed` if
    /// the peer has closed its side.
    fn read(&mut self, number: u32, is_closed: bool, recorder: &mut Recorder) {
        for _ in 0..READS_MAX {
            let Some(conn) = self.conns.get_mut(number as usize) else { return };
            let Some(session) = &mut conn.session else { return };
            let requests = &mut self.requests;
            let received = conn.transport.receive(&mut self.scratch, &self.clocks, |input, at| {
                session.receive(input, at, requests);
            });
            let Received { arrival, is_end, is_drained } = match received {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if conn.transport.is_quic() && session.wants_write() {
                        self.write(number, recorder);
                    }
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let failure = if tls::is_tls_error(&error) {
                        Failure::new(ErrorClass::Tls, error.to_string())
                    } else {
                        Failure::reset(&error)
                    };
                    session.end(Some(failure), now_ns(), requests);
                    self.tend(number, false, recorder);
                    return self.settle(recorder);
                }
            };
            let is_quic = conn.transport.is_quic();
            if let Some(quic) = conn.transport.quic() {
                session.receive_streams(quic, arrival, requests);
            }
            if is_end {
                session.end(conn.transport.loss(), arrival.at_ns, requests);
            }
            let listens = session.listens();
            // Datagrams are acknowledged when all that came were read.
            if listens && !is_quic && session.wants_write() {
                self.write(number, recorder);
            }
            let Some(conn) = self.conns.get(number as usize) else { return };
            let session = conn.session.as_ref();
            let is_over = listens && session.is_some_and(|session| !session.is_open());
            let has_new_room = listens && !conn.is_listed && session.is_some_and(Session::has_room);
            if is_end || is_over || has_new_room || !self.requests.ended.is_empty() {
                let Some(conn) = self.conns.get(number as usize) else { return };
                // What follows a response that excludes others was not asked for.
                let is_silent = is_drained || listens || conn.transport.is_silent();
                self.tend(number, !is_end && !is_closed && is_silent, recorder);
                self.settle(recorder);
                if is_end || is_over || !listens {
                    return;
                }
            }
            if is_drained && !is_closed {
                return;
            }
        }
        if self.conns.get(number as usize).is_some_and(|conn| conn.transport.is_quic()) {
            self.write(number, recorder);
        }
        self.report_again(number);
    }

    /// Keeps a connection that can take requests where requests find it, and closes one that never
    /// will.
    pub(super) fn tend(&mut self, number: u32, is_usable: bool, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get(number as usize) else { return };
        let (origin, Some(session)) = (conn.origin, &conn.session) else { return };
        if is_usable && session.is_open() && self.options.mode != Mode::PerRequest {
            if session.has_room() && !conn.is_listed {
                self.list(number);
                if self.options.mode == Mode::Shared {
                    self.serve_waiting(origin, recorder);
                }
            }
        } else if session.is_idle() {
            self.close(number, recorder);
        } else {
            self.unlist(number);
        }
    }

    /// Takes what the protocols say has ended.
    fn settle(&mut self, recorder: &mut Recorder) {
        while let Some((slot, at_ns, ending)) = self.requests.ended.pop_front() {
            let Some(request) = self.requests.get_mut(slot) else { continue };
            request.conn = None;
            match ending {
                Ending::Complete => self.on_response(slot, at_ns, recorder),
                Ending::Failed(failure) => {
                    // A kept-alive connection that the server was closing as we wrote: not the
                    // target's failure. Ask once more, if asking twice is harmless.
                    let is_stale = failure.class == ErrorClass::Reset
                        && request.is_reused
                        && !request.reply.has_started()
                        && request.exchange.template.is_idempotent();
                    self.on_broken(slot, failure, is_stale, recorder);
                }
                Ending::Refused(failure) => self.on_broken(slot, failure, true, recorder),
            }
        }
    }

    /// A request got no response. It is sent once more, on a new connection, if it may be.
    fn on_broken(&mut self, slot: u32, failure: Failure, may_retry: bool, recorder: &mut Recorder) {
        let Some(request) = self.requests.get_mut(slot) else { return };
        // What was handed over meanwhile is gone.
        let body = request.exchange.template.body.as_ref();
        let is_fed = body.is_some_and(|body| body.continues);
        if !may_retry || request.retried || is_fed {
            return self.fail(slot, failure, recorder);
        }
        request.retried = true;
        request.waiting_since_ns = now_ns();
        self.dispatch(slot, recorder);
    }
}
