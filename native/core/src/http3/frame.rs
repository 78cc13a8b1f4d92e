//! Frames of HTTP/3 (RFC 9114 §7) and the numbers they are made of (RFC 9000 §16).

use std::fmt;

/// A frame other than DATA that is kept until it is whole.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;
/// Type and length of a frame: two numbers of up to eight bytes.
const HEAD_BYTES_MAX: usize = 16;

pub mod kind {
    pub const DATA: u64 = 0x0;
    pub const HEADERS: u64 = 0x1;
    pub const CANCEL_PUSH: u64 = 0x3;
    pub const SETTINGS: u64 = 0x4;
    pub const PUSH_PROMISE: u64 = 0x5;
    pub const GOAWAY: u64 = 0x7;
    pub const MAX_PUSH_ID: u64 = 0xd;
    /// Frames of HTTP/2 that HTTP/3 forbids.
    pub const RESERVED: [u64; 4] = [0x2, 0x6, 0x8, 0x9];
}

/// What a unidirectional stream says of itself first.
pub mod stream {
    pub const CONTROL: u64 = 0x0;
    pub const PUSH: u64 = 0x1;
    pub const QPACK_ENCODER: u64 = 0x2;
    pub const QPACK_DECODER: u64 = 0x3;
}

pub mod setting {
    pub const QPACK_MAX_TABLE_CAPACITY: u64 = 0x1;
    pub const MAX_FIELD_SECTION_SIZE: u64 = 0x6;
    pub const QPACK_BLOCKED_STREAMS: u64 = 0x7;
    /// Settings of HTTP/2 that HTTP/3 forbids.
    pub const RESERVED: [u64; 4] = [0x2, 0x3, 0x4, 0x5];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub u64);

impl ErrorCode {
    pub const NO_ERROR: Self = Self(0x100);
    pub const GENERAL_PROTOCOL_ERROR: Self = Self(0x101);
    pub const INTERNAL_ERROR: Self = Self(0x102);
    pub const STREAM_CREATION_ERROR: Self = Self(0x103);
    pub const CLOSED_CRITICAL_STREAM: Self = Self(0x104);
    pub const FRAME_UNEXPECTED: Self = Self(0x105);
    pub const FRAME_ERROR: Self = Self(0x106);
    pub const EXCESSIVE_LOAD: Self = Self(0x107);
    pub const ID_ERROR: Self = Self(0x108);
    pub const SETTINGS_ERROR: Self = Self(0x109);
    pub const MISSING_SETTINGS: Self = Self(0x10a);
    pub const REQUEST_REJECTED: Self = Self(0x10b);
    pub const REQUEST_CANCELLED: Self = Self(0x10c);
    pub const REQUEST_INCOMPLETE: Self = Self(0x10d);
    pub const MESSAGE_ERROR: Self = Self(0x10e);
    pub const QPACK_DECOMPRESSION_FAILED: Self = Self(0x200);
    pub const QPACK_ENCODER_STREAM_ERROR: Self = Self(0x201);
}

/// By number, from 0x100.
const NAMES: [&str; 17] = [
    "H3_NO_ERROR",
    "H3_GENERAL_PROTOCOL_ERROR",
    "H3_INTERNAL_ERROR",
    "H3_STREAM_CREATION_ERROR",
    "H3_CLOSED_CRITICAL_STREAM",
    "H3_FRAME_UNEXPECTED",
    "H3_FRAME_ERROR",
    "H3_EXCESSIVE_LOAD",
    "H3_ID_ERROR",
    "H3_SETTINGS_ERROR",
    "H3_MISSING_SETTINGS",
    "H3_REQUEST_REJECTED",
    "H3_REQUEST_CANCELLED",
    "H3_REQUEST_INCOMPLETE",
    "H3_MESSAGE_ERROR",
    "H3_CONNECT_ERROR",
    "H3_VERSION_FALLBACK",
];
const QPACK_NAMES: [&str; 3] =
    ["QPACK_DECOMPRESSION_FAILED", "QPACK_ENCODER_STREAM_ERROR", "QPACK_DECODER_STREAM_ERROR"];

impl fmt::Display for ErrorCode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |from: u64| self.0.checked_sub(from).and_then(|at| usize::try_from(at).ok());
        let name = at(0x100).and_then(|at| NAMES.get(at));
        match name.or_else(|| at(0x200).and_then(|at| QPACK_NAMES.get(at))) {
            Some(name) => out.write_str(name),
            None => write!(out, "code {:#x}", self.0),
        }
    }
}

/// What a peer did that ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    pub code: ErrorCode,
    pub what: &'static str,
}

impl Violation {
    #[must_use]
    pub const fn new(code: ErrorCode, what: &'static str) -> Self {
        Self { code, what }
    }
}

/// Appends a number of up to 62 bits.
pub fn write_number(out: &mut Vec<u8>, value: u64) {
    match value {
        0..0x40 => out.push(value as u8),
        0x40..0x4000 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        0x4000..0x4000_0000 => {
            out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes());
        }
        _ => out.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

/// A number at the start of `input`, and how many bytes it has; None if some are missing.
#[must_use]
pub fn read_number(input: &[u8]) -> Option<(u64, usize)> {
    let first = *input.first()?;
    let length = 1_usize << (first >> 6);
    let bytes = input.get(..length)?;
    let value = bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte));
    let bits = 8 * length as u32 - 2;
    Some((value & ((1 << bits) - 1), length))
}

pub fn write_head(out: &mut Vec<u8>, kind: u64, length: usize) {
    write_number(out, kind);
    write_number(out, length as u64);
}

pub fn write_settings(out: &mut Vec<u8>, settings: &[(u64, u64)]) {
    let mut payload = Vec::new();
    for &(id, value) in settings {
        write_number(&mut payload, id);
        write_number(&mut payload, value);
    }
    write_head(out, kind::SETTINGS, payload.len());
    out.extend_from_slice(&payload);
}

pub fn write_goaway(out: &mut Vec<u8>, id: u64) {
    let mut payload = Vec::new();
    write_number(&mut payload, id);
    write_head(out, kind::GOAWAY, payload.len());
    out.extend_from_slice(&payload);
}

/// Checks the settings of a peer. Nothing that one may set changes what we send.
pub fn check_settings(mut payload: &[u8]) -> Result<(), Violation> {
    let mut seen = Vec::new();
    while !payload.is_empty() {
        let id = take_number(&mut payload)?;
        take_number(&mut payload)?;
        if setting::RESERVED.contains(&id) || seen.contains(&id) {
            return Err(Violation::new(ErrorCode::SETTINGS_ERROR, "a setting that is not allowed"));
        }
        seen.push(id);
    }
    Ok(())
}

/// The payload of a frame that is one number.
pub fn number(mut payload: &[u8]) -> Result<u64, Violation> {
    let value = take_number(&mut payload)?;
    if !payload.is_empty() {
        return Err(Violation::new(ErrorCode::FRAME_ERROR, "a frame of a wrong length"));
    }
    Ok(value)
}

fn take_number(payload: &mut &[u8]) -> Result<u64, Violation> {
    let cut_off = Violation::new(ErrorCode::FRAME_ERROR, "a number is cut off");
    let (value, length) = read_number(payload).ok_or(cut_off)?;
    *payload = payload.get(length..).unwrap_or_default();
    Ok(value)
}

/// What a stream of frames brings.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'p> {
    /// Some bytes of a DATA frame, as they came.
    Data(&'p [u8]),
    /// Another frame, whole.
    Frame(u64, &'p [u8]),
    /// A frame of a type that is not known: it was skipped.
    Unknown,
}

#[derive(Debug)]
enum Reading {
    Head,
    Data,
    Known(u64),
    Skipped,
}

/// Cuts the bytes of a stream into frames, however they are split.
#[derive(Debug)]
pub struct FrameReader {
    reading: Reading,
    /// Bytes of the payload that are still to come.
    left: u64,
    head: [u8; HEAD_BYTES_MAX],
    /// Bytes of a frame head that is not whole.
    head_bytes: usize,
    /// The start of a payload that is kept until it is whole.
    kept: Vec<u8>,
}

impl Default for FrameReader {
    fn default() -> Self {
        Self {
            reading: Reading::Head,
            left: 0,
            head: [0; HEAD_BYTES_MAX],
            head_bytes: 0,
            kept: Vec::new(),
        }
    }
}

impl FrameReader {
    /// Whether a frame has begun and is not whole.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        !matches!(self.reading, Reading::Head) || self.head_bytes > 0
    }

    /// Takes the next piece from the front of `input`; None if more has to come.
    pub fn next<'p, 'i: 'p>(
        &'p mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Piece<'p>>, Violation> {
        if let Reading::Head = self.reading {
            let Some((kind, length)) = self.take_head(input) else { return Ok(None) };
            if kind::RESERVED.contains(&kind) {
                return Err(Violation::new(ErrorCode::FRAME_UNEXPECTED, "a frame of HTTP/2"));
            }
            self.left = length;
            self.kept.clear();
            self.reading = match kind {
                kind::DATA => Reading::Data,
                kind::HEADERS
                | kind::CANCEL_PUSH
                | kind::SETTINGS
                | kind::PUSH_PROMISE
                | kind::GOAWAY
                | kind::MAX_PUSH_ID => {
                    if length > FRAME_BYTES_MAX as u64 {
                        let what = "a frame of more than 65536 bytes";
                        return Err(Violation::new(ErrorCode::EXCESSIVE_LOAD, what));
                    }
                    Reading::Known(kind)
                }
                _ => Reading::Skipped,
            };
        }
        let there = self.left.min(input.len() as u64);
        let (bytes, rest) = input.split_at_checked(there as usize).unwrap_or_default();
        *input = rest;
        self.left -= there;
        let is_whole = self.left == 0;
        match self.reading {
            Reading::Data => {
                if is_whole {
                    self.reading = Reading::Head;
                } else if bytes.is_empty() {
                    return Ok(None);
                }
                Ok(Some(Piece::Data(bytes)))
            }
            Reading::Known(kind) if is_whole => {
                self.reading = Reading::Head;
                if self.kept.is_empty() {
                    return Ok(Some(Piece::Frame(kind, bytes)));
                }
                self.kept.extend_from_slice(bytes);
                Ok(Some(Piece::Frame(kind, &self.kept)))
            }
            Reading::Known(_) => {
                self.kept.extend_from_slice(bytes);
                Ok(None)
            }
            Reading::Skipped | Reading::Head if is_whole => {
                self.reading = Reading::Head;
                Ok(Some(Piece::Unknown))
            }
            Reading::Skipped | Reading::Head => Ok(None),
        }
    }

    /// Type and length of the next frame, once all their bytes are there.
    fn take_head(&mut self, input: &mut &[u8]) -> Option<(u64, u64)> {
        loop {
            let head = self.head.get(..self.head_bytes).unwrap_or_default();
            let numbers = read_number(head).and_then(|(kind, used)| {
                let (length, _) = read_number(head.get(used..).unwrap_or_default())?;
                Some((kind, length))
            });
            if numbers.is_some() {
                self.head_bytes = 0;
                return numbers;
            }
            let (&byte, rest) = input.split_first()?;
            if let Some(place) = self.head.get_mut(self.head_bytes) {
                *place = byte;
                self.head_bytes += 1;
            }
            *input = rest;
        }
    }
}
