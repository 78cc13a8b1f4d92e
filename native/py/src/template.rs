//! Requests and TLS options as Python makes them, and the values both engines take.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyperscale_core::engine::http::template::{self, Body, Limits};
use hyperscale_core::engine::protocol::Protocol;
use hyperscale_core::engine::streams::{StreamCall, Until, Verb};
use hyperscale_core::engine::transport::route::{self, Proxy, ProxyKind};
use hyperscale_core::engine::transport::tls::TlsProfile;
use hyperscale_core::engine::transport::{self, tls};
use hyperscale_core::engine::{websocket, Mode, Options};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyType;

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

/// kind, host, port, user and password
type ProxyArguments = (String, String, u16, Option<(String, String)>);

/// How connections reach their servers, where that is not the plain way.
#[pyclass(frozen, module = "hyperscale._native")]
pub struct Route {
    route: Arc<route::Route>,
}

#[pymethods]
impl Route {
    #[new]
    #[pyo3(signature = (*, resolve, bind, unix_socket = None, proxy = None))]
    fn new(
        resolve: Vec<(String, Vec<String>)>,
        bind: Vec<String>,
        unix_socket: Option<PathBuf>,
        proxy: Option<ProxyArguments>,
    ) -> PyResult<Self> {
        let resolve = resolve.into_iter().map(|(host, given)| Ok((host, to_ips(&given)?)));
        let proxy = match proxy {
            Some((kind, host, port, credentials)) => {
                let kind = match kind.as_str() {
                    "http" => ProxyKind::Http,
                    "socks5" => ProxyKind::Socks5,
                    other => {
                        return Err(PyValueError::new_err(format!("unknown proxy {other:?}")));
                    }
                };
                Some(Proxy { kind, host, port, credentials })
            }
            None => None,
        };
        let resolve = resolve.collect::<PyResult<_>>()?;
        let route = route::Route { resolve, bind: to_ips(&bind)?, unix_socket, proxy };
        Ok(Self { route: Arc::new(route) })
    }
}

fn to_ips(texts: &[String]) -> PyResult<Vec<IpAddr>> {
    let parsed = texts.iter().map(|text| {
        text.parse().map_err(|error| PyValueError::new_err(format!("{text:?}: {error}")))
    });
    parsed.collect()
}

/// A request, rendered once and sent many times.
#[pyclass(frozen, module = "hyperscale._native")]
pub struct Template {
    pub inner: Arc<template::Template>,
    /// What the caller receives, if it is not the engine's usual response.
    pub response_type: Option<Py<PyType>>,
}

fn to_verb(name: &str) -> PyResult<Verb> {
    Ok(match name {
        "OPEN" => Verb::Open,
        "SEND" => Verb::Send,
        "RECEIVE" => Verb::Receive,
        "EXCHANGE" => Verb::Exchange,
        "PING" => Verb::Ping,
        "CLOSE" => Verb::Close,
        // A request whose body is cut into messages.
        "GET" | "POST" | "PUT" | "PATCH" | "DELETE" => Verb::Receive,
        other => return Err(PyValueError::new_err(format!("unknown call {other:?}"))),
    })
}

#[pymethods]
impl Template {
    #[new]
    #[allow(clippy::too_many_arguments)] // keyword arguments on the Python side
    #[pyo3(signature = (
        method, url, headers, body = None, content_type = None, *, chunked = false,
        connect_timeout_s, read_timeout_s, total_timeout_s, redirects_max, body_bytes_max, tls = None,
        protocol = "http1", streams_max = 100, response_type = None, route = None, continues = false,
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
        protocol: &str,
        streams_max: u32,
        response_type: Option<Py<PyType>>,
        route: Option<&Route>,
        continues: bool,
    ) -> PyResult<Self> {
        let limits = Limits {
            connect_ns: to_ns(connect_timeout_s)?,
            read_ns: to_ns(read_timeout_s)?,
            total_ns: to_ns(total_timeout_s)?,
            redirects_max,
            body_bytes_max,
        };
        let body = body.map(|bytes| Body { bytes: bytes.into(), chunked, content_type, continues });
        let default = TlsProfile::default();
        let profile = tls.map_or(&default, |tls| &tls.profile);
        let protocol = to_protocol(protocol, streams_max)?;
        template::Template::new(method, url, headers, body, limits, profile, protocol)
            .and_then(|made| on_route(made, route))
            .map(|template| Self { inner: Arc::new(template), response_type })
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// This request as a call on a stream. `verb` is one of OPEN, SEND, RECEIVE, EXCHANGE, PING and
    /// CLOSE, or the method of an HTTP request whose body is cut into messages.
    #[staticmethod]
    #[allow(clippy::too_many_arguments)] // keyword arguments on the Python side
    #[pyo3(signature = (
        verb, url, headers, body = None, content_type = None, *, response_type, is_text = false,
        count = 1, ends_in_time = false, until_bytes = None, until = None, events = false,
        subprotocols = None, deflate = false, close_code = 1000, close_reason = String::new(),
        connect_timeout_s, read_timeout_s, total_timeout_s, body_bytes_max, tls = None, route = None,
    ))]
    fn stream(
        verb: &str,
        url: &str,
        headers: Vec<(String, String)>,
        body: Option<&[u8]>,
        content_type: Option<String>,
        response_type: Py<PyType>,
        is_text: bool,
        count: usize,
        ends_in_time: bool,
        until_bytes: Option<usize>,
        until: Option<&[u8]>,
        events: bool,
        subprotocols: Option<String>,
        deflate: bool,
        close_code: u16,
        close_reason: String,
        connect_timeout_s: f64,
        read_timeout_s: f64,
        total_timeout_s: f64,
        body_bytes_max: u64,
        tls: Option<&Tls>,
        route: Option<&Route>,
    ) -> PyResult<Self> {
        let limits = Limits {
            connect_ns: to_ns(connect_timeout_s)?,
            read_ns: to_ns(read_timeout_s)?,
            total_ns: to_ns(total_timeout_s)?,
            redirects_max: 0,
            body_bytes_max,
        };
        let call = StreamCall {
            verb: to_verb(verb)?,
            is_text,
            count,
            ends_in_time,
            until: match (until_bytes, until) {
                _ if events => Until::EmptyLine,
                (Some(count), _) => Until::Bytes(count.max(1)),
                (None, Some(delimiter)) if !delimiter.is_empty() => {
                    Until::Delimiter(delimiter.into())
                }
                _ => Until::Any,
            },
            subprotocols,
            deflate,
            close_code,
            close_reason,
        };
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        let protocol = match scheme.to_ascii_lowercase().as_str() {
            "ws" | "wss" => Protocol::WebSocket(0),
            "tcp" | "tls" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            _ => Protocol::Http1,
        };
        let body = body.map(|bytes| Body { bytes: bytes.into(), content_type, ..Body::default() });
        let default = TlsProfile::default();
        let profile = tls.map_or(&default, |tls| &tls.profile);
        let made = template::Template::new(verb, url, headers, body, limits, profile, protocol)
            .and_then(|made| on_route(made, route))
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let protocol = match protocol {
            Protocol::WebSocket(_) => Protocol::WebSocket(websocket::socket_number(&made, &call)),
            other => other,
        };
        let inner = Arc::new(made.on_stream(call, protocol));
        Ok(Self { inner, response_type: Some(response_type) })
    }

    /// The same call on a stream with another message.
    fn with_message(&self, py: Python<'_>, payload: &[u8], is_text: bool) -> Self {
        Self {
            inner: Arc::new(self.inner.with_message(payload, is_text)),
            response_type: self.response_type.as_ref().map(|kind| kind.clone_ref(py)),
        }
    }

    /// Host and port that have to be looked up before a connection can be opened: those of the
    /// server, or of the proxy before it.
    #[getter]
    fn unresolved(&self) -> Option<(&str, u16)> {
        let origin = &self.inner.origin;
        origin.known_addresses().is_none().then(|| origin.peer())
    }

    #[getter]
    fn url(&self) -> &str {
        self.inner.url.as_str()
    }
}

fn on_route(
    made: template::Template,
    route: Option<&Route>,
) -> Result<template::Template, template::TemplateError> {
    match route {
        Some(route) => made.on_route(&route.route),
        None => Ok(made),
    }
}

fn to_protocol(name: &str, streams_max: u32) -> PyResult<Protocol> {
    match name {
        "http1" => Ok(Protocol::Http1),
        "http2" => Ok(Protocol::Http2 { streams_max }),
        "http3" => Ok(Protocol::Http3 { streams_max }),
        "auto" => Ok(Protocol::Auto { streams_max }),
        "grpc" => Ok(Protocol::Grpc { streams_max }),
        other => Err(PyValueError::new_err(format!("unknown protocol {other:?}"))),
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
