//! One connection: its socket, its TLS session, and what is still to be written.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::{ClientConfig, ClientConnection};
use rustls_pki_types::ServerName;
use socket2::{Domain, Protocol, Socket, Type};

use super::exchange::TlsInfo;

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
    head: Vec<u8>,
    body: Option<Arc<[u8]>>,
    at: usize,
}

impl Outgoing {
    fn len(&self) -> usize {
        self.head.len() + self.body.as_ref().map_or(0, |body| body.len())
    }

    fn rest(&self) -> (&[u8], &[u8]) {
        let head = self.head.get(self.at..).unwrap_or_default();
        let body_at = self.at.saturating_sub(self.head.len());
        let body = self.body.as_ref().and_then(|body| body.get(body_at..)).unwrap_or_default();
        (head, body)
    }
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
    /// Whether the engine asked to hear when it can be written to.
    pub wants_write: bool,
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
    ) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
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

    /// Lays out a new request; `fill` writes the head into an empty buffer.
    pub fn load(&mut self, body: Option<Arc<[u8]>>, fill: impl FnOnce(&mut Vec<u8>)) {
        self.outgoing.head.clear();
        fill(&mut self.outgoing.head);
        self.outgoing.body = body;
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

    /// Whether TLS has bytes waiting for a writable socket.
    #[must_use]
    pub fn is_write_blocked(&self) -> bool {
        self.tls.as_ref().is_some_and(|session| session.wants_write())
    }

    /// Writes what is left of the request. The second value counts its bytes taken now.
    pub fn write(&mut self) -> (io::Result<Written>, u64) {
        let before = self.outgoing.at;
        let result = self.write_rest();
        (result, (self.outgoing.at - before) as u64)
    }

    fn write_rest(&mut self) -> io::Result<Written> {
        while self.outgoing.at < self.outgoing.len() {
            let (head, body) = self.outgoing.rest();
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
        self.outgoing.body = None;
        Ok(Written::All)
    }

    /// Plain bytes from the peer; 0 means it closed.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(session) = self.tls.as_deref_mut() else {
            return self.socket.read(buffer);
        };
        loop {
            match session.reader().read(buffer) {
                Ok(count) => return Ok(count),
                // Closed without a TLS goodbye: common, and framing tells what is missing.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !receive(session, &mut self.socket)? {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                    flush(session, &mut self.socket)?;
                }
                Err(error) => return Err(error),
            }
        }
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
