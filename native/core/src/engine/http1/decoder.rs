//! HTTP/1.1 responses from bytes, however they are cut. Owns no socket and no clock.
//!
//! The peer is not trusted: heads, interim responses, chunk lines, trailers and bodies
//! are all bounded, and ambiguous framing is an error rather than a guess.

use std::mem::MaybeUninit;

use httparse::{parse_chunk_size, Header, InvalidChunkSize, ParserConfig, Status};

use super::memo::HeadMemo;
use crate::engine::error::{ErrorClass, Failure};
use crate::engine::http::reply::{Reply, Version};

const HEADERS_MAX: usize = 128;
const HEAD_BYTES_MAX: usize = 64 * 1024;
const INTERIM_MAX: u8 = 16;
const CHUNK_LINE_BYTES_MAX: usize = 256;
const TRAILER_BYTES_MAX: u32 = 16 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Everything was used and more is needed.
    More,
    /// The response is complete; so many bytes of the input belonged to it.
    Done(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Head,
    Length(u64),
    ChunkLine,
    ChunkData(u64),
    ChunkEnd,
    Trailers,
    UntilClose,
    Done,
}

/// The response that a connection receives; what it holds goes into a `Reply`.
#[derive(Debug)]
pub struct Decoder {
    state: State,
    /// Bytes of a head, chunk line or trailer that arrived in part.
    partial: Vec<u8>,
    trailer_bytes: u32,
    interim: u8,
    pub keep_alive: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            state: State::Head,
            partial: Vec::new(),
            trailer_bytes: 0,
            interim: 0,
            keep_alive: true,
        }
    }
}

impl Decoder {
    /// Makes this the decoder of another response.
    pub fn renew(&mut self) {
        self.state = State::Head;
        self.partial.clear();
        (self.trailer_bytes, self.interim, self.keep_alive) = (0, 0, true);
    }

    pub fn feed(
        &mut self,
        input: &[u8],
        reply: &mut Reply,
        memo: &mut HeadMemo,
    ) -> Result<Progress, Failure> {
        let mut rest = input;
        loop {
            let before = rest.len();
            let state = self.state;
            match state {
                State::Head => rest = self.feed_head(rest, reply, memo)?,
                State::Length(left) => {
                    let (data, tail) = split(rest, left);
                    reply.add_body(data)?;
                    rest = tail;
                    let left = left - data.len() as u64;
                    self.state = if left == 0 { State::Done } else { State::Length(left) };
                }
                State::ChunkLine => rest = self.feed_chunk_line(rest)?,
                State::ChunkData(left) => {
                    let (data, tail) = split(rest, left);
                    reply.add_body(data)?;
                    rest = tail;
                    let left = left - data.len() as u64;
                    self.state = if left == 0 { State::ChunkEnd } else { State::ChunkData(left) };
                }
                State::ChunkEnd => rest = self.feed_chunk_end(rest)?,
                State::Trailers => rest = self.feed_trailers(rest)?,
                State::UntilClose => {
                    reply.add_body(rest)?;
                    rest = &[];
                }
                State::Done => return Ok(Progress::Done(input.len() - rest.len())),
            }
            // Nothing used and nothing decided: the rest is buffered, wait for more.
            if self.state != State::Done && rest.is_empty() && (before == 0 || self.state == state)
            {
                return Ok(Progress::More);
            }
        }
    }

    /// The peer closed. Only a body that runs until the close may end so.
    pub fn end(&mut self, reply: &Reply) -> Result<(), Failure> {
        match self.state {
            State::UntilClose | State::Done => {
                self.state = State::Done;
                Ok(())
            }
            State::Head if !reply.has_started() => {
                Err(Failure::new(ErrorClass::Reset, "closed before any response"))
            }
            State::Head => Err(Failure::new(ErrorClass::Reset, "closed within the response head")),
            _ => Err(Failure::new(ErrorClass::Reset, "closed within the response body")),
        }
    }

    fn feed_head<'a>(
        &mut self,
        input: &'a [u8],
        reply: &mut Reply,
        memo: &mut HeadMemo,
    ) -> Result<&'a [u8], Failure> {
        if self.partial.is_empty() {
            return match self.parse_head(input, reply, memo)? {
                Some(used) => Ok(input.get(used..).unwrap_or_default()),
                None => {
                    self.partial.extend_from_slice(input);
                    self.check_head_size()?;
                    Ok(&[])
                }
            };
        }
        let held = self.partial.len();
        self.partial.extend_from_slice(input);
        let partial = std::mem::take(&mut self.partial);
        if let Some(used) = self.parse_head(&partial, reply, memo)? {
            return Ok(input.get(used.saturating_sub(held)..).unwrap_or_default());
        }
        self.partial = partial;
        self.check_head_size()?;
        Ok(&[])
    }

    fn check_head_size(&self) -> Result<(), Failure> {
        if self.partial.len() > HEAD_BYTES_MAX {
            let detail = format!("response head is over {HEAD_BYTES_MAX} bytes");
            return Err(Failure::new(ErrorClass::TooLarge, detail));
        }
        Ok(())
    }

    /// The length of the head if it is whole; decides how the body is framed.
    fn parse_head(
        &mut self,
        input: &[u8],
        reply: &mut Reply,
        memo: &mut HeadMemo,
    ) -> Result<Option<usize>, Failure> {
        if let Some(known) = memo.find(input) {
            reply.status = known.status;
            reply.version = known.version;
            self.keep_alive = known.keep_alive;
            reply.begin(|| known.head.clone());
            self.state = self.body_state(known.framing, reply)?;
            return Ok(Some(known.head.len()));
        }
        let mut slots = [const { MaybeUninit::<Header<'_>>::uninit() }; HEADERS_MAX];
        let mut parsed = httparse::Response::new(&mut []);
        let used = match ParserConfig::default().parse_response_with_uninit_headers(
            &mut parsed,
            input,
            &mut slots,
        ) {
            Ok(Status::Complete(used)) => used,
            Ok(Status::Partial) => return Ok(None),
            Err(httparse::Error::TooManyHeaders) => {
                let detail = format!("more than {HEADERS_MAX} response headers");
                return Err(Failure::new(ErrorClass::TooLarge, detail));
            }
            Err(error) => return Err(Failure::protocol(format!("not an HTTP response: {error}"))),
        };
        let status = parsed.code.unwrap_or_default();
        if (100..200).contains(&status) && status != 101 {
            self.interim += 1;
            if self.interim > INTERIM_MAX {
                return Err(Failure::protocol("endless interim responses"));
            }
            return Ok(Some(used));
        }
        reply.status = status;
        reply.version = if parsed.version == Some(0) { Version::Http10 } else { Version::Http11 };
        self.keep_alive = reply.version == Version::Http11;
        let framing = self.read_headers(parsed.headers, reply)?;
        let head = input.get(..used).unwrap_or_default();
        let kept = memo.keep(head, reply, self.keep_alive, framing);
        reply.begin(|| kept.unwrap_or_else(|| head.into()));
        self.state = self.body_state(framing, reply)?;
        Ok(Some(used))
    }

    fn read_headers(
        &mut self,
        headers: &[Header<'_>],
        reply: &mut Reply,
    ) -> Result<Framing, Failure> {
        let mut framing = Framing::default();
        for Header { name, value } in headers {
            // Told apart by length first: most headers are none of these.
            match name.len() {
                14 if name.eq_ignore_ascii_case("content-length") => framing.set_length(value)?,
                17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                    framing.set_transfer_encoding(value)?;
                }
                10 if name.eq_ignore_ascii_case("connection") => {
                    if has_token(value, b"close") {
                        self.keep_alive = false;
                    } else if has_token(value, b"keep-alive") {
                        self.keep_alive = true;
                    }
                }
                _ => reply.note_header(name, value),
            }
        }
        Ok(framing)
    }

    fn body_state(&mut self, framing: Framing, reply: &mut Reply) -> Result<State, Failure> {
        if reply.status == 101 {
            return Err(Failure::protocol("the server switched protocols"));
        }
        if reply.expect.is_head || reply.status == 204 || reply.status == 304 {
            return Ok(State::Done);
        }
        match (framing.chunked, framing.length) {
            (true, Some(_)) => Err(Failure::protocol("both Content-Length and chunked")),
            (true, None) => Ok(State::ChunkLine),
            (false, Some(0)) => Ok(State::Done),
            (false, Some(length)) => {
                reply.expect_body(length)?;
                Ok(State::Length(length))
            }
            (false, None) => {
                self.keep_alive = false;
                Ok(State::UntilClose)
            }
        }
    }

    fn feed_chunk_line<'a>(&mut self, input: &'a [u8]) -> Result<&'a [u8], Failure> {
        let (rest, whole) = self.take_line(input, CHUNK_LINE_BYTES_MAX, "chunk line")?;
        if !whole {
            return Ok(rest);
        }
        let has_digit = self.partial.first().is_some_and(u8::is_ascii_hexdigit);
        let size = match parse_chunk_size(&self.partial) {
            Ok(Status::Complete((_, size))) if has_digit => size,
            Ok(_) | Err(InvalidChunkSize) => {
                return Err(Failure::protocol("malformed chunk size"));
            }
        };
        self.partial.clear();
        self.state = if size == 0 { State::Trailers } else { State::ChunkData(size) };
        Ok(rest)
    }

    fn feed_chunk_end<'a>(&mut self, input: &'a [u8]) -> Result<&'a [u8], Failure> {
        let (rest, whole) = self.take_line(input, 2, "end of chunk")?;
        if whole {
            if self.partial != b"\r\n" {
                return Err(Failure::protocol("chunk longer than it says"));
            }
            self.partial.clear();
            self.state = State::ChunkLine;
        }
        Ok(rest)
    }

    fn feed_trailers<'a>(&mut self, input: &'a [u8]) -> Result<&'a [u8], Failure> {
        let (rest, whole) = self.take_line(input, TRAILER_BYTES_MAX as usize, "trailer")?;
        if whole {
            self.trailer_bytes += self.partial.len() as u32;
            if self.trailer_bytes > TRAILER_BYTES_MAX {
                return Err(Failure::new(ErrorClass::TooLarge, "trailers are too long"));
            }
            let is_last = self.partial == b"\r\n" || self.partial == b"\n";
            self.partial.clear();
            if is_last {
                self.state = State::Done;
            }
        }
        Ok(rest)
    }

    /// Moves input up to and with the next line feed into `partial`.
    fn take_line<'a>(
        &mut self,
        input: &'a [u8],
        bytes_max: usize,
        what: &str,
    ) -> Result<(&'a [u8], bool), Failure> {
        let (line, rest, whole) = match memchr::memchr(b'\n', input) {
            Some(at) => {
                let (line, rest) = input.split_at_checked(at + 1).unwrap_or((input, &[]));
                (line, rest, true)
            }
            None => (input, &[][..], false),
        };
        if self.partial.len() + line.len() > bytes_max {
            return Err(Failure::protocol(format!("{what} is too long")));
        }
        self.partial.extend_from_slice(line);
        Ok((rest, whole))
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Framing {
    length: Option<u64>,
    chunked: bool,
}

impl Framing {
    fn set_length(&mut self, value: &[u8]) -> Result<(), Failure> {
        let digits = value.trim_ascii();
        let parsed = std::str::from_utf8(digits)
            .ok()
            .filter(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|text| text.parse::<u64>().ok());
        match (parsed, self.length) {
            (None, _) => Err(Failure::protocol("malformed Content-Length")),
            (Some(new), Some(old)) if new != old => {
                Err(Failure::protocol("two different Content-Lengths"))
            }
            (Some(new), _) => {
                self.length = Some(new);
                Ok(())
            }
        }
    }

    fn set_transfer_encoding(&mut self, value: &[u8]) -> Result<(), Failure> {
        if value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
            self.chunked = true;
            Ok(())
        } else {
            let shown = String::from_utf8_lossy(value).into_owned();
            Err(Failure::protocol(format!("Transfer-Encoding {shown:?} is not supported")))
        }
    }
}

fn split(input: &[u8], at: u64) -> (&[u8], &[u8]) {
    let at = usize::try_from(at).unwrap_or(usize::MAX).min(input.len());
    input.split_at_checked(at).unwrap_or((input, &[]))
}

fn has_token(value: &[u8], token: &[u8]) -> bool {
    value.split(|&b| b == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(token))
}

#[cfg(test)]
#[path = "decoder_tests.rs"]
mod tests;
