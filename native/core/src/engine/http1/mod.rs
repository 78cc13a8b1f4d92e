//! HTTP/1.1: one request after another, never a second before the response to the first.

use std::io;
use std::sync::Arc;

use super::error::Failure;
use super::http::reply::Keep;
use super::http::template::Template;
use super::protocol::{Opening, Session};
use super::request::{Ending, Part, PartKind, Request, Requests};
use super::streams::Splitter;
use super::transport::{Arrival, Transport};
use crate::recorder::Recorder;

mod decoder;
pub mod head;
pub mod memo;

use decoder::{Decoder, Progress};

/// A request on its way out: head, then body, and how far it got.
#[derive(Debug, Default)]
struct Outgoing {
    template: Option<Arc<Template>>,
    /// The head, if it is not the template's: with cookies, or without keep-alive.
    own_head: Option<Box<[u8]>>,
    at: usize,
}

impl Outgoing {
    /// What is still to be written of head and body.
    fn rest(&self) -> (&[u8], &[u8]) {
        let Some(template) = &self.template else { return (&[], &[]) };
        let head = self.own_head.as_deref().unwrap_or_else(|| head::whole(template));
        let body = template.body.as_ref().map_or(&[][..], |body| &body.bytes);
        let body_at = self.at.saturating_sub(head.len());
        (head.get(self.at..).unwrap_or_default(), body.get(body_at..).unwrap_or_default())
    }
}

#[derive(Debug)]
pub struct Http1 {
    request: Option<u32>,
    outgoing: Outgoing,
    decoder: Decoder,
    /// Cuts the body into messages, if the call asks for that.
    splitter: Option<Box<Splitter>>,
    /// The request is not written whole yet.
    is_writing: bool,
    /// The connection can be used again.
    is_open: bool,
}

impl Default for Http1 {
    fn default() -> Self {
        Self {
            request: None,
            outgoing: Outgoing::default(),
            decoder: Decoder::default(),
            splitter: None,
            is_writing: false,
            is_open: true,
        }
    }
}

impl Http1 {
    /// Cuts what came of a body into messages. True if all that the call asked for are there.
    fn split(&mut self, slot: u32, at_ns: u64, requests: &mut Requests) -> bool {
        let Some(splitter) = &mut self.splitter else { return false };
        let Some(request) = requests.get_mut(slot) else { return false };
        let template = request.exchange.template.clone();
        let (Some(call), 200..=299) = (&template.stream, request.reply.status) else {
            return false;
        };
        splitter.push(&std::mem::take(&mut request.reply.body));
        let is_read = request.caller.keep == Keep::Parts;
        let mut left = call.count.saturating_sub(request.exchange.messages.len());
        while left > 0 {
            let Some(bytes) = splitter.next(&call.until) else { return false };
            let part = Part { kind: PartKind::Data, bytes, at_ns };
            if is_read {
                requests.deliver(slot, part.clone());
            }
            let Some(request) = requests.get_mut(slot) else { return false };
            request.exchange.messages.push(part);
            left -= 1;
        }
        true
    }

    /// The response is over. A request that is not written whole leaves the connection in an
    /// unknown state.
    fn finish(&mut self, slot: u32, is_reusable: bool, at_ns: u64, how: Ending, to: &mut Requests) {
        self.request = None;
        self.is_open &= is_reusable && !self.is_writing;
        self.is_writing = false;
        to.end(slot, at_ns, how);
    }
}

impl Session for Http1 {
    fn begin(&mut self, slot: u32, request: &Request, opening: &Opening<'_>) {
        let template = &request.exchange.template;
        let Opening { jar, close } = *opening;
        let is_plain = jar.is_none() && template.cookies.is_none() && !close;
        self.request = Some(slot);
        self.decoder.renew();
        self.splitter = template.stream.as_ref().map(|_| Box::default());
        self.is_writing = true;
        self.is_open = !close;
        match &self.outgoing.template {
            Some(loaded) if Arc::ptr_eq(loaded, template) => {}
            _ => self.outgoing.template = Some(template.clone()),
        }
        self.outgoing.own_head = (!is_plain).then(|| head::own(template, jar, close));
        self.outgoing.at = 0;
    }

    fn write(
        &mut self,
        transport: &mut Transport,
        requests: &mut Requests,
        recorder: &mut Recorder,
    ) -> io::Result<()> {
        let Some(request) = self.request.and_then(|slot| requests.get_mut(slot)) else {
            return Ok(());
        };
        loop {
            let (head, body) = self.outgoing.rest();
            if head.is_empty() && body.is_empty() {
                break;
            }
            match transport.write(head, body) {
                Ok(count) => {
                    self.outgoing.at += count;
                    request.exchange.bytes_sent += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if transport.flush()? {
            self.is_writing = false;
            self.outgoing.own_head = None;
            request.sent(recorder);
        }
        Ok(())
    }

    fn receive(&mut self, input: &[u8], arrival: Arrival, requests: &mut Requests) {
        let Some(slot) = self.request else {
            // What follows a response was not asked for.
            self.is_open = false;
            return;
        };
        let Requests { table, heads, .. } = requests;
        let Some(request) = table.get_mut(slot as usize) else { return };
        let at_ns = request.received(input.len(), arrival);
        let had_status = request.reply.status != 0;
        let memo = heads.of_step(request.caller.step);
        let fed = self.decoder.feed(input, &mut request.reply, memo);
        if request.caller.keep == Keep::Parts && self.splitter.is_none() {
            deliver_parts(slot, had_status, at_ns, requests);
        }
        if self.split(slot, at_ns, requests) && fed.is_ok() {
            return self.finish(slot, false, at_ns, Ending::Complete, requests);
        }
        match fed {
            Ok(Progress::More) => {}
            Ok(Progress::Done(used)) => {
                let is_reusable = self.decoder.keep_alive && used == input.len();
                self.finish(slot, is_reusable, at_ns, Ending::Complete, requests);
            }
            Err(failure) => self.finish(slot, false, at_ns, Ending::Failed(failure), requests),
        }
    }

    fn end(&mut self, failure: Option<Failure>, at_ns: u64, requests: &mut Requests) {
        self.is_open = false;
        let Some(slot) = self.request else { return };
        let Some(request) = requests.get_mut(slot) else { return };
        let ended = failure.map_or_else(|| self.decoder.end(&request.reply), Err);
        let how = ended.map_or_else(Ending::Failed, |()| Ending::Complete);
        self.finish(slot, false, at_ns, how, requests);
    }

    fn cancel(&mut self, slot: u32) {
        if self.request == Some(slot) {
            self.request = None;
            self.is_open = false;
        }
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
        self.is_writing
    }

    fn listens(&self) -> bool {
        false
    }
}

/// Hands out what the last bytes added to a response that its caller reads in parts.
fn deliver_parts(slot: u32, had_status: bool, at_ns: u64, requests: &mut Requests) {
    let Some(request) = requests.get_mut(slot) else { return };
    let body = std::mem::take(&mut request.reply.body);
    let head = request.reply.head.as_ref().filter(|_| !had_status).map(|head| head.to_vec());
    if let Some(bytes) = head {
        requests.deliver(slot, Part { kind: PartKind::Head, bytes, at_ns });
    }
    if !body.is_empty() {
        requests.deliver(slot, Part { kind: PartKind::Data, bytes: body, at_ns });
    }
}
