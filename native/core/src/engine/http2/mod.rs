//! HTTP/2: many requests at once over one connection, each on a stream of its own.

use std::io;

use super::error::{ErrorClass, Failure};
use super::http::cookies;
use super::http::reply::Version;
use super::http::sink::ToRequests;
use super::protocol::{Opening, Session};
use super::request::{Part, Request, Requests};
use super::transport::{Arrival, Transport};
use crate::recorder::Recorder;

pub mod head;
mod head_block;
mod outbox;
mod streams;

pub(super) use streams::Streams;

#[derive(Debug)]
pub struct Http2 {
    streams: Box<Streams>,
    streams_max: u32,
    /// Requests that began after the last write.
    fresh: Vec<u32>,
    /// The socket has not taken all that was written.
    is_blocked: bool,
}

impl Http2 {
    /// At most `streams_max` requests at once, and no more than the server allows.
    #[must_use]
    pub fn new(streams_max: u32) -> Self {
        let streams = Box::<Streams>::default();
        Self { streams, streams_max, fresh: Vec::new(), is_blocked: false }
    }
}

impl Session for Http2 {
    fn begin(&mut self, slot: u32, request: &Request, opening: &Opening<'_>) {
        let template = &request.exchange.template;
        let prepared = head::prepared(template);
        let mut own = Vec::new();
        if opening.jar.is_some() || template.cookies.is_some() {
            if let Some(value) = cookies::header_value(template, opening.jar) {
                head::write_cookies(&mut own, &value);
            }
        }
        let is_head = template.method == "HEAD";
        let is_last = !template.body.as_ref().is_some_and(|body| body.continues);
        let block = [&prepared.block[..], &own];
        self.streams.send(slot, block, prepared.body.as_ref(), is_last, is_head);
        self.fresh.push(slot);
    }

    fn write(
        &mut self,
        transport: &mut Transport,
        requests: &mut Requests,
        recorder: &mut Recorder,
    ) -> io::Result<()> {
        if !self.fresh.is_empty() {
            let now = crate::clock::now_ns();
            for slot in self.fresh.drain(..) {
                if let Some(request) = requests.get_mut(slot) {
                    request.leaves(now);
                }
            }
        }
        loop {
            let bytes = self.streams.unwritten();
            if bytes.is_empty() {
                break;
            }
            match transport.write(bytes, &[]) {
                Ok(count) => self.streams.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        self.is_blocked = !transport.flush()?;
        if !self.is_blocked {
            while let Some((slot, bytes)) = self.streams.take_sent() {
                if let Some(request) = requests.get_mut(slot) {
                    request.exchange.bytes_sent += bytes;
                    request.sent(recorder);
                }
            }
        }
        Ok(())
    }

    fn receive(&mut self, input: &[u8], arrival: Arrival, requests: &mut Requests) {
        let mut sink = ToRequests::new(requests, arrival, Version::Http2);
        if let Err(failure) = self.streams.receive(input, &mut sink) {
            self.streams.close(&failure, &mut sink);
        }
    }

    fn end(&mut self, failure: Option<Failure>, at_ns: u64, requests: &mut Requests) {
        let failure = failure.unwrap_or_else(|| {
            Failure::new(ErrorClass::Reset, "the connection was closed before the response ended")
        });
        let arrival = Arrival { at_ns, is_timed: false };
        self.streams.close(&failure, &mut ToRequests::new(requests, arrival, Version::Http2));
    }

    fn cancel(&mut self, slot: u32) {
        self.streams.cancel(slot);
        self.fresh.retain(|&fresh| fresh != slot);
    }

    fn push(&mut self, slot: u32, part: Part) -> Result<(), Failure> {
        // An empty piece of a body is its end.
        let is_last = part.bytes.is_empty();
        if self.streams.send_more(slot, &part.bytes, is_last) {
            return Ok(());
        }
        Err(Failure::new(ErrorClass::Reset, "the stream has ended"))
    }

    fn has_room(&self) -> bool {
        self.streams.room(self.streams_max) > 0
    }

    fn is_idle(&self) -> bool {
        self.streams.is_idle()
    }

    fn is_open(&self) -> bool {
        self.streams.is_open()
    }

    fn wants_write(&self) -> bool {
        self.is_blocked || !self.streams.unwritten().is_empty()
    }

    fn listens(&self) -> bool {
        true
    }
}
