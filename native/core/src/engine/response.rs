//! One HTTP/1.1 response from bytes, however they are cut. Owns no socket and no clock.
//!
//! The peer is not trusted: heads, interim responses, chunk lines, trailers and bodies
//! are all bounded, and ambiguous framing is an error rather than a guess.

use std::mem::MaybeUninit;
use std::sync::Arc;

use httparse::{parse_chunk_size, Header, InvalidChunkSize, ParserConfig, Status};

use super::error::{ErrorClass, Failure};

const HEADERS_MAX: usize = 128;
const HEAD_BYTES_MAX: usize = 64 * 1024;
const INTERIM_MAX: u32 = 16;
const CHUNK_LINE_BYTES_MAX: usize = 256;
const TRAILER_BYTES_MAX: usize = 16 * 1024;

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

/// How much of a response its caller can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keep {
    Nothing,
    Head,
    Body,
}

/// What the caller wants of a response.
#[derive(Clone, Copy, Debug)]
pub struct Expect {
    /// A response to HEAD has no body, whatever its headers say.
    pub is_head: bool,
    pub keep: Keep,
    pub body_bytes_max: u64,
    /// Responses of 400 and more show their head and the start of their body, whatever `keep`
    /// says: as samples of failures. Not those of this status, and none if it is `NO_SAMPLES`.
    pub sampled_status: u16,
}

/// There are samples enough.
pub const NO_SAMPLES: u16 = u16::MAX;
const SAMPLE_BYTES: usize = 1024;

#[derive(Debug)]
pub struct Response {
    expect: Expect,
    state: State,
    /// Bytes of a head, chunk line or trailer that arrived in part.
    partial: Vec<u8>,
    interim: u32,
    trailer_bytes: usize,
    body_bytes: u64,
    is_sample: bool,
    started: bool,
    pub status: u16,
    pub minor_version: u8,
    pub keep_alive: bool,
    pub head: Option<Arc<[u8]>>,
    pub body: Vec<u8>,
    pub rare: Option<Box<Rare>>,
}

/// What most responses do not have.
#[derive(Debug, Default)]
pub struct Rare {
    pub location: Option<String>,
    pub set_cookies: Vec<String>,
    pub encoding: Option<String>,
}

/// The last head that responses of a step had, parsed: the next one is often the same, and equal
/// bytes parse equally. A head with cookies, a location or an encoding is not kept here.
#[derive(Debug, Default)]
pub struct HeadMemo {
    head: Option<Arc<[u8]>>,
    status: u16,
    minor_version: u8,
    keep_alive: bool,
    framing: Framing,
    /// Heads in a row that were not the kept one.
    misses: u32,
}

const MEMO_BYTES_MAX: usize = 1024;
/// Where every head is another, only one of so many is kept.
const MEMO_EVERY: u32 = 64;
const MEMO_MISSES: u32 = 8;

impl HeadMemo {
    fn find(&mut self, input: &[u8]) -> Option<&Arc<[u8]>> {
        let head = self.head.as_ref().filter(|head| input.starts_with(head));
        self.misses = if head.is_some() { 0 } else { self.misses.wrapping_add(1) };
        head
    }

    fn keep(&mut self, head: &[u8], response: &Response, framing: Framing) {
        let is_kept = self.misses < MEMO_MISSES || self.misses.is_multiple_of(MEMO_EVERY);
        if is_kept && response.rare.is_none() && head.len() <= MEMO_BYTES_MAX {
            self.head = Some(head.into());
            self.status = response.status;
            self.minor_version = response.minor_version;
            self.keep_alive = response.keep_alive;
            self.framing = framing;
        }
    }
}

impl Response {
    #[must_use]
    pub fn new(expect: Expect) -> Self {
        Self {
            expect,
            state: State::Head,
            partial: Vec::new(),
            interim: 0,
            trailer_bytes: 0,
            body_bytes: 0,
            is_sample: false,
            started: false,
            status: 0,
            minor_version: 1,
            keep_alive: true,
            head: None,
            body: Vec::new(),
            rare: None,
        }
    }

    /// Whether any byte of a response has been seen.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.started
    }

    pub fn feed(&mut self, input: &[u8], memo: &mut HeadMemo) -> Result<Progress, Failure> {
        self.started |= !input.is_empty();
        let mut rest = input;
        loop {
            let before = rest.len();
            let state = self.state;
            match state {
                State::Head => rest = self.feed_head(rest, memo)?,
                State::Length(left) => {
                    let (data, tail) = split(rest, left);
                    self.add_body(data)?;
                    rest = tail;
                    let left = left - data.len() as u64;
                    self.state = if left == 0 { State::Done } else { State::Length(left) };
                }
                State::ChunkLine => rest = self.feed_chunk_line(rest)?,
                State::ChunkData(left) => {
                    let (data, tail) = split(rest, left);
                    self.add_body(data)?;
                    rest = tail;
                    let left = left - data.len() as u64;
                    self.state = if left == 0 { State::ChunkEnd } else { State::ChunkData(left) };
                }
                State::ChunkEnd => rest = self.feed_chunk_end(rest)?,
                State::Trailers => rest = self.feed_trailers(rest)?,
                State::UntilClose => {
                    self.add_body(rest)?;
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
    pub fn end(&mut self) -> Result<(), Failure> {
        match self.state {
            State::UntilClose | State::Done => {
                self.state = State::Done;
                Ok(())
            }
            State::Head if !self.started => {
                Err(Failure::new(ErrorClass::Reset, "closed before any response"))
            }
            State::Head => Err(Failure::new(ErrorClass::Reset, "closed within the response head")),
            _ => Err(Failure::new(ErrorClass::Reset, "closed within the response body")),
        }
    }

    fn add_body(&mut self, data: &[u8]) -> Result<(), Failure> {
        self.body_bytes += data.len() as u64;
        if self.body_bytes > self.expect.body_bytes_max {
            return Err(too_large(self.expect.body_bytes_max));
        }
        if self.expect.keep == Keep::Body {
            self.body.extend_from_slice(data);
        } else if self.is_sample {
            let room = SAMPLE_BYTES.saturating_sub(self.body.len()).min(data.len());
            self.body.extend_from_slice(data.get(..room).unwrap_or_default());
        }
        Ok(())
    }

    fn feed_head<'a>(&mut self, input: &'a [u8], memo: &mut HeadMemo) -> Result<&'a [u8], Failure> {
        if self.partial.is_empty() {
            return match self.parse_head(input, memo)? {
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
        if let Some(used) = self.parse_head(&partial, memo)? {
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
    fn parse_head(&mut self, input: &[u8], memo: &mut HeadMemo) -> Result<Option<usize>, Failure> {
        if let Some(head) = memo.find(input).cloned() {
            self.status = memo.status;
            self.minor_version = memo.minor_version;
            self.keep_alive = memo.keep_alive;
            let used = head.len();
            self.begin_body(memo.framing, || head)?;
            return Ok(Some(used));
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
        self.status = status;
        self.minor_version = parsed.version.unwrap_or(1);
        self.keep_alive = self.minor_version == 1;
        let framing = self.read_headers(parsed.headers)?;
        let head = input.get(..used).unwrap_or_default();
        memo.keep(head, self, framing);
        self.begin_body(framing, || match &memo.head {
            Some(kept) if **kept == *head => kept.clone(),
            _ => head.into(),
        })?;
        Ok(Some(used))
    }

    /// Keeps the head if it can be seen, and decides how the body is framed.
    fn begin_body(
        &mut self,
        framing: Framing,
        head: impl FnOnce() -> Arc<[u8]>,
    ) -> Result<(), Failure> {
        let sampled = self.expect.sampled_status;
        self.is_sample = self.status >= 400 && sampled != self.status && sampled != NO_SAMPLES;
        if self.expect.keep >= Keep::Head || self.is_sample {
            self.head = Some(head());
        }
        self.state = self.body_state(framing)?;
        Ok(())
    }

    fn read_headers(&mut self, headers: &[Header<'_>]) -> Result<Framing, Failure> {
        let mut framing = Framing::default();
        for header in headers {
            let name = header.name;
            let value = header.value;
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
                10 if name.eq_ignore_ascii_case("set-cookie") => {
                    let text = String::from_utf8_lossy(value).into_owned();
                    self.rare.get_or_insert_default().set_cookies.push(text);
                }
                8 if name.eq_ignore_ascii_case("location") => {
                    let text = String::from_utf8_lossy(value).into_owned();
                    self.rare.get_or_insert_default().location = Some(text);
                }
                16 if name.eq_ignore_ascii_case("content-encoding") => {
                    let text = String::from_utf8_lossy(value).trim().to_ascii_lowercase();
                    self.rare.get_or_insert_default().encoding = Some(text);
                }
                _ => {}
            }
        }
        Ok(framing)
    }

    fn body_state(&mut self, framing: Framing) -> Result<State, Failure> {
        if self.status == 101 {
            return Err(Failure::protocol("the server switched protocols"));
        }
        if self.expect.is_head || self.status == 204 || self.status == 304 {
            return Ok(State::Done);
        }
        match (framing.chunked, framing.length) {
            (true, Some(_)) => Err(Failure::protocol("both Content-Length and chunked")),
            (true, None) => Ok(State::ChunkLine),
            (false, Some(0)) => Ok(State::Done),
            (false, Some(length)) if length > self.expect.body_bytes_max => {
                Err(too_large(self.expect.body_bytes_max))
            }
            (false, Some(length)) => {
                if self.expect.keep == Keep::Body {
                    // At most 1 MiB on the server's word alone.
                    self.body.reserve(length.min(1 << 20) as usize);
                }
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
        let (rest, whole) = self.take_line(input, TRAILER_BYTES_MAX, "trailer")?;
        if whole {
            self.trailer_bytes += self.partial.len();
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
struct Framing {
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

fn too_large(bytes_max: u64) -> Failure {
    Failure::new(ErrorClass::TooLarge, format!("response body is over {bytes_max} bytes"))
}

fn split(input: &[u8], at: u64) -> (&[u8], &[u8]) {
    let at = usize::try_from(at).unwrap_or(usize::MAX).min(input.len());
    input.split_at_checked(at).unwrap_or((input, &[]))
}

fn has_token(value: &[u8], token: &[u8]) -> bool {
    value.split(|&b| b == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(token))
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
