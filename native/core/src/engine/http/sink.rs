//! What the streams of a connection of HTTP/2 or HTTP/3 report, and to whom.

use std::sync::Arc;

use super::reply::{Keep, Version};
use crate::engine::error::Failure;
use crate::engine::request::{Ending, Part, PartKind, Requests};
use crate::engine::transport::Arrival;
use crate::http2::fields::Fields;

/// How a stream ended.
#[derive(Debug, PartialEq, Eq)]
pub enum StreamEnd {
    Whole,
    /// The server did nothing with the request: it can be sent again, whatever it asks for.
    Unprocessed(Failure),
    Failed(Failure),
}

/// What happens to streams. A failure that a method returns ends the stream.
pub trait Sink {
    /// Bytes of this request's response came.
    fn arrived(&mut self, request: u32, bytes: usize);
    fn head(&mut self, request: u32, status: u16, fields: &Fields) -> Result<(), Failure>;
    fn data(&mut self, request: u32, data: &[u8]) -> Result<(), Failure>;
    fn trailers(&mut self, request: u32, fields: &Fields);
    fn ended(&mut self, request: u32, end: StreamEnd);
}

/// Brings what happens to streams to the requests that they carry.
#[derive(Debug)]
pub struct ToRequests<'r> {
    requests: &'r mut Requests,
    arrival: Arrival,
    /// When the last bytes of a request arrived.
    at_ns: u64,
    version: Version,
}

impl<'r> ToRequests<'r> {
    pub fn new(requests: &'r mut Requests, arrival: Arrival, version: Version) -> Self {
        Self { requests, arrival, at_ns: arrival.at_ns, version }
    }
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
        reply.version = self.version;
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
        reply.begin(|| written(self.version, status, fields));
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
fn written(version: Version, status: u16, fields: &Fields) -> Arc<[u8]> {
    let mut head = format!("{} {status}\r\n", version.name()).into_bytes();
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
