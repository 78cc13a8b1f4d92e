//! A request on its connection: writing it, reading its response, following redirects.

use std::io;
use std::sync::Arc;

use cookie_store::{CookieStore, RawCookie};
use rustix::event::epoll;

use super::conn::{Conn, Received, Stage, Written};
use super::error::{ErrorClass, Failure};
use super::exchange::Exchange;
use super::response::{HeadMemo, Keep, Progress, Response};
use super::template::Template;
use super::tls::{self, TlsProfile};
use super::{
    add, expect, Engine, Mode, Request, Vu, BLOCKED, CONNECT, FIRST_BYTE, MEMOS_MAX, READS_MAX,
    TLS, WATCHED,
};
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
        let template = &request.exchange.template;
        let jar = self.vus.get(request.caller.vu as usize).and_then(|vu| vu.jar.as_deref());
        let close = self.options.mode == Mode::PerRequest;
        let is_plain = jar.is_none() && template.cookies.is_none() && !close;
        conn.load(template, if is_plain { None } else { Some(own_head(template, jar, close)) });
        let now = now_ns();
        if conn.uses > 0 {
            add(&mut request.exchange.phases_ns, BLOCKED, now - request.waiting_since_ns);
            request.exchange.remote = Some(conn.remote);
        }
        request.hop_started_ns = now;
        request.started_ns.get_or_insert(now);
        // Its silence starts now.
        let deadline = now.saturating_add(request.exchange.template.limits.read_ns);
        request.deadline_ns = deadline.min(request.total_deadline_ns);
        self.timers.arm(slot, request.deadline_ns);
        self.write(number, recorder);
    }

    pub(super) fn write(&mut self, number: u32, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        let Some(slot) = conn.request else { return };
        let (result, bytes) = conn.write();
        let Some(request) = self.requests.get_mut(slot as usize) else { return };
        request.exchange.bytes_sent += bytes;
        match result {
            Ok(Written::All) => {
                conn.wants_write = false;
                recorder.record_sent(request.caller.step, 1, request.hop_started_ns);
            }
            Ok(Written::Blocked) => conn.wants_write = true,
            // An answer may have come before the server closed; reading tells.
            Err(_) => self.read(number, true, recorder),
        }
    }

    /// Has the set report a connection again, although nothing is new.
    fn report_again(&mut self, number: u32) {
        let Some(conn) = self.conns.get(number as usize) else { return };
        let data = u64::from(conn.generation) << 32 | u64::from(number);
        // Fails only for a descriptor that is not in the set, which ours is.
        let _ = epoll::modify(&self.epoll, &conn.socket, epoll::EventData::new_u64(data), WATCHED);
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
        let is_closed = flags
            .intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
        let readable = is_closed || flags.intersects(epoll::EventFlags::IN);
        match conn.stage {
            Stage::Connecting => self.on_connected(number, recorder),
            Stage::Handshaking => self.handshake(number, recorder),
            // Closed by the server, or speaking out of turn: of no use either way.
            Stage::Idle if readable => return self.close(number),
            Stage::Idle => return,
            Stage::Busy => {
                if conn.wants_write && flags.intersects(epoll::EventFlags::OUT) {
                    self.write(number, recorder);
                }
            }
        }
        // Also what came while the connection was opened: it is not reported again.
        let is_busy = |conn: &Conn| conn.generation == generation && conn.stage == Stage::Busy;
        if readable && self.conns.get(number as usize).is_some_and(is_busy) {
            self.read(number, is_closed, recorder);
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
                    add(&mut request.exchange.phases_ns, CONNECT, now - request.phase_since_ns);
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
                        add(&mut request.exchange.phases_ns, TLS, now - request.phase_since_ns);
                    }
                }
                self.start(slot, number, recorder);
                self.connect_ended(recorder);
            }
            Ok(false) => {} // goes on when the socket can be read or written again
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

    /// Reads what came; `is_closed` if the peer has closed its side.
    pub(super) fn read(&mut self, number: u32, is_closed: bool, recorder: &mut Recorder) {
        let Some((slot, now, outcome)) = self.read_response(number, is_closed) else { return };
        match outcome {
            Ok(reusable) => self.on_response(slot, number, reusable, now, recorder),
            Err(failure) => self.on_broken(slot, number, failure, recorder),
        }
    }

    /// Reads until the response is whole, the socket is empty or something is wrong. Returns the
    /// request, when it ended, and whether its connection can be used again.
    fn read_response(
        &mut self,
        number: u32,
        is_closed: bool,
    ) -> Option<(u32, u64, Result<bool, Failure>)> {
        let conn = self.conns.get_mut(number as usize)?;
        let slot = conn.request?;
        let request = self.requests.get_mut(slot as usize)?;
        let step = request.caller.step as usize;
        if step >= self.memos.len() && step < MEMOS_MAX {
            self.memos.resize_with(step + 1, HeadMemo::default);
        }
        let mut no_memo = HeadMemo::default();
        let memo = self.memos.get_mut(step).unwrap_or(&mut no_memo);
        for _ in 0..READS_MAX {
            let had_started = request.response.has_started();
            let mut outcome = None;
            let (mut bytes, mut surplus) = (0, 0);
            let response = &mut request.response;
            let sent_ns = request.hop_started_ns;
            let received = conn.receive(&mut self.scratch, &self.clocks, sent_ns, |input| {
                bytes += input.len();
                if outcome.is_some() {
                    surplus += input.len();
                    return;
                }
                match response.feed(input, memo) {
                    Ok(Progress::More) => {}
                    Ok(Progress::Done(used)) => {
                        surplus += input.len() - used;
                        outcome = Some(Ok(()));
                    }
                    Err(failure) => outcome = Some(Err(failure)),
                }
            });
            let Received { at_ns: now, is_timed, is_end, is_drained } = match received {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let failure = if tls::is_tls_error(&error) {
                        Failure::new(ErrorClass::Tls, error.to_string())
                    } else {
                        Failure::reset(&error)
                    };
                    return Some((slot, now_ns(), Err(failure)));
                }
            };
            if !had_started && request.response.has_started() {
                let waited_ns = now.saturating_sub(request.hop_started_ns);
                add(&mut request.exchange.phases_ns, FIRST_BYTE, waited_ns);
            }
            request.exchange.bytes_received += bytes as u64;
            request.is_timed = is_timed;
            let deadline = now.saturating_add(request.exchange.template.limits.read_ns);
            request.deadline_ns = deadline.min(request.total_deadline_ns);
            match outcome {
                // What follows a response was not asked for: such a connection is not reused.
                Some(Ok(())) => {
                    let reusable = request.response.keep_alive
                        && surplus == 0
                        && !(is_end || is_closed)
                        && (is_drained || conn.is_silent());
                    return Some((slot, now, Ok(reusable)));
                }
                Some(Err(failure)) => return Some((slot, now, Err(failure))),
                None if is_end => {
                    return Some((slot, now, request.response.end().map(|()| false)));
                }
                None if is_drained && !is_closed => return None,
                None => {}
            }
        }
        self.report_again(number);
        None
    }

    pub(super) fn on_response(
        &mut self,
        slot: u32,
        number: u32,
        reusable: bool,
        now: u64,
        recorder: &mut Recorder,
    ) {
        // A request not fully written yet leaves the connection in an unknown state.
        let unsent = self.conns.get(number as usize).is_some_and(|conn| conn.wants_write);
        if let Some(request) = self.requests.get_mut(slot as usize) {
            let rare = request.response.rare.as_mut().filter(|rare| !rare.set_cookies.is_empty());
            if let Some(rare) = rare {
                let cookies = std::mem::take(&mut rare.set_cookies);
                let (vu, template) = (request.caller.vu, request.exchange.template.clone());
                self.store_cookies(vu, &cookies, &template.url);
            }
        }
        let next = self.redirect(slot);
        if reusable && !unsent && self.options.mode != Mode::PerRequest {
            self.release(number, recorder);
        } else if next.is_some() {
            self.close_after(slot, number, recorder);
        }
        match next {
            None => self.finish(slot, None, now, recorder),
            Some(Err(failure)) => self.finish(slot, Some(failure), now, recorder),
            Some(Ok(template)) => {
                let origin = self.origin_number(&template);
                if let Some(request) = self.requests.get_mut(slot as usize) {
                    request.conn = None;
                    let next = Response::new(expect(&template, request.caller, recorder));
                    let response = std::mem::replace(&mut request.response, next);
                    let template = Arc::new(template);
                    let redirected = std::mem::replace(&mut request.exchange.template, template);
                    if request.caller.keep == Keep::Body {
                        let hop = hop(request, redirected, response, now);
                        request.exchange.hops.push(hop);
                    }
                    request.origin = origin;
                    request.exchange.redirects += 1;
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
        let template = &request.exchange.template;
        let limit = template.limits.redirects_max;
        if !matches!(status, 301 | 302 | 303 | 307 | 308) || limit == 0 {
            return None;
        }
        let location = request.response.rare.as_ref()?.location.as_deref()?;
        if request.exchange.redirects >= limit {
            return Some(Err(Failure::protocol(format!("more than {limit} redirects"))));
        }
        let default = TlsProfile::default();
        let tls = template.origin.tls.as_ref().unwrap_or(&default);
        let template = template.redirected(status, location, tls);
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
            && request.exchange.template.is_idempotent();
        if !again {
            return self.fail(slot, failure, recorder);
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

/// A head that is not the template's: with cookies, or one that asks for the connection to close.
fn own_head(template: &Template, jar: Option<&CookieStore>, close: bool) -> Box<[u8]> {
    let mut head = template.head().to_vec();
    write_cookies(&mut head, template, jar);
    head.extend_from_slice(if close { b"Connection: close\r\n\r\n" } else { b"\r\n" });
    head.into()
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
    let mut hop = Exchange::new(request.caller.step, template);
    hop.status = response.status;
    hop.minor_version = response.minor_version;
    hop.head = response.head;
    hop.redirects = request.exchange.redirects;
    hop.latency_ns = now.saturating_sub(request.hop_started_ns);
    hop.ended_ns = now;
    hop.remote = request.exchange.remote;
    hop
}
