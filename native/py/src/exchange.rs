use hyperscale_core::engine::{exchange, http1};
use hyperscale_core::recorder::Phase;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

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
        let mut headers = [httparse::EMPTY_HEADER; 128];
        let mut parsed = httparse::Response::new(&mut headers);
        let pairs = PyList::empty(py);
        // The head was parsed once already, under the same limits.
        if parsed.parse(self.inner.head()).is_ok() {
            for header in parsed.headers.iter() {
                let name = PyBytes::new(py, header.name.as_bytes());
                pairs.append((name, PyBytes::new(py, header.value)))?;
            }
        }
        Ok(pairs)
    }

    /// The first header of this name, in any case.
    fn header(&self, name: &str) -> Option<String> {
        let mut headers = [httparse::EMPTY_HEADER; 128];
        let mut parsed = httparse::Response::new(&mut headers);
        parsed.parse(self.inner.head()).ok()?;
        let found = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        // Latin-1, as HTTP has it.
        Some(found.value.iter().map(|&byte| char::from(byte)).collect())
    }

    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.body)
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
        String::from_utf8_lossy(http1::head::lines(&self.inner.template)).into_owned()
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
