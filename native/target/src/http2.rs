//! One HTTP/2 connection: requests on many streams, each answered as over HTTP/1.1, or by gRPC.
//!
//! Like `session`, it takes bytes and the time, and gives bytes and what to do next.

use hyperscale_core::http2::fields::Fields;
use hyperscale_core::http2::frame::{
    self, flag, kind, setting, ErrorCode, FrameHead, FrameReader, Violation, PAYLOAD_BYTES_MAX,
    PREFACE, WINDOW_DEFAULT, WINDOW_MAX,
};
use hyperscale_core::http2::hpack::{self, Broken, Decoder, Secrecy};

use crate::answer;
use crate::clock::Now;
use crate::counts::{Method, Protocol, Route, Standing, Tally};
use crate::grpc::Call;
use crate::head;
use crate::reply::{Manner, Refill, Reply, Source};
use crate::request::{BODY_BYTES_MAX, HEAD_BYTES_MAX};
use crate::routes::{Action, Plan};
use crate::session::Next;

const STREAMS_MAX: u32 = 1000;
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Reply bytes that are laid out ahead of what the socket takes.
const OUT_BYTES_MAX: usize = 256 * 1024;
/// The answer to HTTP/1.0, as it is made for HTTP/2: without chunks.
const UNCHUNKED: u8 = 0;

#[derive(Debug)]
struct Stream {
    id: u32,
    route: Option<Route>,
    bytes_in: u64,
    bytes_out: u64,
    /// Bytes of the request received since the client last heard that more is welcome.
    received: u32,
    window: i64,
    is_read: bool,
    read_ns: u64,
    work: Work,
}

#[derive(Debug)]
enum Work {
    Request {
        action: Action,
        method: Method,
        body: Vec<u8>,
        keeps_body: bool,
    },
    Call(Box<Call>),
    /// What is left of a reply: bytes at hand, how more is made, and trailers.
    Reply {
        bytes: Vec<u8>,
        at: usize,
        source: Source,
        trailers: Option<Vec<u8>>,
    },
}

/// A header block whose frames are still coming.
#[derive(Debug)]
struct Block {
    stream: u32,
    is_end: bool,
    bytes: Vec<u8>,
}

/// A reply that is laid out whole, but perhaps not sent.
#[derive(Clone, Copy, Debug)]
struct Answered {
    read_ns: u64,
    bytes_out: u64,
}

#[derive(Debug)]
pub struct Http2 {
    reader: FrameReader,
    decoder: Decoder,
    fields: Fields,
    has_preface: bool,
    streams: Vec<Stream>,
    last_id: u32,
    block: Option<Block>,
    window_initial: i64,
    window: i64,
    received: u32,
    /// Laid out, and to be counted when what was laid out has left.
    answered: Vec<Answered>,
    is_ending: bool,
}

impl Http2 {
    #[must_use]
    pub fn new() -> Self {
        Self {
            reader: FrameReader::default(),
            decoder: Decoder::default(),
            fields: Fields::default(),
            has_preface: false,
            streams: Vec::new(),
            last_id: 0,
            block: None,
            window_initial: WINDOW_DEFAULT,
            window: WINDOW_DEFAULT,
            received: 0,
            answered: Vec::new(),
            is_ending: false,
        }
    }

    pub fn advance(
        &mut self,
        input: &mut &[u8],
        out: &mut Vec<u8>,
        now: Now,
        tally: &Tally,
        standing: &mut Standing,
    ) -> Next {
        // What was laid out before has left by now.
        for answered in self.answered.drain(..) {
            tally.answered(now.ns.saturating_sub(answered.read_ns), answered.bytes_out);
        }
        if self.is_ending {
            return Next::Linger;
        }
        if !self.has_preface {
            if input.len() < PREFACE.len() && PREFACE.starts_with(input) {
                return Next::NeedInput;
            }
            let Some(rest) = input.strip_prefix(PREFACE) else { return Next::Close };
            *input = rest;
            self.has_preface = true;
            let settings = [
                (setting::MAX_CONCURRENT_STREAMS, STREAMS_MAX),
                (setting::INITIAL_WINDOW_SIZE, STREAM_WINDOW),
            ];
            frame::write_settings(out, &settings);
            frame::write_window_update(out, 0, CONNECTION_WINDOW - WINDOW_DEFAULT as u32);
        }
        if let Err(violation) = self.take_frames(input, out, now, tally, standing) {
            tally.malformed();
            frame::write_goaway(out, self.last_id, violation.code);
            self.is_ending = true;
            return Next::Flush;
        }
        let wait_until_ns = self.answer(out, now, tally);
        if !out.is_empty() {
            return Next::Flush;
        }
        wait_until_ns.map_or(Next::NeedInput, Next::WaitUntil)
    }

    /// True while a reply is still owed.
    #[must_use]
    pub fn owes_reply(&self) -> bool {
        self.streams.iter().any(|stream| stream.is_read)
    }

    pub fn closed(&self, tally: &Tally) {
        for answered in &self.answered {
            tally.abandoned(answered.bytes_out);
        }
        for stream in self.streams.iter().filter(|s| s.is_read && s.route.is_some()) {
            tally.abandoned(stream.bytes_out);
        }
    }

    fn take_frames(
        &mut self,
        input: &mut &[u8],
        out: &mut Vec<u8>,
        now: Now,
        tally: &Tally,
        standing: &mut Standing,
    ) -> Result<(), Violation> {
        let mut reader = std::mem::take(&mut self.reader);
        let taken = loop {
            match reader.next(input) {
                Ok(None) => break Ok(()),
                Ok(Some((head, payload))) => {
                    let taken = self.take_frame(head, payload, out, now, tally, standing);
                    if let Err(violation) = taken {
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
        out: &mut Vec<u8>,
        now: Now,
        tally: &Tally,
        standing: &mut Standing,
    ) -> Result<(), Violation> {
        match head.kind {
            kind::HEADERS | kind::CONTINUATION => {
                self.on_fragment(head, payload, now, tally, standing)
            }
            kind::DATA => self.on_data(head, payload, out, now, tally),
            kind::RST_STREAM => {
                self.on_reset(head.stream, tally);
                Ok(())
            }
            kind::SETTINGS if !head.has(flag::ACK) => {
                for (id, value) in frame::settings(payload)? {
                    if id == setting::INITIAL_WINDOW_SIZE {
                        let value = i64::from(value).min(WINDOW_MAX);
                        let change = value - std::mem::replace(&mut self.window_initial, value);
                        for stream in &mut self.streams {
                            stream.window += change;
                        }
                    }
                }
                frame::write_settings_ack(out);
                Ok(())
            }
            kind::PING if !head.has(flag::ACK) => {
                frame::write_ping_ack(out, payload);
                Ok(())
            }
            kind::WINDOW_UPDATE => {
                let bytes = i64::from(frame::number(payload)? & 0x7fff_ffff);
                match self.streams.iter_mut().find(|stream| stream.id == head.stream) {
                    Some(stream) => stream.window += bytes,
                    None if head.stream == 0 => self.window += bytes,
                    None => {}
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn on_fragment(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        now: Now,
        tally: &Tally,
        standing: &mut Standing,
    ) -> Result<(), Violation> {
        let block = match self.block.take() {
            None if head.kind == kind::HEADERS => Block {
                stream: head.stream,
                is_end: head.has(flag::END_STREAM),
                bytes: frame::header_fragment(head, payload)?.to_vec(),
            },
            Some(mut block) if head.kind == kind::CONTINUATION && block.stream == head.stream => {
                block.bytes.extend_from_slice(payload);
                block
            }
            _ => return Err(Violation::protocol("a header block was interrupted")),
        };
        if block.bytes.len() > HEAD_BYTES_MAX {
            return Err(Violation::new(ErrorCode::ENHANCE_YOUR_CALM, "a head is too large"));
        }
        if !head.has(flag::END_HEADERS) {
            self.block = Some(block);
            return Ok(());
        }
        self.on_head(&block, now, tally, standing)
    }

    fn on_head(
        &mut self,
        block: &Block,
        now: Now,
        tally: &Tally,
        standing: &mut Standing,
    ) -> Result<(), Violation> {
        let Self { fields, decoder, .. } = self;
        fields.clear();
        let fits = decoder
            .decode(&block.bytes, HEAD_BYTES_MAX, |name, value| fields.push(name, value))
            .map_err(|Broken(what)| Violation::new(ErrorCode::COMPRESSION_ERROR, what))?;
        if let Some(at) = self.streams.iter().position(|stream| stream.id == block.stream) {
            // Trailers of a request: nothing here reads them.
            if !block.is_end {
                return Err(Violation::protocol("trailers that do not end the request"));
            }
            self.complete(at, now, tally);
            return Ok(());
        }
        let is_new = block.stream > self.last_id && !block.stream.is_multiple_of(2);
        let pseudo: &[&[u8]] = &[b":method", b":scheme", b":authority", b":path"];
        if !fits || !is_new || self.fields.fault(pseudo).is_some() {
            return Err(Violation::protocol("a request head that is not allowed"));
        }
        self.last_id = block.stream;
        let (route, work) = self.plan()?;
        let to = if route.is_some() { Standing::Client } else { Standing::Observer };
        tally.spoke(standing, to);
        self.streams.push(Stream {
            id: block.stream,
            route,
            bytes_in: (block.bytes.len() + frame::HEAD_BYTES) as u64,
            bytes_out: 0,
            received: 0,
            window: self.window_initial,
            is_read: false,
            read_ns: 0,
            work,
        });
        if block.is_end {
            self.complete(self.streams.len() - 1, now, tally);
        }
        Ok(())
    }

    /// What the fields that were just read ask for.
    fn plan(&self) -> Result<(Option<Route>, Work), Violation> {
        let content_type = self.fields.get(b"content-type").unwrap_or_default();
        if content_type.starts_with(b"application/grpc") {
            let target = self.fields.get(b":path").unwrap_or_default();
            let target = std::str::from_utf8(target)
                .map_err(|_| Violation::protocol("a request head that is not text"))?;
            let call = Call::new(target, self.fields.get(b"grpc-encoding"));
            return Ok((Some(call.route()), Work::Call(Box::new(call))));
        }
        let (Plan { route, action }, method) =
            head::plan(&self.fields, 2).map_err(Violation::protocol)?;
        let keeps_body = action.wants_body();
        Ok((route, Work::Request { action, method, body: Vec::new(), keeps_body }))
    }

    fn on_data(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
        now: Now,
        tally: &Tally,
    ) -> Result<(), Violation> {
        let data = frame::unpadded(head, payload)?;
        self.received += payload.len() as u32;
        if self.received > CONNECTION_WINDOW / 2 {
            frame::write_window_update(out, 0, std::mem::take(&mut self.received));
        }
        let Some(at) = self.streams.iter().position(|stream| stream.id == head.stream) else {
            return Ok(());
        };
        let Some(stream) = self.streams.get_mut(at) else { return Ok(()) };
        stream.bytes_in += (payload.len() + frame::HEAD_BYTES) as u64;
        stream.received += payload.len() as u32;
        if stream.received > STREAM_WINDOW / 2 {
            let bytes = std::mem::take(&mut stream.received);
            frame::write_window_update(out, stream.id, bytes);
        }
        match &mut stream.work {
            Work::Request { body, keeps_body: true, .. } => body.extend_from_slice(data),
            Work::Call(call) => call.receive(data),
            _ => {}
        }
        if stream.bytes_in > BODY_BYTES_MAX {
            frame::write_reset(out, head.stream, ErrorCode::ENHANCE_YOUR_CALM);
            self.on_reset(head.stream, tally);
        } else if head.has(flag::END_STREAM) {
            self.complete(at, now, tally);
        }
        Ok(())
    }

    fn on_reset(&mut self, id: u32, tally: &Tally) {
        let Some(at) = self.streams.iter().position(|stream| stream.id == id) else { return };
        let stream = self.streams.remove(at);
        if stream.is_read && stream.route.is_some() {
            tally.abandoned(stream.bytes_out);
        }
    }

    /// The request was read to its last byte: this is the moment it counts.
    fn complete(&mut self, at: usize, now: Now, tally: &Tally) {
        let Some(stream) = self.streams.get_mut(at).filter(|stream| !stream.is_read) else {
            return;
        };
        stream.is_read = true;
        stream.read_ns = now.ns;
        let (method, protocol) = match &stream.work {
            Work::Request { method, .. } => (*method, Protocol::Http2),
            _ => (Method::Post, Protocol::Grpc),
        };
        if let Work::Call(call) = &mut stream.work {
            call.end();
        }
        if let Some(route) = stream.route {
            tally.read(route, method, stream.bytes_in, now.unix_s());
            tally.spoke_protocol(protocol);
        }
    }

    /// Lays out what is due of every reply. Returns when the next of them is due.
    fn answer(&mut self, out: &mut Vec<u8>, now: Now, tally: &Tally) -> Option<u64> {
        let mut next_ns: Option<u64> = None;
        let mut at = 0;
        while let Some(stream) = self.streams.get_mut(at) {
            let before = out.len();
            let step = stream.step(&mut self.window, out, now, tally);
            stream.bytes_out += (out.len() - before) as u64;
            match step {
                Step::Open => at += 1,
                Step::WaitUntil(due_ns) => {
                    next_ns = Some(next_ns.map_or(due_ns, |ns| ns.min(due_ns)));
                    at += 1;
                }
                Step::Done => {
                    let stream = self.streams.remove(at);
                    if stream.route.is_some() {
                        let (read_ns, bytes_out) = (stream.read_ns, stream.bytes_out);
                        self.answered.push(Answered { read_ns, bytes_out });
                    }
                }
                Step::Reset => {
                    let stream = self.streams.remove(at);
                    if stream.route.is_some() {
                        tally.abandoned(stream.bytes_out);
                    }
                }
            }
        }
        next_ns
    }
}

enum Step {
    Open,
    WaitUntil(u64),
    Done,
    Reset,
}

impl Stream {
    /// Lays out as much of the reply as is due and fits into the windows.
    fn step(&mut self, window: &mut i64, out: &mut Vec<u8>, now: Now, tally: &Tally) -> Step {
        match &mut self.work {
            Work::Request { .. } if !self.is_read => return Step::Open,
            Work::Request { action: Action::Delay { ms }, .. } => {
                let due_ns = self.read_ns + *ms * 1_000_000;
                if due_ns > now.ns {
                    return Step::WaitUntil(due_ns);
                }
            }
            _ => {}
        }
        if let Work::Request { action, method, body, .. } = &mut self.work {
            let is_head = *method == Method::Head;
            let manner = Manner { keep_alive: true, version: UNCHUNKED, head_only: is_head };
            // What is made of chunks, takes the connection over or breaks HTTP/1.1 on purpose.
            if let Action::Broken(_)
            | Action::Reset
            | Action::Events { .. }
            | Action::WebSocket(_) = action
            {
                frame::write_reset(out, self.id, ErrorCode::INTERNAL_ERROR);
                return Step::Reset;
            }
            if let Action::Close = action {
                // The client opens no further streams; those under way are answered.
                frame::write_goaway(out, self.id, ErrorCode::NO_ERROR);
            }
            let mut reply = Vec::new();
            let body = std::mem::take(body);
            let Reply { source, .. } =
                answer::write(action, body, manner, &mut reply, tally.totals(), now.ns);
            match write_head(out, self.id, &reply, source == Source::Done) {
                None => {
                    frame::write_reset(out, self.id, ErrorCode::INTERNAL_ERROR);
                    return Step::Reset;
                }
                Some(at) if at == reply.len() && source == Source::Done => return Step::Done,
                Some(at) => self.work = Work::Reply { bytes: reply, at, source, trailers: None },
            }
        }
        if let Work::Call(call) = &mut self.work {
            let due_ns = self.read_ns + call.delay_ns();
            if self.is_read && due_ns > now.ns {
                return Step::WaitUntil(due_ns);
            }
            let room = (*window).min(self.window);
            if !self.is_read {
                // A bidirectional call: replies leave before the request has ended.
                let ready = call.ready_bytes();
                if ready == 0 || ready as i64 > room {
                    return Step::Open;
                }
                call.write_head(self.id, out);
                for piece in call.take_replies(tally).chunks(PAYLOAD_BYTES_MAX) {
                    write_data(out, self.id, piece, false);
                }
                self.window -= ready as i64;
                *window -= ready as i64;
                return Step::Open;
            }
            call.write_head(self.id, out);
            let bytes = call.take_replies(tally);
            let trailers = Some(call.trailers());
            self.work = Work::Reply { bytes, at: 0, source: Source::Done, trailers };
        }
        self.send_reply(window, out, now)
    }

    fn send_reply(&mut self, window: &mut i64, out: &mut Vec<u8>, now: Now) -> Step {
        let Work::Reply { bytes, at, source, trailers } = &mut self.work else { return Step::Open };
        loop {
            if *at == bytes.len() {
                bytes.clear();
                *at = 0;
                match source.refill(bytes, now.ns) {
                    Refill::Ready => {}
                    Refill::WaitUntil(due_ns) => return Step::WaitUntil(due_ns),
                    Refill::Done => break,
                }
            }
            let rest = bytes.get(*at..).unwrap_or_default();
            let room = (*window).min(self.window).max(0) as usize;
            let length = rest.len().min(room).min(PAYLOAD_BYTES_MAX);
            if length == 0 || out.len() > OUT_BYTES_MAX {
                return Step::Open;
            }
            let is_end = *source == Source::Done && length == rest.len() && trailers.is_none();
            write_data(out, self.id, rest.get(..length).unwrap_or_default(), is_end);
            *at += length;
            *window -= length as i64;
            self.window -= length as i64;
            if is_end {
                return Step::Done;
            }
        }
        match trailers {
            Some(block) => frame::write_headers(out, self.id, [block, &[]], true),
            None => write_data(out, self.id, &[], true),
        }
        Step::Done
    }
}

fn write_data(out: &mut Vec<u8>, stream: u32, data: &[u8], is_end: bool) {
    let flags = if is_end { flag::END_STREAM } else { 0 };
    frame::write_head(out, data.len(), kind::DATA, flags, stream);
    out.extend_from_slice(data);
}

/// Writes the head of a reply made for HTTP/1. Returns where the body begins. The stream ends with
/// the head if `is_whole`, and nothing follows it.
fn write_head(out: &mut Vec<u8>, stream: u32, reply: &[u8], is_whole: bool) -> Option<usize> {
    let mut block = Vec::with_capacity(128);
    let used = head::fields(reply, |name, value| {
        hpack::encode(&mut block, name, value, Secrecy::Open);
    })?;
    frame::write_headers(out, stream, [&block, &[]], is_whole && used == reply.len());
    Some(used)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
#[path = "http2_tests.rs"]
mod tests;
