//! The gRPC services of the target: an echo in all four kinds of calls, the health check, and server
//! reflection.
//!
//! `hyperscale.Echo` answers every message with the same message. Three fields of a message steer the
//! answer, see `examples/protocols/echo.proto`.

use hyperscale_core::http2::frame;
use hyperscale_core::http2::hpack::{self, Secrecy};

use crate::counts::{Route, Stream, Tally};
use crate::reflection;

const PREFIX_BYTES: usize = 5;
const UNIMPLEMENTED: u32 = 12;
const INVALID_ARGUMENT: u32 = 3;
/// `HealthCheckResponse { status: SERVING }`
const SERVING: &[u8] = &[0x08, 0x01];
const REPLIES_MAX: u64 = 1_000_000;

/// Numbers of the fields that steer the answer.
const COUNT: u64 = 3;
const DELAY_MS: u64 = 4;
const CODE: u64 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rpc {
    /// One message, one reply.
    Unary,
    /// One message, `count` replies.
    ServerStream,
    /// Many messages, the last of them is the reply.
    ClientStream,
    /// A reply to every message, as it comes.
    BidiStream,
    Health,
    Reflection,
    Unknown,
}

/// A call that is being read or answered.
#[derive(Debug)]
pub struct Call {
    rpc: Rpc,
    encoding: Option<Vec<u8>>,
    has_head: bool,
    input: Vec<u8>,
    /// The last message, with its prefix.
    message: Vec<u8>,
    messages: u64,
    read_bytes: u64,
    replies: Vec<u8>,
    replied: u64,
    steer: Steer,
    status: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Steer {
    count: u64,
    delay_ms: u64,
    code: u64,
}

impl Call {
    #[must_use]
    pub fn new(path: &str, encoding: Option<&[u8]>) -> Self {
        let rpc = match path {
            "/hyperscale.Echo/Unary" => Rpc::Unary,
            "/hyperscale.Echo/ServerStream" => Rpc::ServerStream,
            "/hyperscale.Echo/ClientStream" => Rpc::ClientStream,
            "/hyperscale.Echo/BidiStream" => Rpc::BidiStream,
            "/grpc.health.v1.Health/Check" => Rpc::Health,
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => Rpc::Reflection,
            _ => Rpc::Unknown,
        };
        Self {
            rpc,
            encoding: encoding.map(<[u8]>::to_vec),
            has_head: false,
            input: Vec::new(),
            message: Vec::new(),
            messages: 0,
            read_bytes: 0,
            replies: Vec::new(),
            replied: 0,
            steer: Steer::default(),
            status: if rpc == Rpc::Unknown { UNIMPLEMENTED } else { 0 },
        }
    }

    #[must_use]
    pub fn route(&self) -> Route {
        match self.rpc {
            Rpc::Health | Rpc::Reflection => Route::GrpcHealth,
            Rpc::Unknown => Route::Unknown,
            _ => Route::Grpc,
        }
    }

    /// Takes more of the request's body.
    pub fn receive(&mut self, data: &[u8]) {
        self.input.extend_from_slice(data);
        loop {
            let Some((prefix, rest)) = self.input.split_first_chunk::<PREFIX_BYTES>() else {
                return;
            };
            let [_, l0, l1, l2, l3] = *prefix;
            let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
            let Some(message) = rest.get(..length) else { return };
            // A compressed message is echoed unseen.
            if prefix.first() == Some(&0) {
                self.steer = Steer::read(message);
            }
            let whole = PREFIX_BYTES + length;
            self.messages += 1;
            self.read_bytes += whole as u64;
            self.message.clear();
            self.message.extend(self.input.drain(..whole));
            match self.rpc {
                Rpc::BidiStream => self.replies.extend_from_slice(&self.message),
                Rpc::Reflection => {
                    let question = self.message.get(PREFIX_BYTES..).unwrap_or_default();
                    let answer = reflection::answer(question);
                    self.replies.push(0);
                    self.replies.extend_from_slice(&(answer.len() as u32).to_be_bytes());
                    self.replies.extend_from_slice(&answer);
                }
                _ => continue,
            }
            self.replied += 1;
        }
    }

    /// The request has ended: everything that is left of the answer is ready.
    pub fn end(&mut self) {
        let is_single = matches!(self.rpc, Rpc::Unary | Rpc::ServerStream | Rpc::Health);
        if !self.input.is_empty() || (is_single && self.messages != 1) {
            self.status = INVALID_ARGUMENT;
            return;
        }
        let copies = match self.rpc {
            Rpc::Unary | Rpc::ClientStream if self.steer.code == 0 => 1,
            Rpc::ServerStream => self.steer.count.min(REPLIES_MAX),
            Rpc::Reflection => return,
            Rpc::Health => {
                self.replies = vec![0, 0, 0, 0, SERVING.len() as u8];
                self.replies.extend_from_slice(SERVING);
                return;
            }
            _ => 0,
        };
        for _ in 0..copies {
            self.replies.extend_from_slice(&self.message);
            self.replied += 1;
        }
        if self.status == 0 {
            self.status = u32::try_from(self.steer.code).unwrap_or(u32::MAX);
        }
    }

    /// How long after the request has ended the answer is due.
    #[must_use]
    pub fn delay_ns(&self) -> u64 {
        self.steer.delay_ms.min(3_600_000) * 1_000_000
    }

    /// Bytes of replies that can be sent.
    #[must_use]
    pub fn ready_bytes(&self) -> usize {
        self.replies.len()
    }

    pub fn take_replies(&mut self, tally: &Tally) -> Vec<u8> {
        tally.stream_in(Stream::Grpc, self.messages, self.read_bytes);
        tally.stream_out(Stream::Grpc, self.replied, self.replies.len() as u64);
        (self.messages, self.replied, self.read_bytes) = (0, 0, 0);
        std::mem::take(&mut self.replies)
    }

    /// Writes the response head, unless that was done.
    pub fn write_head(&mut self, stream: u32, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.has_head, true) {
            return;
        }
        let mut block = Vec::with_capacity(64);
        hpack::encode(&mut block, ":status", b"200", Secrecy::Open);
        hpack::encode(&mut block, "content-type", b"application/grpc", Secrecy::Open);
        if let Some(encoding) = &self.encoding {
            hpack::encode(&mut block, "grpc-encoding", encoding, Secrecy::Open);
        }
        frame::write_headers(out, stream, [&block, &[]], false);
    }

    #[must_use]
    pub fn trailers(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(32);
        let status = self.status.to_string();
        hpack::encode(&mut block, "grpc-status", status.as_bytes(), Secrecy::Open);
        let message: &[u8] = match self.status {
            0 => return block,
            UNIMPLEMENTED if self.rpc == Rpc::Unknown => b"no such method",
            INVALID_ARGUMENT if self.steer.code == 0 => b"the call needs one whole message",
            _ => b"as the message asked",
        };
        hpack::encode(&mut block, "grpc-message", message, Secrecy::Open);
        block
    }
}

impl Steer {
    /// Reads the numbers of a message; a broken one steers nothing.
    fn read(message: &[u8]) -> Self {
        let mut steer = Self::default();
        let mut rest = message;
        while let Some(key) = varint(&mut rest) {
            let skipped = match key & 7 {
                0 => {
                    let Some(value) = varint(&mut rest) else { break };
                    match key >> 3 {
                        COUNT => steer.count = value,
                        DELAY_MS => steer.delay_ms = value,
                        CODE => steer.code = value,
                        _ => {}
                    }
                    0
                }
                1 => 8,
                2 => match varint(&mut rest).and_then(|length| usize::try_from(length).ok()) {
                    Some(length) => length,
                    None => break,
                },
                5 => 4,
                _ => break,
            };
            let Some(after) = rest.get(skipped..) else { break };
            rest = after;
        }
        steer
    }
}

pub fn varint(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = input.split_first()?;
        *input = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::Totals;

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut out = vec![0, 0, 0, 0, message.len() as u8];
        out.extend_from_slice(message);
        out
    }

    #[test]
    fn a_message_steers_the_number_of_replies_and_the_status() {
        let tally = Totals::default().tally();
        let message = framed(&[0x0a, 1, b'x', 0x18, 3]); // text "x", count 3
        let mut call = Call::new("/hyperscale.Echo/ServerStream", None);
        let (first, second) = message.split_at(4);
        call.receive(first);
        call.receive(second);
        call.end();
        assert_eq!(call.take_replies(&tally), [&message[..], &message, &message].concat());
        let failing = framed(&[0x28, 5]); // code 5
        let mut call = Call::new("/hyperscale.Echo/Unary", None);
        call.receive(&failing);
        call.end();
        assert_eq!((call.ready_bytes(), call.status), (0, 5));
    }

    #[test]
    fn an_incomplete_message_and_an_unknown_method_are_refused() {
        let mut call = Call::new("/hyperscale.Echo/Unary", None);
        call.receive(&[0, 0, 0, 0, 9, 1]);
        call.end();
        assert_eq!(call.status, INVALID_ARGUMENT);
        assert_eq!(Call::new("/a/b", None).status, UNIMPLEMENTED);
    }
}
