//! Executors die with their parent, together with whatever user code forked.
//!
//! Two independent triggers, because either alone has a hole: the control socket's
//! far end closing (a watchdog thread, so it works while user code hogs the
//! interpreter) and the kernel's parent-death signal (so it works before the
//! watchdog runs). Both kill the whole process group; the parent-death signal must
//! therefore not be SIGKILL, which would spare what user code forked.

use std::os::fd::{BorrowedFd, RawFd};

use rustix::event::{poll, PollFd, PollFlags};
use rustix::process::{getpgrp, getpid, getppid, kill_current_process_group, Pid, Signal};

#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    #[error("the executor must lead its own process group")]
    NotLeader,
    #[error("the parent {expected} is already gone")]
    Orphaned { expected: i32 },
    #[error("cannot guard the process: {0}")]
    System(#[from] std::io::Error),
}

extern "C" fn on_parent_death(_signal: libc::c_int) {
    end_group();
}

fn end_group() {
    // Nothing can be done if it fails, and nothing may be allocated in a signal handler.
    let _ = kill_current_process_group(Signal::KILL);
}

/// Ties the life of this process group to `parent_pid` and to the peer of `control_fd`.
pub fn guard_process(control_fd: RawFd, parent_pid: i32) -> Result<(), GuardError> {
    if getpgrp() != getpid() {
        return Err(GuardError::NotLeader);
    }
    // SAFETY: the handler only makes one async-signal-safe system call.
    let previous =
        unsafe { libc::signal(libc::SIGHUP, on_parent_death as *const () as libc::sighandler_t) };
    if previous == libc::SIG_ERR {
        return Err(std::io::Error::last_os_error().into());
    }
    rustix::process::set_parent_process_death_signal(Some(Signal::HUP))
        .map_err(std::io::Error::from)?;
    if getppid().map(Pid::as_raw_nonzero).map(Into::into) != Some(parent_pid) {
        return Err(GuardError::Orphaned { expected: parent_pid });
    }
    std::thread::Builder::new().name("watchdog".into()).spawn(move || {
        // SAFETY: the control socket stays open for the life of the process.
        let control = unsafe { BorrowedFd::borrow_raw(control_fd) };
        loop {
            let mut fds = [PollFd::new(&control, PollFlags::RDHUP)];
            if poll(&mut fds, None).is_ok() {
                end_group();
            }
        }
    })?;
    Ok(())
}
