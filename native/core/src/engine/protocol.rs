//! The protocols that connections speak: the interface between the engine and each of them, and
//! the one place where they are registered.
//!
//! A protocol is a directory with a type that implements `Session`. The engine owns sockets, TLS,
//! deadlines, connections and who uses them; a session turns requests into bytes and bytes into
//! replies. It owns no clock, no timer and no socket.

use std::io;

use cookie_store::CookieStore;

use super::error::Failure;
use super::http1::Http1;
use super::http2::Http2;
use super::http3::Http3;
use super::raw::Raw;
use super::request::{Part, Request, Requests};
use super::transport::quic::Quic;
use super::transport::tls::Alpn;
use super::transport::{Arrival, Transport};
use super::websocket::WebSocket;
use crate::recorder::Recorder;

/// What a request asks its connection to speak. Requests of different protocols share none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    Http1,
    /// A socket of its own for each handshake, which `websocket::socket_number` names.
    WebSocket(u64),
    Tcp,
    Udp,
    /// At most so many requests at once on a connection.
    Http2 {
        streams_max: u32,
    },
    /// Over QUIC, and so with TLS always.
    Http3 {
        streams_max: u32,
    },
    /// What the server chooses by ALPN; HTTP/1.1 without TLS.
    Auto {
        streams_max: u32,
    },
    /// Calls of gRPC, over HTTP/2.
    Grpc {
        streams_max: u32,
    },
}

impl Protocol {
    /// Of its URLs: without TLS and with it.
    #[must_use]
    pub const fn schemes(self) -> [&'static str; 2] {
        match self {
            Self::Http1 | Self::Http2 { .. } | Self::Auto { .. } | Self::Grpc { .. } => {
                ["http", "https"]
            }
            Self::Http3 { .. } => ["https", "https"],
            Self::WebSocket(_) => ["ws", "wss"],
            Self::Tcp => ["tcp", "tls"],
            Self::Udp => ["udp", "udp"],
        }
    }

    /// What is offered to the server of a TLS connection.
    #[must_use]
    pub const fn alpn(self) -> Alpn {
        match self {
            Self::Http1 | Self::WebSocket(_) => &[b"http/1.1"],
            Self::Http2 { .. } | Self::Grpc { .. } => &[b"h2"],
            Self::Http3 { .. } => &[b"h3"],
            Self::Auto { .. } => &[b"h2", b"http/1.1"],
            Self::Tcp | Self::Udp => &[],
        }
    }

    /// Whether its messages are datagrams, which may be lost.
    #[must_use]
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Udp)
    }

    /// Whether it is spoken over QUIC.
    #[must_use]
    pub const fn is_quic(self) -> bool {
        matches!(self, Self::Http3 { .. })
    }

    /// Whether requests that come while a connection is opened wait for it.
    #[must_use]
    pub const fn is_multiplexed(self) -> bool {
        match self {
            Self::Http2 { .. } | Self::Http3 { .. } | Self::Grpc { .. } => true,
            Self::Http1 | Self::Auto { .. } | Self::WebSocket(_) | Self::Tcp | Self::Udp => false,
        }
    }

    /// Begins to speak on a connection that is open.
    pub fn open(self, transport: &mut Transport) -> Result<AnySession, Failure> {
        let alpn = transport.alpn();
        match self {
            Self::Auto { streams_max } if alpn == Some(b"h2") => {
                Ok(AnySession::Http2(Http2::new(streams_max)))
            }
            Self::Http1 | Self::Auto { .. } => Ok(AnySession::Http1(Http1::default())),
            Self::Http2 { streams_max } | Self::Grpc { streams_max } => {
                Ok(AnySession::Http2(Http2::new(streams_max)))
            }
            Self::Http3 { streams_max } => match transport.quic() {
                Some(quic) => Ok(AnySession::Http3(Box::new(Http3::new(quic, streams_max)))),
                None => Err(Failure::protocol("HTTP/3 needs a QUIC connection")),
            },
            Self::WebSocket(_) => Ok(AnySession::WebSocket(Box::default())),
            Self::Tcp | Self::Udp => Ok(AnySession::Raw(Box::new(Raw::new(self.is_datagram())))),
        }
    }

    #[must_use]
    pub const fn is_grpc(self) -> bool {
        matches!(self, Self::Grpc { .. })
    }
}

/// What a request may use of its virtual user, and what becomes of the connection after it.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    pub jar: Option<&'a CookieStore>,
    /// The connection is for this request alone.
    pub close: bool,
}

/// The requests of one connection, in the words of one protocol.
///
/// Whatever a session reports of a request it reports to `Requests`: `received` for every byte that
/// belongs to it, `deliver` for parts, and `end` once, when it forgets the request.
pub trait Session {
    /// Takes a request on. Called only if there is room; `write` follows.
    fn begin(&mut self, slot: u32, request: &Request, opening: &Opening<'_>);

    /// Writes what is to be written, also what no request asked for (acknowledgements, pings).
    /// An error is found again when the connection is read.
    fn write(
        &mut self,
        transport: &mut Transport,
        requests: &mut Requests,
        recorder: &mut Recorder,
    ) -> io::Result<()>;

    /// Takes bytes that arrived.
    fn receive(&mut self, input: &[u8], arrival: Arrival, requests: &mut Requests);

    /// Takes what arrived on the streams of a QUIC connection.
    fn receive_streams(&mut self, _quic: &mut Quic, _arrival: Arrival, _requests: &mut Requests) {}

    /// The peer has closed, or the connection failed: every request ends.
    fn end(&mut self, failure: Option<Failure>, at_ns: u64, requests: &mut Requests);

    /// Forgets a request whose caller gave it up. It is not reported.
    fn cancel(&mut self, slot: u32);

    /// Takes a part of a running request (a message, a piece of its body) from the caller.
    fn push(&mut self, _slot: u32, _part: Part) -> Result<(), Failure> {
        Err(Failure::protocol("the protocol takes nothing after the request"))
    }

    /// Whether another request may begin now.
    fn has_room(&self) -> bool;

    /// Whether no request is under way.
    fn is_idle(&self) -> bool;

    /// Whether requests may begin now or later. A session that is neither open nor busy is over.
    fn is_open(&self) -> bool;

    /// Whether something waits to be written.
    fn wants_write(&self) -> bool;

    /// Whether the peer may speak while no request is under way. Otherwise what comes then ends the
    /// connection.
    fn listens(&self) -> bool;
}

/// A session of any protocol. An enum, not a trait object: calls are direct, and a connection of
/// HTTP/1.1 needs no further memory. Large sessions are boxed in their variant.
#[derive(Debug)]
pub enum AnySession {
    Http1(Http1),
    WebSocket(Box<WebSocket>),
    Raw(Box<Raw>),
    Http2(Http2),
    Http3(Box<Http3>),
}

/// Calls the same method of whichever session it is.
macro_rules! each {
    ($self:ident, $session:ident => $call:expr) => {
        match $self {
            AnySession::Http1($session) => $call,
            AnySession::WebSocket($session) => $call,
            AnySession::Raw($session) => $call,
            AnySession::Http2($session) => $call,
            AnySession::Http3($session) => $call,
        }
    };
}

impl Session for AnySession {
    fn begin(&mut self, slot: u32, request: &Request, opening: &Opening<'_>) {
        each!(self, session => session.begin(slot, request, opening));
    }

    fn write(
        &mut self,
        transport: &mut Transport,
        requests: &mut Requests,
        recorder: &mut Recorder,
    ) -> io::Result<()> {
        each!(self, session => session.write(transport, requests, recorder))
    }

    fn receive(&mut self, input: &[u8], arrival: Arrival, requests: &mut Requests) {
        each!(self, session => session.receive(input, arrival, requests));
    }

    fn receive_streams(&mut self, quic: &mut Quic, arrival: Arrival, requests: &mut Requests) {
        each!(self, session => session.receive_streams(quic, arrival, requests));
    }

    fn end(&mut self, failure: Option<Failure>, at_ns: u64, requests: &mut Requests) {
        each!(self, session => session.end(failure, at_ns, requests));
    }

    fn cancel(&mut self, slot: u32) {
        each!(self, session => session.cancel(slot));
    }

    fn push(&mut self, slot: u32, part: Part) -> Result<(), Failure> {
        each!(self, session => session.push(slot, part))
    }

    fn has_room(&self) -> bool {
        each!(self, session => session.has_room())
    }

    fn is_idle(&self) -> bool {
        each!(self, session => session.is_idle())
    }

    fn is_open(&self) -> bool {
        each!(self, session => session.is_open())
    }

    fn wants_write(&self) -> bool {
        each!(self, session => session.wants_write())
    }

    fn listens(&self) -> bool {
        each!(self, session => session.listens())
    }
}
