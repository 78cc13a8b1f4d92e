//! HTTP/3: many requests at once over one QUIC connection, each on a stream of its own.

use std::io;

use super::error::{ErrorClass, Failure};
use super::http::cookies;
use super::http::reply::Version;
use super::http::sink::ToRequests;
use super::protocol::{Opening, Session};
use super::request::{Request, Requests};
use super::transport::quic::Quic;
use super::transport::{Arrival, Transport};
use crate::recorder::Recorder;

mod control;
pub mod head;
mod streams;

use streams::Streams;

#[derive(Debug)]
pub struct Http3 {
    streams: Streams,
    /// Requests that began after the last write.
    fresh: Vec<u32>,
    /// Something has to be sent, or was received and has to be acknowledged.
    wants_write: bool,
}

impl Http3 {
    /// At most `streams_max` requests at once, and no more than the server allows.
    #[must_use]
    pub fn new(quic: &mut Quic, streams_max: u32) -> Self {
        Self { streams: Streams::new(quic, streams_max), fresh: Vec::new(), wants_write: true }
    }
}

impl Session for Http3 {
    fn begin(&mut self, slot: u32, request: &Request, opening: &Opening<'_>) {
        let template = &request.exchange.template;
        let prepared = head::prepared(template);
        let cookies = (opening.jar.is_some() || template.cookies.is_some())
            .then(|| cookies::header_value(template, opening.jar))
            .flatten();
        let (bytes, body_at) = head::write(prepared, cookies.as_deref());
        let body = prepared.body.clone().filter(|body| body_at < body.len());
        self.streams.begin(slot, bytes, body, template.method == "HEAD");
        self.fresh.push(slot);
        self.wants_write = true;
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
        let Some(quic) = transport.quic() else { return Ok(()) };
        self.streams.write(quic);
        let is_flushed = transport.flush()?;
        self.wants_write = !is_flushed;
        if is_flushed {
            while let Some((slot, bytes)) = self.streams.take_sent() {
                if let Some(request) = requests.get_mut(slot) {
                    request.exchange.bytes_sent += bytes;
                    request.sent(recorder);
                }
            }
        }
        Ok(())
    }

    /// The bytes of a QUIC connection are in its streams.
    fn receive(&mut self, _input: &[u8], _arrival: Arrival, _requests: &mut Requests) {}

    fn receive_streams(&mut self, quic: &mut Quic, arrival: Arrival, requests: &mut Requests) {
        self.wants_write = true;
        let mut sink = ToRequests::new(requests, arrival, Version::Http3);
        if let Err(violation) = self.streams.receive(quic, &mut sink) {
            quic.close(violation.code, violation.what);
            self.streams.close(&streams::failure(violation), &mut sink);
        }
    }

    fn end(&mut self, failure: Option<Failure>, at_ns: u64, requests: &mut Requests) {
        let failure = failure.unwrap_or_else(|| {
            Failure::new(ErrorClass::Reset, "the connection was closed before the response ended")
        });
        let arrival = Arrival { at_ns, is_timed: false };
        self.streams.close(&failure, &mut ToRequests::new(requests, arrival, Version::Http3));
    }

    fn cancel(&mut self, slot: u32) {
        self.wants_write |= self.streams.cancel(slot);
        self.fresh.retain(|&fresh| fresh != slot);
    }

    fn has_room(&self) -> bool {
        self.streams.has_room()
    }

    fn is_idle(&self) -> bool {
        self.streams.is_idle()
    }

    fn is_open(&self) -> bool {
        self.streams.is_open()
    }

    fn wants_write(&self) -> bool {
        self.wants_write
    }

    fn listens(&self) -> bool {
        true
    }
}
