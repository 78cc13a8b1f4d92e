//! The WebSockets of the target: they echo every message, and may send some of their own accord.
//!
//! Bytes and the time go in, bytes come out, as in `session`.

use hyperscale_core::engine::websocket::deflate::{Deflate, OFFER};
use hyperscale_core::engine::websocket::frames::{
    write_close, write_frame, Decoder, Event, Opcode, Role, NORMAL,
};
use hyperscale_core::engine::websocket::handshake::{accept_of, has_word, names_extension};

use crate::clock::Now;
use crate::counts::{Stream, Tally};
use crate::request::Head;

const MESSAGE_BYTES_MAX: u64 = 16 << 20;
/// Replies collected before they are sent.
const OUT_BYTES_MAX: usize = 64 * 1024;

/// Messages that the server sends of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Push {
    pub every_ns: u64,
    pub count: u64,
}

/// An opening handshake that is accepted.
#[derive(Debug, PartialEq, Eq)]
pub struct Upgrade {
    accept: String,
    subprotocol: Option<String>,
    is_deflating: bool,
    push: Option<Push>,
}

impl Upgrade {
    /// Reads the handshake; the error says what a request for a WebSocket lacks.
    pub fn read(head: &Head<'_>, push: Option<Push>) -> Result<Self, &'static str> {
        let values =
            |name| head.header_values(name).filter_map(|value| std::str::from_utf8(value).ok());
        let has = |name, word| values(name).any(|value| has_word(value, word));
        let Some(key) = values("sec-websocket-key").next() else {
            return Err("this is a WebSocket: it needs Upgrade, Connection and Sec-WebSocket-Key");
        };
        if !has("upgrade", "websocket") || !has("connection", "upgrade") {
            return Err("this is a WebSocket: it needs Upgrade, Connection and Sec-WebSocket-Key");
        }
        if !has("sec-websocket-version", "13") {
            return Err("the only WebSocket version spoken here is 13");
        }
        let offered = values("sec-websocket-protocol").next();
        let subprotocol = offered.and_then(|list| list.split(',').next()).map(str::trim);
        Ok(Self {
            accept: accept_of(key),
            subprotocol: subprotocol.filter(|name| !name.is_empty()).map(str::to_owned),
            is_deflating: values("sec-websocket-extensions")
                .any(|value| names_extension(value, "permessage-deflate")),
            push,
        })
    }

    pub fn write_head(&self, out: &mut Vec<u8>) {
        let mut line = |name: &str, value: &str| {
            for part in [name, value, "\r\n"] {
                out.extend_from_slice(part.as_bytes());
            }
        };
        line("HTTP/1.1 101 Switching Protocols", "");
        line("Upgrade: ", "websocket");
        line("Connection: ", "Upgrade");
        line("Sec-WebSocket-Accept: ", &self.accept);
        if let Some(name) = &self.subprotocol {
            line("Sec-WebSocket-Protocol: ", name);
        }
        if self.is_deflating {
            line("Sec-WebSocket-Extensions: ", OFFER);
        }
        line("", "");
    }

    #[must_use]
    pub fn open(&self, now_ns: u64) -> Socket {
        Socket {
            decoder: Decoder::new(Role::Server, MESSAGE_BYTES_MAX, self.is_deflating),
            deflate: Deflate::default(),
            is_deflating: self.is_deflating,
            push: self.push,
            pushed: 0,
            opened_ns: now_ns,
        }
    }
}

/// What a socket waits for.
#[derive(Debug, PartialEq, Eq)]
pub enum Waits {
    Input,
    Until(u64),
    /// Send what is in `out`, then go on.
    Flush,
    /// Send what is in `out`, then close.
    Closed,
}

#[derive(Debug)]
pub struct Socket {
    decoder: Decoder,
    deflate: Deflate,
    is_deflating: bool,
    push: Option<Push>,
    pushed: u64,
    opened_ns: u64,
}

impl Socket {
    pub fn advance(
        &mut self,
        input: &mut &[u8],
        out: &mut Vec<u8>,
        now: Now,
        tally: &Tally,
    ) -> Waits {
        while out.len() < OUT_BYTES_MAX {
            match self.decoder.next(input, &mut self.deflate) {
                Ok(Some(Event::Message { is_text, data })) => {
                    tally.stream_in(Stream::Websocket, 1, data.len() as u64);
                    self.send(out, is_text, &data, tally);
                }
                Ok(Some(Event::Ping(data))) => {
                    write_frame(out, Opcode::Pong, &data, false, None);
                }
                Ok(Some(Event::Pong(_))) => {}
                Ok(Some(Event::Close { code, .. })) => {
                    write_close(out, code, "", None);
                    return Waits::Closed;
                }
                Ok(None) => break,
                Err(error) => {
                    tally.malformed();
                    write_close(out, error.code, &error.detail, None);
                    return Waits::Closed;
                }
            }
        }
        let due_ns = self.push_due(out, now, tally);
        match (out.is_empty(), due_ns) {
            (_, Some(u64::MAX)) => {
                write_close(out, NORMAL, "", None);
                Waits::Closed
            }
            (false, _) => Waits::Flush,
            (true, None) => Waits::Input,
            (true, Some(due_ns)) => Waits::Until(due_ns),
        }
    }

    /// Sends the messages that are due. Returns when the next one is, `u64::MAX` after the last.
    fn push_due(&mut self, out: &mut Vec<u8>, now: Now, tally: &Tally) -> Option<u64> {
        let push = self.push?;
        while self.pushed < push.count && out.len() < OUT_BYTES_MAX {
            let due_ns =
                self.opened_ns.saturating_add(push.every_ns.saturating_mul(self.pushed + 1));
            if due_ns > now.ns {
                return Some(due_ns);
            }
            self.pushed += 1;
            self.send(out, true, format!("message {}", self.pushed).as_bytes(), tally);
        }
        Some(if self.pushed < push.count { now.ns } else { u64::MAX })
    }

    fn send(&mut self, out: &mut Vec<u8>, is_text: bool, data: &[u8], tally: &Tally) {
        tally.stream_out(Stream::Websocket, 1, data.len() as u64);
        let opcode = if is_text { Opcode::Text } else { Opcode::Binary };
        if self.is_deflating {
            let packed = self.deflate.deflate(data);
            write_frame(out, opcode, &packed, true, None);
        } else {
            write_frame(out, opcode, data, false, None);
        }
    }
}
