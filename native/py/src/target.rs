//! The built-in target server, for the command line and for tests.

use hyperscale_target::{self_signed as make_self_signed, Identity, Options, StartError};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

/// What the system refused becomes an `OSError` with its number, the rest a `ValueError`.
fn to_py(error: StartError) -> PyErr {
    match &error {
        StartError::Listen { source, .. } | StartError::Io(source) => {
            PyOSError::new_err((source.raw_os_error(), error.to_string()))
        }
        _ => PyValueError::new_err(error.to_string()),
    }
}

#[pyclass(module = "hyperscale._native", frozen)]
pub struct Target {
    inner: hyperscale_target::Target,
}

#[pymethods]
impl Target {
    #[new]
    #[pyo3(signature = (
        host = "127.0.0.1", port = 0, threads = 1,
        tls_cert_pem = None, tls_key_pem = None, tls_client_ca_pem = None,
        *, tcp_port = None, udp_port = None, http3_port = None,
    ))]
    #[allow(clippy::too_many_arguments)] // most of them named by the caller
    fn new(
        py: Python<'_>,
        host: &str,
        port: u16,
        threads: usize,
        tls_cert_pem: Option<Vec<u8>>,
        tls_key_pem: Option<Vec<u8>>,
        tls_client_ca_pem: Option<Vec<u8>>,
        tcp_port: Option<u16>,
        udp_port: Option<u16>,
        http3_port: Option<u16>,
    ) -> PyResult<Self> {
        let tls = match (tls_cert_pem, tls_key_pem) {
            (None, None) if tls_client_ca_pem.is_none() => None,
            (Some(certificates_pem), Some(key_pem)) => {
                Some(Identity { certificates_pem, key_pem, client_ca_pem: tls_client_ca_pem })
            }
            _ => return Err(PyValueError::new_err("TLS needs both a certificate and its key")),
        };
        let host = host.to_owned();
        let options = Options { host, port, threads, tcp_port, udp_port, http3_port, tls };
        let inner = py.detach(|| hyperscale_target::Target::start(&options)).map_err(to_py)?;
        Ok(Self { inner })
    }

    #[getter]
    fn host(&self) -> String {
        self.inner.address().ip().to_string()
    }

    #[getter]
    fn port(&self) -> u16 {
        self.inner.address().port()
    }

    #[getter]
    fn tcp_port(&self) -> Option<u16> {
        self.inner.tcp_address().map(|address| address.port())
    }

    #[getter]
    fn udp_port(&self) -> Option<u16> {
        self.inner.udp_address().map(|address| address.port())
    }

    #[getter]
    fn http3_port(&self) -> Option<u16> {
        self.inner.http3_address().map(|address| address.port())
    }

    fn counts(&self, py: Python<'_>) -> String {
        let json = py.detach(|| self.inner.totals().to_json());
        String::from_utf8_lossy(&json).into_owned()
    }

    fn reset(&self, py: Python<'_>) {
        py.detach(|| self.inner.totals().reset());
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.inner.stop())?)
    }
}

/// A certificate for `names` and its key, in PEM.
#[pyfunction]
pub fn self_signed(names: Vec<String>) -> PyResult<(String, String)> {
    make_self_signed(names).map_err(|error| PyValueError::new_err(error.to_string()))
}
