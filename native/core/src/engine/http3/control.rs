//! The streams that a server opens: its control stream, those of QPACK, and unknown ones.

use quinn_proto::StreamId;

use crate::http3::frame::{
    self, kind, read_number, stream, ErrorCode, FrameReader, Piece, Violation,
};
use crate::http3::qpack;

const UNEXPECTED: Violation =
    Violation::new(ErrorCode::FRAME_UNEXPECTED, "a frame that the control stream does not have");

#[derive(Debug)]
enum Kind {
    /// The bytes of its type that have come.
    Unknown(Vec<u8>),
    Control,
    QpackEncoder,
    QpackDecoder,
}

/// What the server says on its streams.
#[derive(Debug, Default)]
pub struct Control {
    streams: Vec<(StreamId, Kind)>,
    reader: FrameReader,
    has_settings: bool,
    /// The first stream that the server does not process.
    last: Option<u64>,
    /// Frames that changed nothing.
    pub idle_frames: u32,
}

/// Whether to go on reading a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Going {
    On,
    /// Nothing on it matters.
    Ignored,
}

impl Control {
    pub fn opened(&mut self, id: StreamId) {
        self.streams.push((id, Kind::Unknown(Vec::new())));
    }

    pub fn has(&self, id: StreamId) -> bool {
        self.streams.iter().any(|(known, _)| *known == id)
    }

    /// The first stream that the server does not process, once it is going away.
    #[must_use]
    pub fn going_away_from(&self) -> Option<u64> {
        self.last
    }

    /// The server has ended or reset a stream.
    pub fn closed(&mut self, id: StreamId) -> Result<(), Violation> {
        let Some(at) = self.streams.iter().position(|(known, _)| *known == id) else {
            return Ok(());
        };
        match self.streams.swap_remove(at).1 {
            Kind::Unknown(_) => Ok(()),
            Kind::Control | Kind::QpackEncoder | Kind::QpackDecoder => {
                let code = ErrorCode::CLOSED_CRITICAL_STREAM;
                Err(Violation::new(code, "a stream was closed that has to stay open"))
            }
        }
    }

    pub fn receive(&mut self, id: StreamId, mut input: &[u8]) -> Result<Going, Violation> {
        let Some(at) = self.streams.iter().position(|(known, _)| *known == id) else {
            return Ok(Going::Ignored);
        };
        if let Some((_, Kind::Unknown(start))) = self.streams.get_mut(at) {
            let number = loop {
                if let Some((number, _)) = read_number(start) {
                    break number;
                }
                let Some((&byte, rest)) = input.split_first() else { return Ok(Going::On) };
                start.push(byte);
                input = rest;
            };
            let Some(kind) = self.kind_of(number)? else {
                self.streams.swap_remove(at);
                return Ok(Going::Ignored);
            };
            if let Some((_, unknown)) = self.streams.get_mut(at) {
                *unknown = kind;
            }
        }
        match self.streams.get(at) {
            Some((_, Kind::Control)) => self.take_frames(input)?,
            Some((_, Kind::QpackEncoder)) if !qpack::are_instructions_allowed(input) => {
                let code = ErrorCode::QPACK_ENCODER_STREAM_ERROR;
                return Err(Violation::new(code, "the dynamic table has no room for entries"));
            }
            _ => {}
        }
        Ok(Going::On)
    }

    /// What a stream of this type is; None for one that is to be ignored.
    fn kind_of(&self, number: u64) -> Result<Option<Kind>, Violation> {
        let kind = match number {
            stream::CONTROL => Kind::Control,
            stream::QPACK_ENCODER => Kind::QpackEncoder,
            stream::QPACK_DECODER => Kind::QpackDecoder,
            stream::PUSH => {
                let what = "the server pushes although push is turned off";
                return Err(Violation::new(ErrorCode::ID_ERROR, what));
            }
            _ => return Ok(None),
        };
        let is_same = |known: &Kind| std::mem::discriminant(known) == std::mem::discriminant(&kind);
        if self.streams.iter().any(|(_, known)| is_same(known)) {
            let code = ErrorCode::STREAM_CREATION_ERROR;
            return Err(Violation::new(code, "a second stream of a type that there is one of"));
        }
        Ok(Some(kind))
    }

    fn take_frames(&mut self, mut input: &[u8]) -> Result<(), Violation> {
        // Out of `self`, so that a frame can be borrowed from it while it is handled.
        let mut reader = std::mem::take(&mut self.reader);
        let taken = loop {
            match reader.next(&mut input) {
                Ok(None) => break Ok(()),
                Ok(Some(piece)) => {
                    if let Err(violation) = self.take_frame(&piece) {
                        break Err(violation);
                    }
                }
                Err(violation) => break Err(violation),
            }
        };
        self.reader = reader;
        taken
    }

    fn take_frame(&mut self, piece: &Piece<'_>) -> Result<(), Violation> {
        self.idle_frames += 1;
        if !self.has_settings && !matches!(piece, Piece::Frame(kind::SETTINGS, _)) {
            let what = "the server did not begin with its settings";
            return Err(Violation::new(ErrorCode::MISSING_SETTINGS, what));
        }
        match *piece {
            Piece::Frame(kind::SETTINGS, _) if self.has_settings => Err(UNEXPECTED),
            Piece::Frame(kind::SETTINGS, payload) => {
                self.has_settings = true;
                frame::check_settings(payload)
            }
            Piece::Frame(kind::GOAWAY, payload) => {
                let id = frame::number(payload)?;
                if !id.is_multiple_of(4) || self.last.is_some_and(|last| id > last) {
                    let what = "GOAWAY names a stream that it must not name";
                    return Err(Violation::new(ErrorCode::ID_ERROR, what));
                }
                self.last = Some(id);
                Ok(())
            }
            Piece::Frame(kind::CANCEL_PUSH, payload) => {
                frame::number(payload)?;
                let what = "a push is cancelled that there cannot be";
                Err(Violation::new(ErrorCode::ID_ERROR, what))
            }
            Piece::Unknown => Ok(()),
            Piece::Data(_) | Piece::Frame(..) => Err(UNEXPECTED),
        }
    }
}
