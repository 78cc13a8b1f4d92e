//! What the target saw: the truth that results are compared with.
//!
//! A request counts when its head and body were fully read, before anything is answered.
//! Requests to `/counts` are not counted, nor are their bytes or the connections that ask for
//! nothing else, so looking does not change what is seen. Each worker thread counts into its
//! own `Tally`; `Totals` adds them up.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;
use hyperscale_core::hist::Histogram;

use crate::json;

/// Seconds kept in the per-second totals; older ones are dropped.
pub const SECONDS_MAX: usize = 3600;

macro_rules! named_enum {
    ($(#[$doc:meta])* $name:ident { $($variant:ident => $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($variant),+ }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }
    };
}

named_enum! {
    /// Route patterns requests are counted under.
    Route {
        Root => "/",
        Json => "/json",
        Echo => "/echo",
        Delay => "/delay/{ms}",
        Status => "/status/{code}",
        Bytes => "/bytes/{n}",
        Redirect => "/redirect/{n}",
        CookiesSet => "/cookies/set",
        Cookies => "/cookies",
        Gzip => "/gzip",
        Deflate => "/deflate",
        Brotli => "/brotli",
        Zstd => "/zstd",
        BasicAuth => "/basic-auth/{user}/{password}",
        Headers => "/headers",
        Close => "/close",
        Reset => "/reset",
        Slow => "/slow/{ms}/{n}",
        Sse => "/sse/{ms}/{n}",
        Websocket => "/ws",
        Broken => "/broken/{fault}",
        Graphql => "/graphql",
        Grpc => "/hyperscale.Echo/{method}",
        GrpcHealth => "/grpc.health.v1.Health/{method}",
        Unknown => "*",
    }
}

named_enum! {
    Method {
        Get => "GET",
        Head => "HEAD",
        Post => "POST",
        Put => "PUT",
        Patch => "PATCH",
        Delete => "DELETE",
        Options => "OPTIONS",
        Trace => "TRACE",
        Other => "OTHER",
    }
}

named_enum! {
    /// Protocols whose messages are counted beside the requests.
    Stream {
        Websocket => "websocket",
        Sse => "sse",
        Tcp => "tcp",
        Udp => "udp",
        Grpc => "grpc",
    }
}

/// What one protocol carried each way.
#[derive(Clone, Copy, Debug, Default)]
struct StreamCounts {
    messages_in: u64,
    messages_out: u64,
    bytes_in: u64,
    bytes_out: u64,
}

const STREAMS: usize = Stream::ALL.len();

named_enum! {
    /// Protocols beside HTTP/1.1 that requests are counted under.
    Protocol {
        Http2 => "http/2",
        Http3 => "http/3",
        Grpc => "grpc",
    }
}

const PROTOCOLS: usize = Protocol::ALL.len();
const ROUTES: usize = Route::ALL.len();
const METHODS: usize = Method::ALL.len();

impl Method {
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text {
            "GET" => Self::Get,
            "HEAD" => Self::Head,
            "POST" => Self::Post,
            "PUT" => Self::Put,
            "PATCH" => Self::Patch,
            "DELETE" => Self::Delete,
            "OPTIONS" => Self::Options,
            "TRACE" => Self::Trace,
            _ => Self::Other,
        }
    }
}

/// A count that rises and falls, and how high it has been. Shared by all threads, so that the
/// peak is the peak of the sum.
#[derive(Debug, Default)]
struct Gauge {
    current: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    fn enter(&self) {
        let now = self.current.fetch_add(1, Relaxed) + 1;
        if now > self.peak.load(Relaxed) {
            self.peak.fetch_max(now, Relaxed);
        }
    }

    fn leave(&self) {
        self.current.fetch_sub(1, Relaxed);
    }

    fn reset(&self) {
        self.peak.store(self.current.load(Relaxed), Relaxed);
    }
}

#[derive(Debug)]
struct Shard {
    requests: [[u64; METHODS]; ROUTES],
    /// Unix second and its requests, oldest first.
    seconds: VecDeque<(u64, u64)>,
    residence: Histogram,
    streams: [StreamCounts; STREAMS],
    protocols: [u64; PROTOCOLS],
    bytes_in: u64,
    bytes_out: u64,
    malformed: u64,
    tls_failures: u64,
}

impl Shard {
    fn new() -> Self {
        Self {
            requests: [[0; METHODS]; ROUTES],
            seconds: VecDeque::new(),
            residence: Histogram::new(),
            streams: [StreamCounts::default(); STREAMS],
            protocols: [0; PROTOCOLS],
            bytes_in: 0,
            bytes_out: 0,
            malformed: 0,
            tls_failures: 0,
        }
    }

    fn count_second(&mut self, unix_s: u64) {
        match self.seconds.back_mut() {
            Some((second, count)) if *second == unix_s => *count += 1,
            // The wall clock may be set back; then the second may already be there.
            Some((latest, _)) if unix_s < *latest => {
                match self.seconds.iter_mut().rev().find(|(second, _)| *second <= unix_s) {
                    Some((second, count)) if *second == unix_s => *count += 1,
                    _ => {
                        let place = self.seconds.partition_point(|(second, _)| *second < unix_s);
                        self.seconds.insert(place, (unix_s, 1));
                    }
                }
            }
            _ => self.seconds.push_back((unix_s, 1)),
        }
        if self.seconds.len() > SECONDS_MAX {
            self.seconds.pop_front();
        }
    }
}

#[derive(Debug, Default)]
struct Gauges {
    /// Open connections that have asked for something other than `/counts`.
    connections: Gauge,
    /// Open connections that have not asked for anything yet.
    silent: AtomicU64,
    accepted: AtomicU64,
    /// Requests read and not yet answered.
    in_flight: Gauge,
}

/// What a connection is to the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Has asked for nothing yet.
    Silent,
    /// Has asked for `/counts` only, and is therefore no part of the counts.
    Observer,
    Client,
}

/// One worker thread's counting. Lent to the sessions of its connections.
#[derive(Debug)]
pub struct Tally {
    shard: Arc<Mutex<Shard>>,
    totals: Totals,
}

impl Tally {
    /// The request was read completely.
    pub fn read(&self, route: Route, method: Method, bytes_in: u64, unix_s: u64) {
        let mut shard = lock(&self.shard);
        if let Some(count) =
            shard.requests.get_mut(route as usize).and_then(|row| row.get_mut(method as usize))
        {
            *count += 1;
        }
        shard.count_second(unix_s);
        shard.bytes_in += bytes_in;
        drop(shard);
        self.totals.gauges.in_flight.enter();
    }

    /// The whole response was handed to the kernel.
    pub fn answered(&self, residence_ns: u64, bytes_out: u64) {
        let mut shard = lock(&self.shard);
        shard.residence.record(residence_ns, 1);
        shard.bytes_out += bytes_out;
        drop(shard);
        self.totals.gauges.in_flight.leave();
    }

    /// The connection ended before the whole response was handed over.
    pub fn abandoned(&self, bytes_out: u64) {
        lock(&self.shard).bytes_out += bytes_out;
        self.totals.gauges.in_flight.leave();
    }

    /// Messages, with this many bytes in all, were read from a stream.
    pub fn stream_in(&self, stream: Stream, messages: u64, bytes: u64) {
        if let Some(counts) = lock(&self.shard).streams.get_mut(stream as usize) {
            counts.messages_in += messages;
            counts.bytes_in += bytes;
        }
    }

    /// Messages, with this many bytes in all, were written to a stream.
    pub fn stream_out(&self, stream: Stream, messages: u64, bytes: u64) {
        if let Some(counts) = lock(&self.shard).streams.get_mut(stream as usize) {
            counts.messages_out += messages;
            counts.bytes_out += bytes;
        }
    }

    /// The request that was just read came by this protocol.
    pub fn spoke_protocol(&self, protocol: Protocol) {
        if let Some(count) = lock(&self.shard).protocols.get_mut(protocol as usize) {
            *count += 1;
        }
    }

    pub fn malformed(&self) {
        lock(&self.shard).malformed += 1;
    }

    pub fn tls_failed(&self) {
        lock(&self.shard).tls_failures += 1;
    }

    pub fn accepted(&self) {
        self.totals.gauges.silent.fetch_add(1, Relaxed);
        self.totals.gauges.accepted.fetch_add(1, Relaxed);
    }

    /// A connection made a request, for `/counts` or for something else.
    pub fn spoke(&self, standing: &mut Standing, to: Standing) {
        let gauges = &self.totals.gauges;
        match (*standing, to) {
            (Standing::Silent, Standing::Observer) => {
                gauges.silent.fetch_sub(1, Relaxed);
                gauges.accepted.fetch_sub(1, Relaxed);
            }
            (Standing::Silent, Standing::Client) => {
                gauges.silent.fetch_sub(1, Relaxed);
                gauges.connections.enter();
            }
            (Standing::Observer, Standing::Client) => {
                gauges.accepted.fetch_add(1, Relaxed);
                gauges.connections.enter();
            }
            _ => return,
        }
        *standing = to;
    }

    pub fn closed(&self, standing: Standing) {
        match standing {
            Standing::Silent => {
                self.totals.gauges.silent.fetch_sub(1, Relaxed);
            }
            Standing::Observer => {}
            Standing::Client => self.totals.gauges.connections.leave(),
        }
    }

    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }
}

/// The counts of all threads together.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    shards: Arc<Mutex<Vec<Arc<Mutex<Shard>>>>>,
    gauges: Arc<Gauges>,
}

impl Totals {
    /// A tally for one more thread.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let shard = Arc::new(Mutex::new(Shard::new()));
        lock(&self.shards).push(Arc::clone(&shard));
        Tally { shard, totals: self.clone() }
    }

    /// Forgets everything but what is open or in flight right now.
    pub fn reset(&self) {
        for shard in lock(&self.shards).iter() {
            *lock(shard) = Shard::new();
        }
        let gauges = &self.gauges;
        gauges.connections.reset();
        gauges.in_flight.reset();
        let open = gauges.connections.current.load(Relaxed) + gauges.silent.load(Relaxed);
        gauges.accepted.store(open, Relaxed);
    }

    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let mut sum = Shard::new();
        let mut seconds = BTreeMap::new();
        for shard in lock(&self.shards).iter() {
            let shard = lock(shard);
            for (row, other) in sum.requests.iter_mut().zip(&shard.requests) {
                for (count, other) in row.iter_mut().zip(other) {
                    *count += other;
                }
            }
            for (second, count) in &shard.seconds {
                *seconds.entry(*second).or_insert(0) += count;
            }
            // Both histograms have the bounds of `Histogram::new`, so they always merge.
            let _ = sum.residence.merge(&shard.residence);
            for (total, part) in sum.streams.iter_mut().zip(&shard.streams) {
                total.messages_in += part.messages_in;
                total.messages_out += part.messages_out;
                total.bytes_in += part.bytes_in;
                total.bytes_out += part.bytes_out;
            }
            for (count, other) in sum.protocols.iter_mut().zip(&shard.protocols) {
                *count += other;
            }
            sum.bytes_in += shard.bytes_in;
            sum.bytes_out += shard.bytes_out;
            sum.malformed += shard.malformed;
            sum.tls_failures += shard.tls_failures;
        }
        while seconds.len() > SECONDS_MAX {
            seconds.pop_first();
        }
        self.write_json(&sum, &seconds)
    }

    fn write_json(&self, sum: &Shard, seconds: &BTreeMap<u64, u64>) -> Vec<u8> {
        let mut out = Vec::with_capacity(1024);
        let mut fields = json::Separator::default();
        let field = |fields: &mut json::Separator, out: &mut Vec<u8>, name: &str, value: u64| {
            fields.key(out, name);
            json::number(out, value);
        };
        out.push(b'{');
        field(&mut fields, &mut out, "schema", 1);
        field(&mut fields, &mut out, "total", sum.requests.iter().flatten().sum());

        fields.key(&mut out, "routes");
        out.push(b'{');
        let mut routes = json::Separator::default();
        for (route, row) in Route::ALL.iter().zip(&sum.requests) {
            if row.iter().all(|count| *count == 0) {
                continue;
            }
            routes.key(&mut out, route.name());
            out.push(b'{');
            let mut methods = json::Separator::default();
            for (method, count) in Method::ALL.iter().zip(row).filter(|(_, count)| **count > 0) {
                field(&mut methods, &mut out, method.name(), *count);
            }
            out.push(b'}');
        }
        out.push(b'}');

        fields.key(&mut out, "seconds");
        out.push(b'{');
        let mut points = json::Separator::default();
        for (second, count) in seconds {
            field(&mut points, &mut out, &second.to_string(), *count);
        }
        out.push(b'}');

        let gauges = &self.gauges;
        fields.key(&mut out, "connections");
        out.push(b'{');
        let mut inner = json::Separator::default();
        for (name, value) in [
            ("current", gauges.connections.current.load(Relaxed)),
            ("peak", gauges.connections.peak.load(Relaxed)),
            ("silent", gauges.silent.load(Relaxed)),
            ("total", gauges.accepted.load(Relaxed)),
        ] {
            field(&mut inner, &mut out, name, value);
        }
        out.push(b'}');

        fields.key(&mut out, "in_flight");
        out.push(b'{');
        let mut inner = json::Separator::default();
        field(&mut inner, &mut out, "current", gauges.in_flight.current.load(Relaxed));
        field(&mut inner, &mut out, "peak", gauges.in_flight.peak.load(Relaxed));
        out.push(b'}');

        fields.key(&mut out, "residence");
        out.push(b'{');
        let mut inner = json::Separator::default();
        let residence = &sum.residence;
        for (name, value) in [
            ("count", residence.count()),
            ("min_ns", residence.min()),
            ("p50_ns", residence.quantile(0.5)),
            ("p90_ns", residence.quantile(0.9)),
            ("p99_ns", residence.quantile(0.99)),
            ("p999_ns", residence.quantile(0.999)),
            ("max_ns", residence.max()),
        ] {
            field(&mut inner, &mut out, name, value);
        }
        inner.key(&mut out, "histogram");
        json::string(
            &mut out,
            &residence.encode_deflated().map(|raw| STANDARD.encode(raw)).unwrap_or_default(),
        );
        out.push(b'}');

        fields.key(&mut out, "protocols");
        out.push(b'{');
        let mut protocols = json::Separator::default();
        let total: u64 = sum.requests.iter().flatten().sum();
        let others: u64 = sum.protocols.iter().sum();
        field(&mut protocols, &mut out, "http/1.1", total.saturating_sub(others));
        for (protocol, count) in Protocol::ALL.iter().zip(&sum.protocols) {
            field(&mut protocols, &mut out, protocol.name(), *count);
        }
        out.push(b'}');

        for (name, value) in [
            ("bytes_in", sum.bytes_in),
            ("bytes_out", sum.bytes_out),
            ("malformed", sum.malformed),
            ("tls_failures", sum.tls_failures),
        ] {
            field(&mut fields, &mut out, name, value);
        }
        fields.key(&mut out, "streams");
        out.push(b'{');
        let mut streams = json::Separator::default();
        for (stream, counts) in Stream::ALL.iter().zip(&sum.streams) {
            streams.key(&mut out, stream.name());
            out.push(b'{');
            let mut inner = json::Separator::default();
            field(&mut inner, &mut out, "messages_in", counts.messages_in);
            field(&mut inner, &mut out, "messages_out", counts.messages_out);
            field(&mut inner, &mut out, "bytes_in", counts.bytes_in);
            field(&mut inner, &mut out, "bytes_out", counts.bytes_out);
            out.push(b'}');
        }
        out.push(b'}');
        out.extend_from_slice(b"}\n");
        out
    }
}

/// A thread that panicked cannot leave a count half made: every update is one addition.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn seconds_stay_ordered_and_bounded_when_the_clock_is_set_back() {
        let mut shard = Shard::new();
        for second in [10, 11, 11, 9, 10, 12] {
            shard.count_second(second);
        }
        assert_eq!(shard.seconds, [(9, 1), (10, 2), (11, 2), (12, 1)]);
        for second in 100..100 + SECONDS_MAX as u64 + 5 {
            shard.count_second(second);
        }
        assert_eq!(shard.seconds.len(), SECONDS_MAX);
        assert_eq!(shard.seconds.front().unwrap().0, 105);
    }

    #[test]
    fn tallies_of_several_threads_add_up() {
        let totals = Totals::default();
        for tally in [totals.tally(), totals.tally()] {
            tally.accepted();
            let mut standing = Standing::Silent;
            tally.spoke(&mut standing, Standing::Client);
            tally.read(Route::Delay, Method::Get, 10, 1000);
            tally.answered(5_000, 20);
            tally.closed(standing);
        }
        let text = String::from_utf8(totals.to_json()).unwrap();
        assert!(text.contains(r#""routes":{"/delay/{ms}":{"GET":2}}"#), "{text}");
        assert!(text.contains(r#""seconds":{"1000":2}"#), "{text}");
        assert!(text.contains(r#""tcp":{"messages_in":0,"messages_out":0,"#), "{text}");
        assert!(
            text.contains(r#""connections":{"current":0,"peak":1,"silent":0,"total":2}"#),
            "{text}"
        );
        assert!(text.contains(r#""bytes_in":20,"bytes_out":40"#), "{text}");
        totals.reset();
        let text = String::from_utf8(totals.to_json()).unwrap();
        assert!(text.contains(r#""total":0,"routes":{}"#), "{text}");
    }
}
