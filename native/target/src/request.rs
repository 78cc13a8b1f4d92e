//! Reading one HTTP/1.1 request: its head, then its body, however the bytes arrive.
//!
//! Owns what a request may look like and how large it may be. Knows no routes and no sockets.

use std::mem::MaybeUninit;

use httparse::{Header, Status};

pub const HEAD_BYTES_MAX: usize = 64 * 1024;
pub const HEADERS_MAX: usize = 100;
pub const BODY_BYTES_MAX: u64 = 64 << 20;
/// Chunk size lines with their extensions, and all trailers together.
const CHUNK_META_BYTES_MAX: usize = 16 * 1024;

pub type HeaderSlots<'b> = [MaybeUninit<Header<'b>>; HEADERS_MAX];

/// Why a request is answered with an error and its connection closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    Malformed(&'static str),
    HeadTooLarge,
    BodyTooLarge,
    UnknownExpectation,
    UnknownTransferCoding,
    UnknownVersion,
}

impl Refused {
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::Malformed(_) => 400,
            Self::BodyTooLarge => 413,
            Self::UnknownExpectation => 417,
            Self::HeadTooLarge => 431,
            Self::UnknownTransferCoding => 501,
            Self::UnknownVersion => 505,
        }
    }

    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Malformed(reason) => reason,
            Self::BodyTooLarge => "the request body is larger than 64 MiB",
            Self::UnknownExpectation => "the only expectation understood is 100-continue",
            Self::HeadTooLarge => "the request head is larger than 64 KiB or has over 100 headers",
            Self::UnknownTransferCoding => "the only transfer coding understood is chunked",
            Self::UnknownVersion => "only HTTP/1.0 and HTTP/1.1 are spoken here",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    None,
    Length(u64),
    Chunked,
}

/// A parsed request head, borrowed from the bytes it was read from.
#[derive(Debug)]
pub struct Head<'a> {
    pub method: &'a str,
    pub path: &'a str,
    /// What follows the `?`, without it; empty if there is none.
    pub query: &'a str,
    /// Minor version: 0 or 1; 2 for HTTP/2.
    pub version: u8,
    pub headers: &'a [Header<'a>],
    pub keep_alive: bool,
    pub framing: Framing,
    pub expects_continue: bool,
}

impl<'a> Head<'a> {
    pub fn header_values<'n>(&'n self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + 'n {
        let headers = self.headers;
        headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|h| h.value)
    }
}

/// The head at the start of `input` and its length, or `None` while it is incomplete.
pub fn parse_head<'b, 'h>(
    input: &'b [u8],
    slots: &'h mut HeaderSlots<'b>,
) -> Result<Option<(Head<'h>, usize)>, Refused>
where
    'b: 'h,
{
    let mut request = httparse::Request::new(&mut []);
    let used = match request.parse_with_uninit_headers(input, slots) {
        Ok(Status::Complete(used)) if used <= HEAD_BYTES_MAX => used,
        Ok(Status::Partial) if input.len() < HEAD_BYTES_MAX => return Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(Refused::HeadTooLarge),
        Err(httparse::Error::Version) => return Err(Refused::UnknownVersion),
        Err(_) => return Err(Refused::Malformed("the request head is not valid HTTP/1.1")),
    };
    let version = request.version.unwrap_or(1);
    let mut head = Head {
        method: request.method.unwrap_or_default(),
        path: "",
        query: "",
        version,
        headers: request.headers,
        keep_alive: version == 1,
        framing: Framing::None,
        expects_continue: false,
    };
    (head.path, head.query) = split_target(request.path.unwrap_or_default());
    interpret_headers(&mut head)?;
    Ok(Some((head, used)))
}

/// Path and query of a request target; an absolute target loses scheme and authority.
fn split_target(target: &str) -> (&str, &str) {
    let mut rest = target;
    if !rest.starts_with('/') {
        if let Some((_, after_scheme)) = rest.split_once("://") {
            rest = after_scheme
                .find(['/', '?'])
                .and_then(|start| after_scheme.get(start..))
                .unwrap_or("/");
        }
    }
    let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
    match rest.split_once('?') {
        Some(("", query)) => ("/", query),
        Some((path, query)) => (path, query),
        None => (rest, ""),
    }
}

fn interpret_headers(head: &mut Head<'_>) -> Result<(), Refused> {
    let mut hosts = 0;
    let mut length: Option<u64> = None;
    let mut chunked = false;
    for header in head.headers {
        // The length decides first: most headers match none of these.
        match header.name.len() {
            4 if header.name.eq_ignore_ascii_case("host") => hosts += 1,
            6 if header.name.eq_ignore_ascii_case("expect") => {
                if !header.value.eq_ignore_ascii_case(b"100-continue") {
                    return Err(Refused::UnknownExpectation);
                }
                head.expects_continue = head.version == 1;
            }
            10 if header.name.eq_ignore_ascii_case("connection") => {
                for token in header.value.split(|byte| *byte == b',') {
                    let token = token.trim_ascii();
                    if token.eq_ignore_ascii_case(b"close") {
                        head.keep_alive = false;
                    } else if token.eq_ignore_ascii_case(b"keep-alive") && head.version == 0 {
                        head.keep_alive = true;
                    }
                }
            }
            14 if header.name.eq_ignore_ascii_case("content-length") => {
                let value = parse_length(header.value)?;
                if length.is_some_and(|earlier| earlier != value) {
                    return Err(Refused::Malformed("Content-Length headers disagree"));
                }
                length = Some(value);
            }
            17 if header.name.eq_ignore_ascii_case("transfer-encoding") => {
                if chunked || !header.value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                    return Err(Refused::UnknownTransferCoding);
                }
                chunked = true;
            }
            _ => {}
        }
    }
    if hosts > 1 || (hosts == 0 && head.version == 1) {
        return Err(Refused::Malformed("a request needs exactly one Host header"));
    }
    head.framing = match (chunked, length) {
        (true, Some(_)) => {
            return Err(Refused::Malformed("Content-Length beside Transfer-Encoding"))
        }
        (true, None) if head.version == 0 => {
            return Err(Refused::Malformed("Transfer-Encoding in an HTTP/1.0 request"))
        }
        (true, None) => Framing::Chunked,
        (false, None | Some(0)) => Framing::None,
        (false, Some(bytes)) if bytes > BODY_BYTES_MAX => return Err(Refused::BodyTooLarge),
        (false, Some(bytes)) => Framing::Length(bytes),
    };
    Ok(())
}

fn parse_length(value: &[u8]) -> Result<u64, Refused> {
    const BAD: Refused = Refused::Malformed("Content-Length is not a number");
    if value.is_empty() || value.len() > 19 || !value.iter().all(u8::is_ascii_digit) {
        return Err(BAD);
    }
    // At most 19 digits cannot overflow 64 bits.
    Ok(value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

/// Where in a request body the reader is.
#[derive(Debug)]
pub struct BodyReader {
    position: Position,
    kept: Option<Vec<u8>>,
    body_bytes: u64,
    meta_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Length(u64),
    Size { value: u64, digits: u8 },
    SizeExtension { value: u64 },
    SizeLf { value: u64 },
    Data(u64),
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
}

impl BodyReader {
    /// `keep` says whether anyone will look at the body; otherwise it is read and dropped.
    #[must_use]
    pub fn new(framing: Framing, keep: bool) -> Self {
        Self {
            position: match framing {
                Framing::None => Position::Done,
                Framing::Length(bytes) => Position::Length(bytes),
                Framing::Chunked => Position::Size { value: 0, digits: 0 },
            },
            kept: keep.then(Vec::new),
            body_bytes: 0,
            meta_bytes: 0,
        }
    }

    #[must_use]
    pub fn is_done(&self) -> bool {
        self.position == Position::Done
    }

    #[must_use]
    pub fn into_body(self) -> Vec<u8> {
        self.kept.unwrap_or_default()
    }

    /// Takes what belongs to this body from the front of `input`; returns how much that was.
    pub fn feed(&mut self, input: &[u8]) -> Result<usize, Refused> {
        let mut rest = input;
        while self.position != Position::Done {
            let Some((&byte, after)) = rest.split_first() else { break };
            match self.position {
                Position::Length(left) | Position::Data(left) => {
                    let (data, after) = take(rest, left);
                    self.keep(data)?;
                    let left = left - data.len() as u64;
                    self.position = match self.position {
                        Position::Data(_) if left == 0 => Position::DataCr,
                        Position::Data(_) => Position::Data(left),
                        _ if left == 0 => Position::Done,
                        _ => Position::Length(left),
                    };
                    rest = after;
                }
                _ => {
                    self.meta_bytes += 1;
                    if self.meta_bytes > CHUNK_META_BYTES_MAX {
                        return Err(Refused::Malformed("chunk sizes or trailers are too long"));
                    }
                    self.position = self.step(byte)?;
                    if matches!(self.position, Position::Data(_)) {
                        self.meta_bytes = 0;
                    }
                    rest = after;
                }
            }
        }
        Ok(input.len() - rest.len())
    }

    /// The position after one byte of chunk framing.
    fn step(&self, byte: u8) -> Result<Position, Refused> {
        const BAD_SIZE: Refused = Refused::Malformed("a chunk size is not a hexadecimal number");
        const BAD_END: Refused = Refused::Malformed("a chunk or trailer does not end with CR LF");
        Ok(match (self.position, byte) {
            (Position::Size { value, digits }, byte) => match (byte as char).to_digit(16) {
                Some(_) if digits >= 15 => return Err(Refused::BodyTooLarge),
                Some(digit) => {
                    Position::Size { value: value << 4 | u64::from(digit), digits: digits + 1 }
                }
                None if digits == 0 => return Err(BAD_SIZE),
                None if byte == b'\r' => Position::SizeLf { value },
                None if matches!(byte, b';' | b' ' | b'\t') => Position::SizeExtension { value },
                None => return Err(BAD_SIZE),
            },
            (Position::SizeExtension { value }, b'\r') => Position::SizeLf { value },
            (Position::SizeExtension { .. }, b'\n') => return Err(BAD_END),
            (Position::SizeExtension { value }, _) => Position::SizeExtension { value },
            (Position::SizeLf { value: 0 }, b'\n') => Position::TrailerStart,
            (Position::SizeLf { value }, b'\n') => Position::Data(value),
            (Position::DataCr, b'\r') => Position::DataLf,
            (Position::DataLf, b'\n') => Position::Size { value: 0, digits: 0 },
            (Position::TrailerStart, b'\r') => Position::EndLf,
            (Position::Trailer, b'\r') => Position::TrailerLf,
            (Position::TrailerStart | Position::Trailer, b'\n') => return Err(BAD_END),
            (Position::TrailerStart | Position::Trailer, _) => Position::Trailer,
            (Position::TrailerLf, b'\n') => Position::TrailerStart,
            (Position::EndLf, b'\n') => Position::Done,
            _ => return Err(BAD_END),
        })
    }

    fn keep(&mut self, data: &[u8]) -> Result<(), Refused> {
        self.body_bytes += data.len() as u64;
        if self.body_bytes > BODY_BYTES_MAX {
            return Err(Refused::BodyTooLarge);
        }
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(data);
        }
        Ok(())
    }
}

fn take(input: &[u8], limit: u64) -> (&[u8], &[u8]) {
    let count = usize::try_from(limit).map_or(input.len(), |limit| limit.min(input.len()));
    input.split_at_checked(count).unwrap_or((input, &[]))
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
#[path = "request_tests.rs"]
mod tests;
