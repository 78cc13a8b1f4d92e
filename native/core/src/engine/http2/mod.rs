//! HTTP/2: many requests at once over one connection, each on a stream of its own.

use std::io;
use std::sync::Arc;

use super::error::{ErrorClass, Failure};
use super::http::cookies;
use super::http::reply::{Keep, Version};
use super::protocol::{Opening, Session};
use super::request::{Ending, Part, PartKind, Request, Requests};
use super::transport::{Arrival, Transport};
use crate::http2::fields::Fields;
use crate::recorder::Recorder;

pub mod head;
mod head_block;
mod outbox;
mod sink;
mod streams;

pub(super) use sink::{Sink, StreamEnd};
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
        let mut sink = ToRequests { requests, arrival, at_ns: arrival.at_ns };
        if let Err(failure) = self.streams.receive(input, &mut sink) {
            self.streams.close(&failure, &mut sink);
        }
    }

    fn end(&mut self, failure: Option<Failure>, at_ns: u64, requests: &mut Requests) {
        let failure = failure.unwrap_or_else(|| {
            Failure::new(ErrorClass::Reset, "the connection was closed before the response ended")
        });
        let arrival = Arrival { at_ns, is_timed: false };
        self.streams.close(&failure, &mut ToRequests { requests, arrival, at_ns });
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

/// Brings what happens to streams to the requests that they carry.
struct ToRequests<'r> {
    requests: &'r mut Requests,
    arrival: Arrival,
    /// When the last bytes of a request arrived.
    at_ns: u64,
}

impl Sink for ToRequests<'_> {
    fn arrived(&mut self, slot: u32, bytes: usize) {
        if let Some(request) = self.requests.get_mut(slot) {
            self.at_ns = request.received(bytes, self.arrival);
        }
    }

    fn head(&mut self, slot: u32, status: u16, fields: &Fields) -> Result<(), Failure> {
        let Some(request) = self.requests.get_mut(slot) else { return Ok(()) };
        let (reply, is_grpc) = (&mut request.reply, request.exchange.template.is_grpc());
        reply.status = status;
        reply.version = Version::Http2;
        for (name, value) in fields.iter() {
            // Names were checked: they are ASCII.
            let name = std::str::from_utf8(name).unwrap_or_default();
            reply.note_header(name, value);
            if name == "content-length" && !reply.expect.is_head {
                if let Some(length) = std::str::from_utf8(value).ok().and_then(|v| v.parse().ok()) {
                    reply.expect_body(length)?;
                }
            }
        }
        if is_grpc {
            reply.grpc_status = grpc_status(fields);
            // The coding of gRPC messages is their own.
            if let Some(rare) = &mut reply.rare {
                rare.encoding = None;
            }
        }
        reply.begin(|| written(status, fields));
        if request.caller.keep == Keep::Parts {
            let bytes = request.reply.head.as_deref().unwrap_or_default().to_vec();
            self.requests.deliver(slot, Part { kind: PartKind::Head, bytes, at_ns: self.at_ns });
        }
        Ok(())
    }

    fn data(&mut self, slot: u32, data: &[u8]) -> Result<(), Failure> {
        let Some(request) = self.requests.get_mut(slot) else { return Ok(()) };
        request.reply.add_body(data)?;
        if request.caller.keep == Keep::Parts && !data.is_empty() {
            let bytes = std::mem::take(&mut request.reply.body);
            self.requests.deliver(slot, Part { kind: PartKind::Data, bytes, at_ns: self.at_ns });
        }
        Ok(())
    }

    fn trailers(&mut self, slot: u32, fields: &Fields) {
        let Some(request) = self.requests.get_mut(slot) else { return };
        let (reply, is_grpc) = (&mut request.reply, request.exchange.template.is_grpc());
        if is_grpc {
            reply.grpc_status = grpc_status(fields);
        }
        let has_failed = reply.grpc_status.is_some_and(|code| code != 0);
        if reply.expect.keep >= Keep::Head || has_failed {
            let mut lines = Vec::new();
            fields.write_lines(&mut lines);
            reply.rare.get_or_insert_default().trailers = Some(lines.into());
        }
    }

    fn ended(&mut self, slot: u32, end: StreamEnd) {
        let request = self.requests.get_mut(slot);
        let is_without_status = request.is_some_and(|request| {
            let reply = &request.reply;
            request.exchange.template.is_grpc()
                && reply.status == 200
                && reply.grpc_status.is_none()
        });
        let ending = match end {
            StreamEnd::Whole if is_without_status => {
                Ending::Failed(Failure::protocol("a gRPC response without grpc-status"))
            }
            StreamEnd::Whole => Ending::Complete,
            StreamEnd::Unprocessed(failure) => Ending::Refused(failure),
            StreamEnd::Failed(failure) => Ending::Failed(failure),
        };
        self.requests.end(slot, self.at_ns, ending);
    }
}

/// The head as HTTP/1.1 would write it, which is how heads are kept.
fn written(status: u16, fields: &Fields) -> Arc<[u8]> {
    let mut head = format!("HTTP/2 {status}\r\n").into_bytes();
    fields.write_lines(&mut head);
    head.extend_from_slice(b"\r\n");
    head.into()
}

/// The status of a gRPC call; one that is no number is unknown.
fn grpc_status(fields: &Fields) -> Option<u8> {
    const UNKNOWN: u8 = 2;
    let value = fields.get(b"grpc-status")?;
    let code = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    Some(code.unwrap_or(UNKNOWN))
}
