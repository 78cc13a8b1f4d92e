//! One connection's conversation: requests in, replies out, strictly in order.
//!
//! Bytes and the time go in, bytes and what to do next come out; no socket, clock or timer in
//! here. The caller hands `out` over empty, and calls `advance` again once it was sent.

use std::mem::MaybeUninit;

use crate::answer;
use crate::clock::Now;
use crate::counts::{Method, Route, Standing, Stream, Tally};
use crate::http2::Http2;
use crate::reply::{End, Manner, Refill, Reply, Source};
use crate::request::{parse_head, BodyReader, Framing, HeaderSlots, Refused, HEADERS_MAX};
use crate::routes::{self, Action};
use crate::websocket::{Socket, Waits};

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What the connection must do before the session can go on.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    NeedInput,
    /// Send what is in `out`, then advance again.
    Flush,
    WaitUntil(u64),
    /// Stay open and silent until the peer goes.
    Hold,
    Close,
    /// Close once the peer has stopped sending, so that it can read why.
    Linger,
    Reset,
}

#[derive(Debug)]
pub struct Session {
    state: State,
    standing: Standing,
}

#[derive(Debug)]
enum State {
    Head,
    Body {
        exchange: Exchange,
        reader: BodyReader,
    },
    /// Read completely; answered once `due_ns` has come.
    Due {
        exchange: Exchange,
        body: Vec<u8>,
        due_ns: u64,
    },
    Sending {
        open: Option<OpenExchange>,
        source: Source,
        end: After,
    },
    Socket(Box<Socket>),
    /// A raw connection: everything is sent back.
    Raw,
    Http2(Box<Http2>),
    Ended(After),
}

/// A request whose head was read.
#[derive(Debug)]
struct Exchange {
    action: Action,
    route: Option<Route>,
    method: Method,
    manner: Manner,
    bytes_in: u64,
    interim_bytes_out: u64,
    read_ns: u64,
}

/// A counted request whose reply is on its way.
#[derive(Clone, Copy, Debug)]
struct OpenExchange {
    read_ns: u64,
    bytes_out: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Reply(End),
    Refusal,
}

impl Session {
    /// For a connection that was just accepted, and counted as such.
    #[must_use]
    pub fn new() -> Self {
        Self { state: State::Head, standing: Standing::Silent }
    }

    /// For a connection of the TCP port: it sends back what it receives.
    #[must_use]
    pub fn raw() -> Self {
        Self { state: State::Raw, standing: Standing::Silent }
    }

    /// Goes on as far as it can, taking what it reads from the front of `input`.
    pub fn advance(
        &mut self,
        input: &mut &[u8],
        out: &mut Vec<u8>,
        now: Now,
        tally: &Tally,
    ) -> Next {
        loop {
            let next = match std::mem::replace(&mut self.state, State::Head) {
                State::Head => self.read_head(input, out, now, tally),
                State::Body { exchange, reader } => {
                    self.read_body(exchange, reader, input, out, now, tally)
                }
                State::Due { exchange, body, due_ns } => {
                    self.answer(exchange, body, due_ns, out, now, tally)
                }
                State::Sending { open, source, end } => {
                    self.send(open, source, end, out, now, tally)
                }
                State::Socket(socket) => self.converse(socket, input, out, now, tally),
                State::Raw => self.send_back(input, out, tally),
                State::Http2(mut streams) => {
                    let next = streams.advance(input, out, now, tally, &mut self.standing);
                    self.state = State::Http2(streams);
                    Some(next)
                }
                State::Ended(after) => self.end(after),
            };
            if let Some(next) = next {
                return next;
            }
        }
    }

    /// `bytes` of the reply were handed to the kernel.
    pub fn sent(&mut self, bytes: usize) {
        if let State::Sending { open: Some(open), .. } = &mut self.state {
            open.bytes_out += bytes as u64;
        }
    }

    /// True while the peer's end of stream changes nothing: a reply is still owed.
    #[must_use]
    pub fn owes_reply(&self) -> bool {
        match &self.state {
            State::Due { .. } => true,
            State::Http2(streams) => streams.owes_reply(),
            State::Sending { source, end, .. } => {
                *end != After::Reply(End::Hold)
                    && !matches!(source, Source::Drip { .. } | Source::Endless(_))
            }
            _ => false,
        }
    }

    /// The connection is gone.
    pub fn closed(self, tally: &Tally) {
        match self.state {
            State::Due { exchange: Exchange { route: Some(_), interim_bytes_out, .. }, .. } => {
                tally.abandoned(interim_bytes_out);
            }
            State::Sending { open: Some(open), .. } => tally.abandoned(open.bytes_out),
            State::Http2(streams) => streams.closed(tally),
            _ => {}
        }
        tally.closed(self.standing);
    }

    fn read_head(
        &mut self,
        input: &mut &[u8],
        out: &mut Vec<u8>,
        now: Now,
        tally: &Tally,
    ) -> Option<Next> {
        if input.is_empty() {
            return Some(Next::NeedInput);
        }
        // The start of HTTP/2, with or without TLS, at the start of a connection.
        if self.standing == Standing::Silent && input.starts_with(b"PRI") {
            self.state = State::Http2(Box::new(Http2::new()));
            return None;
        }
        let mut slots: HeaderSlots<'_> = [MaybeUninit::uninit(); HEADERS_MAX];
        let (head, used) = match parse_head(input, &mut slots) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return Some(Next::NeedInput),
            Err(refused) => return self.refuse(refused, out, tally),
        };
        let method = Method::parse(head.method);
        let routes::Plan { route, action } = routes::plan(&head, method);
        let exchange = Exchange {
            action,
            route,
            method,
            manner: Manner {
                keep_alive: head.keep_alive,
                version: head.version,
                head_only: method == Method::Head,
            },
            bytes_in: used as u64,
            interim_bytes_out: 0,
            read_ns: now.ns,
        };
        let (framing, expects_continue) = (head.framing, head.expects_continue);
        *input = input.get(used..).unwrap_or_default();
        let to = if route.is_some() { Standing::Client } else { Standing::Observer };
        tally.spoke(&mut self.standing, to);
        if framing == Framing::None {
            return self.complete(exchange, Vec::new(), now, tally);
        }
        let reader = BodyReader::new(framing, exchange.action.wants_body());
        // A client that did not wait for the go-ahead needs none.
        let go_ahead = expects_continue && input.is_empty();
        let interim_bytes_out = if go_ahead { CONTINUE.len() as u64 } else { 0 };
        self.state = State::Body { exchange: Exchange { interim_bytes_out, ..exchange }, reader };
        if go_ahead {
            out.extend_from_slice(CONTINUE);
            return Some(Next::Flush);
        }
        None
    }

    fn read_body(
        &mut self,
        mut exchange: Exchange,
        mut reader: BodyReader,
        input: &mut &[u8],
        out: &mut Vec<u8>,
        now: Now,
        tally: &Tally,
    ) -> Option<Next> {
        let used = match reader.feed(input) {
            Ok(used) => used,
            Err(refused) => return self.refuse(refused, out, tally),
        };
        *input = input.get(used..).unwrap_or_default();
        exchange.bytes_in += used as u64;
        if reader.is_done() {
            return self.complete(exchange, reader.into_body(), now, tally);
        }
        self.state = State::Body { exchange, reader };
        Some(Next::NeedInput)
    }

    /// The request was read to its last byte: this is the moment it counts.
    fn complete(
        &mut self,
        exchange: Exchange,
        body: Vec<u8>,
        now: Now,
        tally: &Tally,
    ) -> Option<Next> {
        if let Some(route) = exchange.route {
            tally.read(route, exchange.method, exchange.bytes_in, now.unix_s());
        }
        let due_ns = match exchange.action {
            Action::Delay { ms } => now.ns + ms * 1_000_000,
            _ => 0,
        };
        let exchange = Exchange { read_ns: now.ns, ..exchange };
        self.state = State::Due { exchange, body, due_ns };
        None
    }

    fn answer(
        &mut self,
        mut exchange: Exchange,
        body: Vec<u8>,
        due_ns: u64,
        out: &mut Vec<u8>,
        now: Now,
        tally: &Tally,
    ) -> Option<Next> {
        if now.ns < due_ns {
            self.state = State::Due { exchange, body, due_ns };
            return Some(Next::WaitUntil(due_ns));
        }
        if let Action::WebSocket(upgrade) = &exchange.action {
            upgrade.write_head(out);
            tally.answered(now.ns - exchange.read_ns, out.len() as u64);
            self.state = State::Socket(Box::new(upgrade.open(now.ns)));
            return Some(Next::Flush);
        }
        let Reply { source, end } =
            answer::write(&mut exchange.action, body, exchange.manner, out, tally.totals(), now.ns);
        let open = exchange.route.map(|_| OpenExchange {
            read_ns: exchange.read_ns,
            bytes_out: exchange.interim_bytes_out,
        });
        self.state = State::Sending { open, source, end: After::Reply(end) };
        (!out.is_empty()).then_some(Next::Flush)
    }

    fn send(
        &mut self,
        open: Option<OpenExchange>,
        mut source: Source,
        end: After,
        out: &mut Vec<u8>,
        now: Now,
        tally: &Tally,
    ) -> Option<Next> {
        let events = source.events();
        let refilled = source.refill(out, now.ns);
        if let Some(more @ 1..) = source.events().checked_sub(events) {
            tally.stream_out(Stream::Sse, more, out.len() as u64);
        }
        let next = match refilled {
            Refill::Ready => Next::Flush,
            Refill::WaitUntil(due_ns) => Next::WaitUntil(due_ns),
            Refill::Done if end == After::Reply(End::Hold) => Next::Hold,
            Refill::Done => {
                match open {
                    Some(open) if end == After::Reply(End::Reset) => {
                        tally.abandoned(open.bytes_out)
                    }
                    Some(open) => tally.answered(now.ns - open.read_ns, open.bytes_out),
                    None => {}
                }
                if end != After::Reply(End::KeepAlive) {
                    self.state = State::Ended(end);
                }
                return None;
            }
        };
        self.state = State::Sending { open, source, end };
        Some(next)
    }

    fn converse(
        &mut self,
        mut socket: Box<Socket>,
        input: &mut &[u8],
        out: &mut Vec<u8>,
        now: Now,
        tally: &Tally,
    ) -> Option<Next> {
        let next = match socket.advance(input, out, now, tally) {
            Waits::Input => Next::NeedInput,
            Waits::Until(due_ns) => Next::WaitUntil(due_ns),
            Waits::Flush => Next::Flush,
            Waits::Closed => {
                self.state = State::Ended(After::Refusal);
                return Some(Next::Flush);
            }
        };
        self.state = State::Socket(socket);
        Some(next)
    }

    fn send_back(&mut self, input: &mut &[u8], out: &mut Vec<u8>, tally: &Tally) -> Option<Next> {
        self.state = State::Raw;
        if input.is_empty() {
            return Some(Next::NeedInput);
        }
        tally.spoke(&mut self.standing, Standing::Client);
        let lines = input.iter().filter(|&&byte| byte == b'\n').count() as u64;
        tally.stream_in(Stream::Tcp, lines, input.len() as u64);
        tally.stream_out(Stream::Tcp, lines, input.len() as u64);
        out.extend_from_slice(input);
        *input = &[];
        Some(Next::Flush)
    }

    fn end(&mut self, after: After) -> Option<Next> {
        self.state = State::Ended(after);
        Some(match after {
            After::Refusal => Next::Linger,
            After::Reply(End::Reset) => Next::Reset,
            After::Reply(_) => Next::Close,
        })
    }

    fn refuse(&mut self, refused: Refused, out: &mut Vec<u8>, tally: &Tally) -> Option<Next> {
        tally.malformed();
        tally.spoke(&mut self.standing, Standing::Client);
        answer::refuse(refused, out);
        self.state = State::Sending { open: None, source: Source::Done, end: After::Refusal };
        Some(Next::Flush)
    }
}

impl Default for Session {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
#[path = "session_tests.rs"]
mod tests;
