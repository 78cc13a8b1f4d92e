//! How requests end and what becomes of their connections; deadlines.

use std::io;
use std::os::fd::AsFd;

use rustix::time::{timerfd_settime, Itimerspec, TimerfdTimerFlags, Timespec};

use super::conn::Stage;
use super::error::{ErrorClass, Failure};
use super::http::decode;
use super::http::reply::Keep;
use super::protocol::Session;
use super::request::{Request, RequestKey};
use super::{Done, Engine, Mode, Vu};
use crate::clock::now_ns;
use crate::recorder::Recorder;

impl<T> Engine<T> {
    /// Lets requests find a connection.
    pub(super) fn list(&mut self, number: u32) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        if std::mem::replace(&mut conn.is_listed, true) {
            return;
        }
        match self.options.mode {
            Mode::PerVu => {
                let index = conn.vu as usize;
                if self.vus.len() <= index {
                    self.vus.resize_with(index + 1, Vu::default);
                }
                if let Some(vu) = self.vus.get_mut(index) {
                    vu.listed.push((conn.origin, number));
                }
            }
            Mode::Shared => {
                if let Some(origin) = self.origins.get_mut(conn.origin as usize) {
                    origin.listed.push(number);
                }
            }
            Mode::PerRequest => conn.is_listed = false,
        }
    }

    pub(super) fn unlist(&mut self, number: u32) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        if !std::mem::replace(&mut conn.is_listed, false) {
            return;
        }
        if let Some(vu) = self.vus.get_mut(conn.vu as usize) {
            vu.listed.retain(|&(_, listed)| listed != number);
        }
        if let Some(origin) = self.origins.get_mut(conn.origin as usize) {
            origin.listed.retain(|&listed| listed != number);
        }
    }

    /// Shared mode: gives listed or newly allowed connections to who waits longest.
    pub(super) fn serve_waiting(&mut self, origin_number: u32, recorder: &mut Recorder) {
        loop {
            let Some(origin) = self.origins.get_mut(origin_number as usize) else { return };
            if origin.listed.is_empty() && origin.open >= self.options.shared_max {
                return;
            }
            let Some(key) = origin.waiting.pop_front() else { return };
            if self.is_live(key) {
                self.dispatch(key.slot, recorder);
                if self.origins.get(origin_number as usize).is_none_or(|o| o.listed.is_empty()) {
                    return;
                }
            }
        }
    }

    pub(super) fn close(&mut self, number: u32, recorder: &mut Recorder) {
        self.unlist(number);
        // Dropping the socket takes it out of the epoll set.
        let Some(conn) = self.conns.try_remove(number as usize) else { return };
        if let Some(origin) = self.origins.get_mut(conn.origin as usize) {
            origin.open = origin.open.saturating_sub(1);
        }
        if conn.stage != Stage::Open {
            self.connect_ended(recorder);
            self.dispatch_joined(number, recorder);
        }
        if self.options.mode == Mode::Shared {
            self.serve_waiting(conn.origin, recorder);
        }
    }

    /// Takes a request out of the table.
    fn detach(&mut self, slot: u32, recorder: &mut Recorder) -> Option<(Box<Request>, Option<T>)> {
        let request = self.requests.table.try_remove(slot as usize)?;
        if let Some(counts) = recorder.counts_mut(request.caller.step) {
            counts.bytes_sent += request.exchange.bytes_sent;
            counts.bytes_received += request.exchange.bytes_received;
        }
        if let Some(number) = request.conn {
            self.leave(slot, number, recorder);
        }
        let token = self.tokens.get_mut(slot as usize).and_then(Option::take);
        Some((request, token))
    }

    /// Takes a request off its connection, which may not survive that.
    pub(super) fn leave(&mut self, slot: u32, number: u32, recorder: &mut Recorder) {
        let Some(conn) = self.conns.get_mut(number as usize) else { return };
        let Some(session) = &mut conn.session else {
            if conn.opener == slot {
                self.close(number, recorder);
            }
            return;
        };
        session.cancel(slot);
        if session.listens() && session.wants_write() {
            self.write(number, recorder);
        }
        self.tend(number, true, recorder);
    }

    pub(super) fn drop_request(&mut self, slot: u32, recorder: &mut Recorder) -> Option<T> {
        self.detach(slot, recorder)?.1
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
        let Some((mut request, token)) = self.detach(slot, recorder) else { return };
        let latency_ns = now.saturating_sub(request.since_ns());
        request.exchange.contains_hold =
            self.held_until_ns > request.since_ns() && !request.is_covered();
        let limit = request.exchange.template.limits.body_bytes_max;
        let Request { reply, exchange, caller, .. } = &mut *request;
        exchange.body = std::mem::take(&mut reply.body);
        exchange.head = reply.head.take();
        exchange.failure = failure;
        exchange.grpc_status = reply.grpc_status;
        exchange.trailers = reply.rare.as_mut().and_then(|rare| rare.trailers.take());
        let encoding = reply.rare.as_mut().and_then(|rare| rare.encoding.take());
        // A sample of a failure is only the start of a body.
        let is_whole = caller.keep == Keep::Body && !exchange.body.is_empty();
        if let (None, Some(encoding), true) = (&exchange.failure, encoding, is_whole) {
            match decode::decode(&encoding, std::mem::take(&mut exchange.body), limit) {
                Ok(body) => exchange.body = body,
                Err(failure) => exchange.failure = Some(failure),
            }
        }
        exchange.status = if exchange.failure.is_none() { reply.status } else { 0 };
        exchange.version = reply.version;
        exchange.latency_ns = latency_ns;
        exchange.ended_ns = now;
        self.done.push_back(Done { request, token });
    }

    pub(super) fn is_live(&self, key: RequestKey) -> bool {
        self.requests.table.get(key.slot as usize).is_some_and(|r| r.generation == key.generation)
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
            let Some(request) = self.requests.table.get(slot as usize) else { continue };
            if request.deadline_ns > now {
                let deadline_ns = request.deadline_ns;
                self.timers.arm(slot, deadline_ns);
            } else {
                self.on_timeout(slot, recorder);
            }
        }
        while let Some(number) = self.wakes.pop(now) {
            let Some(conn) = self.conns.get_mut(number as usize) else { continue };
            match conn.transport.wakes_at_ns() {
                Some(at_ns) if at_ns <= now => self.on_wake(number, now, recorder),
                Some(at_ns) => self.wakes.arm(number, at_ns),
                None => {}
            }
        }
    }

    pub(super) fn on_timeout(&mut self, slot: u32, recorder: &mut Recorder) {
        let Some(request) = self.requests.table.get(slot as usize) else { return };
        let limits = request.exchange.template.limits;
        let total = request.deadline_ns >= request.total_deadline_ns;
        let stage = request.conn.and_then(|n| self.conns.get(n as usize)).map(|conn| conn.stage);
        if let (false, Some(Stage::Connecting), Some(number), true) =
            (total, stage, request.conn, self.has_untried_address(request))
        {
            let error = io::ErrorKind::TimedOut.into();
            return self.connect_broke(slot, number, &error, recorder);
        }
        let stream = request.exchange.template.stream.as_ref();
        let ends_well = stream.is_some_and(|call| call.ends_in_time);
        if total && ends_well && stage == Some(Stage::Open) {
            return self.finish(slot, None, now_ns(), recorder);
        }
        let detail = match (total, stage) {
            (true, _) => {
                format!("the response was not complete within {}", seconds(limits.total_ns))
            }
            (false, Some(Stage::Open)) => format!("silence for {}", seconds(limits.read_ns)),
            (false, _) => format!("no connection within {}", seconds(limits.connect_ns)),
        };
        let is_lost = request.exchange.template.origin.protocol.is_datagram();
        let class = if is_lost { ErrorClass::Lost } else { ErrorClass::Timeout };
        self.fail(slot, Failure::new(class, detail), recorder);
    }

    pub(super) fn rearm_timer(&mut self) {
        let next_ns = [self.timers.next_ns(), self.wakes.next_ns()];
        let Some(next_ns) = next_ns.into_iter().flatten().min() else { return };
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
