//! Name look-ups off the engine's thread: `getaddrinfo` blocks and has no other form.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;

use rustix::event::{eventfd, EventfdFlags};

pub type Answer = (u32, Result<Vec<SocketAddr>, String>);

/// Answers arrive on a channel; `wake` becomes readable when there is one.
#[derive(Debug)]
pub struct Resolver {
    pub wake: Arc<OwnedFd>,
    sender: Sender<Answer>,
    answers: Receiver<Answer>,
}

impl Resolver {
    pub fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (sender, answers) = channel();
        Ok(Self { wake: Arc::new(wake), sender, answers })
    }

    /// Looks `host` up for origin `id`. One thread a look-up: distinct hosts are few
    /// and each is asked once.
    pub fn start(&self, id: u32, host: &str, port: u16) -> io::Result<()> {
        let (host, sender, wake) = (host.to_owned(), self.sender.clone(), self.wake.clone());
        std::thread::Builder::new().name("resolver".into()).spawn(move || {
            // The engine may be gone by now; then nobody waits for the answer.
            let _ = sender.send((id, resolve(&host, port)));
            let _ = rustix::io::write(&wake, &1u64.to_ne_bytes());
        })?;
        Ok(())
    }

    pub fn take(&self) -> Vec<Answer> {
        let mut count = [0; 8];
        // Empty when the wake-up was already taken.
        let _ = rustix::io::read(&self.wake, &mut count);
        self.answers.try_iter().collect()
    }
}

/// Every address of `host`, in the resolver's order, without repeats.
pub fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let found = (host, port).to_socket_addrs().map_err(|error| format!("{host}: {error}"))?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        return Err(format!("{host} has no address"));
    }
    Ok(addresses)
}
