//! QPACK, the header compression of HTTP/3 (RFC 9204), without a dynamic table.
//!
//! The encoder uses the static table only: a request's block is then the same on every connection.
//! The decoder allows the peer a table of no bytes, so blocks never wait for one another.

use crate::http2::text::{read_integer, read_text, write_integer, write_text, Broken, Text};

pub use crate::http2::hpack::Secrecy;

const ENTRY_OVERHEAD: usize = 32;
/// What every block begins with: no entry of the dynamic table is needed.
pub const PREFIX: [u8; 2] = [0, 0];

const STATIC: [(&str, &str); 99] = [
    (":authority", ""),
    (":path", "/"),
    ("age", "0"),
    ("content-disposition", ""),
    ("content-length", "0"),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("referer", ""),
    ("set-cookie", ""),
    (":method", "CONNECT"),
    (":method", "DELETE"),
    (":method", "GET"),
    (":method", "HEAD"),
    (":method", "OPTIONS"),
    (":method", "POST"),
    (":method", "PUT"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "103"),
    (":status", "200"),
    (":status", "304"),
    (":status", "404"),
    (":status", "503"),
    ("accept", "*/*"),
    ("accept", "application/dns-message"),
    ("accept-encoding", "gzip, deflate, br"),
    ("accept-ranges", "bytes"),
    ("access-control-allow-headers", "cache-control"),
    ("access-control-allow-headers", "content-type"),
    ("access-control-allow-origin", "*"),
    ("cache-control", "max-age=0"),
    ("cache-control", "max-age=2592000"),
    ("cache-control", "max-age=604800"),
    ("cache-control", "no-cache"),
    ("cache-control", "no-store"),
    ("cache-control", "public, max-age=31536000"),
    ("content-encoding", "br"),
    ("content-encoding", "gzip"),
    ("content-type", "application/dns-message"),
    ("content-type", "application/javascript"),
    ("content-type", "application/json"),
    ("content-type", "application/x-www-form-urlencoded"),
    ("content-type", "image/gif"),
    ("content-type", "image/jpeg"),
    ("content-type", "image/png"),
    ("content-type", "text/css"),
    ("content-type", "text/html; charset=utf-8"),
    ("content-type", "text/plain"),
    ("content-type", "text/plain;charset=utf-8"),
    ("range", "bytes=0-"),
    ("strict-transport-security", "max-age=31536000"),
    ("strict-transport-security", "max-age=31536000; includesubdomains"),
    ("strict-transport-security", "max-age=31536000; includesubdomains; preload"),
    ("vary", "accept-encoding"),
    ("vary", "origin"),
    ("x-content-type-options", "nosniff"),
    ("x-xss-protection", "1; mode=block"),
    (":status", "100"),
    (":status", "204"),
    (":status", "206"),
    (":status", "302"),
    (":status", "400"),
    (":status", "403"),
    (":status", "421"),
    (":status", "425"),
    (":status", "500"),
    ("accept-language", ""),
    ("access-control-allow-credentials", "FALSE"),
    ("access-control-allow-credentials", "TRUE"),
    ("access-control-allow-headers", "*"),
    ("access-control-allow-methods", "get"),
    ("access-control-allow-methods", "get, post, options"),
    ("access-control-allow-methods", "options"),
    ("access-control-expose-headers", "content-length"),
    ("access-control-request-headers", "content-type"),
    ("access-control-request-method", "get"),
    ("access-control-request-method", "post"),
    ("alt-svc", "clear"),
    ("authorization", ""),
    ("content-security-policy", "script-src 'none'; object-src 'none'; base-uri 'none'"),
    ("early-data", "1"),
    ("expect-ct", ""),
    ("forwarded", ""),
    ("if-range", ""),
    ("origin", ""),
    ("purpose", "prefetch"),
    ("server", ""),
    ("timing-allow-origin", "*"),
    ("upgrade-insecure-requests", "1"),
    ("user-agent", ""),
    ("x-forwarded-for", ""),
    ("x-frame-options", "deny"),
    ("x-frame-options", "sameorigin"),
];

/// Appends one field; `name` is in lower case. The block begins with `PREFIX`.
pub fn encode(out: &mut Vec<u8>, name: &str, value: &[u8], secrecy: Secrecy) {
    let mut of_name = None;
    for (number, (_, content)) in STATIC.iter().enumerate().filter(|(_, (n, _))| *n == name) {
        if content.as_bytes() == value && secrecy == Secrecy::Open {
            return write_integer(out, 0xc0, 6, number);
        }
        of_name = of_name.or(Some(number));
    }
    let is_secret = secrecy == Secrecy::NeverIndexed;
    match of_name {
        Some(number) => write_integer(out, if is_secret { 0x70 } else { 0x50 }, 4, number),
        None => write_text(out, if is_secret { 0x30 } else { 0x20 }, 3, name.as_bytes()),
    }
    write_text(out, 0, 7, value);
}

/// Decodes a whole block; `emit` gets its fields in order, as long as all of them together have no
/// more than `list_bytes_max` bytes. Returns whether they had.
pub fn decode(
    block: &[u8],
    list_bytes_max: usize,
    scratch: &mut Vec<u8>,
    mut emit: impl FnMut(&[u8], &[u8]),
) -> Result<bool, Broken> {
    let mut input = block;
    let (needed, _base) = (read_integer(&mut input, 8)?, read_integer(&mut input, 7)?);
    if needed != 0 {
        return Err(NO_TABLE);
    }
    let mut list_bytes = 0_usize;
    while let Some(&byte) = input.first() {
        scratch.clear();
        let (name, value) = match byte {
            0x80.. => {
                let (name, value) = entry(byte & 0x40 != 0, read_integer(&mut input, 6)?)?;
                (Text::Block(name.as_bytes()), Text::Block(value.as_bytes()))
            }
            0x40.. => {
                let (name, _) = entry(byte & 0x10 != 0, read_integer(&mut input, 4)?)?;
                (Text::Block(name.as_bytes()), read_text(&mut input, 7, scratch)?)
            }
            0x20.. => {
                let name = read_text(&mut input, 3, scratch)?;
                (name, read_text(&mut input, 7, scratch)?)
            }
            _ => return Err(NO_TABLE),
        };
        let (name, value) = (name.get(scratch), value.get(scratch));
        list_bytes += name.len() + value.len() + ENTRY_OVERHEAD;
        if list_bytes <= list_bytes_max {
            emit(name, value);
        }
    }
    Ok(list_bytes <= list_bytes_max)
}

/// Whether what came on the peer's encoder stream is allowed: it may only set the size of its table
/// to the one that it has.
#[must_use]
pub fn are_instructions_allowed(bytes: &[u8]) -> bool {
    const SIZE_OF_NOTHING: u8 = 0x20;
    bytes.iter().all(|&byte| byte == SIZE_OF_NOTHING)
}

const NO_TABLE: Broken = Broken("a block refers to the dynamic table, which has no entries");

fn entry(is_static: bool, index: usize) -> Result<(&'static str, &'static str), Broken> {
    if !is_static {
        return Err(NO_TABLE);
    }
    STATIC.get(index).copied().ok_or(Broken("no such entry of the static table"))
}
