//! A list of header fields, in memory that is used again.

/// Fields in order. Cleared and filled for every block.
#[derive(Debug, Default)]
pub struct Fields {
    text: Vec<u8>,
    /// Where each name and each value ends.
    ends: Vec<(usize, usize)>,
}

impl Fields {
    pub fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
    }

    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.text.extend_from_slice(name);
        let name_end = self.text.len();
        self.text.extend_from_slice(value);
        self.ends.push((name_end, self.text.len()));
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut from = 0;
        self.ends.iter().map(move |&(name_end, end)| {
            let name = self.text.get(from..name_end).unwrap_or_default();
            from = end;
            (name, self.text.get(name_end..end).unwrap_or_default())
        })
    }

    #[must_use]
    pub fn get(&self, wanted: &[u8]) -> Option<&[u8]> {
        self.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value)
    }

    /// Fields without those whose names begin with a colon, as lines.
    pub fn write_lines(&self, out: &mut Vec<u8>) {
        for (name, value) in self.iter().filter(|(name, _)| !name.starts_with(b":")) {
            out.extend_from_slice(name);
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
            out.extend_from_slice(b"\r\n");
        }
    }

    /// What is wrong with these fields by RFC 9113 §8.2, if anything. `pseudo` are the names with a
    /// colon that the message may have.
    #[must_use]
    pub fn fault(&self, pseudo: &[&[u8]]) -> Option<&'static str> {
        let mut is_head_over = false;
        for (name, value) in self.iter() {
            if name.starts_with(b":") {
                if is_head_over || !pseudo.contains(&name) {
                    return Some("a pseudo-header field where none belongs");
                }
            } else {
                is_head_over = true;
                if name.is_empty() || !name.iter().all(|&byte| is_name_byte(byte)) {
                    return Some("a header name with a character that is not allowed");
                }
                if matches!(name, b"connection" | b"transfer-encoding" | b"upgrade") {
                    return Some("a header field of HTTP/1.1 connections");
                }
            }
            if value.iter().any(|&byte| matches!(byte, b'\0' | b'\r' | b'\n')) {
                return Some("a line break in a header field");
            }
        }
        None
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte > b' ' && byte < 0x7f && byte != b':' && !byte.is_ascii_uppercase()
}
