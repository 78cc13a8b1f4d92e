//! The QUIC side of the target: a thread that serves HTTP/3 on a UDP port.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Acquire};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::{
    ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig, ServerConfig, Transmit,
    TransportConfig, VarInt,
};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::net::{recvfrom, RecvFlags};

use crate::clock::Clock;
use crate::counts::Tally;
use crate::http3::Http3;
use crate::tls::{server_config, Identity, TlsError};

const STREAMS_MAX: u32 = 1000;
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
const IDLE_MS: u32 = 60_000;
const DATAGRAM_BYTES_MAX: usize = 65_536;
/// Datagrams that are read before any is answered.
const READS_MAX: u32 = 64;
/// How often the thread looks whether it should stop.
const LOOK: Duration = Duration::from_millis(100);

/// What connections are accepted with.
pub fn configure(identity: &Identity) -> Result<Arc<ServerConfig>, TlsError> {
    let tls = server_config(identity, &[b"h3"])?;
    let crypto =
        QuicServerConfig::try_from(tls).map_err(|error| TlsError::Unusable(error.to_string()))?;
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_MAX))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW))
        .max_idle_timeout(Some(VarInt::from_u32(IDLE_MS).into()))
        .datagram_receive_buffer_size(None)
        .mtu_discovery_config(None);
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(Arc::new(transport)).migration(false);
    Ok(Arc::new(config))
}

/// Serves until told to stop.
pub fn serve(
    socket: UdpSocket,
    config: Arc<ServerConfig>,
    tally: Tally,
    stopping: &Arc<AtomicBool>,
) -> io::Result<()> {
    let endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), Some(config), false, None);
    let mut server = Server {
        socket,
        endpoint,
        connections: HashMap::new(),
        wakes: BinaryHeap::new(),
        changed: Vec::new(),
        tally,
        clock: Clock::start(),
        out: Vec::new(),
    };
    let mut room = vec![0; DATAGRAM_BYTES_MAX];
    while !stopping.load(Acquire) {
        server.wait()?;
        server.clock.follow_wall_clock();
        server.receive(&mut room)?;
        server.wake();
        server.advance();
    }
    for (_, connection) in server.connections.drain() {
        connection.session.closed(&server.tally);
    }
    Ok(())
}

struct Connection {
    session: Http3,
    remote: SocketAddr,
    is_changed: bool,
    /// When its entry among the timers comes up.
    wakes_at: Option<Instant>,
    reply_due: Option<Instant>,
}

struct Server {
    socket: UdpSocket,
    endpoint: Endpoint,
    connections: HashMap<ConnectionHandle, Connection>,
    /// Timers of connections; one that was set anew has several entries.
    wakes: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Connections that have something to do.
    changed: Vec<ConnectionHandle>,
    tally: Tally,
    clock: Clock,
    out: Vec<u8>,
}

impl Server {
    /// Waits for datagrams or a timer.
    fn wait(&self) -> io::Result<()> {
        let now = Instant::now();
        let until = self.wakes.peek().map(|Reverse((at, _))| at.saturating_duration_since(now));
        let wait = until.map_or(LOOK, |until| until.min(LOOK));
        let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
        let mut sockets = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut sockets, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn receive(&mut self, room: &mut [u8]) -> io::Result<()> {
        for _ in 0..READS_MAX {
            let received = recvfrom(&self.socket, &mut *room, RecvFlags::DONTWAIT);
            let (count, remote) = match received {
                Ok((count, _, remote)) => (count, remote),
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                // A peer that was written to is gone.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNREFUSED) => continue,
                Err(error) => return Err(error.into()),
            };
            let Some(remote) = remote.and_then(|address| SocketAddr::try_from(address).ok()) else {
                continue;
            };
            self.take(room.get(..count).unwrap_or_default(), remote);
        }
        Ok(())
    }

    fn take(&mut self, datagram: &[u8], remote: SocketAddr) {
        let now = Instant::now();
        let data = BytesMut::from(datagram);
        self.out.clear();
        match self.endpoint.handle(now, remote, None, None, data, &mut self.out) {
            None => {}
            Some(DatagramEvent::Response(transmit)) => self.send(&transmit),
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(connection) = self.connections.get_mut(&handle) {
                    connection.session.connection().handle_event(event);
                    self.change(handle);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.out.clear();
                match self.endpoint.accept(incoming, now, &mut self.out, None) {
                    Ok((handle, connection)) => {
                        self.tally.accepted();
                        let connection = Connection {
                            session: Http3::new(connection),
                            remote,
                            is_changed: false,
                            wakes_at: None,
                            reply_due: None,
                        };
                        self.connections.insert(handle, connection);
                        self.change(handle);
                    }
                    Err(error) => {
                        self.tally.tls_failed();
                        if let Some(transmit) = error.response {
                            self.send(&transmit);
                        }
                    }
                }
            }
        }
    }

    fn send(&self, transmit: &Transmit) {
        let datagram = self.out.get(..transmit.size).unwrap_or_default();
        // What the kernel does not take is lost, as any datagram may be.
        let _ = self.socket.send_to(datagram, transmit.destination);
    }

    fn change(&mut self, handle: ConnectionHandle) {
        if let Some(connection) = self.connections.get_mut(&handle) {
            if !std::mem::replace(&mut connection.is_changed, true) {
                self.changed.push(handle);
            }
        }
    }

    /// Handles timers that have come up.
    fn wake(&mut self) {
        let now = Instant::now();
        while let Some(&Reverse((at, number))) = self.wakes.peek() {
            if at > now {
                return;
            }
            self.wakes.pop();
            let handle = ConnectionHandle(number);
            let Some(connection) = self.connections.get_mut(&handle) else { continue };
            if connection.wakes_at != Some(at) {
                continue; // set anew since
            }
            connection.wakes_at = None;
            let quic = connection.session.connection();
            if quic.poll_timeout().is_some_and(|at| at <= now) {
                quic.handle_timeout(now);
            }
            self.change(handle);
        }
    }

    /// Answers on every connection that has something to do.
    fn advance(&mut self) {
        for handle in std::mem::take(&mut self.changed) {
            let Some(connection) = self.connections.get_mut(&handle) else { continue };
            connection.is_changed = false;
            let (now, at) = (self.clock.now(), Instant::now());
            let due_ns = connection.session.advance(now, at, &self.tally);
            connection.reply_due =
                due_ns.map(|ns| at + Duration::from_nanos(ns.saturating_sub(now.ns)));
            let quic = connection.session.connection();
            loop {
                self.out.clear();
                let Some(transmit) = quic.poll_transmit(at, 1, &mut self.out) else { break };
                let datagram = self.out.get(..transmit.size).unwrap_or_default();
                let _ = self.socket.send_to(datagram, connection.remote);
            }
            while let Some(event) = quic.poll_endpoint_events() {
                if let Some(event) = self.endpoint.handle_event(handle, event) {
                    quic.handle_event(event);
                }
            }
            if quic.is_drained() {
                if let Some(connection) = self.connections.remove(&handle) {
                    connection.session.closed(&self.tally);
                }
                continue;
            }
            let wakes_at = [quic.poll_timeout(), connection.reply_due].into_iter().flatten().min();
            if connection.wakes_at != wakes_at {
                connection.wakes_at = wakes_at;
                if let Some(at) = wakes_at {
                    self.wakes.push(Reverse((at, handle.0)));
                }
            }
        }
    }
}
