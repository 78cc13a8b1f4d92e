//! Writing responses: heads, fixed bodies, and bodies made while they are sent.
//!
//! Owns the shape of a reply and its timing. Knows no sockets: it appends to a buffer and says
//! what must happen next.

use std::io::Write as _;

/// Bytes of a made body that are appended at a time.
const PIECE_BYTES: usize = 64 * 1024;
const LINE: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+\n";

/// What happens to the connection after the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    KeepAlive,
    Close,
    /// Closed by a TCP reset.
    Reset,
    /// Kept open and silent until the peer goes.
    Hold,
}

/// A body, or the rest of one, that is made while it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Done,
    Fill {
        sent: u64,
        total: u64,
    },
    Chunks {
        sent: u64,
        total: u64,
    },
    /// `total` bytes, spread evenly from `start_ns` over `over_ns`.
    Spread {
        sent: u64,
        total: u64,
        start_ns: u64,
        over_ns: u64,
    },
    /// Server-sent events up to `end`, one every `every_ns`. If the stream `is_cut`, its last chunk
    /// is missing.
    Events {
        sent: u64,
        end: u64,
        every_ns: u64,
        due_ns: u64,
        is_cut: bool,
    },
    /// The same bytes again and again, without end.
    Endless(&'static [u8]),
    /// The same bytes every `every_ns`, without end.
    Drip {
        piece: &'static [u8],
        every_ns: u64,
        due_ns: u64,
    },
}

#[derive(Debug, PartialEq, Eq)]
pub enum Refill {
    Ready,
    WaitUntil(u64),
    Done,
}

impl Source {
    /// Server-sent events written so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        match self {
            Self::Events { sent, .. } => *sent,
            _ => 0,
        }
    }

    /// Appends what is due to `out`, a bounded piece at a time.
    pub fn refill(&mut self, out: &mut Vec<u8>, now_ns: u64) -> Refill {
        match self {
            Self::Done => Refill::Done,
            Self::Fill { sent, total } => {
                if sent == total {
                    return Refill::Done;
                }
                *sent += fill(out, *sent, (*total - *sent).min(PIECE_BYTES as u64));
                Refill::Ready
            }
            Self::Chunks { sent, total } => {
                let count = (*total - *sent).min(PIECE_BYTES as u64);
                let _ = write!(out, "{count:x}\r\n");
                *sent += fill(out, *sent, count);
                out.extend_from_slice(b"\r\n");
                // The chunk of no bytes was the last one.
                if count == 0 {
                    *self = Self::Done;
                }
                Refill::Ready
            }
            Self::Spread { sent, total, start_ns, over_ns } => {
                if sent == total {
                    return Refill::Done;
                }
                let elapsed_ns = now_ns.saturating_sub(*start_ns);
                let due = share(*total, elapsed_ns, *over_ns);
                if due <= *sent {
                    // Byte i is due at start + over * i / total, rounded up.
                    let next_ns =
                        (u128::from(*over_ns) * u128::from(*sent + 1)).div_ceil(u128::from(*total));
                    return Refill::WaitUntil(
                        start_ns.saturating_add(u64::try_from(next_ns).unwrap_or(u64::MAX)),
                    );
                }
                *sent += fill(out, *sent, (due - *sent).min(PIECE_BYTES as u64));
                Refill::Ready
            }
            Self::Events { sent, end, every_ns, due_ns, is_cut } => {
                if sent == end {
                    if !*is_cut {
                        out.extend_from_slice(b"0\r\n\r\n");
                    }
                    let is_cut = *is_cut;
                    *self = Self::Done;
                    return if is_cut { Refill::Done } else { Refill::Ready };
                }
                if now_ns < *due_ns {
                    return Refill::WaitUntil(*due_ns);
                }
                while sent < end && *due_ns <= now_ns && out.len() < PIECE_BYTES {
                    *sent += 1;
                    *due_ns += *every_ns;
                    let event = format!("id: {sent}\ndata: event {sent}\n\n");
                    let _ = write!(out, "{:x}\r\n{event}\r\n", event.len());
                }
                Refill::Ready
            }
            Self::Endless(piece) => {
                while out.len() < PIECE_BYTES {
                    out.extend_from_slice(piece);
                }
                Refill::Ready
            }
            Self::Drip { piece, every_ns, due_ns } => {
                if now_ns < *due_ns {
                    return Refill::WaitUntil(*due_ns);
                }
                out.extend_from_slice(piece);
                *due_ns = now_ns + *every_ns;
                Refill::Ready
            }
        }
    }
}

fn share(total: u64, elapsed_ns: u64, over_ns: u64) -> u64 {
    if elapsed_ns >= over_ns {
        return total;
    }
    let part = u128::from(total) * u128::from(elapsed_ns) / u128::from(over_ns);
    u64::try_from(part).unwrap_or(total)
}

/// Appends `count` bytes of the endless pattern that starts at byte `from`.
fn fill(out: &mut Vec<u8>, from: u64, count: u64) -> u64 {
    let offset = (from % LINE.len() as u64) as usize;
    let mut left = count as usize;
    if let Some(head) = LINE.get(offset..) {
        let head = head.get(..left).unwrap_or(head);
        out.extend_from_slice(head);
        left -= head.len();
    }
    while left > 0 {
        let piece = LINE.get(..left).unwrap_or(LINE);
        out.extend_from_slice(piece);
        left -= piece.len();
    }
    count
}

/// What is left to do once the reply's first bytes are written.
#[derive(Debug)]
pub struct Reply {
    pub source: Source,
    pub end: End,
}

/// How the request wants to be answered.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    pub keep_alive: bool,
    /// Minor version of the request.
    pub version: u8,
    /// The answer to HEAD: no body.
    pub head_only: bool,
}

impl Manner {
    fn end(self) -> End {
        if self.keep_alive {
            End::KeepAlive
        } else {
            End::Close
        }
    }
}

/// A response under construction: status line and headers first, then how its body comes.
pub struct Writer<'o> {
    out: &'o mut Vec<u8>,
    manner: Manner,
    status: u16,
}

impl<'o> Writer<'o> {
    pub fn new(out: &'o mut Vec<u8>, manner: Manner, status: u16) -> Self {
        // Writing to a vector cannot fail, here and below.
        let _ = write!(out, "HTTP/1.1 {status} {}\r\n", reason(status));
        Self { out, manner, status }
    }

    #[must_use]
    pub fn header(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b": ");
        self.out.extend_from_slice(value.as_ref());
        self.out.extend_from_slice(b"\r\n");
        self
    }

    /// A response whose whole body is at hand.
    pub fn body(mut self, body: &[u8]) -> Reply {
        if self.finish_head(body.len() as u64) {
            self.out.extend_from_slice(body);
        }
        Reply { source: Source::Done, end: self.manner.end() }
    }

    /// A response of `length` bytes made while they are sent.
    pub fn made(mut self, length: u64, source: Source) -> Reply {
        let source = if self.finish_head(length) { source } else { Source::Done };
        Reply { source, end: self.manner.end() }
    }

    pub fn chunked(mut self, source: Source) -> Reply {
        self.out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        self.finish_connection();
        let source = if self.manner.head_only { Source::Done } else { source };
        Reply { source, end: self.manner.end() }
    }

    /// True if a body may follow.
    fn finish_head(&mut self, length: u64) -> bool {
        let bodiless = matches!(self.status, 204 | 304);
        if !bodiless {
            let _ = write!(self.out, "Content-Length: {length}\r\n");
        }
        self.finish_connection();
        !bodiless && !self.manner.head_only
    }

    fn finish_connection(&mut self) {
        if !self.manner.keep_alive {
            self.out.extend_from_slice(b"Connection: close\r\n");
        } else if self.manner.version == 0 {
            self.out.extend_from_slice(b"Connection: keep-alive\r\n");
        }
        self.out.extend_from_slice(b"\r\n");
    }
}

#[must_use]
pub fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        206 => "Partial Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        410 => "Gone",
        413 => "Content Too Large",
        417 => "Expectation Failed",
        418 => "I'm a teapot",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(mut source: Source, now_ns: u64) -> (Vec<u8>, Refill) {
        let mut out = Vec::new();
        loop {
            match source.refill(&mut out, now_ns) {
                Refill::Ready => {}
                other => return (out, other),
            }
        }
    }

    #[test]
    fn a_filled_body_has_its_length_and_the_pattern_across_pieces() {
        let total = PIECE_BYTES as u64 * 2 + 77;
        let (body, end) = drain(Source::Fill { sent: 0, total }, 0);
        assert_eq!(end, Refill::Done);
        assert_eq!(body.len() as u64, total);
        assert!(body.iter().zip(LINE.iter().cycle()).all(|(byte, expected)| byte == expected));
    }

    #[test]
    fn a_chunked_body_ends_with_the_empty_chunk_even_when_it_is_empty() {
        let (body, _) = drain(Source::Chunks { sent: 0, total: 3 }, 0);
        assert_eq!(body, b"3\r\n012\r\n0\r\n\r\n");
        let (body, _) = drain(Source::Chunks { sent: 0, total: 0 }, 0);
        assert_eq!(body, b"0\r\n\r\n");
    }

    #[test]
    fn a_spread_body_is_due_evenly_and_never_early() {
        let source = Source::Spread { sent: 0, total: 4, start_ns: 100, over_ns: 1000 };
        assert_eq!(drain(source, 100), (vec![], Refill::WaitUntil(350)));
        assert_eq!(drain(source, 349), (vec![], Refill::WaitUntil(350)));
        assert_eq!(drain(source, 350), (b"0".to_vec(), Refill::WaitUntil(600)));
        assert_eq!(drain(source, 9000), (b"0123".to_vec(), Refill::Done));
    }
}
