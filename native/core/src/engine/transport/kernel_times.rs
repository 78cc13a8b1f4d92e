//! When data arrived, by the kernel's own clock readings.
//!
//! While code of the test holds the event loop, responses wait in the sockets. The kernel notes
//! when each packet arrived (software `SO_TIMESTAMPING`), so that latencies do not contain that
//! wait. It uses the wall clock; `ClockPair` converts.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::AsRawFd;

use crate::clock::{now_ns, unix_ns};

static FLAGS: libc::c_uint = libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
/// Room for one `SCM_TIMESTAMPING` message, which has three times.
const CONTROL_WORDS: usize = 16;

/// Has the kernel note when data arrives on this socket. False if it cannot.
pub fn enable(socket: &impl AsRawFd) -> bool {
    let length = size_of::<libc::c_uint>() as libc::socklen_t;
    let value = (&raw const FLAGS).cast();
    // SAFETY: the descriptor is open, and the option is read before the call returns.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPING, value, length)
    };
    set == 0
}

/// Reads like `recv`. The second value is when the last of the data arrived, in nanoseconds of the
/// wall clock, if the kernel says so.
pub fn receive(socket: &impl AsRawFd, buffer: &mut [u8]) -> io::Result<(usize, Option<u64>)> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = [0_u64; CONTROL_WORDS];
    // SAFETY: all zero is a valid `msghdr`.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: `message` points to buffers that outlive the call, with their lengths.
    let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    Ok((count, arrival_ns(&message)))
}

fn arrival_ns(message: &libc::msghdr) -> Option<u64> {
    // SAFETY: the kernel filled the control buffer of `message`, which is still there.
    let header = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) {
        return None;
    }
    // SAFETY: data of this type begins with the software time, a `timespec`.
    let at = unsafe { libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned() };
    let (seconds, ns) = (u64::try_from(at.tv_sec).ok()?, u64::try_from(at.tv_nsec).ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(ns).filter(|&at_ns| at_ns > 0)
}

/// Both clocks at one moment. Read once per batch of sockets that are ready.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClockPair {
    pub monotonic_ns: u64,
    pub unix_ns: u64,
}

impl ClockPair {
    #[must_use]
    pub fn now() -> Self {
        Self { monotonic_ns: now_ns(), unix_ns: unix_ns() }
    }

    /// When data arrived, on the engine's clock; None if that was before the machine was started:
    /// the wall clock was set.
    #[must_use]
    pub fn arrived_ns(&self, unix_ns: u64) -> Option<u64> {
        if unix_ns <= self.unix_ns {
            self.monotonic_ns.checked_sub(self.unix_ns - unix_ns)
        } else {
            self.monotonic_ns.checked_add(unix_ns - self.unix_ns)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ClockPair;

    #[test]
    fn an_arrival_is_converted_unless_the_wall_clock_was_set() {
        let pair = ClockPair { monotonic_ns: 5_000, unix_ns: 1_000_000 };
        assert_eq!(pair.arrived_ns(999_400), Some(4_400));
        assert_eq!(pair.arrived_ns(1_000_200), Some(5_200)); // after the pair was read
        assert_eq!(pair.arrived_ns(900_000), None); // before the machine was started
    }
}
