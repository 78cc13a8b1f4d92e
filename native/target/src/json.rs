//! Writing JSON: strings, and the few shapes the replies need. Reads nothing.

use std::io::Write as _;

pub fn string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    for character in text.chars() {
        match character {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            '\n' => out.extend_from_slice(b"\\n"),
            '\r' => out.extend_from_slice(b"\\r"),
            '\t' => out.extend_from_slice(b"\\t"),
            control if u32::from(control) < 0x20 => {
                // Writing to a vector cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => {
                let mut utf8 = [0; 4];
                out.extend_from_slice(other.encode_utf8(&mut utf8).as_bytes());
            }
        }
    }
    out.push(b'"');
}

/// Header values are bytes; what is not UTF-8 is shown as Latin-1.
pub fn bytes(out: &mut Vec<u8>, raw: &[u8]) {
    match std::str::from_utf8(raw) {
        Ok(text) => string(out, text),
        Err(_) => string(out, &raw.iter().map(|byte| char::from(*byte)).collect::<String>()),
    }
}

pub fn number(out: &mut Vec<u8>, value: u64) {
    let _ = write!(out, "{value}");
}

/// Puts commas between the items of one object or array.
#[derive(Default)]
pub struct Separator {
    started: bool,
}

impl Separator {
    pub fn next(&mut self, out: &mut Vec<u8>) {
        if self.started {
            out.push(b',');
        }
        self.started = true;
    }

    pub fn key(&mut self, out: &mut Vec<u8>, name: &str) {
        self.next(out);
        string(out, name);
        out.push(b':');
    }
}
