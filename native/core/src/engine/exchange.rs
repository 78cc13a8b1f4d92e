//! One finished call: what was asked, what came back, and how long each phase took.

use std::net::SocketAddr;
use std::sync::Arc;

use super::error::{ErrorClass, Failure};
use super::template::Template;
use crate::recorder::Outcome;

#[derive(Clone, Copy, Debug)]
pub struct TlsInfo {
    pub version: Option<&'static str>,
    pub cipher: Option<&'static str>,
}

#[derive(Debug)]
pub struct Exchange {
    /// The last request of the chain, after redirects.
    pub template: Arc<Template>,
    /// 0 when no response arrived.
    pub status: u16,
    pub minor_version: u8,
    /// Empty as far as the caller cannot see them.
    pub head: Vec<u8>,
    pub body: Vec<u8>,
    pub failure: Option<Failure>,
    pub redirects: u32,
    /// From the first byte handed to the kernel to the last byte read.
    pub latency_ns: u64,
    /// In the order of `recorder::Phase::ALL`.
    pub phases_ns: [Option<u64>; 4],
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub remote: Option<SocketAddr>,
    pub tls: Option<TlsInfo>,
}

impl Exchange {
    /// How this exchange counts. `accepted` lets a status of 400 or more pass.
    #[must_use]
    pub fn outcome(&self, accepted: bool) -> Outcome<'static> {
        match &self.failure {
            None => {
                let ok = self.status < 400 || accepted;
                Outcome {
                    ok,
                    latency_ns: Some(self.latency_ns),
                    status: Some(self.status),
                    error: if ok { None } else { Some("status") },
                    phases_ns: self.phases_ns,
                }
            }
            Some(failure) => Outcome {
                ok: false,
                // A timeout is a latency; a refused connection is not.
                latency_ns: (failure.class == ErrorClass::Timeout).then_some(self.latency_ns),
                status: None,
                error: Some(failure.class.name()),
                phases_ns: self.phases_ns,
            },
        }
    }
}
