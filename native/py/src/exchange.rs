use hyperscale_core::engine::protocol::Protocol;
use hyperscale_core::engine::request::PartKind;
use hyperscale_core::engine::{exchange, http1};
use hyperscale_core::recorder::Phase;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

const HEADERS_MAX: usize = 128;

/// A head without its first line.
fn header_lines(head: &[u8]) -> &[u8] {
    let start = head.iter().position(|&byte| byte == b'\n').map_or(head.len(), |at| at + 1);
    head.get(start..).unwrap_or_default()
}

fn to_pairs<'py>(py: Python<'py>, lines: &[u8]) -> PyResult<Bound<'py, PyList>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let pairs = PyList::empty(py);
    // The head was parsed once already, under the same limits.
    if let Ok(httparse::Status::Complete((_, found))) = httparse::parse_headers(lines, &mut headers)
    {
        for header in found {
            let name = PyBytes::new(py, header.name.as_bytes());
            pairs.append((name, PyBytes::new(py, header.value)))?;
        }
    }
    Ok(pairs)
}

/// A finished call, read lazily: most are only counted.
#[pyclass(frozen, module = "hyperscale._native")]
pub struct Exchange {
    pub inner: exchange::Exchange,
}

impl Exchange {
    fn phase(&self, wanted: Phase) -> Option<u64> {
        let mut phases = Phase::ALL.into_iter().zip(self.inner.phases_ns);
        phases.find(|(phase, _)| *phase == wanted).and_then(|(_, value_ns)| value_ns)
    }
}

#[pymethods]
impl Exchange {
    /// The place in the recorder of the step that made the call.
    #[getter]
    fn step(&self) -> u32 {
        self.inner.step
    }

    #[getter]
    fn status(&self) -> u16 {
        self.inner.status
    }

    #[getter]
    fn reason(&self) -> String {
        let mut headers = [];
        let mut parsed = httparse::Response::new(&mut headers);
        // Stops at the first header for want of room; the status line is read by then.
        let _ = parsed.parse(self.inner.head());
        parsed.reason.unwrap_or_default().to_owned()
    }

    #[getter]
    fn raw_headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        to_pairs(py, header_lines(self.inner.head()))
    }

    /// Header fields that followed the body (HTTP/2).
    #[getter]
    fn raw_trailers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        // As a head of its own, which ends with an empty line.
        let lines = self.inner.trailers.as_deref().unwrap_or_default();
        to_pairs(py, &[lines, b"\r\n"].concat())
    }

    /// Code of a gRPC call; None for everything else.
    #[getter]
    fn grpc_status(&self) -> Option<u8> {
        self.inner.grpc_status
    }

    /// The first header of this name, in any case.
    fn header(&self, name: &str) -> Option<String> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let parsed = httparse::parse_headers(header_lines(self.inner.head()), &mut headers).ok()?;
        let httparse::Status::Complete((_, found)) = parsed else { return None };
        let found = found.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        // Latin-1, as HTTP has it.
        Some(found.value.iter().map(|&byte| char::from(byte)).collect())
    }

    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.body)
    }

    /// Whether it was a call on a stream: it has messages, and mostly no head.
    #[getter]
    fn is_stream(&self) -> bool {
        self.inner.template.stream.is_some()
    }

    /// The messages that a call on a stream received: text or bytes.
    #[getter]
    fn messages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let messages = PyList::empty(py);
        for part in &self.inner.messages {
            match part.kind {
                // Checked when it arrived.
                PartKind::Text => messages.append(String::from_utf8_lossy(&part.bytes))?,
                PartKind::Data => messages.append(PyBytes::new(py, &part.bytes))?,
                PartKind::Head | PartKind::Close => {}
            }
        }
        Ok(messages)
    }

    /// When each message arrived, in nanoseconds since the call began.
    #[getter]
    fn message_times_ns(&self) -> Vec<u64> {
        let began_ns = self.inner.ended_ns.saturating_sub(self.inner.latency_ns);
        let parts = self.inner.messages.iter().filter(|part| part.kind != PartKind::Close);
        parts.map(|part| part.at_ns.saturating_sub(began_ns)).collect()
    }

    /// The code and the reason that the server closed a stream with.
    #[getter]
    fn close_reason(&self) -> Option<(u16, String)> {
        let close = self.inner.messages.iter().find(|part| part.kind == PartKind::Close)?;
        let (code, reason) = close.bytes.split_first_chunk::<2>()?;
        Some((u16::from_be_bytes(*code), String::from_utf8_lossy(reason).into_owned()))
    }

    #[getter]
    fn version(&self) -> &'static str {
        self.inner.version.name()
    }

    #[getter]
    fn url(&self) -> &str {
        self.inner.template.url.as_str()
    }

    #[getter]
    fn method(&self) -> &str {
        &self.inner.template.method
    }

    /// The last request's head as it was written, cookies aside.
    #[getter]
    fn request_head(&self) -> String {
        let template = &self.inner.template;
        if template.origin.protocol == Protocol::Http1 {
            return String::from_utf8_lossy(http1::head::lines(template)).into_owned();
        }
        format!("{} {}", template.method, template.url)
    }

    /// The last request's body, before it was cut into chunks.
    #[getter]
    fn request_body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let body = self.inner.template.body.as_ref();
        PyBytes::new(py, body.map_or(&[], |body| &body.bytes))
    }

    #[getter]
    fn redirects(&self) -> u32 {
        self.inner.redirects
    }

    /// The redirects that led here, in order; empty if the caller could not see bodies.
    #[getter]
    fn hops(&self) -> Vec<Self> {
        self.inner.hops.iter().map(|hop| Self { inner: hop.clone() }).collect()
    }

    #[getter]
    fn error(&self) -> Option<&'static str> {
        self.inner.failure.as_ref().map(|failure| failure.class.name())
    }

    #[getter]
    fn error_detail(&self) -> Option<&str> {
        self.inner.failure.as_ref().map(|failure| failure.detail.as_ref())
    }

    #[getter]
    fn latency_ns(&self) -> u64 {
        self.inner.latency_ns
    }

    #[getter]
    fn blocked_ns(&self) -> Option<u64> {
        self.phase(Phase::Blocked)
    }

    #[getter]
    fn connect_ns(&self) -> Option<u64> {
        self.phase(Phase::Connect)
    }

    #[getter]
    fn tls_ns(&self) -> Option<u64> {
        self.phase(Phase::Tls)
    }

    #[getter]
    fn first_byte_ns(&self) -> Option<u64> {
        self.phase(Phase::FirstByte)
    }

    #[getter]
    fn bytes_sent(&self) -> u64 {
        self.inner.bytes_sent
    }

    #[getter]
    fn bytes_received(&self) -> u64 {
        self.inner.bytes_received
    }

    #[getter]
    fn remote(&self) -> Option<String> {
        self.inner.remote.map(|address| address.to_string())
    }

    #[getter]
    fn tls_version(&self) -> Option<&'static str> {
        self.inner.tls.and_then(|tls| tls.version)
    }

    #[getter]
    fn tls_cipher(&self) -> Option<&'static str> {
        self.inner.tls.and_then(|tls| tls.cipher)
    }
}
