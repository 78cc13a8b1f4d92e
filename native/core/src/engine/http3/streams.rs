//! The client's side of one HTTP/3 connection: requests on streams, and what the server answers.
//!
//! Bytes of the server are read from the streams of a `Quic` connection, and what they mean goes to
//! a `Sink`. A stream is known to the outside by the request that it carries. No socket and no
//! clock in here; flow control is that of QUIC.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use quinn_proto::{Dir, ReadError, StreamEvent, StreamId, VarInt, WriteError};

use super::control::{Control, Going};
use crate::engine::error::{ErrorClass, Failure};
use crate::engine::http::response_head::{judge, length_of, FIELDS_MAX, HEAD_BYTES_MAX};
use crate::engine::http::sink::{Sink, StreamEnd};
use crate::engine::transport::quic::Quic;
use crate::http2::fields::Fields;
use crate::http2::text::Broken;
use crate::http3::frame::{
    self, kind, setting, stream as stream_kind, ErrorCode, FrameReader, Piece, Violation,
};
use crate::http3::qpack;

/// Frames that bring no response further, until one does.
const IDLE_FRAMES_MAX: u32 = 1000;
const UNEXPECTED: Violation =
    Violation::new(ErrorCode::FRAME_UNEXPECTED, "a frame where none of its type belongs");
const CUT_OFF: Violation =
    Violation::new(ErrorCode::FRAME_ERROR, "a stream ended in the middle of a frame");

#[derive(Debug)]
struct Stream {
    request: u32,
    /// None as long as the server allows no further stream.
    id: Option<StreamId>,
    reader: FrameReader,
    has_head: bool,
    has_trailers: bool,
    /// The request is HEAD: its response announces a body that never comes.
    is_head: bool,
    /// What the head announced of the body and has not come yet.
    announced: Option<u64>,
    /// What is left to send: first bytes, then a body.
    first: Vec<u8>,
    body: Option<Arc<[u8]>>,
    at: usize,
    is_sent: bool,
}

#[derive(Debug)]
pub struct Streams {
    /// By id, in order; those without an id are the last.
    streams: Vec<Stream>,
    /// Streams that were opened ahead, for requests to come.
    ready: VecDeque<StreamId>,
    streams_max: usize,
    /// Streams to be reset, with the next write.
    cancelled: Vec<(StreamId, ErrorCode)>,
    control: Control,
    fields: Fields,
    scratch: Vec<u8>,
    is_over: bool,
    /// Requests that QUIC has taken as a whole, and their sizes.
    sent: VecDeque<(u32, u64)>,
}

/// What ends a connection, as users see it.
pub fn failure(violation: Violation) -> Failure {
    let class = if violation.code == ErrorCode::EXCESSIVE_LOAD {
        ErrorClass::TooLarge
    } else {
        ErrorClass::Protocol
    };
    Failure::new(class, format!("HTTP/3: {}", violation.what))
}

impl Streams {
    /// Opens the control stream, and streams for requests.
    #[must_use]
    pub fn new(quic: &mut Quic, streams_max: u32) -> Self {
        let mut settings = Vec::new();
        frame::write_number(&mut settings, stream_kind::CONTROL);
        let chosen = [
            (setting::QPACK_MAX_TABLE_CAPACITY, 0),
            (setting::MAX_FIELD_SECTION_SIZE, HEAD_BYTES_MAX as u64),
            (setting::QPACK_BLOCKED_STREAMS, 0),
        ];
        frame::write_settings(&mut settings, &chosen);
        let connection = quic.connection();
        if let Some(id) = connection.streams().open(Dir::Uni) {
            // A window too small for these few bytes would be one for no request either.
            let _ = connection.send_stream(id).write(&settings);
        }
        let mut streams = Self {
            streams: Vec::new(),
            ready: VecDeque::new(),
            streams_max: streams_max as usize,
            cancelled: Vec::new(),
            control: Control::default(),
            fields: Fields::default(),
            scratch: Vec::new(),
            is_over: false,
            sent: VecDeque::new(),
        };
        streams.open_ahead(quic);
        streams
    }

    #[must_use]
    pub fn has_room(&self) -> bool {
        self.is_open() && !self.ready.is_empty()
    }

    /// Whether requests can be put on this connection, now or later.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.is_over && self.control.going_away_from().is_none()
    }

    /// Whether no request is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    /// Takes a request on: the first bytes of its stream, and the body that follows them.
    pub fn begin(&mut self, request: u32, first: Vec<u8>, body: Option<Arc<[u8]>>, is_head: bool) {
        self.streams.push(Stream {
            request,
            id: self.ready.pop_front(),
            reader: FrameReader::default(),
            has_head: false,
            has_trailers: false,
            is_head,
            announced: None,
            first,
            body,
            at: 0,
            is_sent: false,
        });
    }

    /// Ends the stream of a request that nobody waits for any more. True if the server has to know.
    pub fn cancel(&mut self, request: u32) -> bool {
        let Some(at) = self.streams.iter().position(|stream| stream.request == request) else {
            return false;
        };
        self.remove(at, Some(ErrorCode::REQUEST_CANCELLED));
        true
    }

    /// Gives QUIC what is to be sent, as far as its windows allow.
    pub fn write(&mut self, quic: &mut Quic) {
        let connection = quic.connection();
        for (id, code) in self.cancelled.drain(..) {
            let code = VarInt::from_u64(code.0).unwrap_or(VarInt::MAX);
            // Both fail only for a stream that has ended on that side.
            let _ = connection.send_stream(id).reset(code);
            let _ = connection.recv_stream(id).stop(code);
        }
        self.open_ahead(quic);
        for stream in &mut self.streams {
            if stream.is_sent {
                continue;
            }
            if stream.id.is_none() {
                stream.id = self.ready.pop_front();
            }
            if stream.write(quic) {
                self.sent.push_back((stream.request, stream.at as u64));
            }
        }
    }

    /// The next request that QUIC has taken as a whole, and its size.
    pub fn take_sent(&mut self) -> Option<(u32, u64)> {
        self.sent.pop_front()
    }

    /// Takes what the server sent. An error ends the connection and all its streams.
    pub fn receive(&mut self, quic: &mut Quic, sink: &mut impl Sink) -> Result<(), Violation> {
        while let Some(event) = quic.next_event() {
            match event {
                StreamEvent::Opened { dir } => {
                    while let Some(id) = quic.connection().streams().accept(dir) {
                        self.control.opened(id);
                        self.read_control(quic, id, sink)?;
                    }
                }
                StreamEvent::Readable { id } if self.control.has(id) => {
                    self.read_control(quic, id, sink)?;
                }
                StreamEvent::Readable { id } => self.read(quic, id, sink)?,
                StreamEvent::Stopped { id, .. } => {
                    // The server does not want the rest of the request; it may answer it.
                    if let Some(stream) = self.find(id).and_then(|at| self.streams.get_mut(at)) {
                        stream.is_sent = true;
                    }
                }
                StreamEvent::Available { .. }
                | StreamEvent::Writable { .. }
                | StreamEvent::Finished { .. } => {}
            }
        }
        // There may be room for further requests now.
        self.open_ahead(quic);
        Ok(())
    }

    /// The connection ended: what was under way on it failed.
    pub fn close(&mut self, failure: &Failure, sink: &mut impl Sink) {
        self.is_over = true;
        self.sent.clear();
        for stream in std::mem::take(&mut self.streams) {
            sink.ended(stream.request, StreamEnd::Failed(failure.clone()));
        }
    }

    /// Opens streams for requests to come, as far as the server allows.
    fn open_ahead(&mut self, quic: &mut Quic) {
        while self.streams.len() + self.ready.len() < self.streams_max {
            let Some(id) = quic.connection().streams().open(Dir::Bi) else { return };
            self.ready.push_back(id);
        }
    }

    fn read_control(
        &mut self,
        quic: &mut Quic,
        id: StreamId,
        sink: &mut impl Sink,
    ) -> Result<(), Violation> {
        let mut stream = quic.connection().recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return Ok(()) };
        let going = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => match self.control.receive(id, &chunk.bytes) {
                    Ok(Going::On) => {}
                    other => break other,
                },
                Ok(None) | Err(ReadError::Reset(_)) => {
                    break self.control.closed(id).map(|()| Going::On)
                }
                Err(ReadError::Blocked) => break Ok(Going::On),
            }
        };
        // What it makes room for is announced with the next write.
        let _ = chunks.finalize();
        if going? == Going::Ignored {
            let code = VarInt::from_u64(ErrorCode::STREAM_CREATION_ERROR.0).unwrap_or(VarInt::MAX);
            let _ = stream.stop(code);
        }
        self.count_idle()?;
        if let Some(from) = self.control.going_away_from() {
            self.refuse_from(from, sink);
        }
        Ok(())
    }

    /// The server does not process streams from this one on.
    fn refuse_from(&mut self, from: u64, sink: &mut impl Sink) {
        let is_refused =
            |stream: &Stream| stream.id.is_none_or(|id| u64::from(VarInt::from(id)) >= from);
        let first = self.streams.partition_point(|stream| !is_refused(stream));
        for stream in self.streams.split_off(first) {
            self.sent.retain(|&(request, _)| request != stream.request);
            let failure = Failure::new(ErrorClass::Reset, "the server closes the connection");
            sink.ended(stream.request, StreamEnd::Unprocessed(failure));
        }
    }

    fn read(
        &mut self,
        quic: &mut Quic,
        id: StreamId,
        sink: &mut impl Sink,
    ) -> Result<(), Violation> {
        let mut stream = quic.connection().recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return Ok(()) };
        let read = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => {
                    if let Err(violation) = self.take_bytes(id, &chunk.bytes, sink) {
                        break Err(violation);
                    }
                }
                Ok(None) => break self.take_end(id, sink),
                Err(ReadError::Reset(code)) => {
                    self.on_reset(id, ErrorCode(code.into_inner()), sink);
                    break Ok(());
                }
                Err(ReadError::Blocked) => break Ok(()),
            }
        };
        let _ = chunks.finalize();
        read
    }

    fn take_bytes(
        &mut self,
        id: StreamId,
        bytes: &Bytes,
        sink: &mut impl Sink,
    ) -> Result<(), Violation> {
        // Bytes of a stream that was cancelled are dropped.
        let Some(at) = self.find(id) else { return Ok(()) };
        let Some(stream) = self.streams.get_mut(at) else { return Ok(()) };
        sink.arrived(stream.request, bytes.len());
        let mut reader = std::mem::take(&mut stream.reader);
        let mut input = &bytes[..];
        let failed = loop {
            let Some(piece) = reader.next(&mut input)? else { break None };
            if let Err(failure) = self.take_piece(at, &piece, sink)? {
                break Some(failure);
            }
        };
        if let Some(failure) = failed {
            self.fail(at, failure, sink);
        } else if let Some(stream) = self.streams.get_mut(at) {
            stream.reader = reader;
        }
        Ok(())
    }

    /// Takes one piece of a response. The outer error ends the connection, the inner one the request.
    fn take_piece(
        &mut self,
        at: usize,
        piece: &Piece<'_>,
        sink: &mut impl Sink,
    ) -> Result<Result<(), Failure>, Violation> {
        self.control.idle_frames += 1;
        self.count_idle()?;
        let Some(stream) = self.streams.get_mut(at) else { return Ok(Ok(())) };
        match *piece {
            Piece::Unknown => Ok(Ok(())),
            Piece::Data(_) if !stream.has_head || stream.has_trailers => Err(UNEXPECTED),
            Piece::Data(data) => {
                if !data.is_empty() {
                    self.control.idle_frames = 0;
                }
                if let Some(left) = stream.announced {
                    let Some(left) = left.checked_sub(data.len() as u64) else {
                        return Ok(Err(other_length()));
                    };
                    stream.announced = Some(left);
                }
                Ok(sink.data(stream.request, data))
            }
            Piece::Frame(kind::HEADERS, _) if stream.has_trailers => Err(UNEXPECTED),
            Piece::Frame(kind::HEADERS, block) => self.take_head(at, block, sink),
            Piece::Frame(kind::PUSH_PROMISE, _) => {
                let what = "the server pushes although push is turned off";
                Err(Violation::new(ErrorCode::ID_ERROR, what))
            }
            Piece::Frame(..) => Err(UNEXPECTED),
        }
    }

    fn take_head(
        &mut self,
        at: usize,
        block: &[u8],
        sink: &mut impl Sink,
    ) -> Result<Result<(), Failure>, Violation> {
        let Self { fields, scratch, .. } = self;
        fields.clear();
        let emit = |name: &[u8], value: &[u8]| fields.push(name, value);
        let fits = qpack::decode(block, HEAD_BYTES_MAX, scratch, emit)
            .map_err(|Broken(what)| Violation::new(ErrorCode::QPACK_DECOMPRESSION_FAILED, what))?;
        let Some(stream) = self.streams.get_mut(at) else { return Ok(Ok(())) };
        if !fits || self.fields.len() > FIELDS_MAX {
            let detail =
                format!("response head is over {HEAD_BYTES_MAX} bytes or {FIELDS_MAX} fields");
            return Ok(Err(Failure::new(ErrorClass::TooLarge, detail)));
        }
        let is_trailers = stream.has_head;
        let (status, fault) = judge(&self.fields, is_trailers, is_trailers);
        if let Some(fault) = fault {
            return Ok(Err(Failure::protocol(format!("HTTP/3: {fault}"))));
        }
        if is_trailers {
            self.control.idle_frames = 0;
            stream.has_trailers = true;
            sink.trailers(stream.request, &self.fields);
            return Ok(Ok(()));
        }
        if status < 200 {
            return Ok(Ok(())); // an interim response: the final one follows
        }
        self.control.idle_frames = 0;
        stream.has_head = true;
        if !stream.is_head {
            stream.announced = self.fields.get(b"content-length").and_then(length_of);
        }
        Ok(sink.head(stream.request, status, &self.fields))
    }

    /// The server has ended its side of a stream.
    fn take_end(&mut self, id: StreamId, sink: &mut impl Sink) -> Result<(), Violation> {
        let Some(at) = self.find(id) else { return Ok(()) };
        let Some(stream) = self.streams.get(at) else { return Ok(()) };
        if stream.reader.is_inside() {
            return Err(CUT_OFF);
        }
        if !stream.has_head {
            let failure = Failure::protocol("HTTP/3: the stream ended before the response");
            self.fail(at, failure, sink);
        } else if stream.announced.is_some_and(|left| left > 0) {
            self.fail(at, other_length(), sink);
        } else {
            // The server does not want the rest of a request that was not sent whole.
            let code = (!stream.is_sent).then_some(ErrorCode::NO_ERROR);
            let request = self.remove(at, code);
            sink.ended(request, StreamEnd::Whole);
        }
        Ok(())
    }

    fn on_reset(&mut self, id: StreamId, code: ErrorCode, sink: &mut impl Sink) {
        let Some(at) = self.find(id) else { return };
        let request = self.remove(at, Some(ErrorCode::REQUEST_CANCELLED));
        let failure = Failure::new(ErrorClass::Reset, format!("stream reset: {code}"));
        let end = if code == ErrorCode::REQUEST_REJECTED {
            StreamEnd::Unprocessed(failure)
        } else {
            StreamEnd::Failed(failure)
        };
        sink.ended(request, end);
    }

    /// Ends a stream whose response is of no use.
    fn fail(&mut self, at: usize, failure: Failure, sink: &mut impl Sink) {
        let request = self.remove(at, Some(ErrorCode::MESSAGE_ERROR));
        sink.ended(request, StreamEnd::Failed(failure));
    }

    /// Forgets a stream, and resets it with the next write if there is a code. Returns its request.
    fn remove(&mut self, at: usize, code: Option<ErrorCode>) -> u32 {
        let stream = self.streams.remove(at);
        self.sent.retain(|&(request, _)| request != stream.request);
        if let (Some(id), Some(code)) = (stream.id, code) {
            self.cancelled.push((id, code));
        }
        stream.request
    }

    fn find(&self, id: StreamId) -> Option<usize> {
        let at = self.streams.partition_point(|stream| stream.id.is_some_and(|other| other < id));
        self.streams.get(at).filter(|stream| stream.id == Some(id)).map(|_| at)
    }

    fn count_idle(&self) -> Result<(), Violation> {
        if self.control.idle_frames > IDLE_FRAMES_MAX {
            let what = "more than 1000 frames in a row that bring no response further";
            return Err(Violation::new(ErrorCode::EXCESSIVE_LOAD, what));
        }
        Ok(())
    }
}

impl Stream {
    /// Gives QUIC what is left of the request, as far as its windows allow. True when it has all.
    fn write(&mut self, quic: &mut Quic) -> bool {
        let Some(id) = self.id else { return false };
        let mut stream = quic.connection().send_stream(id);
        loop {
            let body = self.body.as_deref().unwrap_or_default();
            let rest = match self.first.get(self.at..) {
                Some(rest @ [_, ..]) => rest,
                _ => body.get(self.at - self.first.len()..).unwrap_or_default(),
            };
            if rest.is_empty() {
                break;
            }
            match stream.write(rest) {
                Ok(count) => self.at += count,
                Err(WriteError::Blocked) => return false,
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => {
                    self.is_sent = true;
                    return false;
                }
            }
        }
        // Fails only for a stream that the server has stopped.
        let _ = stream.finish();
        self.is_sent = true;
        true
    }
}

/// The body has another length than the head of the response says.
fn other_length() -> Failure {
    Failure::protocol("HTTP/3: a body of another length than announced")
}
