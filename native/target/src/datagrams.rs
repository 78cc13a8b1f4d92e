//! The UDP side of the target: a thread that sends every datagram back.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Acquire};
use std::sync::Arc;
use std::time::Duration;

use crate::counts::{Stream, Tally};

/// Datagrams that begin so get no reply, as if it were lost.
const UNANSWERED: &[u8] = b"!drop";
const DATAGRAM_BYTES_MAX: usize = 65_536;
/// How often the thread looks whether it should stop.
const LOOK: Duration = Duration::from_millis(100);

pub fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_read_timeout(Some(LOOK))?;
    // Bursts of a load generator wait here; the kernel takes less if it permits less.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 8 << 20);
    Ok(socket)
}

/// Serves until told to stop.
pub fn serve(socket: &UdpSocket, tally: &Tally, stopping: &Arc<AtomicBool>) -> io::Result<()> {
    let mut room = vec![0; DATAGRAM_BYTES_MAX];
    while !stopping.load(Acquire) {
        let (count, peer) = match socket.recv_from(&mut room) {
            Ok(received) => received,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted
                // A peer that was written to is gone.
                | io::ErrorKind::ConnectionRefused => continue,
                _ => return Err(error),
            },
        };
        let data = room.get(..count).unwrap_or_default();
        tally.stream_in(Stream::Udp, 1, count as u64);
        // A reply that the kernel does not take is lost, as any datagram may be.
        if !data.starts_with(UNANSWERED) && socket.send_to(data, peer).is_ok() {
            tally.stream_out(Stream::Udp, 1, count as u64);
        }
    }
    Ok(())
}
