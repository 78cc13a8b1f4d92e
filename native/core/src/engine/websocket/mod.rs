//! WebSocket (RFC 6455, RFC 7692): one call after another on a socket that stays open.
//!
//! The first call on a connection is preceded by the opening handshake. Messages that arrive while
//! no call waits for them are kept for the next one, up to a limit.

use std::collections::VecDeque;
use std::io;

use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;

use super::error::{ErrorClass, Failure};
use super::http::reply::Keep;
use super::http::template::Template;
use super::protocol::{Opening, Session};
use super::request::{add, Ending, Part, PartKind, Request, Requests, CONNECT};
use super::streams::{StreamCall, Verb};
use super::transport::{Arrival, Transport};
use crate::clock::now_ns;
use crate::recorder::Recorder;

pub mod deflate;
pub mod frames;
pub mod handshake;

use deflate::Deflate;
use frames::{write_close, write_frame, Decoder, Event, FrameError, Opcode, Role};

const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Messages kept for calls to come.
const INBOX_MESSAGES_MAX: usize = 1024;
const INBOX_BYTES_MAX: usize = 1 << 20;
/// Pongs and closes that could not be written yet.
const UNWRITTEN_BYTES_MAX: usize = 64 * 1024;

/// What the sockets of an engine share, so that an idle one holds none of it.
#[derive(Debug)]
pub struct Shared {
    deflate: Deflate,
    /// Frames on their way out.
    scratch: Vec<u8>,
    random: u64,
}

impl Default for Shared {
    fn default() -> Self {
        Self { deflate: Deflate::default(), scratch: Vec::new(), random: now_ns() | 1 }
    }
}

impl Shared {
    /// The next number of a xorshift generator. Masks and keys only have to differ (RFC 6455 §10.3
    /// is about caches in between, which a load test has none of).
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn next_mask(&mut self) -> Option<[u8; 4]> {
        Some((self.next_random() as u32).to_ne_bytes())
    }
}

#[derive(Debug)]
enum State {
    /// Nothing was sent.
    Fresh,
    Upgrading(Box<Upgrade>),
    Open,
    /// The close frame of a call was sent.
    Closing,
    Closed,
}

/// An opening handshake under way.
#[derive(Debug)]
struct Upgrade {
    key: String,
    began_ns: u64,
    /// What came of the reply.
    head: Vec<u8>,
}

#[derive(Debug)]
pub struct WebSocket {
    state: State,
    request: Option<u32>,
    /// The call has not done its part: its frame is not made.
    is_due: bool,
    /// The frame of the call is not written whole.
    is_sending: bool,
    /// The call sent something that is answered.
    awaits_reply: bool,
    /// Messages that the call received.
    received: usize,
    /// What the socket had no room for.
    unwritten: Vec<u8>,
    decoder: Decoder,
    is_deflating: bool,
    inbox: VecDeque<Part>,
    inbox_bytes: usize,
}

impl Default for WebSocket {
    fn default() -> Self {
        Self {
            state: State::Fresh,
            request: None,
            is_due: false,
            is_sending: false,
            awaits_reply: false,
            received: 0,
            unwritten: Vec::new(),
            decoder: Decoder::new(Role::Client, 0, false),
            is_deflating: false,
            inbox: VecDeque::new(),
            inbox_bytes: 0,
        }
    }
}

impl WebSocket {
    fn finish(&mut self, at_ns: u64, how: Ending, requests: &mut Requests) {
        self.is_due = false;
        self.is_sending = false;
        self.awaits_reply = false;
        if let Some(slot) = self.request.take() {
            requests.end(slot, at_ns, how);
        }
    }

    fn fail(&mut self, at_ns: u64, failure: Failure, requests: &mut Requests) {
        self.state = State::Closed;
        self.finish(at_ns, Ending::Failed(failure), requests);
    }

    /// Does what the call asks for, now that the socket is open: appends its frame to `out`.
    fn act(&mut self, out: &mut Vec<u8>, requests: &mut Requests) {
        self.is_due = false;
        let Some(slot) = self.request else { return };
        let Requests { table, websocket: shared, .. } = requests;
        let Some(request) = table.get_mut(slot as usize) else { return };
        let template = request.exchange.template.clone();
        let Some(call) = &template.stream else { return };
        self.awaits_reply = matches!(call.verb, Verb::Exchange | Verb::Ping | Verb::Close);
        match call.verb {
            Verb::Open => {
                request.reply.status = handshake::SWITCHING;
                self.finish(now_ns(), Ending::Complete, requests);
            }
            Verb::Send | Verb::Exchange => {
                let payload = template.body.as_ref().map_or(&[][..], |body| &body.bytes);
                let opcode = if call.is_text { Opcode::Text } else { Opcode::Binary };
                let mask = shared.next_mask();
                if self.is_deflating {
                    let packed = shared.deflate.deflate(payload);
                    write_frame(out, opcode, &packed, true, mask);
                } else {
                    write_frame(out, opcode, payload, false, mask);
                }
                self.is_sending = true;
            }
            Verb::Ping => {
                let payload = shared.next_random().to_ne_bytes();
                write_frame(out, Opcode::Ping, &payload, false, shared.next_mask());
            }
            Verb::Close => {
                write_close(out, call.close_code, &call.close_reason, shared.next_mask());
                self.state = State::Closing;
            }
            Verb::Receive => {
                while self.received < call.count {
                    let Some(part) = self.inbox.pop_front() else { return };
                    self.inbox_bytes -= part.bytes.len();
                    self.received += 1;
                    keep(request, part);
                }
                self.finish(now_ns(), Ending::Complete, requests);
            }
        }
    }

    /// Takes bytes of the reply to the handshake. Returns how many belonged to it once it is whole.
    fn upgrade(
        &mut self,
        input: &[u8],
        at_ns: u64,
        requests: &mut Requests,
    ) -> Result<Option<usize>, Failure> {
        let State::Upgrading(upgrade) = &mut self.state else { return Ok(Some(0)) };
        let before = upgrade.head.len();
        upgrade.head.extend_from_slice(input);
        let from = before.saturating_sub(3);
        let found = memchr::memmem::find(upgrade.head.get(from..).unwrap_or_default(), b"\r\n\r\n");
        let Some(end) = found.map(|at| from + at + 4) else {
            return if upgrade.head.len() > HEAD_BYTES_MAX {
                Err(Failure::protocol("the reply to the handshake is over 64 KiB"))
            } else {
                Ok(None)
            };
        };
        upgrade.head.truncate(end);
        let (slot, request) = match self.request.map(|slot| (slot, requests.get_mut(slot))) {
            Some((slot, Some(request))) => (slot, request),
            _ => return Err(Failure::protocol("the call has ended")),
        };
        let template = request.exchange.template.clone();
        let call = template.stream.as_deref();
        let agreed = handshake::read_reply(&upgrade.head, &upgrade.key, call, &mut request.reply)?;
        request.reply.begin(|| upgrade.head.as_slice().into());
        add(&mut request.exchange.phases_ns, CONNECT, at_ns.saturating_sub(upgrade.began_ns));
        let Some(agreed) = agreed else {
            // Refused with a status, which the results show.
            self.state = State::Closed;
            self.request = None;
            requests.end(slot, at_ns, Ending::Complete);
            return Ok(Some(input.len()));
        };
        if call.is_some_and(|call| call.verb != Verb::Open) {
            // The handshake is a phase of its own: the call begins now.
            request.reply.status = 0;
            (request.hop_started_ns, request.started_ns) = (at_ns, Some(at_ns));
        }
        let limit = template.limits.body_bytes_max;
        self.decoder = Decoder::new(Role::Client, limit, agreed.deflate);
        self.is_deflating = agreed.deflate;
        self.state = State::Open;
        Ok(Some(end - before))
    }

    fn on_event(&mut self, event: Event, at_ns: u64, requests: &mut Requests) {
        match event {
            Event::Message { is_text, data } => {
                let kind = if is_text { PartKind::Text } else { PartKind::Data };
                self.on_message(Part { kind, bytes: data, at_ns }, requests);
            }
            Event::Ping(data) => {
                let mask = requests.websocket.next_mask();
                write_frame(&mut self.unwritten, Opcode::Pong, &data, false, mask);
                if self.unwritten.len() > UNWRITTEN_BYTES_MAX {
                    let failure = Failure::protocol("the server sends pings and reads no pongs");
                    self.fail(at_ns, failure, requests);
                }
            }
            Event::Pong(_) => {
                if self.verb(requests) == Some(Verb::Ping) && !self.is_due {
                    self.finish(at_ns, Ending::Complete, requests);
                }
            }
            Event::Close { code, reason } if matches!(self.state, State::Closing) => {
                self.state = State::Closed;
                if let Some(request) = self.request.and_then(|slot| requests.get_mut(slot)) {
                    let mut bytes = code.to_be_bytes().to_vec();
                    bytes.extend_from_slice(reason.as_bytes());
                    request.exchange.messages.push(Part { kind: PartKind::Close, bytes, at_ns });
                }
                self.finish(at_ns, Ending::Complete, requests);
            }
            Event::Close { code, reason } => {
                write_close(&mut self.unwritten, code, "", requests.websocket.next_mask());
                let detail = format!("the server closed the socket: {code} {reason}");
                let failure = Failure::new(ErrorClass::Reset, detail.trim_end().to_owned());
                self.fail(at_ns, failure, requests);
            }
        }
    }

    /// Gives a message to the call that waits for it, or keeps it for another.
    fn on_message(&mut self, part: Part, requests: &mut Requests) {
        let at_ns = part.at_ns;
        let waiting = self.request.filter(|_| !self.is_due && !self.is_sending);
        if let Some(request) = waiting.and_then(|slot| requests.get_mut(slot)) {
            let template = request.exchange.template.clone();
            if let Some(call) = template.stream.as_deref().filter(|call| call.awaits_messages()) {
                self.received += 1;
                keep(request, part);
                if self.received >= call.count {
                    self.finish(at_ns, Ending::Complete, requests);
                }
                return;
            }
        }
        self.inbox_bytes += part.bytes.len();
        self.inbox.push_back(part);
        if self.inbox.len() > INBOX_MESSAGES_MAX || self.inbox_bytes > INBOX_BYTES_MAX {
            let detail =
                "the server sent more than 1,024 messages, or 1 MiB, that no call received";
            self.fail(at_ns, Failure::new(ErrorClass::TooLarge, detail), requests);
        }
    }

    fn on_frame_error(&mut self, error: &FrameError, at_ns: u64, requests: &mut Requests) {
        let mask = requests.websocket.next_mask();
        write_close(&mut self.unwritten, error.code, &error.detail, mask);
        let class =
            if error.code == frames::TOO_BIG { ErrorClass::TooLarge } else { ErrorClass::Protocol };
        self.fail(at_ns, Failure::new(class, error.detail.clone()), requests);
    }

    fn verb(&self, requests: &mut Requests) -> Option<Verb> {
        let request = requests.get_mut(self.request?)?;
        request.exchange.template.stream.as_ref().map(|call| call.verb)
    }
}

/// Keeps a message for the caller, as far as the caller can see it.
fn keep(request: &mut Request, part: Part) {
    if request.caller.keep >= Keep::Body {
        request.exchange.messages.push(part);
    }
}

impl Session for WebSocket {
    fn begin(&mut self, slot: u32, request: &Request, opening: &Opening<'_>) {
        self.request = Some(slot);
        self.is_due = true;
        self.is_sending = false;
        self.received = 0;
        if matches!(self.state, State::Fresh) {
            let began_ns = now_ns();
            // Differs from socket to socket, as the standard asks.
            let key =
                STANDARD.encode((u128::from(began_ns) << 32 | u128::from(slot)).to_ne_bytes());
            self.unwritten = handshake::request_head(&request.exchange.template, &key, opening.jar);
            self.state = State::Upgrading(Box::new(Upgrade { key, began_ns, head: Vec::new() }));
        }
    }

    fn write(
        &mut self,
        transport: &mut Transport,
        requests: &mut Requests,
        recorder: &mut Recorder,
    ) -> io::Result<()> {
        let mut out = std::mem::take(&mut requests.websocket.scratch);
        out.clear();
        out.append(&mut self.unwritten);
        if self.is_due && matches!(self.state, State::Open) {
            self.act(&mut out, requests);
        }
        let mut at = 0;
        let mut written = Ok(true);
        while let Some(rest) = out.get(at..).filter(|rest| !rest.is_empty()) {
            match transport.write(rest, &[]) {
                Ok(count) => at += count,
                Err(error) => {
                    let is_full = error.kind() == io::ErrorKind::WouldBlock;
                    written = if is_full { Ok(false) } else { Err(error) };
                    break;
                }
            }
        }
        if matches!(written, Ok(true)) {
            written = transport.flush();
        }
        self.unwritten.extend_from_slice(out.get(at..).unwrap_or_default());
        requests.websocket.scratch = out;
        let request = self.request.and_then(|slot| requests.get_mut(slot));
        if let Some(request) = request {
            request.exchange.bytes_sent += at as u64;
            if matches!(written, Ok(true)) && self.is_sending {
                self.is_sending = false;
                request.sent(recorder);
                let is_over = request.exchange.template.stream.as_ref();
                if is_over.is_some_and(|call| call.verb == Verb::Send) {
                    self.finish(now_ns(), Ending::Complete, requests);
                }
            }
        }
        written.map(|_| ())
    }

    fn receive(&mut self, input: &[u8], arrival: Arrival, requests: &mut Requests) {
        let request = self.request.and_then(|slot| requests.get_mut(slot));
        let is_upgrading = matches!(self.state, State::Upgrading(_));
        let at_ns = match request {
            // The first byte of a call is that of its reply, not of the handshake.
            Some(request) if !is_upgrading => request.received(input.len(), arrival),
            Some(request) => {
                request.exchange.bytes_received += input.len() as u64;
                request.awaits_bytes(arrival.at_ns);
                arrival.at_ns
            }
            None => arrival.at_ns,
        };
        let mut rest = input;
        if is_upgrading {
            match self.upgrade(input, at_ns, requests) {
                Ok(None) => return,
                Ok(Some(used)) => rest = input.get(used..).unwrap_or_default(),
                Err(failure) => return self.fail(at_ns, failure, requests),
            }
        }
        while matches!(self.state, State::Open | State::Closing) {
            match self.decoder.next(&mut rest, &mut requests.websocket.deflate) {
                Ok(Some(event)) => self.on_event(event, at_ns, requests),
                Ok(None) => return,
                Err(error) => return self.on_frame_error(&error, at_ns, requests),
            }
        }
    }

    fn end(&mut self, failure: Option<Failure>, at_ns: u64, requests: &mut Requests) {
        if matches!(self.state, State::Closing) && failure.is_none() {
            self.state = State::Closed;
            return self.finish(at_ns, Ending::Complete, requests);
        }
        let detail = "the server closed the connection without a close frame";
        let failure = failure.unwrap_or_else(|| Failure::new(ErrorClass::Reset, detail));
        self.fail(at_ns, failure, requests);
    }

    fn cancel(&mut self, slot: u32) {
        if self.request != Some(slot) {
            return;
        }
        self.request = None;
        // The reply to a message may come yet, and must not be taken for that to another one. A
        // call that only waited leaves the socket as it is.
        if !matches!(self.state, State::Open) || self.is_sending || self.awaits_reply {
            self.state = State::Closed;
        }
        self.is_due = false;
        self.is_sending = false;
        self.awaits_reply = false;
    }

    fn has_room(&self) -> bool {
        self.request.is_none() && matches!(self.state, State::Fresh | State::Open)
    }

    fn is_idle(&self) -> bool {
        self.request.is_none()
    }

    fn is_open(&self) -> bool {
        !matches!(self.state, State::Closed)
    }

    fn wants_write(&self) -> bool {
        !self.unwritten.is_empty() || (self.is_due && matches!(self.state, State::Open))
    }

    fn listens(&self) -> bool {
        true
    }
}

/// Names a socket: calls whose handshakes are equal share one.
#[must_use]
pub fn socket_number(template: &Template, call: &StreamCall) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};

    let mut hasher = DefaultHasher::new();
    (template.url.as_str(), &template.headers).hash(&mut hasher);
    (&call.subprotocols, call.deflate).hash(&mut hasher);
    hasher.finish()
}
