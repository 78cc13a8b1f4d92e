//! One connection: its socket, its TLS session, and what is still to be written.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::{ClientConfig, ClientConnection};
use rustls_pki_types::ServerName;
use socket2::{Domain, Protocol, Socket, Type};

use super::exchange::TlsInfo;
use super::kernel_times::{self, ClockPair};
use super::template::Template;
use crate::clock::now_ns;

const SCRATCH_BYTES: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Connecting,
    Handshaking,
    Busy,
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    All,
    Blocked,
}

/// A request on its way out: head, then body, and how far it got.
#[derive(Debug, Default)]
struct Outgoing {
    template: Option<Arc<Template>>,
    /// The head, if it is not the template's: with cookies, or without keep-alive.
    head: Option<Box<[u8]>>,
    at: usize,
}

impl Outgoing {
    /// What is still to be written of head and body.
    fn rest(&self) -> (&[u8], &[u8]) {
        let Some(template) = &self.template else { return (&[], &[]) };
        let head = self.head.as_deref().unwrap_or(&template.head_and_end);
        let body = template.body.as_ref().map_or(&[][..], |body| &body.bytes);
        let body_at = self.at.saturating_sub(head.len());
        (head.get(self.at..).unwrap_or_default(), body.get(body_at..).unwrap_or_default())
    }
}

/// Buffers that the connections of an engine share, each for the time of one read.
#[derive(Debug)]
pub struct Scratch {
    received: Box<[u8]>,
    decrypted: Box<[u8]>,
}

impl Default for Scratch {
    fn default() -> Self {
        let room = || vec![0; SCRATCH_BYTES].into_boxed_slice();
        Self { received: room(), decrypted: room() }
    }
}

/// What one read from the socket brought.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// When it was there.
    pub at_ns: u64,
    /// The kernel said so; else, when it was read.
    pub is_timed: bool,
    /// The peer has closed; nothing more comes.
    pub is_end: bool,
    /// There was room for more than came: the socket is empty.
    pub is_drained: bool,
}

#[derive(Debug)]
pub struct Conn {
    pub socket: TcpStream,
    pub remote: SocketAddr,
    tls: Option<Box<ClientConnection>>,
    outgoing: Outgoing,
    pub stage: Stage,
    pub origin: u32,
    /// The virtual user this connection belongs to, where connections are not shared.
    pub vu: u32,
    /// The request it carries or is being opened for.
    pub request: Option<u32>,
    pub generation: u32,
    /// Requests already answered on it.
    pub uses: u32,
    /// A request could not be written whole yet.
    pub wants_write: bool,
    /// The kernel notes when data arrives.
    is_timed: bool,
}

impl Conn {
    /// Begins connecting; the socket becomes writable when that has ended.
    pub fn open(
        address: SocketAddr,
        tls: Option<(Arc<ClientConfig>, &str)>,
        origin: u32,
        vu: u32,
        request: u32,
        generation: u32,
        kernel_times: bool,
    ) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        let is_timed = kernel_times && kernel_times::enable(&socket);
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let tls = match tls {
            Some((config, host)) => {
                let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
                Some(Box::new(ClientConnection::new(config, name).map_err(io::Error::other)?))
            }
            None => None,
        };
        Ok(Self {
            socket: socket.into(),
            remote: address,
            tls,
            outgoing: Outgoing::default(),
            stage: Stage::Connecting,
            origin,
            vu,
            request: Some(request),
            generation,
            uses: 0,
            wants_write: true,
            is_timed,
        })
    }

    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    #[must_use]
    pub fn tls_info(&self) -> Option<TlsInfo> {
        let session = self.tls.as_ref()?;
        Some(TlsInfo {
            version: session.protocol_version().and_then(|version| version.as_str()),
            cipher: session.negotiated_cipher_suite().and_then(|s| s.suite().as_str()),
        })
    }

    /// Lays out a new request. `head` replaces the template's if given.
    pub fn load(&mut self, template: &Arc<Template>, head: Option<Box<[u8]>>) {
        match &self.outgoing.template {
            Some(loaded) if Arc::ptr_eq(loaded, template) => {}
            _ => self.outgoing.template = Some(template.clone()),
        }
        self.outgoing.head = head;
        self.outgoing.at = 0;
    }

    /// Drives the handshake as far as the socket allows. True when it is done.
    pub fn handshake(&mut self) -> io::Result<bool> {
        let Some(session) = self.tls.as_deref_mut() else { return Ok(true) };
        loop {
            flush(session, &mut self.socket)?;
            if !session.is_handshaking() {
                return Ok(true);
            }
            if session.wants_write() || !receive(session, &mut self.socket)? {
                return Ok(false);
            }
        }
    }

    /// Writes what is left of the request. The second value counts its bytes taken now.
    pub fn write(&mut self) -> (io::Result<Written>, u64) {
        let before = self.outgoing.at;
        let result = self.write_rest();
        (result, (self.outgoing.at - before) as u64)
    }

    fn write_rest(&mut self) -> io::Result<Written> {
        loop {
            let (head, body) = self.outgoing.rest();
            if head.is_empty() && body.is_empty() {
                break;
            }
            let sent = match self.tls.as_deref_mut() {
                Some(session) => {
                    flush(session, &mut self.socket)?;
                    if session.wants_write() {
                        return Ok(Written::Blocked);
                    }
                    session.writer().write_vectored(&[IoSlice::new(head), IoSlice::new(body)])
                }
                None if body.is_empty() => self.socket.write(head),
                None => self.socket.write_vectored(&[IoSlice::new(head), IoSlice::new(body)]),
            };
            match sent {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.outgoing.at += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Written::Blocked);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(session) = self.tls.as_deref_mut() {
            flush(session, &mut self.socket)?;
            if session.wants_write() {
                return Ok(Written::Blocked);
            }
        }
        self.outgoing.head = None;
        Ok(Written::All)
    }

    /// Reads from the socket once; `take` gets what came, decrypted, in order. What came was sent
    /// after `sent_ns`; `clocks` were read before.
    pub fn receive(
        &mut self,
        scratch: &mut Scratch,
        clocks: &ClockPair,
        sent_ns: u64,
        mut take: impl FnMut(&[u8]),
    ) -> io::Result<Received> {
        let (count, arrived) = if self.is_timed {
            kernel_times::receive(&self.socket, &mut scratch.received)?
        } else {
            (self.socket.read(&mut scratch.received)?, None)
        };
        let arrived_ns = arrived.and_then(|unix_ns| clocks.arrived_ns(unix_ns, sent_ns));
        let (at_ns, is_timed) = (arrived_ns.unwrap_or_else(now_ns), arrived_ns.is_some());
        let is_drained = count < scratch.received.len();
        let mut is_end = count == 0;
        let mut records = scratch.received.get(..count).unwrap_or_default();
        let Some(session) = self.tls.as_deref_mut() else {
            if count > 0 {
                take(records);
            }
            return Ok(Received { at_ns, is_timed, is_end, is_drained });
        };
        while !records.is_empty() {
            if session.read_tls(&mut records)? == 0 {
                break; // said goodbye before: nothing that follows counts
            }
            let state = match session.process_new_packets() {
                Ok(state) => state,
                Err(error) => {
                    // The peer learns why, if it still listens.
                    let _ = session.write_tls(&mut self.socket);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            };
            let mut left = state.plaintext_bytes_to_read();
            while left > 0 {
                let count = session.reader().read(&mut scratch.decrypted)?;
                take(scratch.decrypted.get(..count).unwrap_or_default());
                left = left.saturating_sub(count.max(1));
            }
            is_end |= state.peer_has_closed();
        }
        flush(session, &mut self.socket)?;
        Ok(Received { at_ns, is_timed, is_end, is_drained })
    }

    /// True if nothing waits to be read.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        let mut byte = [0];
        let looked = self.socket.peek(&mut byte);
        looked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// Hands pending TLS records to the socket until it is full.
fn flush(session: &mut ClientConnection, socket: &mut TcpStream) -> io::Result<()> {
    while session.wants_write() {
        match session.write_tls(socket) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Takes TLS records from the socket. False when there were none.
fn receive(session: &mut ClientConnection, socket: &mut TcpStream) -> io::Result<bool> {
    match session.read_tls(socket) {
        Ok(0) if session.is_handshaking() => {
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed during the TLS handshake"))
        }
        Ok(_) => match session.process_new_packets() {
            Ok(_) => Ok(true),
            Err(error) => {
                // The peer learns why, if it still listens.
                let _ = session.write_tls(socket);
                Err(io::Error::new(io::ErrorKind::InvalidData, error))
            }
        },
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
        Err(error) => Err(error),
    }
}
