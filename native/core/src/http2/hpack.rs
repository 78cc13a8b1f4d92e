//! HPACK, the header compression of HTTP/2 (RFC 7541).
//!
//! The encoder uses the static table only: a request's block is then the same on every connection,
//! so it is rendered once and copied. The decoder follows whatever the peer does with its table.

use std::collections::VecDeque;
use std::ops::Range;

use super::huffman;

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
            write_text(out, name.as_bytes());
        }
    }
    write_text(out, value);
}

fn write_integer(out: &mut Vec<u8>, mark: u8, prefix_bits: u32, value: usize) {
    let most = (1 << prefix_bits) - 1;
    if value < most {
        out.push(mark | value as u8);
        return;
    }
    out.push(mark | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    let short = huffman::encoded_len(text);
    if short < text.len() {
        write_integer(out, 0x80, 7, short);
        huffman::encode(text, out);
    } else {
        write_integer(out, 0, 7, text.len());
        out.extend_from_slice(text);
    }
}

/// A block that cannot be decoded. The connection cannot go on after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken(pub &'static str);

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

/// Where a text is.
enum Text<'b> {
    Block(&'b [u8]),
    Scratch(Range<usize>),
}

impl Text<'_> {
    fn get<'s>(&'s self, scratch: &'s [u8]) -> &'s [u8] {
        match self {
            Text::Block(text) => text,
            Text::Scratch(range) => scratch.get(range.clone()).unwrap_or_default(),
        }
    }
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
                0 => self.read_text(&mut input)?,
                index => {
                    let scratch = &mut self.scratch;
                    scratch.extend_from_slice(name_of(&self.entries, index)?);
                    Text::Scratch(0..scratch.len())
                }
            };
            let value = self.read_text(&mut input)?;
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

    fn read_text<'b>(&mut self, input: &mut &'b [u8]) -> Result<Text<'b>, Broken> {
        let is_huffman = input.first().is_some_and(|byte| byte & 0x80 != 0);
        let length = read_integer(input, 7)?;
        let (text, rest) = input.split_at_checked(length).ok_or(Broken("a text is cut off"))?;
        *input = rest;
        if !is_huffman {
            return Ok(Text::Block(text));
        }
        let from = self.scratch.len();
        huffman::decode(text, &mut self.scratch).ok_or(Broken("a wrong Huffman code"))?;
        Ok(Text::Scratch(from..self.scratch.len()))
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

fn read_integer(input: &mut &[u8], prefix_bits: u32) -> Result<usize, Broken> {
    let (&first, mut rest) = input.split_first().ok_or(Broken("a number is cut off"))?;
    let most = (1_usize << prefix_bits) - 1;
    let mut value = usize::from(first) & most;
    if value == most {
        let mut shift = 0;
        loop {
            let (&byte, tail) = rest.split_first().ok_or(Broken("a number is cut off"))?;
            rest = tail;
            if shift > 21 {
                return Err(Broken("a number is too large"));
            }
            value += usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *input = rest;
    Ok(value)
}
