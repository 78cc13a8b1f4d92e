//! Requests under way, and what the protocols report of them.

use std::collections::VecDeque;
use std::sync::Arc;

use slab::Slab;

use super::error::Failure;
use super::exchange::Exchange;
use super::http::reply::{Expect, Keep, Reply};
use super::http::template::Template;
use super::http1::memo::HeadMemos;
use super::transport::Arrival;
use super::websocket;
use crate::clock::now_ns;
use crate::recorder::Recorder;

/// Response bytes that a socket has room for without anything being read: less than what Linux
/// gives every TCP socket to begin with.
const COVERED_BYTES: u64 = 64 * 1024;

pub(super) const BLOCKED: usize = 0;
pub(super) const CONNECT: usize = 1;
pub(super) const TLS: usize = 2;
pub(super) const FIRST_BYTE: usize = 3;

/// Names a request for as long as it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKey {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// Who asks, and what of the answer they can see.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub vu: u32,
    pub step: u32,
    pub keep: Keep,
}

/// One of several things that a request delivers before it ends, or that its caller hands over
/// while it runs: a message, an event, a piece of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub kind: PartKind,
    pub bytes: Vec<u8>,
    /// When it arrived or left.
    pub at_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// The head of the response is there; the bytes are those of the head.
    Head,
    Data,
    Text,
    /// How a stream was closed: a code of two bytes, then the reason.
    Close,
}

/// How a request ended on its connection.
#[derive(Debug)]
pub enum Ending {
    /// Its response is whole.
    Complete,
    Failed(Failure),
    /// The peer has certainly not processed it (HTTP/2: GOAWAY, REFUSED_STREAM), so it may be sent
    /// again whatever it asks for.
    Refused(Failure),
}

#[derive(Debug)]
pub struct Request {
    pub caller: Caller,
    pub reply: Reply,
    /// What is known of the call so far.
    pub exchange: Exchange,
    pub(super) origin: u32,
    /// The connection it runs on, or that is opened for it.
    pub(super) conn: Option<u32>,
    pub(super) generation: u32,
    pub(super) submitted_ns: u64,
    /// When this hop began to wait for a connection.
    pub(super) waiting_since_ns: u64,
    pub(super) phase_since_ns: u64,
    pub(super) started_ns: Option<u64>,
    pub(super) hop_started_ns: u64,
    pub(super) deadline_ns: u64,
    pub(super) total_deadline_ns: u64,
    pub(super) addresses_tried: u32,
    pub(super) retried: bool,
    /// Handed over before there was a connection for it.
    pub(super) queued: Vec<Part>,
    /// Its connection had carried other requests before.
    pub(super) is_reused: bool,
    /// The kernel said when the last of the response arrived.
    is_timed: bool,
}

impl Request {
    pub(super) fn new(template: &Arc<Template>, caller: Caller, expect: Expect) -> Self {
        Self {
            caller,
            reply: Reply::new(expect),
            exchange: Exchange::new(caller.step, template.clone()),
            origin: 0,
            conn: None,
            generation: 0,
            submitted_ns: 0,
            waiting_since_ns: 0,
            phase_since_ns: 0,
            started_ns: None,
            hop_started_ns: 0,
            deadline_ns: 0,
            total_deadline_ns: 0,
            addresses_tried: 0,
            retried: false,
            queued: Vec::new(),
            is_reused: false,
            is_timed: false,
        }
    }

    /// Makes this the beginning of another request.
    pub(super) fn renew(&mut self, template: &Arc<Template>, caller: Caller, expect: Expect) {
        self.reply = Reply::new(expect);
        self.exchange.renew(caller.step, template);
        self.caller = caller;
        self.conn = None;
        self.started_ns = None;
        self.addresses_tried = 0;
        self.retried = false;
        self.queued.clear();
        self.is_timed = false;
    }

    /// It is called now.
    pub(super) fn submit(&mut self, now: u64) {
        self.submitted_ns = now;
        self.waiting_since_ns = now;
        self.phase_since_ns = now;
        self.hop_started_ns = now;
        self.total_deadline_ns = now.saturating_add(self.exchange.template.limits.total_ns);
        self.deadline_ns = self.total_deadline_ns;
    }

    /// It is written now, some time after it was put on its connection.
    pub(super) fn leaves(&mut self, now: u64) {
        if self.started_ns == Some(self.hop_started_ns) {
            self.started_ns = Some(now);
        }
        self.hop_started_ns = now;
    }

    /// Its silence, which is limited, starts now.
    pub(super) fn awaits_bytes(&mut self, now: u64) {
        let deadline_ns = now.saturating_add(self.exchange.template.limits.read_ns);
        self.deadline_ns = deadline_ns.min(self.total_deadline_ns);
    }

    /// Bytes of its response arrived. Returns when, as far as that can be: what arrived was sent
    /// after the request, and if it seems to have come before, the wall clock was set meanwhile.
    pub fn received(&mut self, bytes: usize, arrival: Arrival) -> u64 {
        let is_timed = arrival.is_timed && arrival.at_ns >= self.hop_started_ns;
        let at_ns = if is_timed || !arrival.is_timed { arrival.at_ns } else { now_ns() };
        if self.reply.start() {
            let waited_ns = at_ns.saturating_sub(self.hop_started_ns);
            add(&mut self.exchange.phases_ns, FIRST_BYTE, waited_ns);
        }
        self.exchange.bytes_received += bytes as u64;
        self.is_timed = is_timed;
        self.awaits_bytes(at_ns);
        at_ns
    }

    /// It was handed to the kernel whole.
    pub fn sent(&self, recorder: &mut Recorder) {
        recorder.record_sent(self.caller.step, 1, self.hop_started_ns);
    }

    pub(super) fn key(&self, slot: u32) -> RequestKey {
        RequestKey { slot, generation: self.generation }
    }

    /// Latency counts from the first byte sent, or from the call if none was.
    pub(super) fn since_ns(&self) -> u64 {
        self.started_ns.unwrap_or(self.submitted_ns)
    }

    /// Whether its times are right although the loop was held: the kernel noted when the response
    /// arrived, there was room for all of it, and no connection had to be opened.
    pub(super) fn is_covered(&self) -> bool {
        let [_, connect, tls, _] = self.exchange.phases_ns;
        let is_small = self.exchange.bytes_received <= COVERED_BYTES;
        self.is_timed && is_small && connect.is_none() && tls.is_none()
    }
}

pub(super) fn expect(template: &Template, caller: Caller, recorder: &Recorder) -> Expect {
    Expect {
        sampled_status: recorder.sampled_status(caller.step),
        is_head: template.method == "HEAD",
        keep: caller.keep,
        body_bytes_max: template.limits.body_bytes_max,
    }
}

/// Adds to a phase: a redirected call may connect more than once.
pub(super) fn add(phases_ns: &mut [Option<u64>; 4], phase: usize, ns: u64) {
    if let Some(slot) = phases_ns.get_mut(phase) {
        *slot = Some(slot.unwrap_or(0) + ns);
    }
}

/// The requests of an engine, by slot, and what protocols reported of them.
#[derive(Debug, Default)]
pub struct Requests {
    pub(super) table: Slab<Box<Request>>,
    pub(super) ended: VecDeque<(u32, u64, Ending)>,
    pub(super) parts: VecDeque<(RequestKey, Part)>,
    /// Response heads of HTTP/1.1.
    pub(super) heads: HeadMemos,
    pub(super) websocket: websocket::Shared,
}

impl Requests {
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Request> {
        self.table.get_mut(slot as usize).map(|request| &mut **request)
    }

    /// A protocol is done with a request, and has forgotten it.
    pub fn end(&mut self, slot: u32, at_ns: u64, ending: Ending) {
        self.ended.push_back((slot, at_ns, ending));
    }

    /// Gives the caller of a request a part of its response.
    pub fn deliver(&mut self, slot: u32, part: Part) {
        if let Some(request) = self.table.get(slot as usize) {
            self.parts.push_back((request.key(slot), part));
        }
    }
}
