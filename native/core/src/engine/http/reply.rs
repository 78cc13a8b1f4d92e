//! What came back for one HTTP request, as far as its caller can see it.

use std::sync::Arc;

use crate::engine::error::{ErrorClass, Failure};

/// There are samples enough.
pub const NO_SAMPLES: u16 = u16::MAX;
const SAMPLE_BYTES: usize = 1024;

/// How much of a response its caller can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keep {
    Nothing,
    Head,
    Body,
    /// The body, in parts as they arrive.
    Parts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Http10,
    Http11,
    Http2,
    Http3,
}

impl Version {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
            Self::Http3 => "HTTP/3",
        }
    }
}

/// What the caller wants of a response.
#[derive(Clone, Copy, Debug)]
pub struct Expect {
    /// A response to HEAD has no body, whatever its headers say.
    pub is_head: bool,
    pub keep: Keep,
    pub body_bytes_max: u64,
    /// Responses of 400 and more show their head and the start of their body, whatever `keep`
    /// says: as samples of failures. Not those of this status, and none if it is `NO_SAMPLES`.
    pub sampled_status: u16,
}

#[derive(Debug)]
pub struct Reply {
    pub expect: Expect,
    body_bytes: u64,
    is_sample: bool,
    has_started: bool,
    pub status: u16,
    pub version: Version,
    /// As HTTP/1.1 writes it, the empty line included.
    pub head: Option<Arc<[u8]>>,
    pub body: Vec<u8>,
    pub rare: Option<Box<Rare>>,
    /// Of a gRPC call, once it is known.
    pub grpc_status: Option<u8>,
}

/// What most responses do not have.
#[derive(Debug, Default)]
pub struct Rare {
    pub location: Option<String>,
    pub set_cookies: Vec<String>,
    pub encoding: Option<String>,
    /// Lines of header fields that followed the body.
    pub trailers: Option<Box<[u8]>>,
}

impl Reply {
    #[must_use]
    pub fn new(expect: Expect) -> Self {
        Self {
            expect,
            body_bytes: 0,
            is_sample: false,
            has_started: false,
            status: 0,
            version: Version::Http11,
            head: None,
            body: Vec::new(),
            rare: None,
            grpc_status: None,
        }
    }

    /// Whether any byte of a response has been seen.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.has_started
    }

    /// A byte of the response has been seen. True the first time.
    pub fn start(&mut self) -> bool {
        !std::mem::replace(&mut self.has_started, true)
    }

    /// Keeps a header that the engine itself needs.
    pub fn note_header(&mut self, name: &str, value: &[u8]) {
        let text = || String::from_utf8_lossy(value).into_owned();
        // Told apart by length first: most headers are none of these.
        match name.len() {
            10 if name.eq_ignore_ascii_case("set-cookie") => {
                self.rare.get_or_insert_default().set_cookies.push(text());
            }
            8 if name.eq_ignore_ascii_case("location") => {
                self.rare.get_or_insert_default().location = Some(text());
            }
            16 if name.eq_ignore_ascii_case("content-encoding") => {
                let encoding = text().trim().to_ascii_lowercase();
                self.rare.get_or_insert_default().encoding = Some(encoding);
            }
            _ => {}
        }
    }

    /// The head is whole and its status known: keeps it if it can be seen.
    pub fn begin(&mut self, head: impl FnOnce() -> Arc<[u8]>) {
        let sampled = self.expect.sampled_status;
        self.is_sample = self.status >= 400 && sampled != self.status && sampled != NO_SAMPLES;
        if self.expect.keep >= Keep::Head || self.is_sample {
            self.head = Some(head());
        }
    }

    /// The server announces so many bytes of body.
    pub fn expect_body(&mut self, length: u64) -> Result<(), Failure> {
        if length > self.expect.body_bytes_max {
            return Err(self.too_large());
        }
        if self.expect.keep == Keep::Body {
            // At most 1 MiB on the server's word alone.
            self.body.reserve(length.min(1 << 20) as usize);
        }
        Ok(())
    }

    pub fn add_body(&mut self, data: &[u8]) -> Result<(), Failure> {
        self.body_bytes += data.len() as u64;
        if self.body_bytes > self.expect.body_bytes_max {
            return Err(self.too_large());
        }
        if self.expect.keep >= Keep::Body {
            self.body.extend_from_slice(data);
        } else if self.is_sample {
            let room = SAMPLE_BYTES.saturating_sub(self.body.len()).min(data.len());
            self.body.extend_from_slice(data.get(..room).unwrap_or_default());
        }
        Ok(())
    }

    fn too_large(&self) -> Failure {
        let detail = format!("response body is over {} bytes", self.expect.body_bytes_max);
        Failure::new(ErrorClass::TooLarge, detail)
    }
}
