//! How requests end and what becomes of their connections; deadlines.

use std::io;
use std::os::fd::AsFd;

use rustix::time::{timerfd_settime, Itimerspec, TimerfdTimerFlags, Timespec};

use super::conn::Stage;
use super::error::{ErrorClass, Failure};
use super::response::Keep;
use super::{decode, Done, Engine, Mode, Request, RequestKey, Vu};
use crate::clock::now_ns;
use crate::recorder::Recorder;

impl<T> Engine<T> {
    /// An answered connection waits for its next request.
    pub(super) fn release(&mut self, number: u32, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        conn.request = None;
        conn.stage = Stage::Idle;
        conn.uses += 1;
        let (origin_number, vu) = (conn.origin, conn.vu);
        match self.options.mode {
            Mode::PerVu => {
                let index = vu as usize;
                if self.vus.len() <= index {
                    self.vus.resize_with(index + 1, Vu::default);
                }
                if let Some(vu) = self.vus.get_mut(index) {
                    vu.idle.push((origin_number, number));
                }
            }
            Mode::Shared => {
                if let Some(origin) = self.origins.get_mut(origin_number as usize) {
                    origin.idle.push(number);
                }
                self.serve_waiting(origin_number, recorder);
            }
            Mode::PerRequest => self.close(number),
        }
    }

    /// Shared mode: gives idle or newly allowed connections to who waits longest.
    pub(super) fn serve_waiting(&mut self, origin_number: u32, recorder: &mut Recorder) {
        loop {
            let Some(origin) = self.origins.get_mut(origin_number as usize) else { return };
            if origin.idle.is_empty() && origin.open >= self.options.shared_max {
                return;
            }
            let Some(key) = origin.waiting.pop_front() else { return };
            if self.is_live(key) {
                return self.dispatch(key.slot, recorder);
            }
        }
    }

    pub(super) fn close(&mut self, number: u32) {
        let Some(conn) = self.conns.try_remove(number as usize) else { return };
        if let Some(origin) = self.origins.get_mut(conn.origin as usize) {
            origin.open = origin.open.saturating_sub(1);
            if conn.stage == Stage::Idle {
                origin.idle.retain(|&idle| idle != number);
            }
        }
        if conn.stage == Stage::Idle {
            if let Some(vu) = self.vus.get_mut(conn.vu as usize) {
                vu.idle.retain(|&(_, idle)| idle != number);
            }
        }
        // Dropping the socket takes it out of the epoll set.
    }

    /// Takes a request out, and its connection with it if it still has one.
    pub(super) fn detach(&mut self, slot: u32, recorder: &mut Recorder) -> Option<Box<Request<T>>> {
        let request = self.requests.try_remove(slot as usize)?;
        if let Some(counts) = recorder.counts_mut(request.caller.step) {
            counts.bytes_sent += request.exchange.bytes_sent;
            counts.bytes_received += request.exchange.bytes_received;
        }
        Some(request)
    }

    /// Closes the connection a request leaves behind, unless it was released before.
    pub(super) fn close_after(&mut self, slot: u32, number: u32, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get(number as usize) else { return };
        if conn.request != Some(slot) {
            return;
        }
        let origin = conn.origin;
        let was_connecting = matches!(conn.stage, Stage::Connecting | Stage::Handshaking);
        self.close(number);
        if was_connecting {
            self.connect_ended(recorder);
        }
        if self.options.mode == Mode::Shared {
            self.serve_waiting(origin, recorder);
        }
    }

    pub(super) fn drop_request(&mut self, slot: u32, recorder: &mut Recorder) -> Option<T> {
        let mut request = self.detach(slot, recorder)?;
        if let Some(number) = request.conn {
            self.close_after(slot, number, recorder);
        }
        request.token.take()
    }

    /// Ends a request without a usable response, now.
    pub(super) fn fail(&mut self, slot: u32, failure: Failure, recorder: &mut Recorder) {
        self.finish(slot, Some(failure), now_ns(), recorder);
    }

    pub(super) fn finish(
        &mut self,
        slot: u32,
        failure: Option<Failure>,
        now: u64,
        recorder: &mut Recorder,
    ) {
        let Some(mut request) = self.detach(slot, recorder) else { return };
        if let Some(number) = request.conn {
            if let Some(conn) = self.conns.get(number as usize).filter(|conn| conn.is_tls()) {
                request.exchange.tls = conn.tls_info();
            }
            self.close_after(slot, number, recorder);
        }
        let latency_ns = now.saturating_sub(request.since_ns());
        request.exchange.contains_hold =
            self.held_until_ns > request.since_ns() && !request.is_covered();
        let limit = request.exchange.template.limits.body_bytes_max;
        let Request { response, exchange, caller, .. } = &mut *request;
        exchange.body = std::mem::take(&mut response.body);
        exchange.head = response.head.take();
        exchange.failure = failure;
        let encoding = response.rare.as_mut().and_then(|rare| rare.encoding.take());
        // A sample of a failure is only the start of a body.
        let is_whole = caller.keep == Keep::Body && !exchange.body.is_empty();
        if let (None, Some(encoding), true) = (&exchange.failure, encoding, is_whole) {
            match decode::decode(&encoding, std::mem::take(&mut exchange.body), limit) {
                Ok(body) => exchange.body = body,
                Err(failure) => exchange.failure = Some(failure),
            }
        }
        exchange.status = if exchange.failure.is_none() { response.status } else { 0 };
        exchange.minor_version = response.minor_version;
        exchange.latency_ns = latency_ns;
        exchange.ended_ns = now;
        self.done.push_back(Done(request));
    }

    pub(super) fn is_live(&self, key: RequestKey) -> bool {
        self.requests.get(key.slot as usize).is_some_and(|r| r.generation == key.generation)
    }

    pub(super) fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1).max(1);
        self.generation
    }

    pub(super) fn on_timer(&mut self, recorder: &mut Recorder) {
        let mut ticks = [0; 8];
        // Already read when the timer was set anew meanwhile.
        let _ = rustix::io::read(&self.timer, &mut ticks);
        self.timer_at_ns = None;
        let now = now_ns();
        while let Some(slot) = self.timers.pop(now) {
            let Some(request) = self.requests.get(slot as usize) else { continue };
            if request.deadline_ns > now {
                let deadline_ns = request.deadline_ns;
                self.timers.arm(slot, deadline_ns);
            } else {
                self.on_timeout(slot, recorder);
            }
        }
    }

    pub(super) fn on_timeout(&mut self, slot: u32, recorder: &mut Recorder) {
        let Some(request) = self.requests.get(slot as usize) else { return };
        let limits = request.exchange.template.limits;
        let total = request.deadline_ns >= request.total_deadline_ns;
        let stage = request.conn.and_then(|n| self.conns.get(n as usize)).map(|conn| conn.stage);
        if let (false, Some(Stage::Connecting), Some(number), true) =
            (total, stage, request.conn, self.has_untried_address(request))
        {
            let error = io::ErrorKind::TimedOut.into();
            return self.connect_broke(slot, number, &error, recorder);
        }
        let detail = match (total, stage) {
            (true, _) => {
                format!("the response was not complete within {}", seconds(limits.total_ns))
            }
            (false, Some(Stage::Busy)) => format!("silence for {}", seconds(limits.read_ns)),
            (false, _) => format!("no connection within {}", seconds(limits.connect_ns)),
        };
        self.fail(slot, Failure::new(ErrorClass::Timeout, detail), recorder);
    }

    pub(super) fn rearm_timer(&mut self) {
        let Some(next_ns) = self.timers.next_ns() else { return };
        if self.timer_at_ns.is_some_and(|at_ns| at_ns <= next_ns) {
            return;
        }
        self.timer_at_ns = Some(next_ns);
        let at = Timespec {
            tv_sec: (next_ns / 1_000_000_000) as i64,
            tv_nsec: (next_ns % 1_000_000_000) as i64,
        };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let when = Itimerspec { it_interval: never, it_value: at };
        // A valid descriptor and a valid time: this cannot fail.
        let _ = timerfd_settime(self.timer.as_fd(), TimerfdTimerFlags::ABSTIME, &when);
    }
}

fn seconds(ns: u64) -> String {
    format!("{} s", (ns / 1_000_000) as f64 / 1000.0)
}
