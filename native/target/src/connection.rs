//! One client connection: its socket, perhaps TLS on it, and the session spoken over it.
//!
//! Moves bytes between the socket and the session and says what it waits for. Knows no epoll.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::server::{ServerConfig, ServerConnection};

use crate::clock::Clock;
use crate::counts::Tally;
use crate::session::{Next, Session};

/// Input kept while a reply is on its way; beyond it nothing is read.
const WAITING_INPUT_BYTES_MAX: usize = 64 * 1024;
/// Bytes written in a row before other connections get their turn.
const WRITE_BYTES_MAX: usize = 1 << 20;
const LINGER_NS: u64 = 2_000_000_000;

/// What the connection waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    pub read: bool,
    pub write: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Waits for what `wants` says, or until the given time if that comes first.
    Open(Option<u64>),
    Closed,
}

/// Buffers and clock that the connections of one worker share.
pub struct Shared<'w> {
    pub input: &'w mut [u8],
    pub out: &'w mut Vec<u8>,
    pub tally: &'w Tally,
    pub clock: Clock,
}

pub struct Connection {
    stream: TcpStream,
    tls: Option<Box<ServerConnection>>,
    session: Session,
    /// Read from the socket and not yet taken by the session.
    input: Vec<u8>,
    /// Given by the session and not yet taken by the socket.
    out: Vec<u8>,
    wants: Wants,
    lingers_until_ns: Option<u64>,
    peer_ended: bool,
    /// When the worker's latest timer for this connection fires.
    pub timer_ns: Option<u64>,
    /// What epoll was last told.
    pub registered: Wants,
}

impl Connection {
    pub fn new(
        stream: TcpStream,
        tls: Option<&Arc<ServerConfig>>,
        session: Session,
    ) -> Result<Self, rustls::Error> {
        let tls = match tls {
            None => None,
            Some(config) => {
                let mut connection = ServerConnection::new(Arc::clone(config))?;
                // The session makes bodies in bounded pieces and waits for each to leave.
                connection.set_buffer_limit(None);
                Some(Box::new(connection))
            }
        };
        let wants = Wants { read: true, write: false };
        Ok(Self {
            stream,
            tls,
            session,
            input: Vec::new(),
            out: Vec::new(),
            wants,
            lingers_until_ns: None,
            peer_ended: false,
            timer_ns: None,
            registered: wants,
        })
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub fn wants(&self) -> Wants {
        self.wants
    }

    pub fn close(self, tally: &Tally) {
        if self.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
            tally.tls_failed();
        }
        self.session.closed(tally);
    }

    /// The socket can be read.
    pub fn on_readable(&mut self, shared: &mut Shared<'_>) -> Outcome {
        if self.tls.is_some() {
            return self.on_readable_tls(shared);
        }
        // Borrowed for the duration of this call only; the session takes from it directly.
        let buffer = std::mem::take(&mut shared.input);
        let outcome = match self.stream.read(buffer) {
            Ok(0) => self.on_peer_end(shared),
            Ok(count) => self.on_input(buffer.get(..count).unwrap_or_default(), shared),
            Err(error) => self.on_io_error(&error),
        };
        shared.input = buffer;
        outcome
    }

    fn on_readable_tls(&mut self, shared: &mut Shared<'_>) -> Outcome {
        let Some(tls) = &mut self.tls else { return Outcome::Closed };
        match tls.read_tls(&mut self.stream) {
            Ok(0) => return self.on_peer_end(shared),
            Ok(_) => {}
            Err(error) => return self.on_io_error(&error),
        }
        if tls.process_new_packets().is_err() {
            // Tell the peer why, if it still listens; the handshake failure is counted on close.
            let _ = tls.write_tls(&mut self.stream);
            return Outcome::Closed;
        }
        let buffer = std::mem::take(&mut shared.input);
        let outcome = self.take_plaintext(buffer, shared);
        shared.input = buffer;
        outcome
    }

    /// Everything that was decrypted goes to the session: epoll does not know of it.
    fn take_plaintext(&mut self, buffer: &mut [u8], shared: &mut Shared<'_>) -> Outcome {
        loop {
            let Some(tls) = &mut self.tls else { return Outcome::Closed };
            let outcome = match tls.reader().read(buffer) {
                Ok(0) => return self.on_peer_end(shared),
                Ok(count) => self.on_input(buffer.get(..count).unwrap_or_default(), shared),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Outcome::Closed,
            };
            if outcome == Outcome::Closed {
                return outcome;
            }
        }
        self.run(&[], shared)
    }

    /// The socket can be written.
    pub fn on_writable(&mut self, shared: &mut Shared<'_>) -> Outcome {
        self.run(&[], shared)
    }

    pub fn on_timer(&mut self, shared: &mut Shared<'_>) -> Outcome {
        let now_ns = shared.clock.now().ns;
        if self.lingers_until_ns.is_some_and(|until_ns| until_ns <= now_ns) {
            return Outcome::Closed;
        }
        self.run(&[], shared)
    }

    fn on_input(&mut self, bytes: &[u8], shared: &mut Shared<'_>) -> Outcome {
        if self.lingers_until_ns.is_some() {
            return Outcome::Open(None);
        }
        if self.input.is_empty() {
            return self.run(bytes, shared);
        }
        self.input.extend_from_slice(bytes);
        self.run(&[], shared)
    }

    fn on_peer_end(&mut self, shared: &mut Shared<'_>) -> Outcome {
        self.peer_ended = true;
        if self.lingers_until_ns.is_none() && (self.session.owes_reply() || !self.out.is_empty()) {
            return self.run(&[], shared);
        }
        Outcome::Closed
    }

    fn on_io_error(&mut self, error: &io::Error) -> Outcome {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Outcome::Open(None),
            _ => Outcome::Closed,
        }
    }

    /// Advances the session until it waits for something. Reads what was kept, or else `fresh`.
    fn run(&mut self, fresh: &[u8], shared: &mut Shared<'_>) -> Outcome {
        let kept = std::mem::take(&mut self.input);
        let mut input: &[u8] = if kept.is_empty() { fresh } else { &kept };
        let outcome = self.run_over(&mut input, shared);
        if outcome == Outcome::Closed || input.is_empty() {
            return outcome;
        }
        let left = input.len();
        // A head that comes byte by byte is kept where it is, not copied for each of them.
        self.input = if left == kept.len() { kept } else { input.to_vec() };
        outcome
    }

    fn run_over(&mut self, input: &mut &[u8], shared: &mut Shared<'_>) -> Outcome {
        let mut wait_until_ns = None;
        let mut written = 0;
        loop {
            match self.flush(shared) {
                Ok(true) => {}
                Ok(false) => {
                    self.wants = Wants { read: false, write: true };
                    break;
                }
                Err(_) => return Outcome::Closed,
            }
            if self.lingers_until_ns.is_some() {
                break;
            }
            let next = self.session.advance(input, shared.out, shared.clock.now(), shared.tally);
            match next {
                Next::NeedInput if self.peer_ended => return Outcome::Closed,
                Next::NeedInput => {
                    self.wants = Wants { read: true, write: false };
                    break;
                }
                Next::Flush => {
                    written += shared.out.len();
                    if written > WRITE_BYTES_MAX {
                        // Its turn comes again as soon as the socket is writable.
                        self.out = std::mem::take(shared.out);
                        self.wants = Wants { read: false, write: true };
                        break;
                    }
                }
                Next::WaitUntil(due_ns) => {
                    wait_until_ns = Some(due_ns);
                    self.wants = Wants { read: self.may_read_ahead(input), write: false };
                    break;
                }
                Next::Hold if self.peer_ended => return Outcome::Closed,
                Next::Hold => {
                    self.wants = Wants { read: true, write: false };
                    *input = &[];
                    break;
                }
                Next::Close if input.is_empty() => {
                    self.say_goodbye();
                    return Outcome::Closed;
                }
                // Closing over unread input would reset the connection and lose the reply.
                Next::Close | Next::Linger => {
                    self.say_goodbye();
                    // A peer that is already gone needs no end of stream.
                    let _ = self.stream.shutdown(Shutdown::Write);
                    let until_ns = shared.clock.now().ns + LINGER_NS;
                    self.lingers_until_ns = Some(until_ns);
                    wait_until_ns = Some(until_ns);
                    self.wants = Wants { read: true, write: false };
                    *input = &[];
                    break;
                }
                Next::Reset => {
                    // Lingering for no time makes the close a reset; a failure only makes it tame.
                    let _ =
                        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO));
                    return Outcome::Closed;
                }
            }
        }
        Outcome::Open(wait_until_ns)
    }

    fn may_read_ahead(&self, input: &[u8]) -> bool {
        !self.peer_ended && input.len() < WAITING_INPUT_BYTES_MAX
    }

    fn say_goodbye(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _ = tls.write_tls(&mut self.stream);
        }
    }

    /// Sends what is owed; true once nothing is left.
    fn flush(&mut self, shared: &mut Shared<'_>) -> io::Result<bool> {
        if self.tls.is_some() {
            return self.flush_tls(shared);
        }
        if !self.out.is_empty() {
            let sent = write_all(&mut self.stream, &self.out)?;
            self.session.sent(sent);
            if sent < self.out.len() {
                self.out.drain(..sent);
                return Ok(false);
            }
            self.out = Vec::new();
        }
        if !shared.out.is_empty() {
            let sent = write_all(&mut self.stream, shared.out)?;
            self.session.sent(sent);
            if sent < shared.out.len() {
                self.out = shared.out.get(sent..).unwrap_or_default().to_vec();
            }
            shared.out.clear();
        }
        Ok(self.out.is_empty())
    }

    fn flush_tls(&mut self, shared: &mut Shared<'_>) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else { return Ok(true) };
        for out in [&mut self.out, shared.out] {
            if !out.is_empty() {
                tls.writer().write_all(out)?;
                self.session.sent(out.len());
                out.clear();
            }
        }
        while tls.wants_write() {
            match tls.write_tls(&mut self.stream) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Writes until all is written or the socket is full; returns how much was written.
fn write_all(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match stream.write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes.len() - rest.len())
}
