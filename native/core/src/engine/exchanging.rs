//! A request on its connection: writing it, reading its response, following redirects.

use std::io;
use std::sync::Arc;

use cookie_store::{CookieStore, RawCookie};
use rustix::event::epoll;

use super::conn::{Stage, Written};
use super::error::{ErrorClass, Failure};
use super::exchange::Exchange;
use super::response::{Keep, Progress, Response};
use super::template::Template;
use super::tls::{self, TlsProfile};
use super::{add, expect, Engine, Mode, Request, Vu, BLOCKED, CONNECT, FIRST_BYTE, READS_MAX, TLS};
use crate::clock::now_ns;
use crate::recorder::Recorder;

impl<T> Engine<T> {
    /// Puts a request on an open connection.
    pub(super) fn start(&mut self, slot: u32, number: u32, recorder: &mut Recorder) {
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
    pub(super) fn touch(&mut self, slot: u32, now: u64) {
        if let Some(request) = self.requests.get_mut(slot as usize) {
            let deadline = now.saturating_add(request.template.limits.read_ns);
            request.deadline_ns = deadline.min(request.total_deadline_ns);
            self.timers.arm(slot, request.deadline_ns);
        }
    }

    pub(super) fn write(&mut self, number: u32, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        let Some(slot) = conn.request else { return };
        let (result, bytes) = conn.write();
        if let Some(request) = self.requests.get_mut(slot as usize) {
            request.bytes_sent += bytes;
            match result {
                Ok(Written::All) => {
                    recorder.record_sent(request.caller.step, 1, request.hop_started_ns);
                    self.watch(number, false);
                }
                Ok(Written::Blocked) => self.watch(number, true),
                // An answer may have come before the server closed; reading tells.
                Err(_) => self.read(number, recorder),
            }
        }
    }

    /// Always listens for reading; for writing only while something is held back.
    pub(super) fn watch(&mut self, number: u32, write: bool) {
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

    pub(super) fn on_connected(&mut self, number: u32, recorder: &mut Recorder) {
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

    pub(super) fn handshake(&mut self, number: u32, recorder: &mut Recorder) {
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
                self.finish(slot, Some(Failure::new(class, tls::describe(&error))), recorder);
            }
        }
    }

    pub(super) fn read(&mut self, number: u32, recorder: &mut Recorder) {
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
    pub(super) fn read_response(
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

    pub(super) fn on_response(
        &mut self,
        slot: u32,
        number: u32,
        reusable: bool,
        recorder: &mut Recorder,
    ) {
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
                    let next = Response::new(expect(&template, request.caller, recorder));
                    let response = std::mem::replace(&mut request.response, next);
                    let redirected = std::mem::replace(&mut request.template, Arc::new(template));
                    if request.caller.keep == Keep::Body {
                        request.hops.push(hop(request, redirected, response, now));
                    }
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
    pub(super) fn redirect(&self, slot: u32) -> Option<Result<Template, Failure>> {
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
    pub(super) fn on_broken(
        &mut self,
        slot: u32,
        number: u32,
        failure: Failure,
        recorder: &mut Recorder,
    ) {
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

    pub(super) fn store_cookies(&mut self, vu: u32, cookies: &[String], url: &url::Url) {
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

/// A redirect that was followed, as a person wants to see it: its head and how long it took.
fn hop<T>(request: &Request<T>, template: Arc<Template>, response: Response, now: u64) -> Exchange {
    Exchange {
        step: request.caller.step,
        template,
        status: response.status,
        minor_version: response.minor_version,
        head: response.head,
        body: Vec::new(),
        failure: None,
        redirects: request.redirects,
        latency_ns: now.saturating_sub(request.hop_started_ns),
        ended_ns: now,
        phases_ns: [None; 4],
        bytes_sent: 0,
        bytes_received: 0,
        remote: request.remote,
        tls: None,
        hops: Vec::new(),
    }
}
