//! Starting and stopping the server: the listening socket and its worker threads.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use socket2::{Domain, Protocol, Socket, Type};

use crate::counts::Totals;
use crate::datagrams;
use crate::quic;
use crate::tls::{server_config, Identity, TlsError};
use crate::worker::{Acceptor, Door, Worker};

const BACKLOG: i32 = 16_384;
const THREADS_MAX: usize = 256;

#[derive(Clone, Debug)]
pub struct Options {
    pub host: String,
    /// 0 takes any free port.
    pub port: u16,
    pub threads: usize,
    /// A port whose connections are echoed, with TLS if the server has it.
    pub tcp_port: Option<u16>,
    /// A port whose datagrams are echoed.
    pub udp_port: Option<u16>,
    /// A port that serves HTTP/3; needs `tls`.
    pub http3_port: Option<u16>,
    pub tls: Option<Identity>,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("host {host:?} is not an address of this machine and cannot be resolved: {why}")]
    Host { host: String, why: String },
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("HTTP/3 needs a certificate and its key")]
    Http3WithoutTls,
    #[error("{0} threads: must be 1 to 256")]
    Threads(usize),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the server could not be started: {0}")]
    Io(#[from] io::Error),
}

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct Target {
    address: SocketAddr,
    tcp_address: Option<SocketAddr>,
    udp_address: Option<SocketAddr>,
    http3_address: Option<SocketAddr>,
    stopping: Arc<AtomicBool>,
    totals: Totals,
    doors: Vec<Arc<Door>>,
    threads: Mutex<Vec<JoinHandle<io::Result<()>>>>,
}

impl Target {
    /// Listening, and served by its own threads, once this returns.
    pub fn start(options: &Options) -> Result<Self, StartError> {
        if !(1..=THREADS_MAX).contains(&options.threads) {
            return Err(StartError::Threads(options.threads));
        }
        let offered: [&[u8]; 2] = [b"h2", b"http/1.1"];
        let tls = options.tls.as_ref().map(|identity| server_config(identity, &offered));
        let tls = tls.transpose()?;
        let quic = match (options.http3_port, &options.tls) {
            (None, _) => None,
            (Some(_), None) => return Err(StartError::Http3WithoutTls),
            (Some(port), Some(identity)) => Some((port, quic::configure(identity)?)),
        };
        raise_descriptor_limit();
        let (listener, address) = listen(&options.host, options.port)?;
        let raw = options.tcp_port.map(|port| listen(&options.host, port)).transpose()?;
        let (raw_listener, tcp_address) = raw.unzip();
        let bind = |port| {
            let address = SocketAddr::new(address.ip(), port);
            let socket = datagrams::bind(address)
                .map_err(|source| StartError::Listen { address, source })?;
            Ok::<_, StartError>((socket.local_addr()?, socket))
        };
        let (udp_address, udp_socket) = options.udp_port.map(bind).transpose()?.unzip();
        let (quic_port, quic_config) = quic.unzip();
        let (http3_address, quic_socket) = quic_port.map(bind).transpose()?.unzip();
        let totals = Totals::default();
        let doors = (0..options.threads)
            .map(|_| Door::new().map(Arc::new))
            .collect::<io::Result<Vec<_>>>()?;
        let mut acceptor = Some(Acceptor { listener, raw_listener, doors: doors.clone(), turn: 0 });
        let target = Self {
            address,
            tcp_address,
            udp_address,
            http3_address,
            stopping: Arc::default(),
            totals: totals.clone(),
            doors,
            threads: Mutex::new(Vec::new()),
        };
        for (index, door) in target.doors.iter().enumerate() {
            let worker =
                Worker::new(Arc::clone(door), acceptor.take(), tls.clone(), totals.tally())?;
            target.spawn(&format!("target-{index}"), move || worker.run())?;
        }
        if let Some(socket) = udp_socket {
            let (tally, stopping) = (totals.tally(), Arc::clone(&target.stopping));
            target.spawn("target-udp", move || datagrams::serve(&socket, &tally, &stopping))?;
        }
        if let (Some(socket), Some(config)) = (quic_socket, quic_config) {
            let (tally, stopping) = (totals.tally(), Arc::clone(&target.stopping));
            target.spawn("target-http3", move || quic::serve(socket, config, tally, &stopping))?;
        }
        Ok(target)
    }

    fn spawn(
        &self,
        name: &str,
        serve: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(serve)?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    /// Where raw connections are echoed, if they are.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp_address
    }

    /// Where datagrams are echoed, if they are.
    #[must_use]
    pub fn udp_address(&self) -> Option<SocketAddr> {
        self.udp_address
    }

    /// Where HTTP/3 is served, if it is.
    #[must_use]
    pub fn http3_address(&self) -> Option<SocketAddr> {
        self.http3_address
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Closes every connection and ends the threads. Calling it again does nothing.
    pub fn stop(&self) -> io::Result<()> {
        self.stopping.store(true, Release);
        for door in &self.doors {
            door.stop();
        }
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let mut outcome = Ok(());
        for thread in threads {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => outcome = Err(error),
                Err(_) => outcome = Err(io::Error::other("a target thread panicked")),
            }
        }
        outcome
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Whoever wants to know calls `stop`.
        let _ = self.stop();
    }
}

fn listen(host: &str, port: u16) -> Result<(TcpListener, SocketAddr), StartError> {
    let unresolved = |why: String| StartError::Host { host: host.to_owned(), why };
    // An IPv6 address may be written as in a URL.
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let address = (bare, port)
        .to_socket_addrs()
        .map_err(|error| unresolved(error.to_string()))?
        .next()
        .ok_or_else(|| unresolved("it has no address".to_owned()))?;
    let open = || -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        // Accepted sockets inherit it.
        socket.set_tcp_nodelay(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    let listener = open().map_err(|source| StartError::Listen { address, source })?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Ten thousand connections need as many descriptors; the default limit is often 1,024.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // Without the permission the old limit holds, and accepting rests when it is reached.
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        let _ = setrlimit(Resource::Nofile, raised);
    }
}
