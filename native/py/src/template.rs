//! Requests and TLS options as Python makes them, and the values both engines take.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyperscale_core::engine::http::template::{self, Body, Limits};
use hyperscale_core::engine::protocol::Protocol;
use hyperscale_core::engine::transport::tls::TlsProfile;
use hyperscale_core::engine::transport::{self, tls};
use hyperscale_core::engine::{Mode, Options};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// How a user's call is to be secured; PEM contents are checked at once.
#[pyclass(frozen, module = "hyperscale._native")]
pub struct Tls {
    profile: TlsProfile,
}

#[pymethods]
impl Tls {
    #[new]
    #[pyo3(signature = (verify = true, ca_pem = None, cert_pem = None, key_pem = None))]
    fn new(
        verify: bool,
        ca_pem: Option<&[u8]>,
        cert_pem: Option<&[u8]>,
        key_pem: Option<&[u8]>,
    ) -> PyResult<Self> {
        let profile = TlsProfile {
            verify,
            ca_pem: ca_pem.map(Into::into),
            cert_pem: cert_pem.map(Into::into),
            key_pem: key_pem.map(Into::into),
        };
        tls::configure(&profile, Protocol::Http1.alpn())
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self { profile })
    }
}

/// A request, rendered once and sent many times.
#[pyclass(frozen, module = "hyperscale._native")]
pub struct Template {
    pub inner: Arc<template::Template>,
}

#[pymethods]
impl Template {
    #[new]
    #[allow(clippy::too_many_arguments)] // keyword arguments on the Python side
    #[pyo3(signature = (
        method, url, headers, body = None, content_type = None, *, chunked = false,
        connect_timeout_s, read_timeout_s, total_timeout_s, redirects_max, body_bytes_max, tls = None,
    ))]
    fn new(
        method: &str,
        url: &str,
        headers: Vec<(String, String)>,
        body: Option<&[u8]>,
        content_type: Option<String>,
        chunked: bool,
        connect_timeout_s: f64,
        read_timeout_s: f64,
        total_timeout_s: f64,
        redirects_max: u32,
        body_bytes_max: u64,
        tls: Option<&Tls>,
    ) -> PyResult<Self> {
        let limits = Limits {
            connect_ns: to_ns(connect_timeout_s)?,
            read_ns: to_ns(read_timeout_s)?,
            total_ns: to_ns(total_timeout_s)?,
            redirects_max,
            body_bytes_max,
        };
        let body = body.map(|bytes| Body { bytes: bytes.into(), chunked, content_type });
        let default = TlsProfile::default();
        let profile = tls.map_or(&default, |tls| &tls.profile);
        template::Template::new(method, url, headers, body, limits, profile, Protocol::Http1)
            .map(|template| Self { inner: Arc::new(template) })
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    #[getter]
    fn host(&self) -> &str {
        &self.inner.origin.host
    }

    #[getter]
    fn port(&self) -> u16 {
        self.inner.origin.port
    }

    #[getter]
    fn url(&self) -> &str {
        self.inner.url.as_str()
    }
}

pub fn to_ns(seconds: f64) -> PyResult<u64> {
    let duration = Duration::try_from_secs_f64(seconds)
        .map_err(|error| PyValueError::new_err(format!("timeout of {seconds} s: {error}")))?;
    Ok(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

pub fn to_options(
    connections: &str,
    connecting_max: usize,
    shared_max: usize,
) -> PyResult<Options> {
    let mode = match connections {
        "per-vu" => Mode::PerVu,
        "shared" => Mode::Shared,
        "per-request" => Mode::PerRequest,
        other => return Err(PyValueError::new_err(format!("unknown connections {other:?}"))),
    };
    Ok(Options { mode, connecting_max, shared_max, kernel_times: false })
}

pub fn to_addresses(addresses: Vec<String>) -> PyResult<Vec<SocketAddr>> {
    let parsed = addresses.iter().map(|text| text.parse());
    parsed.collect::<Result<_, _>>().map_err(|error| PyValueError::new_err(format!("{error}")))
}

/// Every address of a host as "ip:port"; raises `OSError` when it has none.
#[pyfunction]
pub fn resolve(py: Python<'_>, host: &str, port: u16) -> PyResult<Vec<String>> {
    let found = py.detach(|| transport::resolve::resolve(host, port));
    let addresses = found.map_err(pyo3::exceptions::PyOSError::new_err)?;
    Ok(addresses.iter().map(ToString::to_string).collect())
}
