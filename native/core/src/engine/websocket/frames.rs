//! WebSocket frames (RFC 6455 §5), read from bytes however they are cut, and written. Owns no
//! socket.
//!
//! The peer is not trusted: lengths are checked before anything is allocated, control frames are
//! bounded, and a frame that the RFC forbids is an error with the close code to send.

use std::borrow::Cow;

use super::deflate::Deflate;

/// Payload of a control frame (RFC 6455 §5.5).
const CONTROL_BYTES_MAX: usize = 125;
/// Room that is taken for a message on the word of its header alone.
const RESERVE_BYTES_MAX: usize = 64 * 1024;
const HEADER_BYTES_MAX: usize = 14;

pub const NORMAL: u16 = 1000;
pub const PROTOCOL_ERROR: u16 = 1002;
pub const NO_CODE: u16 = 1005;
pub const BAD_TEXT: u16 = 1007;
pub const TOO_BIG: u16 = 1009;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

impl Opcode {
    fn parse(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return None,
        })
    }

    fn is_control(self) -> bool {
        self as u8 >= 8
    }
}

/// Who reads: frames to a server are masked, frames to a client are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Client,
    Server,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Message { is_text: bool, data: Vec<u8> },
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close { code: u16, reason: String },
}

/// What the peer did wrong, and the code to close with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct FrameError {
    pub code: u16,
    pub detail: Cow<'static, str>,
}

impl FrameError {
    pub fn new(code: u16, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { code, detail: detail.into() }
    }

    fn protocol(detail: &'static str) -> Self {
        Self::new(PROTOCOL_ERROR, detail)
    }
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    opcode: Opcode,
    is_final: bool,
    mask: Option<[u8; 4]>,
    /// Payload bytes that are still to come, and that came.
    left: u64,
    read: usize,
}

/// A data message whose first frame came.
#[derive(Clone, Copy, Debug)]
struct Begun {
    is_text: bool,
    is_deflated: bool,
}

/// Turns bytes into events. An idle decoder holds no memory beyond itself.
#[derive(Debug)]
pub struct Decoder {
    role: Role,
    bytes_max: u64,
    /// permessage-deflate was agreed.
    is_deflating: bool,
    header: [u8; HEADER_BYTES_MAX],
    header_bytes: u8,
    frame: Option<Frame>,
    begun: Option<Begun>,
    message: Vec<u8>,
    control: Vec<u8>,
}

impl Decoder {
    /// Messages may have up to `bytes_max` bytes, after inflating.
    #[must_use]
    pub fn new(role: Role, bytes_max: u64, is_deflating: bool) -> Self {
        Self {
            role,
            bytes_max,
            is_deflating,
            header: [0; HEADER_BYTES_MAX],
            header_bytes: 0,
            frame: None,
            begun: None,
            message: Vec::new(),
            control: Vec::new(),
        }
    }

    /// Takes bytes from the front of `input` up to the end of the next event. None: all were taken,
    /// and more are needed.
    pub fn next(
        &mut self,
        input: &mut &[u8],
        deflate: &mut Deflate,
    ) -> Result<Option<Event>, FrameError> {
        loop {
            let frame = match &mut self.frame {
                Some(frame) => frame,
                None => {
                    let Some(frame) = self.read_header(input)? else { return Ok(None) };
                    self.frame.insert(frame)
                }
            };
            let count = usize::try_from(frame.left).unwrap_or(usize::MAX).min(input.len());
            let Some((payload, rest)) = input.split_at_checked(count) else { return Ok(None) };
            *input = rest;
            let store =
                if frame.opcode.is_control() { &mut self.control } else { &mut self.message };
            let from = store.len();
            store.extend_from_slice(payload);
            if let (Some(mask), Some(added)) = (frame.mask, store.get_mut(from..)) {
                apply_mask(added, mask, frame.read);
            }
            frame.left -= count as u64;
            frame.read += count;
            if frame.left > 0 {
                return Ok(None);
            }
            let frame = *frame;
            self.frame = None;
            if let Some(event) = self.end_frame(frame, deflate)? {
                return Ok(Some(event));
            }
        }
    }

    fn read_header(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, FrameError> {
        loop {
            let have = self.header.get(..self.header_bytes as usize).unwrap_or_default();
            let need = header_length(have);
            if have.len() >= need {
                let (frame, begun) = self.parse_header(have)?;
                self.header_bytes = 0;
                if begun.is_some() {
                    self.begun = begun;
                }
                if !frame.opcode.is_control() {
                    let room = usize::try_from(frame.left).unwrap_or(usize::MAX);
                    self.message.reserve_exact(room.min(RESERVE_BYTES_MAX));
                }
                return Ok(Some(frame));
            }
            let Some((&byte, rest)) = input.split_first() else { return Ok(None) };
            *input = rest;
            if let Some(place) = self.header.get_mut(self.header_bytes as usize) {
                *place = byte;
                self.header_bytes += 1;
            }
        }
    }

    /// The frame, and the message that begins with it.
    fn parse_header(&self, header: &[u8]) -> Result<(Frame, Option<Begun>), FrameError> {
        let [first, second, rest @ ..] = header else {
            return Err(FrameError::protocol("a frame header is too short"));
        };
        let Some(opcode) = Opcode::parse(first & 0x0f) else {
            return Err(FrameError::new(
                PROTOCOL_ERROR,
                format!("a frame has the unknown opcode {}", first & 0x0f),
            ));
        };
        let (length, rest) = match second & 0x7f {
            126 => split_number::<2>(rest),
            127 => split_number::<8>(rest),
            short => (u64::from(short), rest),
        };
        let mask: Option<[u8; 4]> = rest.try_into().ok();
        let is_final = first & 0x80 != 0;
        let is_deflated = first & 0x40 != 0;
        if mask.is_some() != (self.role == Role::Server) {
            return Err(FrameError::protocol(match self.role {
                Role::Client => "the server masked a frame",
                Role::Server => "the client did not mask a frame",
            }));
        }
        if first & 0x30 != 0 || (is_deflated && !self.is_deflating) {
            return Err(FrameError::protocol("a frame has reserved bits set"));
        }
        if opcode.is_control() {
            if !is_final || is_deflated || length > CONTROL_BYTES_MAX as u64 {
                return Err(FrameError::protocol("a control frame is fragmented or too long"));
            }
        } else {
            match (opcode == Opcode::Continuation, self.begun) {
                (true, None) => {
                    return Err(FrameError::protocol("a continuation frame continues nothing"))
                }
                (false, Some(_)) => {
                    return Err(FrameError::protocol("a message began inside another"))
                }
                (true, Some(_)) if is_deflated => {
                    return Err(FrameError::protocol("a frame has reserved bits set"))
                }
                _ => {}
            }
            if (self.message.len() as u64).saturating_add(length) > self.bytes_max {
                return Err(FrameError::new(
                    TOO_BIG,
                    format!("a message is over {} bytes", self.bytes_max),
                ));
            }
        }
        let begun = matches!(opcode, Opcode::Text | Opcode::Binary)
            .then_some(Begun { is_text: opcode == Opcode::Text, is_deflated });
        Ok((Frame { opcode, is_final, mask, left: length, read: 0 }, begun))
    }

    /// The last byte of a frame was read.
    fn end_frame(
        &mut self,
        frame: Frame,
        deflate: &mut Deflate,
    ) -> Result<Option<Event>, FrameError> {
        match frame.opcode {
            Opcode::Ping => return Ok(Some(Event::Ping(std::mem::take(&mut self.control)))),
            Opcode::Pong => return Ok(Some(Event::Pong(std::mem::take(&mut self.control)))),
            Opcode::Close => return close_event(&std::mem::take(&mut self.control)).map(Some),
            _ => {}
        }
        let Some(begun) = self.begun else {
            return Err(FrameError::protocol("a continuation frame continues nothing"));
        };
        if !frame.is_final {
            return Ok(None);
        }
        self.begun = None;
        let mut data = std::mem::take(&mut self.message);
        if begun.is_deflated {
            data = deflate.inflate(&data, self.bytes_max)?;
        }
        if begun.is_text && std::str::from_utf8(&data).is_err() {
            return Err(FrameError::new(BAD_TEXT, "a text message is not UTF-8"));
        }
        Ok(Some(Event::Message { is_text: begun.is_text, data }))
    }
}

fn close_event(payload: &[u8]) -> Result<Event, FrameError> {
    let Some((code, reason)) = payload.split_first_chunk::<2>() else {
        return match payload {
            [] => Ok(Event::Close { code: NO_CODE, reason: String::new() }),
            _ => Err(FrameError::protocol("a close frame has half a code")),
        };
    };
    let code = u16::from_be_bytes(*code);
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(FrameError::new(
            PROTOCOL_ERROR,
            format!("the close code {code} is not allowed"),
        ));
    }
    match std::str::from_utf8(reason) {
        Ok(reason) => Ok(Event::Close { code, reason: reason.to_owned() }),
        Err(_) => Err(FrameError::new(BAD_TEXT, "the reason of a close frame is not UTF-8")),
    }
}

/// How long a header is, by what is there of it.
fn header_length(have: &[u8]) -> usize {
    let Some(second) = have.get(1) else { return 2 };
    let length = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    2 + length + if second & 0x80 == 0 { 0 } else { 4 }
}

fn split_number<const N: usize>(bytes: &[u8]) -> (u64, &[u8]) {
    let (number, rest) = bytes.split_at_checked(N).unwrap_or((bytes, &[]));
    (number.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte)), rest)
}

/// Masks, or unmasks, bytes of a payload that begin `at` bytes into it.
pub fn apply_mask(bytes: &mut [u8], mask: [u8; 4], at: usize) {
    let mask = u32::from_ne_bytes(mask);
    // The mask turned so that it begins with the byte for `at`, in either byte order.
    let shift = (at % 4 * 8) as u32;
    let mask = if cfg!(target_endian = "big") {
        mask.rotate_left(shift)
    } else {
        mask.rotate_right(shift)
    };
    let wide = (u64::from(mask) << 32 | u64::from(mask)).to_ne_bytes();
    for chunk in bytes.chunks_mut(8) {
        for (byte, key) in chunk.iter_mut().zip(wide) {
            *byte ^= key;
        }
    }
}

/// Appends a frame. Clients give a mask, servers none.
pub fn write_frame(
    out: &mut Vec<u8>,
    opcode: Opcode,
    payload: &[u8],
    is_deflated: bool,
    mask: Option<[u8; 4]>,
) {
    let masked = if mask.is_some() { 0x80 } else { 0 };
    out.reserve(payload.len() + HEADER_BYTES_MAX);
    out.push(0x80 | if is_deflated { 0x40 } else { 0 } | opcode as u8);
    match payload.len() {
        length @ 0..=125 => out.push(masked | length as u8),
        length @ 126..=0xffff => {
            out.push(masked | 126);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            out.push(masked | 127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    let Some(mask) = mask else {
        out.extend_from_slice(payload);
        return;
    };
    out.extend_from_slice(&mask);
    let from = out.len();
    out.extend_from_slice(payload);
    if let Some(added) = out.get_mut(from..) {
        apply_mask(added, mask, 0);
    }
}

/// Appends a close frame. `NO_CODE` sends none; a long reason is cut.
pub fn write_close(out: &mut Vec<u8>, code: u16, reason: &str, mask: Option<[u8; 4]>) {
    let mut payload = Vec::with_capacity(2 + reason.len());
    if code != NO_CODE {
        let mut end = reason.len().min(CONTROL_BYTES_MAX - 2);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        payload.extend_from_slice(&code.to_be_bytes());
        payload.extend_from_slice(reason.get(..end).unwrap_or_default().as_bytes());
    }
    write_frame(out, Opcode::Close, &payload, false, mask);
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
