//! Connections: sockets, TLS or QUIC over them, and when data arrived. Knows no protocol.

use std::io::{self, IoSlice, Read, Write};
use std::mem::{size_of, MaybeUninit};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;

use rustls::{ClientConfig, ClientConnection};
use rustls_pki_types::ServerName;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::error::{ErrorClass, Failure};
use super::exchange::TlsInfo;
use crate::clock::now_ns;
use kernel_times::ClockPair;
use quic::Quic;
use route::Peer;
use tunnel::{Tunnel, REPLY_BYTES_MAX};

pub mod kernel_times;
pub mod quic;
pub mod resolve;
pub mod route;
pub mod tls;
pub mod tunnel;

const SCRATCH_BYTES: usize = 64 * 1024;
/// Datagrams of a QUIC connection that wait to be read; the kernel takes less if it permits less.
const QUIC_BUFFER_BYTES: usize = 2 << 20;
/// The largest datagram that a server sends during the handshake, and some more.
const QUIC_DATAGRAM_BYTES: usize = 2048;

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

/// When bytes were there.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub at_ns: u64,
    /// The kernel said so; else, when they were read.
    pub is_timed: bool,
}

/// What one read from the socket brought.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    pub arrival: Arrival,
    /// The peer has closed; nothing more comes.
    pub is_end: bool,
    /// There was room for more than came: the socket is empty.
    pub is_drained: bool,
}

/// What a connection is made of.
#[derive(Debug)]
pub enum Carrier<'h> {
    Tcp,
    Udp,
    /// TLS over TCP, with the host of this name.
    Tls(Arc<ClientConfig>, &'h str),
    Quic(quinn_proto::ClientConfig, &'h str),
}

/// A socket that connects to one peer, and TLS or QUIC over it if asked for.
#[derive(Debug)]
pub struct Transport {
    pub socket: Socket,
    /// None for a Unix socket.
    pub remote: Option<SocketAddr>,
    /// Until the proxy has passed the connection on.
    tunnel: Option<Box<Tunnel>>,
    tls: Option<Box<ClientConnection>>,
    quic: Option<Box<Quic>>,
    /// The kernel notes when data arrives.
    is_timed: bool,
    /// Every read brings one datagram.
    is_datagram: bool,
}

impl Transport {
    /// Begins connecting; the socket becomes writable when that has ended.
    pub fn open(
        peer: Peer<'_>,
        tunnel: Option<Tunnel>,
        carrier: Carrier<'_>,
        kernel_times: bool,
    ) -> io::Result<Self> {
        let is_datagram = matches!(carrier, Carrier::Udp | Carrier::Quic(..));
        let (socket, to) = match peer {
            Peer::Address { to, from } => (open_socket(to, from, is_datagram)?, to.into()),
            Peer::Unix(path) => {
                (Socket::new(Domain::UNIX, Type::STREAM, None)?, SockAddr::unix(path)?)
            }
        };
        socket.set_nonblocking(true)?;
        let is_timed = kernel_times && !to.is_unix() && kernel_times::enable(&socket);
        match socket.connect(&to) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let (tls, quic) = match carrier {
            Carrier::Tcp | Carrier::Udp => (None, None),
            Carrier::Tls(config, host) => {
                let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
                let session = ClientConnection::new(config, name).map_err(io::Error::other)?;
                (Some(Box::new(session)), None)
            }
            Carrier::Quic(config, host) => {
                let _ = socket.set_recv_buffer_size(QUIC_BUFFER_BYTES);
                let address = peer.address().ok_or(io::ErrorKind::Unsupported)?;
                (None, Some(Box::new(Quic::connect(config, address, host)?)))
            }
        };
        let (remote, tunnel) = (peer.address(), tunnel.map(Box::new));
        Ok(Self { socket, remote, tunnel, tls, quic, is_timed, is_datagram })
    }

    /// The QUIC connection, if it is one.
    pub fn quic(&mut self) -> Option<&mut Quic> {
        self.quic.as_deref_mut()
    }

    #[must_use]
    pub fn is_quic(&self) -> bool {
        self.quic.is_some()
    }

    /// Why the connection is over, if its transport knows.
    #[must_use]
    pub fn loss(&self) -> Option<Failure> {
        self.quic.as_ref()?.loss().cloned()
    }

    /// When a timer of the transport comes up.
    #[must_use]
    pub fn wakes_at_ns(&mut self) -> Option<u64> {
        self.quic.as_deref_mut()?.wakes_at_ns()
    }

    /// Handles a timer of the transport that has come up.
    pub fn on_time(&mut self, at_ns: u64) {
        if let Some(quic) = self.quic.as_deref_mut() {
            quic.on_time(at_ns);
        }
    }

    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    #[must_use]
    pub fn tls_info(&self) -> Option<TlsInfo> {
        if self.quic.is_some() {
            // There is no other, and the library does not name the cipher suite.
            return Some(TlsInfo { version: Some("TLSv1_3"), cipher: None });
        }
        let session = self.tls.as_ref()?;
        Some(TlsInfo {
            version: session.protocol_version().and_then(|version| version.as_str()),
            cipher: session.negotiated_cipher_suite().and_then(|s| s.suite().as_str()),
        })
    }

    /// The protocol that the server chose of those offered to it.
    #[must_use]
    pub fn alpn(&self) -> Option<&[u8]> {
        self.tls.as_ref()?.alpn_protocol()
    }

    #[must_use]
    pub fn has_tunnel(&self) -> bool {
        self.tunnel.is_some()
    }

    /// Asks the proxy, as far as the socket allows. True when it passes everything on. `is_closed` if
    /// nothing comes after what is there.
    pub fn open_tunnel(&mut self, is_closed: bool) -> Result<bool, Failure> {
        let Some(tunnel) = self.tunnel.as_deref_mut() else { return Ok(true) };
        let mut room = [MaybeUninit::uninit(); REPLY_BYTES_MAX];
        loop {
            while !tunnel.pending.is_empty() {
                match self.socket.send(&tunnel.pending) {
                    Ok(count) => drop(tunnel.pending.drain(..count)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return Err(tunnel.closed()),
                }
            }
            // What follows the reply of the proxy stays in the socket.
            let seen = match self.socket.peek(&mut room) {
                Ok(0) => return Err(tunnel.closed()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return Err(tunnel.closed()),
            };
            let seen = room.get(..seen).unwrap_or_default();
            // SAFETY: the call above has written these bytes.
            let seen = unsafe { &*(ptr::from_ref(seen) as *const [u8]) };
            let taken = tunnel.take(seen)?;
            if taken == 0 {
                return if is_closed { Err(tunnel.closed()) } else { Ok(false) };
            }
            let is_open = tunnel.is_open();
            // They are there: they have just been seen.
            let read = self.socket.recv(room.get_mut(..taken).unwrap_or_default());
            if read.is_err() {
                return Err(tunnel.closed());
            }
            if is_open {
                self.tunnel = None;
                return Ok(true);
            }
        }
    }

    /// Drives the handshake of TLS or QUIC as far as the socket allows. True when it is done.
    pub fn handshake(&mut self) -> io::Result<bool> {
        if let Some(quic) = self.quic.as_deref_mut() {
            return shake_hands(quic, &mut self.socket);
        }
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

    /// Writes some of `first` and then of `second`. Returns how many bytes were taken; fails with
    /// `WouldBlock` if none can be taken now.
    pub fn write(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        loop {
            let written = match self.tls.as_deref_mut() {
                Some(session) => {
                    flush(session, &mut self.socket)?;
                    if session.wants_write() {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                    session.writer().write_vectored(&[IoSlice::new(first), IoSlice::new(second)])
                }
                None if second.is_empty() => self.socket.write(first),
                None => self.socket.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]),
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                written => return written,
            }
        }
    }

    /// Hands what was written to the kernel. False if some of it has to wait for room.
    pub fn flush(&mut self) -> io::Result<bool> {
        if let Some(quic) = self.quic.as_deref_mut() {
            return quic.flush(&self.socket, now_ns());
        }
        let Some(session) = self.tls.as_deref_mut() else { return Ok(true) };
        flush(session, &mut self.socket)?;
        Ok(!session.wants_write())
    }

    /// Reads from the socket once; `take` gets what came, decrypted, in order. What came for a QUIC
    /// connection is found in its streams. `clocks` were read before.
    pub fn receive(
        &mut self,
        scratch: &mut Scratch,
        clocks: &ClockPair,
        mut take: impl FnMut(&[u8], Arrival),
    ) -> io::Result<Received> {
        if self.quic.as_ref().is_some_and(|quic| quic.has_news()) {
            let arrival = Arrival { at_ns: now_ns(), is_timed: false };
            return Ok(Received { arrival, is_end: self.loss().is_some(), is_drained: false });
        }
        let read = if self.is_timed {
            kernel_times::receive(&self.socket, &mut scratch.received)
        } else {
            self.socket.read(&mut scratch.received).map(|count| (count, None))
        };
        let (count, arrived) = match read {
            Ok(read) => read,
            Err(error) => return self.receive_left(error, scratch, take),
        };
        let arrived_ns = arrived.and_then(|unix_ns| clocks.arrived_ns(unix_ns));
        let arrival =
            Arrival { at_ns: arrived_ns.unwrap_or_else(now_ns), is_timed: arrived_ns.is_some() };
        let is_drained = count < scratch.received.len() && !self.is_datagram;
        let mut is_end = count == 0 && !self.is_datagram;
        let mut records = scratch.received.get(..count).unwrap_or_default();
        if let Some(quic) = self.quic.as_deref_mut() {
            quic.receive(records, arrival.at_ns);
            is_end = quic.loss().is_some();
            return Ok(Received { arrival, is_end, is_drained });
        }
        let Some(session) = self.tls.as_deref_mut() else {
            if count > 0 {
                take(records, arrival);
            }
            return Ok(Received { arrival, is_end, is_drained });
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
                take(scratch.decrypted.get(..count).unwrap_or_default(), arrival);
                left = left.saturating_sub(count.max(1));
            }
            is_end |= state.peer_has_closed();
        }
        flush(session, &mut self.socket)?;
        Ok(Received { arrival, is_end, is_drained })
    }

    /// The socket has nothing: takes what was decrypted with the last of the handshake.
    #[cold]
    fn receive_left(
        &mut self,
        error: io::Error,
        scratch: &mut Scratch,
        mut take: impl FnMut(&[u8], Arrival),
    ) -> io::Result<Received> {
        let Some(session) = self.tls.as_deref_mut() else { return Err(error) };
        let Ok(count) = session.reader().read(&mut scratch.decrypted) else { return Err(error) };
        let arrival = Arrival { at_ns: now_ns(), is_timed: false };
        take(scratch.decrypted.get(..count).unwrap_or_default(), arrival);
        Ok(Received { arrival, is_end: count == 0, is_drained: false })
    }

    /// True if nothing waits to be read.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        let mut byte = [std::mem::MaybeUninit::uninit()];
        let looked = self.socket.peek(&mut byte);
        looked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// A socket that can connect to an address, from a local one if that is given.
fn open_socket(to: SocketAddr, from: Option<IpAddr>, is_datagram: bool) -> io::Result<Socket> {
    let domain = Domain::for_address(to);
    let socket = if is_datagram {
        Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?
    } else {
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        socket
    };
    if let Some(from) = from {
        choose_port_late(&socket);
        let local = SocketAddr::new(from, 0);
        socket.bind(&local.into()).map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("source address {from}: {error}"))
        })?;
    }
    Ok(socket)
}

/// Has the kernel choose a local port when the socket connects, not when it is bound: then the
/// ports in use towards one peer do not count towards another.
fn choose_port_late(socket: &Socket) {
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    let (level, option) = (libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT);
    // A kernel without the option has fewer ports.
    // SAFETY: the descriptor is open, and the option is read before the call returns.
    unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), length) };
}

impl Drop for Transport {
    fn drop(&mut self) {
        if let Some(quic) = self.quic.as_deref_mut() {
            quic.say_goodbye(&self.socket);
        }
    }
}

/// Drives the handshake of a QUIC connection. True when it is done.
fn shake_hands(quic: &mut Quic, socket: &mut Socket) -> io::Result<bool> {
    let mut room = [0; QUIC_DATAGRAM_BYTES];
    loop {
        quic.flush(socket, now_ns())?;
        if let Some(failure) = quic.loss() {
            let kind = match failure.class {
                ErrorClass::Tls => io::ErrorKind::InvalidData,
                ErrorClass::Timeout => io::ErrorKind::TimedOut,
                _ => io::ErrorKind::ConnectionAborted,
            };
            return Err(io::Error::new(kind, failure.detail.clone()));
        }
        if quic.is_connected() {
            return Ok(true);
        }
        match socket.read(&mut room) {
            Ok(count) => quic.receive(room.get(..count).unwrap_or_default(), now_ns()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Hands pending TLS records to the socket until it is full.
fn flush(session: &mut ClientConnection, socket: &mut Socket) -> io::Result<()> {
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
fn receive(session: &mut ClientConnection, socket: &mut Socket) -> io::Result<bool> {
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
