//! HPACK, the header compression of HTTP/2 (RFC 7541).
//!
//! The encoder uses the static table only: a request's block is then the same on every connection,
//! so it is rendered once and copied. The decoder follows whatever the peer does with its table.

use std::collections::VecDeque;

use super::text::{self, read_integer, write_integer, write_text, Text};

pub use super::text::Broken;

/// Bytes of decoded header fields that the peer's encoder may have us remember.
pub const TABLE_BYTES_MAX: usize = 4096;
const ENTRY_OVERHEAD: usize = 32;

const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// Whether intermediaries may compress a field; those with secrets must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrecy {
    Open,
    NeverIndexed,
}

/// Appends one field; `name` is in lower case.
pub fn encode(out: &mut Vec<u8>, name: &str, value: &[u8], secrecy: Secrecy) {
    let mut of_name = None;
    for (number, (known, content)) in STATIC.iter().enumerate().filter(|(_, (n, _))| *n == name) {
        if content.as_bytes() == value && !value.is_empty() {
            return write_integer(out, 0x80, 7, number + 1);
        }
        of_name = of_name.or(Some((number, known)));
    }
    let mark = if secrecy == Secrecy::NeverIndexed { 0x10 } else { 0 };
    match of_name {
        Some((number, _)) => write_integer(out, mark, 4, number + 1),
        None => {
            out.push(mark);
            write_text(out, 0, 7, name.as_bytes());
        }
    }
    write_text(out, 0, 7, value);
}

/// Decodes the blocks of one connection, in order.
#[derive(Debug, Default)]
pub struct Decoder {
    /// Newest first; each entry is name and value in one piece, and the length of the name.
    entries: VecDeque<(Box<[u8]>, usize)>,
    entries_bytes: usize,
    /// What the peer's encoder limits itself to; None: the default.
    limit: Option<usize>,
    scratch: Vec<u8>,
}

impl Decoder {
    /// Decodes a whole block; `emit` gets its fields in order, as long as all of them together
    /// have no more than `list_bytes_max` bytes. Returns whether they had.
    pub fn decode(
        &mut self,
        block: &[u8],
        list_bytes_max: usize,
        mut emit: impl FnMut(&[u8], &[u8]),
    ) -> Result<bool, Broken> {
        let mut input = block;
        let mut list_bytes = 0_usize;
        let mut is_first = true;
        while let Some(&byte) = input.first() {
            if byte & 0xe0 == 0x20 {
                let limit = read_integer(&mut input, 5)?;
                if !is_first || limit > TABLE_BYTES_MAX {
                    return Err(Broken("a wrong change of the table size"));
                }
                self.limit = Some(limit);
                self.shrink(limit);
                continue;
            }
            is_first = false;
            let mut pass = |name: &[u8], value: &[u8]| {
                list_bytes += name.len() + value.len() + ENTRY_OVERHEAD;
                if list_bytes <= list_bytes_max {
                    emit(name, value);
                }
            };
            if byte & 0x80 != 0 {
                let (name, value) = self.entry(read_integer(&mut input, 7)?)?;
                pass(name, value);
                continue;
            }
            let is_indexed = byte & 0x40 != 0;
            let index = read_integer(&mut input, if is_indexed { 6 } else { 4 })?;
            self.scratch.clear();
            let name = match index {
                0 => text::read_text(&mut input, 7, &mut self.scratch)?,
                index => {
                    let scratch = &mut self.scratch;
                    scratch.extend_from_slice(name_of(&self.entries, index)?);
                    Text::Scratch(0..scratch.len())
                }
            };
            let value = text::read_text(&mut input, 7, &mut self.scratch)?;
            let (name, value) = (name.get(&self.scratch), value.get(&self.scratch));
            pass(name, value);
            if is_indexed {
                let entry = (Box::from([name, value].concat()), name.len());
                self.insert(entry);
            }
        }
        Ok(list_bytes <= list_bytes_max)
    }

    fn entry(&self, index: usize) -> Result<(&[u8], &[u8]), Broken> {
        match index.checked_sub(1).and_then(|at| STATIC.get(at)) {
            Some((name, value)) => Ok((name.as_bytes(), value.as_bytes())),
            None => {
                let (text, length) = dynamic(&self.entries, index)?;
                text.split_at_checked(*length).ok_or(Broken("no such entry"))
            }
        }
    }

    fn insert(&mut self, entry: (Box<[u8]>, usize)) {
        let limit = self.limit.unwrap_or(TABLE_BYTES_MAX);
        let bytes = entry.0.len() + ENTRY_OVERHEAD;
        self.shrink(limit.saturating_sub(bytes));
        if bytes <= limit {
            self.entries_bytes += bytes;
            self.entries.push_front(entry);
        }
    }

    fn shrink(&mut self, limit: usize) {
        while self.entries_bytes > limit {
            let Some((text, _)) = self.entries.pop_back() else { return };
            self.entries_bytes -= text.len() + ENTRY_OVERHEAD;
        }
    }
}

type Entries = VecDeque<(Box<[u8]>, usize)>;

fn dynamic(entries: &Entries, index: usize) -> Result<&(Box<[u8]>, usize), Broken> {
    let at = index.checked_sub(STATIC.len() + 1).ok_or(Broken("index 0"))?;
    entries.get(at).ok_or(Broken("no such entry"))
}

fn name_of(entries: &Entries, index: usize) -> Result<&[u8], Broken> {
    match index.checked_sub(1).and_then(|at| STATIC.get(at)) {
        Some((name, _)) => Ok(name.as_bytes()),
        None => {
            let (text, length) = dynamic(entries, index)?;
            Ok(text.get(..*length).unwrap_or_default())
        }
    }
}
