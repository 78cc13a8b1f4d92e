//! Frames of HTTP/2 (RFC 9113 §4, §6): reading them from bytes however they are split, writing them.

use std::fmt;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const HEAD_BYTES: usize = 9;
/// Largest payload that every peer accepts, and that ours may send.
pub const PAYLOAD_BYTES_MAX: usize = 16_384;
pub const WINDOW_DEFAULT: i64 = 65_535;
pub const WINDOW_MAX: i64 = (1 << 31) - 1;

pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

pub mod flag {
    pub const ACK: u8 = 0x1;
    pub const END_STREAM: u8 = 0x1;
    pub const END_HEADERS: u8 = 0x4;
    pub const PADDED: u8 = 0x8;
    pub const PRIORITY: u8 = 0x20;
}

pub mod setting {
    pub const HEADER_TABLE_SIZE: u16 = 1;
    pub const ENABLE_PUSH: u16 = 2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    pub const MAX_FRAME_SIZE: u16 = 5;
    pub const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// Why a stream or a connection ends (RFC 9113 §7).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    pub const NO_ERROR: Self = Self(0);
    pub const PROTOCOL_ERROR: Self = Self(1);
    pub const INTERNAL_ERROR: Self = Self(2);
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    pub const STREAM_CLOSED: Self = Self(5);
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    pub const REFUSED_STREAM: Self = Self(7);
    pub const CANCEL: Self = Self(8);
    pub const COMPRESSION_ERROR: Self = Self(9);
    pub const ENHANCE_YOUR_CALM: Self = Self(11);

    const NAMES: [&'static str; 14] = [
        "NO_ERROR",
        "PROTOCOL_ERROR",
        "INTERNAL_ERROR",
        "FLOW_CONTROL_ERROR",
        "SETTINGS_TIMEOUT",
        "STREAM_CLOSED",
        "FRAME_SIZE_ERROR",
        "REFUSED_STREAM",
        "CANCEL",
        "COMPRESSION_ERROR",
        "CONNECT_ERROR",
        "ENHANCE_YOUR_CALM",
        "INADEQUATE_SECURITY",
        "HTTP_1_1_REQUIRED",
    ];
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMES.get(self.0 as usize) {
            Some(name) => out.write_str(name),
            None => write!(out, "error {:#x}", self.0),
        }
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

/// What is wrong with what the peer sent; the whole connection ends with it.
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

    #[must_use]
    pub const fn protocol(what: &'static str) -> Self {
        Self::new(ErrorCode::PROTOCOL_ERROR, what)
    }

    #[must_use]
    pub const fn size(what: &'static str) -> Self {
        Self::new(ErrorCode::FRAME_SIZE_ERROR, what)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    pub length: usize,
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
}

impl FrameHead {
    #[must_use]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let &[l0, l1, l2, kind, flags, s0, s1, s2, s3] = bytes.first_chunk::<HEAD_BYTES>()?;
        let length = u32::from_be_bytes([0, l0, l1, l2]) as usize;
        let stream = u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff;
        Some(Self { length, kind, flags, stream })
    }
}

/// Cuts a stream of bytes into frames. Copies only frames that come in pieces.
#[derive(Debug, Default)]
pub struct FrameReader {
    partial: Vec<u8>,
    /// `partial` was handed out as a whole frame and is of no more use.
    is_taken: bool,
}

impl FrameReader {
    /// The next whole frame, if it is there; the rest of `input` is kept otherwise.
    pub fn next<'r, 'i: 'r>(
        &'r mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<(FrameHead, &'r [u8])>, Violation> {
        if self.is_taken {
            self.partial = Vec::new();
            self.is_taken = false;
        }
        if self.partial.is_empty() {
            let Some(head) = checked_head(input)? else {
                self.partial.extend_from_slice(input);
                *input = &[];
                return Ok(None);
            };
            let whole = HEAD_BYTES + head.length;
            if let Some((frame, rest)) = input.split_at_checked(whole) {
                *input = rest;
                return Ok(Some((head, frame.get(HEAD_BYTES..).unwrap_or_default())));
            }
            self.partial.reserve_exact(whole);
            self.partial.extend_from_slice(input);
            *input = &[];
            return Ok(None);
        }
        self.fill(HEAD_BYTES, input);
        let Some(head) = checked_head(&self.partial)? else { return Ok(None) };
        self.fill(HEAD_BYTES + head.length, input);
        if self.partial.len() < HEAD_BYTES + head.length {
            return Ok(None);
        }
        self.is_taken = true;
        Ok(Some((head, self.partial.get(HEAD_BYTES..).unwrap_or_default())))
    }

    /// Takes input until `partial` has `wanted` bytes.
    fn fill(&mut self, wanted: usize, input: &mut &[u8]) {
        let missing = wanted.saturating_sub(self.partial.len()).min(input.len());
        if let Some((taken, rest)) = input.split_at_checked(missing) {
            self.partial.extend_from_slice(taken);
            *input = rest;
        }
    }
}

fn checked_head(bytes: &[u8]) -> Result<Option<FrameHead>, Violation> {
    match FrameHead::parse(bytes) {
        Some(head) if head.length > PAYLOAD_BYTES_MAX => {
            Err(Violation::size("a frame of more than 16384 bytes"))
        }
        head => Ok(head),
    }
}

/// A payload without its padding.
pub fn unpadded(head: FrameHead, payload: &[u8]) -> Result<&[u8], Violation> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let (&padding, rest) =
        payload.split_first().ok_or(Violation::size("padding without length"))?;
    let length = rest.len().checked_sub(usize::from(padding));
    let length = length.ok_or(Violation::protocol("more padding than payload"))?;
    Ok(rest.get(..length).unwrap_or_default())
}

/// The header block of a HEADERS frame, without padding and priority.
pub fn header_fragment(head: FrameHead, payload: &[u8]) -> Result<&[u8], Violation> {
    let payload = unpadded(head, payload)?;
    if !head.has(flag::PRIORITY) {
        return Ok(payload);
    }
    payload.get(5..).ok_or(Violation::size("HEADERS without its priority"))
}

/// The one number of a RST_STREAM or WINDOW_UPDATE frame.
pub fn number(payload: &[u8]) -> Result<u32, Violation> {
    let bytes = <[u8; 4]>::try_from(payload);
    bytes.map(u32::from_be_bytes).map_err(|_| Violation::size("a frame of a wrong length"))
}

/// The settings of a frame, in order.
pub fn settings(payload: &[u8]) -> Result<impl Iterator<Item = (u16, u32)> + '_, Violation> {
    if !payload.len().is_multiple_of(6) {
        return Err(Violation::size("SETTINGS of a wrong length"));
    }
    Ok(payload.chunks_exact(6).filter_map(|entry| {
        let &[i0, i1, v0, v1, v2, v3] = entry.first_chunk::<6>()?;
        Some((u16::from_be_bytes([i0, i1]), u32::from_be_bytes([v0, v1, v2, v3])))
    }))
}

/// Last stream id and error code of a GOAWAY frame.
pub fn goaway(payload: &[u8]) -> Result<(u32, ErrorCode), Violation> {
    let &[s0, s1, s2, s3, c0, c1, c2, c3] =
        payload.first_chunk::<8>().ok_or(Violation::size("GOAWAY of a wrong length"))?;
    let last = u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff;
    Ok((last, ErrorCode(u32::from_be_bytes([c0, c1, c2, c3]))))
}

pub fn write_head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    let [_, l0, l1, l2] = (length as u32).to_be_bytes();
    let [s0, s1, s2, s3] = stream.to_be_bytes();
    out.extend_from_slice(&[l0, l1, l2, kind, flags, s0, s1, s2, s3]);
}

pub fn write_settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    write_head(out, settings.len() * 6, kind::SETTINGS, 0, 0);
    for (id, value) in settings {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

pub fn write_settings_ack(out: &mut Vec<u8>) {
    write_head(out, 0, kind::SETTINGS, flag::ACK, 0);
}

pub fn write_ping_ack(out: &mut Vec<u8>, payload: &[u8]) {
    write_head(out, payload.len(), kind::PING, flag::ACK, 0);
    out.extend_from_slice(payload);
}

pub fn write_window_update(out: &mut Vec<u8>, stream: u32, bytes: u32) {
    write_head(out, 4, kind::WINDOW_UPDATE, 0, stream);
    out.extend_from_slice(&bytes.to_be_bytes());
}

pub fn write_reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    write_head(out, 4, kind::RST_STREAM, 0, stream);
    out.extend_from_slice(&code.0.to_be_bytes());
}

pub fn write_goaway(out: &mut Vec<u8>, last_stream: u32, code: ErrorCode) {
    write_head(out, 8, kind::GOAWAY, 0, 0);
    out.extend_from_slice(&last_stream.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
}

/// Writes a header block as HEADERS, and CONTINUATION as far as one frame does not hold it.
pub fn write_headers(out: &mut Vec<u8>, stream: u32, blocks: [&[u8]; 2], is_end: bool) {
    let [first, second] = blocks;
    let length = first.len() + second.len();
    let end_stream = if is_end { flag::END_STREAM } else { 0 };
    if length <= PAYLOAD_BYTES_MAX {
        write_head(out, length, kind::HEADERS, flag::END_HEADERS | end_stream, stream);
        out.extend_from_slice(first);
        out.extend_from_slice(second);
        return;
    }
    let whole = blocks.concat();
    let mut pieces = whole.chunks(PAYLOAD_BYTES_MAX).peekable();
    let mut kind = kind::HEADERS;
    let mut flags = end_stream;
    while let Some(piece) = pieces.next() {
        flags |= if pieces.peek().is_none() { flag::END_HEADERS } else { 0 };
        write_head(out, piece.len(), kind, flags, stream);
        out.extend_from_slice(piece);
        (kind, flags) = (kind::CONTINUATION, 0);
    }
}
