//! One HTTP/3 connection: requests on many streams, each answered as over HTTP/1.1.
//!
//! The QUIC connection below it has no socket and no clock; `quic` drives both.

use std::time::Instant;

use bytes::Bytes;
use hyperscale_core::http2::fields::Fields;
use hyperscale_core::http2::hpack::Secrecy;
use hyperscale_core::http2::text::Broken;
use hyperscale_core::http3::frame::{
    self, kind, setting, stream as stream_kind, ErrorCode, FrameReader, Piece, Violation,
};
use hyperscale_core::http3::qpack;
use quinn_proto::{Connection, Dir, Event, ReadError, StreamEvent, StreamId, VarInt, WriteError};

use crate::answer;
use crate::clock::Now;
use crate::counts::{Method, Protocol, Route, Standing, Tally};
use crate::head;
use crate::reply::{Manner, Refill, Reply, Source};
use crate::request::{BODY_BYTES_MAX, HEAD_BYTES_MAX};
use crate::routes::{Action, Plan};

/// The answer to HTTP/1.0, as it is made for HTTP/3: without chunks.
const UNCHUNKED: u8 = 0;
const UNEXPECTED: Violation =
    Violation::new(ErrorCode::FRAME_UNEXPECTED, "a frame where none of its type belongs");

#[derive(Debug)]
struct Stream {
    id: StreamId,
    reader: FrameReader,
    request: Option<Request>,
    bytes_in: u64,
    bytes_out: u64,
    is_read: bool,
    read_ns: u64,
    reply: Option<Sending>,
}

#[derive(Debug)]
struct Request {
    route: Option<Route>,
    action: Action,
    method: Method,
    body: Vec<u8>,
    keeps_body: bool,
}

/// A reply on its way: frames at hand, and how more of its body is made.
#[derive(Debug)]
struct Sending {
    frames: Vec<u8>,
    at: usize,
    source: Source,
}

pub struct Http3 {
    connection: Connection,
    control: Option<StreamId>,
    streams: Vec<Stream>,
    standing: Standing,
    fields: Fields,
    scratch: Vec<u8>,
}

enum Step {
    Open,
    WaitUntil(u64),
    Done,
    Reset,
}

impl Http3 {
    /// For a connection that was just accepted, and counted as such.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        Self {
            connection,
            control: None,
            streams: Vec::new(),
            standing: Standing::Silent,
            fields: Fields::default(),
            scratch: Vec::new(),
        }
    }

    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Reads what has come and writes what is due. Returns when the next reply is due.
    pub fn advance(&mut self, now: Now, at: Instant, tally: &Tally) -> Option<u64> {
        while let Some(event) = self.connection.poll() {
            if let Err(violation) = self.take_event(event, now, tally) {
                tally.malformed();
                let code = VarInt::from_u64(violation.code.0).unwrap_or(VarInt::MAX);
                let why = Bytes::from_static(violation.what.as_bytes());
                self.connection.close(at, code, why);
                self.end(tally);
                return None;
            }
        }
        self.answer(now, tally)
    }

    /// The connection is gone.
    pub fn closed(mut self, tally: &Tally) {
        self.end(tally);
        tally.closed(self.standing);
    }

    fn end(&mut self, tally: &Tally) {
        for stream in self.streams.drain(..) {
            abandon(&stream, tally);
        }
    }

    fn take_event(&mut self, event: Event, now: Now, tally: &Tally) -> Result<(), Violation> {
        match event {
            Event::Connected => {
                self.control = self.connection.streams().open(Dir::Uni);
                let mut settings = Vec::new();
                frame::write_number(&mut settings, stream_kind::CONTROL);
                let chosen = [
                    (setting::QPACK_MAX_TABLE_CAPACITY, 0),
                    (setting::MAX_FIELD_SECTION_SIZE, HEAD_BYTES_MAX as u64),
                ];
                frame::write_settings(&mut settings, &chosen);
                self.write_control(&settings);
            }
            Event::ConnectionLost { .. } => self.end(tally),
            Event::Stream(StreamEvent::Opened { dir }) => {
                while let Some(id) = self.connection.streams().accept(dir) {
                    if dir == Dir::Bi {
                        self.streams.push(Stream::new(id));
                    }
                    self.read(id, now, tally)?;
                }
            }
            Event::Stream(StreamEvent::Readable { id }) => self.read(id, now, tally)?,
            Event::Stream(StreamEvent::Stopped { id, .. }) => self.drop_stream(id, tally),
            Event::Stream(_)
            | Event::HandshakeDataReady
            | Event::DatagramReceived
            | Event::DatagramsUnblocked => {}
        }
        Ok(())
    }

    fn write_control(&mut self, bytes: &[u8]) {
        if let Some(id) = self.control {
            // Every client has room for these few bytes.
            let _ = self.connection.send_stream(id).write(bytes);
        }
    }

    fn read(&mut self, id: StreamId, now: Now, tally: &Tally) -> Result<(), Violation> {
        let mut stream = self.connection.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return Ok(()) };
        let mut bytes = Vec::new();
        let (is_end, is_reset) = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => bytes.push(chunk.bytes),
                Ok(None) => break (true, false),
                Err(ReadError::Reset(_)) => break (false, true),
                Err(ReadError::Blocked) => break (false, false),
            }
        };
        // What it makes room for is announced with the next packet.
        let _ = chunks.finalize();
        // What a client says on streams of its own changes nothing here.
        let Some(at) = self.streams.iter().position(|stream| stream.id == id) else {
            return Ok(());
        };
        for piece in &bytes {
            self.take_bytes(at, piece, tally)?;
        }
        if is_reset || self.streams.get(at).is_some_and(|s| s.bytes_in > BODY_BYTES_MAX) {
            self.drop_stream(id, tally);
        } else if is_end {
            self.complete(at, now, tally)?;
        }
        Ok(())
    }

    fn take_bytes(&mut self, at: usize, bytes: &[u8], tally: &Tally) -> Result<(), Violation> {
        let Some(stream) = self.streams.get_mut(at) else { return Ok(()) };
        stream.bytes_in += bytes.len() as u64;
        let mut reader = std::mem::take(&mut stream.reader);
        let mut input = bytes;
        while let Some(piece) = reader.next(&mut input)? {
            let Some(stream) = self.streams.get_mut(at) else { return Ok(()) };
            match (piece, &mut stream.request) {
                (Piece::Unknown, _) => {}
                (Piece::Data(data), Some(request)) => {
                    if request.keeps_body {
                        request.body.extend_from_slice(data);
                    }
                }
                // Trailers of a request: nothing here reads them.
                (Piece::Frame(kind::HEADERS, _), Some(_)) => {}
                (Piece::Frame(kind::HEADERS, block), None) => {
                    let request = self.request(block)?;
                    let to =
                        if request.route.is_some() { Standing::Client } else { Standing::Observer };
                    tally.spoke(&mut self.standing, to);
                    if let Some(stream) = self.streams.get_mut(at) {
                        stream.request = Some(request);
                    }
                }
                _ => return Err(UNEXPECTED),
            }
        }
        if let Some(stream) = self.streams.get_mut(at) {
            stream.reader = reader;
        }
        Ok(())
    }

    fn request(&mut self, block: &[u8]) -> Result<Request, Violation> {
        let Self { fields, scratch, .. } = self;
        fields.clear();
        let emit = |name: &[u8], value: &[u8]| fields.push(name, value);
        let fits = qpack::decode(block, HEAD_BYTES_MAX, scratch, emit)
            .map_err(|Broken(what)| Violation::new(ErrorCode::QPACK_DECOMPRESSION_FAILED, what))?;
        let pseudo: &[&[u8]] = &[b":method", b":scheme", b":authority", b":path"];
        if !fits || self.fields.fault(pseudo).is_some() {
            let what = "a request head that is not allowed";
            return Err(Violation::new(ErrorCode::MESSAGE_ERROR, what));
        }
        let (Plan { route, action }, method) = head::plan(&self.fields, 3)
            .map_err(|what| Violation::new(ErrorCode::MESSAGE_ERROR, what))?;
        let keeps_body = action.wants_body();
        Ok(Request { route, action, method, body: Vec::new(), keeps_body })
    }

    /// The request was read to its last byte: this is the moment it counts.
    fn complete(&mut self, at: usize, now: Now, tally: &Tally) -> Result<(), Violation> {
        let Some(stream) = self.streams.get_mut(at).filter(|stream| !stream.is_read) else {
            return Ok(());
        };
        let Some(request) = &stream.request else {
            let what = "a stream ended before its request";
            return Err(Violation::new(ErrorCode::REQUEST_INCOMPLETE, what));
        };
        stream.is_read = true;
        stream.read_ns = now.ns;
        if let Some(route) = request.route {
            tally.read(route, request.method, stream.bytes_in, now.unix_s());
            tally.spoke_protocol(Protocol::Http3);
        }
        Ok(())
    }

    fn drop_stream(&mut self, id: StreamId, tally: &Tally) {
        let Some(at) = self.streams.iter().position(|stream| stream.id == id) else { return };
        abandon(&self.streams.remove(at), tally);
        reset(&mut self.connection, id, ErrorCode::REQUEST_CANCELLED);
    }

    /// Writes what is due of every reply. Returns when the next of them is due.
    fn answer(&mut self, now: Now, tally: &Tally) -> Option<u64> {
        let mut next_ns: Option<u64> = None;
        let mut at = 0;
        let mut goes_away_after = None;
        while let Some(stream) = self.streams.get_mut(at) {
            if let Some(Request { action: Action::Close, .. }) = &stream.request {
                if stream.is_read && stream.reply.is_none() {
                    goes_away_after = Some(stream.id);
                }
            }
            match stream.step(&mut self.connection, now, tally) {
                Step::Open => at += 1,
                Step::WaitUntil(due_ns) => {
                    next_ns = Some(next_ns.map_or(due_ns, |ns| ns.min(due_ns)));
                    at += 1;
                }
                Step::Done => {
                    let stream = self.streams.remove(at);
                    if stream.request.is_some_and(|request| request.route.is_some()) {
                        let residence_ns = now.ns.saturating_sub(stream.read_ns);
                        tally.answered(residence_ns, stream.bytes_out);
                    }
                }
                Step::Reset => {
                    let stream = self.streams.remove(at);
                    abandon(&stream, tally);
                    reset(&mut self.connection, stream.id, ErrorCode::INTERNAL_ERROR);
                }
            }
        }
        if let Some(id) = goes_away_after {
            // The client opens no further streams; those under way are answered.
            let mut goaway = Vec::new();
            frame::write_goaway(&mut goaway, VarInt::from(id).into_inner() + 4);
            self.write_control(&goaway);
        }
        next_ns
    }
}

/// A counted request gets no whole reply.
fn abandon(stream: &Stream, tally: &Tally) {
    let is_counted = stream.request.as_ref().is_some_and(|request| request.route.is_some());
    if stream.is_read && is_counted {
        tally.abandoned(stream.bytes_out);
    }
}

fn reset(connection: &mut Connection, id: StreamId, code: ErrorCode) {
    let code = VarInt::from_u64(code.0).unwrap_or(VarInt::MAX);
    // Both fail only for a stream that has ended on that side.
    let _ = connection.send_stream(id).reset(code);
    let _ = connection.recv_stream(id).stop(code);
}

impl Stream {
    fn new(id: StreamId) -> Self {
        Self {
            id,
            reader: FrameReader::default(),
            request: None,
            bytes_in: 0,
            bytes_out: 0,
            is_read: false,
            read_ns: 0,
            reply: None,
        }
    }

    /// Writes as much of the reply as is due and fits into the windows.
    fn step(&mut self, connection: &mut Connection, now: Now, tally: &Tally) -> Step {
        let Some(request) = self.request.as_mut().filter(|_| self.is_read) else {
            return Step::Open;
        };
        if self.reply.is_none() {
            if let Action::Delay { ms } = request.action {
                let due_ns = self.read_ns + ms * 1_000_000;
                if due_ns > now.ns {
                    return Step::WaitUntil(due_ns);
                }
            }
            // What is made of chunks, takes the connection over or breaks HTTP/1.1 on purpose.
            if let Action::Broken(_)
            | Action::Reset
            | Action::Events { .. }
            | Action::WebSocket(_) = request.action
            {
                return Step::Reset;
            }
            match begin(request, now, tally) {
                None => return Step::Reset,
                reply => self.reply = reply,
            }
        }
        let Some(reply) = &mut self.reply else { return Step::Open };
        let mut stream = connection.send_stream(self.id);
        loop {
            let rest = reply.frames.get(reply.at..).unwrap_or_default();
            if !rest.is_empty() {
                match stream.write(rest) {
                    Ok(count) => {
                        reply.at += count;
                        self.bytes_out += count as u64;
                    }
                    Err(WriteError::Blocked) => return Step::Open,
                    Err(WriteError::Stopped(_) | WriteError::ClosedStream) => return Step::Reset,
                }
                continue;
            }
            let mut body = Vec::new();
            match reply.source.refill(&mut body, now.ns) {
                Refill::WaitUntil(due_ns) => return Step::WaitUntil(due_ns),
                Refill::Done => break,
                Refill::Ready => {
                    reply.frames.clear();
                    reply.at = 0;
                    write_data(&mut reply.frames, &body);
                }
            }
        }
        // Fails only for a stream that the client has stopped.
        let _ = stream.finish();
        Step::Done
    }
}

/// The first frames of a reply; None if there is none that HTTP/3 could carry.
fn begin(request: &mut Request, now: Now, tally: &Tally) -> Option<Sending> {
    let head_only = request.method == Method::Head;
    let manner = Manner { keep_alive: true, version: UNCHUNKED, head_only };
    let mut reply = Vec::new();
    let body = std::mem::take(&mut request.body);
    let Reply { source, .. } =
        answer::write(&mut request.action, body, manner, &mut reply, tally.totals(), now.ns);
    let mut block = qpack::PREFIX.to_vec();
    let body_at = head::fields(&reply, |name, value| {
        qpack::encode(&mut block, name, value, Secrecy::Open);
    })?;
    let mut frames = Vec::with_capacity(block.len() + reply.len() - body_at + 16);
    frame::write_head(&mut frames, kind::HEADERS, block.len());
    frames.extend_from_slice(&block);
    let body = reply.get(body_at..).unwrap_or_default();
    if !body.is_empty() {
        write_data(&mut frames, body);
    }
    Some(Sending { frames, at: 0, source })
}

fn write_data(out: &mut Vec<u8>, data: &[u8]) {
    frame::write_head(out, kind::DATA, data.len());
    out.extend_from_slice(data);
}
