//! Numbers and texts as HPACK and QPACK write them (RFC 7541 §5).

use std::ops::Range;

use super::huffman;

/// A block that cannot be decoded. The connection cannot go on after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken(pub &'static str);

/// Where a text is that was read.
#[derive(Debug)]
pub enum Text<'b> {
    Block(&'b [u8]),
    Scratch(Range<usize>),
}

impl Text<'_> {
    pub fn get<'s>(&'s self, scratch: &'s [u8]) -> &'s [u8] {
        match self {
            Text::Block(text) => text,
            Text::Scratch(range) => scratch.get(range.clone()).unwrap_or_default(),
        }
    }
}

/// Appends a number after the bits of `mark`, in the lowest `prefix_bits` of its byte and further ones.
pub fn write_integer(out: &mut Vec<u8>, mark: u8, prefix_bits: u32, value: usize) {
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

/// Appends a text after `mark`, whose bit above the prefix of its length says whether it is in the
/// Huffman code.
pub fn write_text(out: &mut Vec<u8>, mark: u8, prefix_bits: u32, text: &[u8]) {
    let short = huffman::encoded_len(text);
    if short < text.len() {
        write_integer(out, mark | (1 << prefix_bits), prefix_bits, short);
        huffman::encode(text, out);
    } else {
        write_integer(out, mark, prefix_bits, text.len());
        out.extend_from_slice(text);
    }
}

/// Reads a text whose length has a prefix of so many bits. What has to be decoded goes to `scratch`.
pub fn read_text<'b>(
    input: &mut &'b [u8],
    prefix_bits: u32,
    scratch: &mut Vec<u8>,
) -> Result<Text<'b>, Broken> {
    let is_huffman = input.first().is_some_and(|byte| byte & (1 << prefix_bits) != 0);
    let length = read_integer(input, prefix_bits)?;
    let (text, rest) = input.split_at_checked(length).ok_or(Broken("a text is cut off"))?;
    *input = rest;
    if !is_huffman {
        return Ok(Text::Block(text));
    }
    let from = scratch.len();
    huffman::decode(text, scratch).ok_or(Broken("a wrong Huffman code"))?;
    Ok(Text::Scratch(from..scratch.len()))
}

pub fn read_integer(input: &mut &[u8], prefix_bits: u32) -> Result<usize, Broken> {
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
