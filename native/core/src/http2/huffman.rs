//! The Huffman code of HPACK (RFC 7541 §5.2, appendix B).
//!
//! The code is canonical: the length of each symbol's code determines all codes.

use std::sync::LazyLock;

const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];
const END_SYMBOL: usize = 256;
const LENGTH_MAX: usize = 30;
/// Bits that one look-up takes: all printable characters that headers use often have fewer.
const FAST_BITS: u32 = 10;

struct Tables {
    /// By symbol: code and its length.
    codes: [(u32, u8); 257],
    /// By the next `FAST_BITS` bits: symbol and length; length 0 if the code is longer.
    fast: Box<[(u8, u8)]>,
    /// By length: first code, and where its symbols begin in `symbols`.
    first: [(u32, usize); LENGTH_MAX + 2],
    /// Symbols by length, then value.
    symbols: Vec<u16>,
}

static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let mut symbols: Vec<u16> = (0..257).collect();
    symbols.sort_by_key(|&symbol| (length_of(symbol), symbol));
    let mut codes = [(0, 0); 257];
    let mut first = [(0, 0); LENGTH_MAX + 2];
    let (mut code, mut at) = (0_u32, 0);
    for length in 1..=LENGTH_MAX {
        code <<= 1;
        set(&mut first, length, (code, at));
        while let Some(&symbol) = symbols.get(at).filter(|&&s| length_of(s) as usize == length) {
            set(&mut codes, usize::from(symbol), (code, length as u8));
            code += 1;
            at += 1;
        }
    }
    set(&mut first, LENGTH_MAX + 1, (code << 1, at));
    let mut fast = vec![(0, 0); 1 << FAST_BITS].into_boxed_slice();
    for (symbol, &(code, length)) in codes.iter().enumerate().take(END_SYMBOL) {
        if let Some(spare) = FAST_BITS.checked_sub(u32::from(length)) {
            let from = (code << spare) as usize;
            if let Some(entries) = fast.get_mut(from..from + (1 << spare)) {
                entries.fill((symbol as u8, length));
            }
        }
    }
    Tables { codes, fast, first, symbols }
});

fn length_of(symbol: u16) -> u8 {
    LENGTHS.get(usize::from(symbol)).copied().unwrap_or_default()
}

fn set<T>(slots: &mut [T], at: usize, value: T) {
    if let Some(slot) = slots.get_mut(at) {
        *slot = value;
    }
}

/// Bytes that `text` takes when encoded.
pub fn encoded_len(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|&byte| usize::from(length_of(u16::from(byte)))).sum();
    bits.div_ceil(8)
}

pub fn encode(text: &[u8], out: &mut Vec<u8>) {
    let tables = &*TABLES;
    let (mut bits, mut held) = (0_u64, 0_u32);
    for &byte in text {
        let (code, length) = tables.codes.get(usize::from(byte)).copied().unwrap_or_default();
        bits = bits << length | u64::from(code);
        held += u32::from(length);
        while held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    if held > 0 {
        // Padded with ones, the beginning of the end symbol.
        out.push((bits << (8 - held)) as u8 | (0xff >> held) as u8);
    }
}

/// Appends the decoded text to `out`. None if the code is broken.
pub fn decode(input: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let tables = &*TABLES;
    let (mut bits, mut held) = (0_u64, 0_u32);
    let mut input = input.iter();
    loop {
        while held <= 56 {
            let Some(&byte) = input.next() else { break };
            bits = bits << 8 | u64::from(byte);
            held += 8;
        }
        if held == 0 {
            return Some(());
        }
        // The next bits, the first of them at the top of 32; ones beyond the end.
        let window = if held >= 32 {
            (bits >> (held - 32)) as u32
        } else {
            ((bits << (32 - held)) as u32) | (u32::MAX >> held)
        };
        let &(symbol, length) = tables.fast.get((window >> (32 - FAST_BITS)) as usize)?;
        if length > 0 && u32::from(length) <= held {
            out.push(symbol);
            held -= u32::from(length);
            continue;
        }
        // Padding: fewer than eight bits, all ones.
        if held < 8 && window == u32::MAX {
            return Some(());
        }
        let (symbol, length) = decode_long(tables, window)?;
        if length > held {
            return None;
        }
        out.push(symbol);
        held -= length;
    }
}

fn decode_long(tables: &Tables, window: u32) -> Option<(u8, u32)> {
    for length in 1..=LENGTH_MAX {
        let code = window >> (32 - length);
        let &(first, at) = tables.first.get(length)?;
        let &(_, end) = tables.first.get(length + 1)?;
        let offset = code.checked_sub(first).map(|offset| offset as usize);
        if let Some(offset) = offset.filter(|&offset| offset < end - at) {
            // The end symbol must not be in a text.
            let symbol = tables.symbols.get(at + offset)?;
            return Some((u8::try_from(*symbol).ok()?, length as u32));
        }
    }
    None
}
