//! The client's side of one HTTP/2 connection: streams, windows, settings, limits.
//!
//! Bytes of the server go in by `receive`, and what they mean for each stream goes to a `Sink`.
//! Bytes for the server wait in `unwritten`. A stream is known to the outside by the request that it
//! carries. No socket and no clock in here.

use std::sync::Arc;

use super::head_block::HeadBlock;
use super::outbox::Outbox;
use crate::engine::error::{ErrorClass, Failure};
use crate::engine::http::response_head::{judge, length_of, FIELDS_MAX, HEAD_BYTES_MAX};
use crate::engine::http::sink::{Sink, StreamEnd};
use crate::http2::fields::Fields;
use crate::http2::frame::{
    self, flag, kind, setting, ErrorCode, FrameHead, FrameReader, Violation, PAYLOAD_BYTES_MAX,
    PREFACE, WINDOW_DEFAULT, WINDOW_MAX,
};
use crate::http2::hpack::{Broken, Decoder};

/// What the server may send of one body, and of all bodies, before we say that more is welcome.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;
/// Frames that bring no response further, until one does.
const IDLE_FRAMES_MAX: u32 = 1000;
/// Streams that a server is taken to allow before its settings are known.
const STREAMS_ASSUMED: u32 = 100;
const STREAM_ID_MAX: u32 = (1 << 31) - 1;
const TOO_MUCH_DATA: Violation =
    Violation::new(ErrorCode::FLOW_CONTROL_ERROR, "more data than allowed");

#[derive(Debug)]
struct Stream {
    id: u32,
    request: u32,
    /// What the server still takes.
    window: i64,
    /// Body bytes received since the server last heard that more is welcome.
    received: u32,
    has_head: bool,
    /// The request is HEAD: its response announces a body that never comes.
    is_head: bool,
    /// What the head announced of the body and has not come yet.
    announced: Option<u64>,
    /// What is left to send, and whether the stream ends with it.
    body: Option<Arc<[u8]>>,
    body_at: usize,
    is_last: bool,
    is_sent: bool,
    sent_bytes: u64,
}

#[derive(Debug)]
pub struct Streams {
    reader: FrameReader,
    decoder: Decoder,
    fields: Fields,
    /// By id, in order.
    streams: Vec<Stream>,
    next_id: u32,
    block: Option<HeadBlock>,
    /// Settings of the server.
    streams_max: u32,
    window_initial: i64,
    window: i64,
    received: u32,
    has_settings: bool,
    is_going_away: bool,
    idle_frames: u32,
    outbox: Outbox,
}

impl Default for Streams {
    fn default() -> Self {
        let mut outbox = Outbox::default();
        let settings = [
            (setting::ENABLE_PUSH, 0),
            (setting::INITIAL_WINDOW_SIZE, STREAM_WINDOW),
            (setting::MAX_HEADER_LIST_SIZE, HEAD_BYTES_MAX as u32),
        ];
        outbox.write(|out| {
            out.extend_from_slice(PREFACE);
            frame::write_settings(out, &settings);
            frame::write_window_update(out, 0, CONNECTION_WINDOW - WINDOW_DEFAULT as u32);
        });
        Self {
            reader: FrameReader::default(),
            decoder: Decoder::default(),
            fields: Fields::default(),
            streams: Vec::new(),
            next_id: 1,
            block: None,
            streams_max: STREAMS_ASSUMED,
            window_initial: WINDOW_DEFAULT,
            window: WINDOW_DEFAULT,
            received: 0,
            has_settings: false,
            is_going_away: false,
            idle_frames: 0,
            outbox,
        }
    }
}

impl Streams {
    /// Streams that can be opened now, if at most `streams_max` may be open.
    #[must_use]
    pub fn room(&self, streams_max: u32) -> usize {
        if self.is_going_away || self.next_id > STREAM_ID_MAX {
            return 0;
        }
        (streams_max.min(self.streams_max) as usize).saturating_sub(self.streams.len())
    }

    /// Whether requests can be put on this connection, now or later.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.is_going_away && self.next_id <= STREAM_ID_MAX
    }

    /// Whether no request is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    /// Opens a stream for a request: its header block in two parts, and its body.
    /// `is_last`: nothing follows the body.
    pub fn send(
        &mut self,
        request: u32,
        block: [&[u8]; 2],
        body: Option<&Arc<[u8]>>,
        is_last: bool,
        is_head: bool,
    ) {
        let body = body.filter(|body| !body.is_empty()).cloned();
        let id = self.next_id;
        self.next_id += 2;
        let ends = is_last && body.is_none();
        let sent_bytes = self.outbox.write(|out| frame::write_headers(out, id, block, ends));
        let has_body = body.is_some();
        self.streams.push(Stream {
            id,
            request,
            window: self.window_initial,
            received: 0,
            has_head: false,
            is_head,
            announced: None,
            body,
            body_at: 0,
            is_last,
            is_sent: ends,
            sent_bytes,
        });
        if ends {
            self.outbox.finish(request, sent_bytes);
        } else if has_body {
            self.lay_out_bodies();
        }
    }

    /// Sends more of a body that was not the last. False if the stream has ended.
    pub fn send_more(&mut self, request: u32, data: &[u8], is_last: bool) -> bool {
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.request == request) else {
            return false;
        };
        if stream.is_last {
            return false;
        }
        let rest = stream.body.as_deref().and_then(|body| body.get(stream.body_at..));
        stream.body = Some([rest.unwrap_or_default(), data].concat().into());
        stream.body_at = 0;
        stream.is_last = is_last;
        self.lay_out_bodies();
        true
    }

    /// Ends the stream of a request that nobody waits for any more.
    pub fn cancel(&mut self, request: u32) {
        let Some(at) = self.streams.iter().position(|stream| stream.request == request) else {
            return;
        };
        let id = self.streams.remove(at).id;
        self.outbox.forget(request);
        self.outbox.write(|out| frame::write_reset(out, id, ErrorCode::CANCEL));
    }

    /// Bytes for the server that the socket has not taken yet.
    #[must_use]
    pub fn unwritten(&self) -> &[u8] {
        self.outbox.unwritten()
    }

    /// The socket took so many bytes.
    pub fn advance(&mut self, bytes: usize) {
        self.outbox.advance(bytes);
        self.lay_out_bodies();
    }

    /// The next request that the socket has taken as a whole, and its size.
    pub fn take_sent(&mut self) -> Option<(u32, u64)> {
        self.outbox.take_sent()
    }

    /// Takes what the server sent. An error ends the connection and all its streams.
    pub fn receive(&mut self, input: &[u8], sink: &mut impl Sink) -> Result<(), Failure> {
        if !self.has_settings && input.starts_with(b"HTTP/1") {
            return Err(Failure::protocol("the server speaks HTTP/1.1, not HTTP/2"));
        }
        self.take_frames(input, sink).map_err(|violation| {
            self.outbox.write(|out| frame::write_goaway(out, 0, violation.code));
            let class = if violation.code == ErrorCode::ENHANCE_YOUR_CALM {
                ErrorClass::TooLarge
            } else {
                ErrorClass::Protocol
            };
            Failure::new(class, format!("HTTP/2: {}", violation.what))
        })
    }

    /// The connection ended: what was under way on it failed.
    pub fn close(&mut self, failure: &Failure, sink: &mut impl Sink) {
        self.is_going_away = true;
        self.outbox.forget_all();
        for stream in std::mem::take(&mut self.streams) {
            sink.ended(stream.request, StreamEnd::Failed(failure.clone()));
        }
    }

    fn take_frames(&mut self, mut input: &[u8], sink: &mut impl Sink) -> Result<(), Violation> {
        // Out of `self`, so that a frame can be borrowed from it while it is handled.
        let mut reader = std::mem::take(&mut self.reader);
        let taken = loop {
            match reader.next(&mut input) {
                Ok(None) => break Ok(()),
                Ok(Some((head, payload))) => {
                    if let Err(violation) = self.take_frame(head, payload, sink) {
                        break Err(violation);
                    }
                }
                Err(violation) => break Err(violation),
            }
        };
        self.reader = reader;
        taken
    }

    fn take_frame(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), Violation> {
        if !self.has_settings && (head.kind != kind::SETTINGS || head.has(flag::ACK)) {
            return Err(Violation::protocol("the server did not begin with its settings"));
        }
        if self.block.is_some() && head.kind != kind::CONTINUATION {
            return Err(Violation::protocol("a header block was interrupted"));
        }
        self.idle_frames += 1;
        if self.idle_frames > IDLE_FRAMES_MAX {
            let what = "more than 1000 frames in a row that bring no response further";
            return Err(Violation::protocol(what));
        }
        match head.kind {
            kind::DATA => self.on_data(head, payload, sink),
            kind::HEADERS => {
                self.check_id(head.stream)?;
                let fragment = frame::header_fragment(head, payload)?;
                let is_end = head.has(flag::END_STREAM);
                self.on_fragment(head, is_end, fragment, sink)
            }
            kind::CONTINUATION => {
                let is_next = self.block.as_ref().is_some_and(|block| block.stream == head.stream);
                if !is_next {
                    return Err(Violation::protocol("CONTINUATION without HEADERS"));
                }
                self.on_fragment(head, false, payload, sink)
            }
            kind::RST_STREAM => {
                let code = ErrorCode(frame::number(payload)?);
                self.check_id(head.stream)?;
                self.on_reset(head.stream, code, sink);
                Ok(())
            }
            kind::SETTINGS => self.on_settings(head, payload),
            kind::PUSH_PROMISE => {
                Err(Violation::protocol("the server pushes although push is turned off"))
            }
            kind::PING => {
                if head.stream != 0 || payload.len() != 8 {
                    return Err(Violation::size("PING of a wrong length"));
                }
                if !head.has(flag::ACK) {
                    self.outbox.write(|out| frame::write_ping_ack(out, payload));
                }
                Ok(())
            }
            kind::GOAWAY => {
                let (last, code) = frame::goaway(payload)?;
                self.on_going_away(last, code, sink);
                Ok(())
            }
            kind::WINDOW_UPDATE => self.on_window_update(head.stream, payload, sink),
            // PRIORITY, and what later standards may add.
            _ => Ok(()),
        }
    }

    fn on_data(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), Violation> {
        self.check_id(head.stream)?;
        let data = frame::unpadded(head, payload)?;
        let counted = payload.len() as u32;
        self.received += counted;
        if self.received > CONNECTION_WINDOW {
            return Err(TOO_MUCH_DATA);
        }
        if self.received > CONNECTION_WINDOW / 2 {
            let bytes = std::mem::take(&mut self.received);
            self.outbox.write(|out| frame::write_window_update(out, 0, bytes));
        }
        // Data of a stream that was cancelled is dropped.
        let Ok(at) = self.find(head.stream) else { return Ok(()) };
        let Some(stream) = self.streams.get_mut(at) else { return Ok(()) };
        let (request, is_end) = (stream.request, head.has(flag::END_STREAM));
        stream.received += counted;
        if stream.received > STREAM_WINDOW {
            return Err(TOO_MUCH_DATA);
        }
        if !data.is_empty() || is_end {
            self.idle_frames = 0;
        }
        if !stream.has_head {
            return Err(Violation::protocol("a body before the response head"));
        }
        let is_as_announced = stream.announced.is_none_or(|left| {
            let left = left.checked_sub(data.len() as u64);
            stream.announced = left;
            left.is_some() && (!is_end || left == Some(0))
        });
        let refill = (stream.received > STREAM_WINDOW / 2 && !is_end)
            .then(|| std::mem::take(&mut stream.received));
        if let Some(bytes) = refill {
            let id = head.stream;
            self.outbox.write(|out| frame::write_window_update(out, id, bytes));
        }
        sink.arrived(request, frame::HEAD_BYTES + payload.len());
        if !is_as_announced {
            let failure = Failure::protocol("HTTP/2: a body of another length than announced");
            self.fail(at, failure, sink);
        } else if let Err(failure) = sink.data(request, data) {
            self.fail(at, failure, sink);
        } else if is_end {
            self.end(at, sink);
        }
        Ok(())
    }

    fn on_fragment(
        &mut self,
        head: FrameHead,
        is_end: bool,
        fragment: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), Violation> {
        let is_whole = head.has(flag::END_HEADERS);
        let block = match self.block.take() {
            None if is_whole => return self.on_block(head.stream, is_end, fragment, sink),
            None => HeadBlock::new(head.stream, is_end),
            Some(block) => block,
        };
        let block = block.extended(fragment)?;
        if is_whole {
            return self.on_block(block.stream, block.is_end, &block.bytes, sink);
        }
        self.block = Some(block);
        Ok(())
    }

    fn on_block(
        &mut self,
        id: u32,
        is_end: bool,
        block: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), Violation> {
        let Self { fields, decoder, .. } = self;
        fields.clear();
        let fits = decoder
            .decode(block, HEAD_BYTES_MAX, |name, value| fields.push(name, value))
            .map_err(|Broken(what)| Violation::new(ErrorCode::COMPRESSION_ERROR, what))?;
        // Decoded all the same: later blocks build on it.
        let Ok(at) = self.find(id) else { return Ok(()) };
        let Some(stream) = self.streams.get_mut(at) else { return Ok(()) };
        let request = stream.request;
        sink.arrived(request, frame::HEAD_BYTES + block.len());
        if !fits || self.fields.len() > FIELDS_MAX {
            let detail =
                format!("response head is over {HEAD_BYTES_MAX} bytes or {FIELDS_MAX} fields");
            self.fail(at, Failure::new(ErrorClass::TooLarge, detail), sink);
            return Ok(());
        }
        let is_trailers = stream.has_head;
        let is_short = is_trailers && stream.announced.is_some_and(|left| left > 0);
        let (status, fault) = judge(&self.fields, is_trailers, is_end);
        let fault = fault.or(is_short.then_some("a body of another length than announced"));
        if let Some(fault) = fault {
            self.fail(at, Failure::protocol(format!("HTTP/2: {fault}")), sink);
            return Ok(());
        }
        if is_trailers {
            self.idle_frames = 0;
            sink.trailers(request, &self.fields);
            self.end(at, sink);
            return Ok(());
        }
        if status < 200 {
            return Ok(()); // an interim response: the final one follows
        }
        self.idle_frames = 0;
        stream.has_head = true;
        if !stream.is_head && !is_end {
            stream.announced = self.fields.get(b"content-length").and_then(length_of);
        }
        if let Err(failure) = sink.head(request, status, &self.fields) {
            self.fail(at, failure, sink);
        } else if is_end {
            self.end(at, sink);
        }
        Ok(())
    }

    fn on_reset(&mut self, id: u32, code: ErrorCode, sink: &mut impl Sink) {
        let Ok(at) = self.find(id) else { return };
        let stream = self.streams.remove(at);
        self.outbox.forget(stream.request);
        let failure = Failure::new(ErrorClass::Reset, format!("stream reset: {code}"));
        let end = if code == ErrorCode::REFUSED_STREAM {
            StreamEnd::Unprocessed(failure)
        } else {
            StreamEnd::Failed(failure)
        };
        sink.ended(stream.request, end);
    }

    fn on_going_away(&mut self, last: u32, code: ErrorCode, sink: &mut impl Sink) {
        self.is_going_away = true;
        let unprocessed = self.streams.partition_point(|stream| stream.id <= last);
        for stream in self.streams.split_off(unprocessed) {
            self.outbox.forget(stream.request);
            let detail = format!("the server closes the connection: {code}");
            let failure = Failure::new(ErrorClass::Reset, detail);
            sink.ended(stream.request, StreamEnd::Unprocessed(failure));
        }
    }

    fn on_settings(&mut self, head: FrameHead, payload: &[u8]) -> Result<(), Violation> {
        if head.stream != 0 {
            return Err(Violation::protocol("settings of a stream"));
        }
        if head.has(flag::ACK) {
            return if payload.is_empty() {
                Ok(())
            } else {
                Err(Violation::size("SETTINGS of a wrong length"))
            };
        }
        for (id, value) in frame::settings(payload)? {
            match id {
                setting::MAX_CONCURRENT_STREAMS => self.streams_max = value,
                setting::INITIAL_WINDOW_SIZE => {
                    let value = i64::from(value);
                    if value > WINDOW_MAX {
                        let code = ErrorCode::FLOW_CONTROL_ERROR;
                        return Err(Violation::new(code, "a window that is too large"));
                    }
                    let change = value - std::mem::replace(&mut self.window_initial, value);
                    for stream in &mut self.streams {
                        stream.window += change;
                    }
                }
                setting::MAX_FRAME_SIZE
                    if !(PAYLOAD_BYTES_MAX as u32..=0x00ff_ffff).contains(&value) =>
                {
                    return Err(Violation::protocol("a frame size that is not allowed"));
                }
                _ => {}
            }
        }
        self.has_settings = true;
        self.outbox.write(frame::write_settings_ack);
        self.lay_out_bodies();
        Ok(())
    }

    fn on_window_update(
        &mut self,
        id: u32,
        payload: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), Violation> {
        let bytes = i64::from(frame::number(payload)? & 0x7fff_ffff);
        if id == 0 {
            self.window += bytes;
            if bytes == 0 || self.window > WINDOW_MAX {
                return Err(Violation::new(ErrorCode::FLOW_CONTROL_ERROR, "a wrong window"));
            }
        } else {
            self.check_id(id)?;
            let Ok(at) = self.find(id) else { return Ok(()) };
            let Some(stream) = self.streams.get_mut(at) else { return Ok(()) };
            stream.window += bytes;
            if bytes == 0 || stream.window > WINDOW_MAX {
                self.fail(at, Failure::protocol("HTTP/2: a wrong window"), sink);
                return Ok(());
            }
        }
        self.lay_out_bodies();
        Ok(())
    }

    /// Lays bodies out as far as the windows and the bytes still unwritten allow.
    fn lay_out_bodies(&mut self) {
        let waiting = self.streams.iter_mut().filter(|stream| !stream.is_sent);
        for stream in waiting {
            let Some(body) = stream.body.clone() else { continue };
            loop {
                let rest = body.get(stream.body_at..).unwrap_or_default();
                let window = self.window.min(stream.window).max(0) as usize;
                let length = rest.len().min(window).min(PAYLOAD_BYTES_MAX);
                let is_all = length == rest.len();
                if (length == 0 && !(is_all && stream.is_last)) || self.outbox.is_full() {
                    break;
                }
                let ends = is_all && stream.is_last;
                let flags = if ends { flag::END_STREAM } else { 0 };
                let data = rest.get(..length).unwrap_or_default();
                stream.sent_bytes += self.outbox.write(|out| {
                    frame::write_head(out, length, kind::DATA, flags, stream.id);
                    out.extend_from_slice(data);
                });
                stream.body_at += length;
                stream.window -= length as i64;
                self.window -= length as i64;
                self.idle_frames = 0;
                if ends {
                    stream.is_sent = true;
                    stream.body = None;
                    self.outbox.finish(stream.request, stream.sent_bytes);
                    break;
                }
            }
        }
    }

    fn find(&self, id: u32) -> Result<usize, usize> {
        self.streams.binary_search_by_key(&id, |stream| stream.id)
    }

    /// A stream that a frame of the server may name: one that we have opened.
    fn check_id(&self, id: u32) -> Result<(), Violation> {
        if id == 0 || id >= self.next_id || id.is_multiple_of(2) {
            return Err(Violation::protocol("a frame of a stream that was never opened"));
        }
        Ok(())
    }

    /// The response is whole.
    fn end(&mut self, at: usize, sink: &mut impl Sink) {
        let Stream { id, request, is_sent, .. } = self.streams.remove(at);
        self.outbox.forget(request);
        if !is_sent {
            // The server does not want the rest of the request.
            self.outbox.write(|out| frame::write_reset(out, id, ErrorCode::CANCEL));
        }
        sink.ended(request, StreamEnd::Whole);
    }

    /// Ends a stream whose response is of no use.
    fn fail(&mut self, at: usize, failure: Failure, sink: &mut impl Sink) {
        let Stream { id, request, .. } = self.streams.remove(at);
        self.outbox.forget(request);
        self.outbox.write(|out| frame::write_reset(out, id, ErrorCode::CANCEL));
        sink.ended(request, StreamEnd::Failed(failure));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
#[path = "streams_tests.rs"]
mod tests;
