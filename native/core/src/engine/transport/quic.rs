//! QUIC connections: packets, loss recovery and streams are those of quinn-proto.
//!
//! Datagrams and times go in, datagrams and events of streams come out. Each connection has a UDP
//! socket of its own, which `Transport` owns. 0-RTT and migration are off.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionHandle, DatagramEvent, Endpoint,
    EndpointConfig, Event, IdleTimeout, RandomConnectionIdGenerator, StreamEvent, TransportConfig,
    TransportErrorCode, VarInt,
};
use socket2::Socket;

use super::tls::TlsError;
use crate::clock::now_ns;
use crate::engine::error::{ErrorClass, Failure};
use crate::http3::frame::ErrorCode;

/// What the server may send of one body, and of all bodies, before we say that more is welcome.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;
/// Streams that the server may open: its control stream, those of QPACK, and unknown ones.
const SERVER_STREAMS: u32 = 32;
const IDLE_MS: u32 = 60_000;
/// Alerts of TLS: RFC 8446 §6.
const ALERT_CERTIFICATE_EXPIRED: u64 = 45;
const ALERT_UNKNOWN_CA: u64 = 48;
const ALERT_NO_APPLICATION_PROTOCOL: u64 = 120;

/// The same moment on the clock of the engine and on that of quinn-proto.
static ORIGIN: LazyLock<(u64, Instant)> = LazyLock::new(|| (now_ns(), Instant::now()));

/// Connections have their socket to themselves, so that they need no identifiers of their own.
static ENDPOINT: LazyLock<Arc<EndpointConfig>> = LazyLock::new(|| {
    let mut config = EndpointConfig::default();
    config.cid_generator(|| Box::new(RandomConnectionIdGenerator::new(0)));
    Arc::new(config)
});

fn instant(at_ns: u64) -> Instant {
    let (origin_ns, origin) = *ORIGIN;
    origin + Duration::from_nanos(at_ns.saturating_sub(origin_ns))
}

/// The configuration of connections that are secured like this.
pub fn configure(tls: Arc<rustls::ClientConfig>) -> Result<ClientConfig, TlsError> {
    let crypto =
        QuicClientConfig::try_from(tls).map_err(|error| TlsError::Setup(error.to_string()))?;
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(VarInt::from_u32(SERVER_STREAMS))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW))
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_MS))))
        .datagram_receive_buffer_size(None)
        .mtu_discovery_config(None);
    let mut config = ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// One connection.
pub struct Quic {
    endpoint: Endpoint,
    handle: ConnectionHandle,
    connection: Connection,
    remote: SocketAddr,
    events: VecDeque<StreamEvent>,
    is_connected: bool,
    loss: Option<Failure>,
    /// A datagram that the socket has not taken.
    unsent: Vec<u8>,
    /// The latest time that the connection was told. It must not go back.
    latest_ns: u64,
}

impl fmt::Debug for Quic {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Quic").field("remote", &self.remote).finish_non_exhaustive()
    }
}

impl Quic {
    /// Begins a handshake with `host` at `remote`.
    pub fn connect(config: ClientConfig, remote: SocketAddr, host: &str) -> io::Result<Self> {
        let mut endpoint = Endpoint::new(ENDPOINT.clone(), None, false, None);
        let latest_ns = now_ns();
        let (handle, connection) =
            endpoint.connect(instant(latest_ns), config, remote, host).map_err(io::Error::other)?;
        Ok(Self {
            endpoint,
            handle,
            connection,
            remote,
            events: VecDeque::new(),
            is_connected: false,
            loss: None,
            unsent: Vec::new(),
            latest_ns,
        })
    }

    /// Whether the handshake is done.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Why the connection is over, if it is.
    #[must_use]
    pub fn loss(&self) -> Option<&Failure> {
        self.loss.as_ref()
    }

    /// Whether streams have changed, or the connection is over.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.events.is_empty() || self.loss.is_some()
    }

    pub fn next_event(&mut self) -> Option<StreamEvent> {
        self.events.pop_front()
    }

    /// The streams and their bytes.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// When `on_time` has to be called, if nothing else happens.
    #[must_use]
    pub fn wakes_at_ns(&mut self) -> Option<u64> {
        let at = self.connection.poll_timeout()?;
        let (origin_ns, origin) = *ORIGIN;
        let since = at.saturating_duration_since(origin).as_nanos();
        Some(origin_ns.saturating_add(u64::try_from(since).unwrap_or(u64::MAX)))
    }

    pub fn on_time(&mut self, at_ns: u64) {
        let now = self.advance(at_ns);
        self.connection.handle_timeout(now);
        self.take_events();
    }

    pub fn receive(&mut self, datagram: &[u8], at_ns: u64) {
        let now = self.advance(at_ns);
        let data = BytesMut::from(datagram);
        let mut reply = Vec::new();
        let event = self.endpoint.handle(now, self.remote, None, None, data, &mut reply);
        // Other events are for servers, or reply to what is not of this connection.
        if let Some(DatagramEvent::ConnectionEvent(handle, event)) = event {
            if handle == self.handle {
                self.connection.handle_event(event);
                self.take_events();
            }
        }
    }

    /// Hands what has to be sent to the socket. False if some of it has to wait for room.
    pub fn flush(&mut self, socket: &Socket, at_ns: u64) -> io::Result<bool> {
        let now = self.advance(at_ns);
        loop {
            if self.unsent.is_empty()
                && self.connection.poll_transmit(now, 1, &mut self.unsent).is_none()
            {
                return Ok(true);
            }
            match socket.send(&self.unsent) {
                Ok(_) => self.unsent.clear(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.unsent.clear();
                    self.loss.get_or_insert_with(|| Failure::reset(&error));
                    return Err(error);
                }
            }
        }
    }

    /// Ends the connection; the peer hears why with the next flush.
    pub fn close(&mut self, code: ErrorCode, why: &'static str) {
        let code = VarInt::from_u64(code.0).unwrap_or(VarInt::MAX);
        let now = instant(self.latest_ns);
        self.connection.close(now, code, Bytes::from_static(why.as_bytes()));
    }

    /// Tells the peer that the connection is over, if it still listens.
    pub fn say_goodbye(&mut self, socket: &Socket) {
        if self.loss.is_none() {
            self.close(ErrorCode::NO_ERROR, "");
            // What cannot be sent now is lost, as any datagram may be.
            let _ = self.flush(socket, now_ns());
        }
    }

    fn advance(&mut self, at_ns: u64) -> Instant {
        self.latest_ns = self.latest_ns.max(at_ns);
        instant(self.latest_ns)
    }

    fn take_events(&mut self) {
        while let Some(event) = self.connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(self.handle, event) {
                self.connection.handle_event(event);
            }
        }
        while let Some(event) = self.connection.poll() {
            match event {
                Event::Connected => self.is_connected = true,
                Event::ConnectionLost { reason } => {
                    self.loss.get_or_insert_with(|| failure(&reason));
                }
                Event::Stream(event) => self.events.push_back(event),
                Event::HandshakeDataReady | Event::DatagramReceived | Event::DatagramsUnblocked => {
                }
            }
        }
    }
}

/// The end of a connection as users see it.
fn failure(reason: &ConnectionError) -> Failure {
    match reason {
        ConnectionError::TransportError(error) => match alert(error.code) {
            Some(number) => Failure::new(ErrorClass::Tls, describe(number, &error.reason)),
            None => Failure::protocol(format!("QUIC: {error}")),
        },
        ConnectionError::ConnectionClosed(close) => match alert(close.error_code) {
            Some(ALERT_NO_APPLICATION_PROTOCOL) => {
                Failure::new(ErrorClass::Tls, "the server does not offer HTTP/3")
            }
            Some(number) => {
                let detail = format!("the server refused the TLS handshake: alert {number}");
                Failure::new(ErrorClass::Tls, detail)
            }
            None => {
                let detail = format!("the server closed the connection: {close}");
                Failure::new(ErrorClass::Reset, detail)
            }
        },
        ConnectionError::ApplicationClosed(close) => {
            let code = ErrorCode(close.error_code.into_inner());
            let why = String::from_utf8_lossy(&close.reason);
            let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
            let detail = format!("the server closed the connection: {code}{why}");
            Failure::new(ErrorClass::Reset, detail)
        }
        ConnectionError::VersionMismatch => {
            Failure::protocol("the server speaks another version of QUIC")
        }
        ConnectionError::TimedOut => {
            Failure::new(ErrorClass::Timeout, "the server has fallen silent")
        }
        ConnectionError::Reset => {
            Failure::new(ErrorClass::Reset, "the server no longer knows the connection")
        }
        ConnectionError::LocallyClosed | ConnectionError::CidsExhausted => {
            Failure::new(ErrorClass::Reset, "the connection was closed")
        }
    }
}

/// The alert of TLS that a code stands for (RFC 9001 §4.8).
fn alert(code: TransportErrorCode) -> Option<u64> {
    let code = u64::from(code);
    (0x100..0x200).contains(&code).then_some(code & 0xff)
}

fn describe(alert: u64, reason: &str) -> String {
    match alert {
        ALERT_UNKNOWN_CA => {
            "unknown issuer: pass ca=... with the certificate of its authority".to_owned()
        }
        ALERT_CERTIFICATE_EXPIRED => "certificate expired".to_owned(),
        ALERT_NO_APPLICATION_PROTOCOL => "the server does not offer HTTP/3".to_owned(),
        _ => reason.to_owned(),
    }
}
