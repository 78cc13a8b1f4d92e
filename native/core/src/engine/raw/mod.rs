//! Raw TCP and UDP: one call after another on a connection that stays open.
//!
//! A call says where its message ends: the protocol does not. A datagram is a message.

use std::io;

use super::error::{ErrorClass, Failure};
use super::http::reply::Keep;
use super::protocol::{Opening, Session};
use super::request::{Ending, Part, PartKind, Request, Requests};
use super::streams::{Splitter, Until, Verb};
use super::transport::{Arrival, Transport};
use crate::clock::now_ns;
use crate::recorder::Recorder;

/// Bytes kept for calls to come.
const UNREAD_BYTES_MAX: usize = 1 << 20;

#[derive(Debug)]
pub struct Raw {
    is_datagram: bool,
    request: Option<u32>,
    /// How much of the message of the call was written; None once it is written whole.
    written: Option<usize>,
    /// The call sent something that may be answered.
    awaits_reply: bool,
    /// What the call received.
    messages: usize,
    bytes: u64,
    unread: Splitter,
    is_open: bool,
}

impl Raw {
    #[must_use]
    pub fn new(is_datagram: bool) -> Self {
        Self {
            is_datagram,
            request: None,
            written: None,
            awaits_reply: false,
            messages: 0,
            bytes: 0,
            unread: Splitter::default(),
            is_open: true,
        }
    }

    fn finish(&mut self, at_ns: u64, how: Ending, requests: &mut Requests) {
        self.awaits_reply = false;
        self.written = None;
        if let Some(slot) = self.request.take() {
            requests.end(slot, at_ns, how);
        }
    }

    fn fail(&mut self, at_ns: u64, failure: Failure, requests: &mut Requests) {
        self.is_open = false;
        self.finish(at_ns, Ending::Failed(failure), requests);
    }

    /// The message of the call, if it has one, is written: what it waits for may be there already.
    fn go_on(&mut self, at_ns: u64, requests: &mut Requests) {
        let Some(request) = self.request.and_then(|slot| requests.get_mut(slot)) else { return };
        let template = request.exchange.template.clone();
        let Some(call) = &template.stream else { return };
        match call.verb {
            Verb::Exchange | Verb::Receive => {
                let limit = template.limits.body_bytes_max;
                let until = if self.is_datagram { &Until::Any } else { &call.until };
                while self.messages < call.count {
                    let Some(bytes) = self.unread.next(until) else { break };
                    self.messages += 1;
                    self.bytes += bytes.len() as u64;
                    if request.caller.keep >= Keep::Body {
                        let part = Part { kind: PartKind::Data, bytes, at_ns };
                        request.exchange.messages.push(part);
                    }
                }
                if self.bytes + self.unread.len() as u64 > limit {
                    let detail = format!("the reply is over {limit} bytes");
                    self.fail(at_ns, Failure::new(ErrorClass::TooLarge, detail), requests);
                } else if self.messages >= call.count {
                    self.finish(at_ns, Ending::Complete, requests);
                }
            }
            Verb::Close => {
                self.is_open = false;
                self.finish(at_ns, Ending::Complete, requests);
            }
            Verb::Open | Verb::Send | Verb::Ping => {
                self.finish(at_ns, Ending::Complete, requests);
            }
        }
    }
}

impl Session for Raw {
    fn begin(&mut self, slot: u32, request: &Request, _opening: &Opening<'_>) {
        let call = request.exchange.template.stream.as_deref();
        self.request = Some(slot);
        self.written = Some(0);
        self.messages = 0;
        self.bytes = 0;
        self.awaits_reply = call.is_some_and(|call| call.verb == Verb::Exchange);
        if self.awaits_reply {
            // The reply to a message comes after it.
            self.unread = Splitter::default();
        }
    }

    fn write(
        &mut self,
        transport: &mut Transport,
        requests: &mut Requests,
        recorder: &mut Recorder,
    ) -> io::Result<()> {
        let Some(at) = self.written else { return Ok(()) };
        let Some(request) = self.request.and_then(|slot| requests.get_mut(slot)) else {
            return Ok(());
        };
        let template = request.exchange.template.clone();
        let call = template.stream.as_deref();
        if call.is_some_and(super::streams::StreamCall::sends_message) {
            let message = template.body.as_ref().map_or(&[][..], |body| &body.bytes);
            let mut at = at;
            while let Some(rest) = message.get(at..).filter(|rest| !rest.is_empty()) {
                match transport.write(rest, &[]) {
                    Ok(count) => at += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.written = Some(at);
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
            }
            self.written = Some(at);
            if !transport.flush()? {
                return Ok(());
            }
            request.exchange.bytes_sent += message.len() as u64;
            request.sent(recorder);
        }
        self.written = None;
        self.go_on(now_ns(), requests);
        Ok(())
    }

    fn receive(&mut self, input: &[u8], arrival: Arrival, requests: &mut Requests) {
        let request = self.request.and_then(|slot| requests.get_mut(slot));
        let at_ns = match request {
            Some(request) => request.received(input.len(), arrival),
            None => arrival.at_ns,
        };
        if self.is_datagram && self.request.is_none() {
            return; // nobody asked for it, and a later call must not take it for its reply
        }
        self.unread.push(input);
        if self.request.is_some() && self.written.is_none() {
            self.go_on(at_ns, requests);
        }
        if self.request.is_none() && self.unread.len() > UNREAD_BYTES_MAX {
            self.is_open = false;
        }
    }

    fn end(&mut self, failure: Option<Failure>, at_ns: u64, requests: &mut Requests) {
        let detail = "the server closed the connection";
        let failure = failure.unwrap_or_else(|| Failure::new(ErrorClass::Reset, detail));
        self.fail(at_ns, failure, requests);
    }

    fn cancel(&mut self, slot: u32) {
        if self.request != Some(slot) {
            return;
        }
        self.request = None;
        // The reply to a message may come yet, and must not be taken for that to another one.
        self.is_open &= !self.awaits_reply && self.written.is_none();
        self.awaits_reply = false;
        self.written = None;
    }

    fn has_room(&self) -> bool {
        self.request.is_none() && self.is_open
    }

    fn is_idle(&self) -> bool {
        self.request.is_none()
    }

    fn is_open(&self) -> bool {
        self.is_open
    }

    fn wants_write(&self) -> bool {
        self.written.is_some()
    }

    fn listens(&self) -> bool {
        true
    }
}
