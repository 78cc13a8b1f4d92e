//! What the decoders of HTTP/2 and of WebSockets make of bytes, without a connection: for fuzzing.

use std::collections::BTreeMap;

use super::error::Failure;
use super::http::sink::{Sink, StreamEnd};
use super::http2::Streams;
use super::websocket::deflate::Deflate;
use super::websocket::frames::{Decoder, Event, Role};
use crate::http2::fields::Fields;

const BLOCK: &[u8] = &[0x82, 0x86, 0x84, 0x41, 0x01, b'h']; // GET http / h

/// What came of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    pub status: u16,
    pub head: Vec<u8>,
    pub body: Vec<u8>,
    pub trailers: Vec<u8>,
    /// How it ended, in words; None if it has not.
    pub end: Option<String>,
}

#[derive(Default)]
struct Log {
    requests: BTreeMap<u32, Replayed>,
}

impl Sink for Log {
    fn arrived(&mut self, _request: u32, _bytes: usize) {}

    fn head(&mut self, request: u32, status: u16, fields: &Fields) -> Result<(), Failure> {
        let seen = self.requests.entry(request).or_default();
        seen.status = status;
        fields.write_lines(&mut seen.head);
        Ok(())
    }

    fn data(&mut self, request: u32, data: &[u8]) -> Result<(), Failure> {
        self.requests.entry(request).or_default().body.extend_from_slice(data);
        Ok(())
    }

    fn trailers(&mut self, request: u32, fields: &Fields) {
        fields.write_lines(&mut self.requests.entry(request).or_default().trailers);
    }

    fn ended(&mut self, request: u32, end: StreamEnd) {
        self.requests.entry(request).or_default().end = Some(format!("{end:?}"));
    }
}

/// What `requests` requests on one connection of HTTP/2 receive from these pieces, and why the
/// connection failed, if it did. The last number is the most bytes that waited to be written.
#[must_use]
pub fn http2(requests: u32, pieces: &[&[u8]]) -> (Vec<Replayed>, Option<String>, usize) {
    let (mut streams, mut log, mut most) = (Streams::default(), Log::default(), 0);
    for request in 0..requests {
        streams.send(request, [BLOCK, &[]], None, true, false);
        log.requests.entry(request).or_default();
    }
    let mut failed = None;
    for piece in pieces {
        if let Err(failure) = streams.receive(piece, &mut log) {
            streams.close(&failure, &mut log);
            failed = Some(failure.to_string());
        }
        let waiting = streams.unwritten().len();
        most = most.max(waiting);
        streams.advance(waiting);
        while streams.take_sent().is_some() {}
        if failed.is_some() {
            break;
        }
    }
    (log.requests.into_values().collect(), failed, most)
}

/// What a client reads of these pieces on a WebSocket, and why it closes it, if it does.
#[must_use]
pub fn websocket(
    bytes_max: u64,
    is_deflating: bool,
    pieces: &[&[u8]],
) -> (Vec<Event>, Option<String>) {
    let mut decoder = Decoder::new(Role::Client, bytes_max, is_deflating);
    let mut deflate = Deflate::default();
    let mut events = Vec::new();
    for piece in pieces {
        let mut rest = *piece;
        loop {
            match decoder.next(&mut rest, &mut deflate) {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(error) => return (events, Some(format!("{}: {error}", error.code))),
            }
        }
    }
    (events, None)
}
