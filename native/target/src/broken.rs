//! A server that misbehaves: each fault is one way in which a client may be lied to.
//!
//! Where a client can tell from the bytes alone that something is wrong, the connection stays
//! open and silent afterwards, so that only noticing it, not the end of the stream, helps.

use std::io::Write as _;

use crate::encoded;
use crate::reply::{End, Manner, Reply, Source, Writer};

const HUGE_HEADER_BYTES: usize = 1 << 20;
const DRIP_EVERY_NS: u64 = 100_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    BadChunk,
    BadContentLength,
    ChunkOverflow,
    Drip,
    EarlyClose,
    EndlessHeaders,
    EndlessInterim,
    Garbage,
    GzipBomb,
    HugeHeader,
    Interim,
    NoResponse,
    RedirectLoop,
    TruncatedGzip,
    TwoContentLengths,
}

impl Fault {
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "bad-chunk" => Self::BadChunk,
            "bad-content-length" => Self::BadContentLength,
            "chunk-overflow" => Self::ChunkOverflow,
            "drip" => Self::Drip,
            "early-close" => Self::EarlyClose,
            "endless-headers" => Self::EndlessHeaders,
            "endless-interim" => Self::EndlessInterim,
            "garbage" => Self::Garbage,
            "gzip-bomb" => Self::GzipBomb,
            "huge-header" => Self::HugeHeader,
            "interim" => Self::Interim,
            "no-response" => Self::NoResponse,
            "redirect-loop" => Self::RedirectLoop,
            "truncated-gzip" => Self::TruncatedGzip,
            "two-content-lengths" => Self::TwoContentLengths,
            _ => return None,
        })
    }

    /// Appends the start of the broken reply.
    pub fn write(self, out: &mut Vec<u8>, manner: Manner, now_ns: u64) -> Reply {
        let raw = |out: &mut Vec<u8>, bytes: &[u8], source, end| {
            out.extend_from_slice(bytes);
            Reply { source, end }
        };
        match self {
            Self::BadChunk => raw(
                out,
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nxyz\r\nworld\r\n",
                Source::Done,
                End::Hold,
            ),
            Self::BadContentLength => raw(
                out,
                b"HTTP/1.1 200 OK\r\nContent-Length: 12abc\r\n\r\nhello world!",
                Source::Done,
                End::Hold,
            ),
            Self::ChunkOverflow => raw(
                out,
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello\r\n",
                Source::Done,
                End::Hold,
            ),
            Self::Drip => raw(
                out,
                b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n",
                Source::Drip { piece: b"1\r\n.\r\n", every_ns: DRIP_EVERY_NS, due_ns: now_ns },
                End::Hold,
            ),
            Self::EarlyClose => raw(
                out,
                b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n0123456789",
                Source::Done,
                End::Close,
            ),
            Self::EndlessHeaders => raw(
                out,
                b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n",
                Source::Endless(b"X-Filler: 0123456789abcdefghijklmnopqrstuvwxyz\r\n"),
                End::Hold,
            ),
            Self::EndlessInterim => {
                raw(out, b"", Source::Endless(b"HTTP/1.1 103 Early Hints\r\n\r\n"), End::Hold)
            }
            Self::Garbage => raw(
                out,
                b"\x00\x01\xfe\xff\x16\x03this is not HTTP\r\n\x80\x81\r\n\r\n",
                Source::Done,
                End::Hold,
            ),
            Self::GzipBomb => Writer::new(out, manner, 200)
                .header("Content-Type", "application/octet-stream")
                .header("Content-Encoding", "gzip")
                .body(encoded::gzip_bomb()),
            Self::HugeHeader => {
                let value = vec![b'a'; HUGE_HEADER_BYTES];
                Writer::new(out, manner, 200).header("X-Huge", value).body(b"ok\n")
            }
            Self::Interim => {
                // An HTTP/1.0 client knows no interim responses; it asked for them by name.
                for (status, fields) in
                    [("100 Continue", ""), ("102 Processing", ""), ("103 Early Hints", "Link: </style.css>; rel=preload\r\n")]
                {
                    let _ = write!(out, "HTTP/1.1 {status}\r\n{fields}\r\n");
                }
                Writer::new(out, manner, 200).header("Content-Type", "text/plain").body(b"final\n")
            }
            Self::NoResponse => raw(out, b"", Source::Done, End::Hold),
            Self::RedirectLoop => {
                Writer::new(out, manner, 302).header("Location", "/broken/redirect-loop").body(b"")
            }
            Self::TruncatedGzip => Writer::new(out, manner, 200)
                .header("Content-Type", "application/json")
                .header("Content-Encoding", "gzip")
                .body(encoded::truncated_gzip()),
            Self::TwoContentLengths => raw(
                out,
                b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\nhello!!",
                Source::Done,
                End::Hold,
            ),
        }
    }
}
