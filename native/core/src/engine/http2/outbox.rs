//! Bytes for the server that the socket has not taken yet, and which requests they complete.

use std::collections::VecDeque;

/// Body bytes that are laid out ahead of what the socket takes.
const UNWRITTEN_MAX: usize = 256 * 1024;

/// A request whose last byte is laid out.
#[derive(Debug)]
struct Unsent {
    request: u32,
    /// Counted from the beginning of the connection.
    ends_at: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
pub struct Outbox {
    out: Vec<u8>,
    at: usize,
    /// Bytes of this connection that the socket took before those in `out`.
    before: u64,
    unsent: VecDeque<Unsent>,
}

impl Outbox {
    /// Appends what `write` writes. Returns how many bytes that was.
    pub fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let length = self.out.len();
        write(&mut self.out);
        (self.out.len() - length) as u64
    }

    /// Whether bodies should wait until the socket has taken more.
    pub fn is_full(&self) -> bool {
        self.unwritten().len() > UNWRITTEN_MAX
    }

    pub fn unwritten(&self) -> &[u8] {
        self.out.get(self.at..).unwrap_or_default()
    }

    /// The socket took so many bytes.
    pub fn advance(&mut self, bytes: usize) {
        self.at += bytes;
        if self.at >= self.out.len() || self.at > UNWRITTEN_MAX {
            self.before += self.at as u64;
            self.out.drain(..self.at.min(self.out.len()));
            self.at = 0;
        }
    }

    /// All of a request, of so many bytes, is laid out.
    pub fn finish(&mut self, request: u32, bytes: u64) {
        let ends_at = self.before + self.out.len() as u64;
        self.unsent.push_back(Unsent { request, ends_at, bytes });
    }

    /// The next request that the socket has taken as a whole, and its size.
    pub fn take_sent(&mut self) -> Option<(u32, u64)> {
        let written = self.before + self.at as u64;
        let first = self.unsent.front().filter(|unsent| unsent.ends_at <= written)?;
        let sent = (first.request, first.bytes);
        self.unsent.pop_front();
        Some(sent)
    }

    /// Does not report a request as sent.
    pub fn forget(&mut self, request: u32) {
        self.unsent.retain(|unsent| unsent.request != request);
    }

    pub fn forget_all(&mut self) {
        self.unsent.clear();
    }
}
