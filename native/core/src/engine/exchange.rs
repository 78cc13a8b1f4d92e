//! One finished call: what was asked, what came back, and how long each phase took.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use super::error::{grpc_code, ErrorClass, Failure};
use super::http::reply::Version;
use super::http::template::{percent_decode, Template};
use super::request::Part;
use crate::masking;
use crate::recorder::Outcome;
use crate::report::Sample;

#[derive(Clone, Copy, Debug)]
pub struct TlsInfo {
    pub version: Option<&'static str>,
    pub cipher: Option<&'static str>,
}

#[derive(Clone, Debug)]
pub struct Exchange {
    /// The step that made the call.
    pub step: u32,
    /// The last request of the chain, after redirects.
    pub template: Arc<Template>,
    /// 0 when no response arrived.
    pub status: u16,
    pub version: Version,
    /// None and empty as far as the caller cannot see them, unless they are a sample of a failure.
    pub head: Option<Arc<[u8]>>,
    pub body: Vec<u8>,
    /// What a call on a stream received, as far as its caller can see it.
    pub messages: Vec<Part>,
    pub failure: Option<Failure>,
    pub redirects: u32,
    /// From the first byte handed to the kernel to the last byte read.
    pub latency_ns: u64,
    /// When it ended, on the engine's clock.
    pub ended_ns: u64,
    /// The event loop was held meanwhile, and the latency contains that.
    pub contains_hold: bool,
    /// In the order of `recorder::Phase::ALL`.
    pub phases_ns: [Option<u64>; 4],
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub remote: Option<SocketAddr>,
    pub tls: Option<TlsInfo>,
    /// Header fields that followed the body, as lines.
    pub trailers: Option<Box<[u8]>>,
    /// Status of a gRPC call; None for everything else.
    pub grpc_status: Option<u8>,
    /// The redirects that led here, in order, if the caller can see bodies; their own are dropped.
    pub hops: Vec<Exchange>,
}

/// Reason phrases of the statuses that failures have.
const PHRASES: [(u16, &str); 26] = [
    (400, "400 Bad Request"),
    (401, "401 Unauthorized"),
    (402, "402 Payment Required"),
    (403, "403 Forbidden"),
    (404, "404 Not Found"),
    (405, "405 Method Not Allowed"),
    (406, "406 Not Acceptable"),
    (407, "407 Proxy Authentication Required"),
    (408, "408 Request Timeout"),
    (409, "409 Conflict"),
    (410, "410 Gone"),
    (411, "411 Length Required"),
    (412, "412 Precondition Failed"),
    (413, "413 Content Too Large"),
    (414, "414 URI Too Long"),
    (415, "415 Unsupported Media Type"),
    (418, "418 I'm a teapot"),
    (422, "422 Unprocessable Content"),
    (423, "423 Locked"),
    (425, "425 Too Early"),
    (429, "429 Too Many Requests"),
    (500, "500 Internal Server Error"),
    (501, "501 Not Implemented"),
    (502, "502 Bad Gateway"),
    (503, "503 Service Unavailable"),
    (504, "504 Gateway Timeout"),
];

impl Exchange {
    /// A call that has just begun.
    #[must_use]
    pub fn new(step: u32, template: Arc<Template>) -> Self {
        Self {
            step,
            template,
            status: 0,
            version: Version::Http11,
            head: None,
            body: Vec::new(),
            messages: Vec::new(),
            failure: None,
            redirects: 0,
            latency_ns: 0,
            ended_ns: 0,
            contains_hold: false,
            phases_ns: [None; 4],
            bytes_sent: 0,
            bytes_received: 0,
            remote: None,
            tls: None,
            trailers: None,
            grpc_status: None,
            hops: Vec::new(),
        }
    }

    /// Makes this the beginning of another call.
    pub fn renew(&mut self, step: u32, template: &Arc<Template>) {
        if !Arc::ptr_eq(&self.template, template) {
            self.template = template.clone();
        }
        self.step = step;
        self.status = 0;
        self.version = Version::Http11;
        self.head = None;
        self.body.clear();
        self.messages.clear();
        self.failure = None;
        self.redirects = 0;
        self.phases_ns = [None; 4];
        (self.bytes_sent, self.bytes_received) = (0, 0);
        self.remote = None;
        self.tls = None;
        self.trailers = None;
        self.grpc_status = None;
        self.hops.clear();
    }

    /// The head of the response, as it came.
    #[must_use]
    pub fn head(&self) -> &[u8] {
        self.head.as_deref().unwrap_or_default()
    }

    /// Why this exchange failed, in words.
    #[must_use]
    pub fn failure_message(&self) -> Cow<'_, str> {
        match &self.failure {
            Some(failure) => Cow::Borrowed(&failure.detail),
            None if self.status == 200 => self.grpc_message(),
            None => match PHRASES.binary_search_by_key(&self.status, |&(status, _)| status) {
                Ok(place) => Cow::Borrowed(PHRASES.get(place).map_or("", |&(_, text)| text)),
                Err(_) => Cow::Owned(self.status.to_string()),
            },
        }
    }

    /// Status and message of a gRPC call, such as "NOT_FOUND: no such user".
    fn grpc_message(&self) -> Cow<'_, str> {
        let (name, _) = grpc_code(self.grpc_status.unwrap_or_default());
        // Without a body, the fields are those of the head.
        let lines = self.trailers.as_deref().unwrap_or(self.head());
        let message = lines.split(|&byte| byte == b'\n').find_map(|line| {
            let text = line.strip_prefix(b"grpc-message: ")?;
            Some(percent_decode(text.trim_ascii_end()))
        });
        match message {
            Some(message) => Cow::Owned(format!("{name}: {}", String::from_utf8_lossy(&message))),
            None => Cow::Borrowed(name),
        }
    }

    /// What an `accept` of a step looks at: the code of a gRPC call, else the status.
    #[must_use]
    pub fn judged_status(&self) -> u16 {
        self.grpc_status.map_or(self.status, u16::from)
    }

    /// This exchange as a sample of a failure, credentials masked.
    #[must_use]
    pub fn sample(&self, second: u32) -> Sample {
        let Template { method, url, .. } = &*self.template;
        Sample {
            second,
            request: match self.template.header("traceparent") {
                // So that the request is found in a tracing system.
                Some(trace) => format!("{method} {} traceparent={trace}", masking::mask_url(url)),
                None => format!("{method} {}", masking::mask_url(url)),
            }
            .into(),
            status: self.status,
            latency_ns: self.latency_ns,
            phases_ns: self.phases_ns.map(|ns| ns.unwrap_or(0)),
            headers: masking::shown_head(self.head()).into(),
            body: masking::shown_body(&self.body).into(),
            trace: Box::default(),
        }
    }

    /// How this exchange counts. `accepted` lets a status of 400 or more pass.
    #[must_use]
    pub fn outcome(&self, accepted: bool) -> Outcome<'static> {
        match &self.failure {
            None => {
                let code = self.grpc_status.unwrap_or(0);
                let ok = (self.status < 400 && code == 0) || accepted;
                let class = if code == 0 { "status" } else { grpc_code(code).1 };
                Outcome {
                    ok,
                    latency_ns: Some(self.latency_ns),
                    // Messages of streams have none.
                    status: (self.status != 0).then_some(self.status),
                    error: if ok { None } else { Some(class) },
                    phases_ns: self.phases_ns,
                    service_ns: None,
                }
            }
            Some(failure) => Outcome {
                ok: false,
                // A timeout is a latency; a refused connection is not.
                latency_ns: matches!(failure.class, ErrorClass::Timeout | ErrorClass::Lost)
                    .then_some(self.latency_ns),
                status: None,
                error: Some(failure.class.name()),
                phases_ns: self.phases_ns,
                service_ns: None,
            },
        }
    }
}
