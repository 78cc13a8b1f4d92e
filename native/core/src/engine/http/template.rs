//! A request, prepared once and sent many times.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;
use url::Url;

use super::prepared::Prepared;
use crate::engine::protocol::Protocol;
use crate::engine::streams::StreamCall;
use crate::engine::transport::route::{Proxy, Route};
use crate::engine::transport::tls::TlsProfile;

pub const USER_AGENT: &str = concat!("hyperscale/", env!("CARGO_PKG_VERSION"));
const ACCEPT_ENCODING: &str = "gzip, deflate, br, zstd";
/// Headers of every request whose user did not set them.
pub const DEFAULT_HEADERS: [(&str, &str); 3] =
    [("User-Agent", USER_AGENT), ("Accept", "*/*"), ("Accept-Encoding", ACCEPT_ENCODING)];

#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("{url:?} is not a URL: {reason}")]
    Url { url: String, reason: String },
    #[error("{0:?} is not an HTTP method")]
    Method(String),
    #[error("header name {0:?} has a character that is not allowed")]
    HeaderName(String),
    #[error("the value of header {0:?} has a line break or control character")]
    HeaderValue(String),
    #[error("datagrams (UDP, HTTP/3) go neither through a proxy nor to a Unix socket")]
    DatagramRoute,
}

/// Where a connection goes: who shares one of these may share a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    pub host: String,
    pub port: u16,
    pub tls: Option<TlsProfile>,
    pub protocol: Protocol,
    /// None: straight to the addresses of the host.
    pub route: Option<Arc<Route>>,
}

impl Origin {
    /// Host and port that connections go to: the server's, or those of the proxy before it.
    #[must_use]
    pub fn peer(&self) -> (&str, u16) {
        match self.proxy() {
            Some(proxy) => (&proxy.host, proxy.port),
            None => (&self.host, self.port),
        }
    }

    #[must_use]
    pub fn proxy(&self) -> Option<&Proxy> {
        self.route.as_ref()?.proxy.as_ref()
    }

    #[must_use]
    pub fn unix_socket(&self) -> Option<&Path> {
        self.route.as_ref()?.unix_socket.as_deref()
    }

    /// The addresses to connect to, if no name has to be looked up for them. A Unix socket needs
    /// none.
    #[must_use]
    pub fn known_addresses(&self) -> Option<Vec<SocketAddr>> {
        if self.unix_socket().is_some() {
            return Some(Vec::new());
        }
        let (host, port) = self.peer();
        let given = self.route.as_ref().and_then(|route| route.addresses_of(host));
        match given {
            Some(given) => Some(given.iter().map(|&ip| SocketAddr::new(ip, port)).collect()),
            None => Some(vec![SocketAddr::new(host.parse().ok()?, port)]),
        }
    }

    /// The server as a proxy is asked for it: by an address that was given for it, else by name.
    #[must_use]
    pub fn behind_proxy(&self) -> String {
        let given = self.route.as_ref().and_then(|route| route.addresses_of(&self.host));
        given.and_then(<[_]>::first).map_or_else(|| self.host.clone(), ToString::to_string)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub connect_ns: u64,
    /// Longest silence while a response is awaited or arriving.
    pub read_ns: u64,
    /// From the call to the last byte, redirects included.
    pub total_ns: u64,
    pub redirects_max: u32,
    pub body_bytes_max: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Body {
    pub bytes: Arc<[u8]>,
    /// `bytes` are already framed as chunks.
    pub chunked: bool,
    pub content_type: Option<String>,
    /// More follows, handed over while the request runs.
    pub continues: bool,
}

#[derive(Debug)]
pub struct Template {
    pub method: String,
    pub url: Url,
    pub origin: Origin,
    pub limits: Limits,
    pub body: Option<Body>,
    /// Of a call on a stream.
    pub stream: Option<Box<StreamCall>>,
    pub headers: Vec<(String, String)>,
    /// Cookies the user set on this request, as one header value.
    pub cookies: Option<String>,
    /// Which number an engine gave `origin`, as `engine << 32 | origin`.
    origin_hint: AtomicU64,
    /// What each protocol prepares of it at the first use.
    pub(in crate::engine) http1_head: OnceLock<Box<[u8]>>,
    pub(in crate::engine) http2: OnceLock<Prepared>,
    pub(in crate::engine) http3: OnceLock<Prepared>,
}

impl Template {
    /// The value of a header that the caller set.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(value)
    }

    pub fn new(
        method: &str,
        url: &str,
        headers: Vec<(String, String)>,
        body: Option<Body>,
        limits: Limits,
        tls: &TlsProfile,
        protocol: Protocol,
    ) -> Result<Self, TemplateError> {
        let parsed = parse_url(url, protocol)?;
        Self::build(method.to_owned(), parsed, headers, body, limits, tls, protocol)
    }

    fn build(
        method: String,
        mut url: Url,
        mut headers: Vec<(String, String)>,
        body: Option<Body>,
        limits: Limits,
        tls: &TlsProfile,
        protocol: Protocol,
    ) -> Result<Self, TemplateError> {
        if method.is_empty() || !method.bytes().all(is_token) {
            return Err(TemplateError::Method(method));
        }
        for (name, value) in &headers {
            if name.is_empty() || !name.bytes().all(is_token) {
                return Err(TemplateError::HeaderName(name.clone()));
            }
            if value.bytes().any(|b| (b < b' ' && b != b'\t') || b == 0x7f) {
                return Err(TemplateError::HeaderValue(name.clone()));
            }
        }
        if !url.username().is_empty() {
            if !has_header(&headers, "authorization") {
                headers.push(("Authorization".into(), basic_auth(&url)));
            }
            // Neither call fails on a URL that has a host.
            let _ = url.set_username("");
            let _ = url.set_password(None);
        }
        url.set_fragment(None);
        let origin = Origin {
            host: host_name(&url),
            port: url.port_or_known_default().unwrap_or(80),
            tls: matches!(url.scheme(), "https" | "wss" | "tls").then(|| tls.clone()),
            protocol,
            route: None,
        };
        let cookies = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("cookie"));
        let cookies: Vec<&str> = cookies.map(|(_, value)| value.as_str()).collect();
        let cookies = (!cookies.is_empty()).then(|| cookies.join("; "));
        let origin_hint = AtomicU64::new(u64::MAX);
        Ok(Self {
            method,
            url,
            origin,
            limits,
            body,
            stream: None,
            headers,
            cookies,
            origin_hint,
            http1_head: OnceLock::new(),
            http2: OnceLock::new(),
            http3: OnceLock::new(),
        })
    }

    /// The request that follows a redirect, as browsers and RFC 9110 §15.4 have it.
    pub fn redirected(
        &self,
        status: u16,
        location: &str,
        tls: &TlsProfile,
    ) -> Result<Self, TemplateError> {
        let url = self.url.join(location).map_err(|error| TemplateError::Url {
            url: location.to_owned(),
            reason: error.to_string(),
        })?;
        check_url(&url, location, self.origin.protocol)?;
        let to_get = status == 303 || (matches!(status, 301 | 302) && self.method == "POST");
        let drop_body = to_get && self.method != "HEAD";
        let same_origin = url.origin() == self.url.origin();
        let headers = self.headers.iter().filter(|(name, _)| {
            let is = |other: &str| name.eq_ignore_ascii_case(other);
            let names_body = is("content-type") || is("content-length") || is("transfer-encoding");
            let is_secret = is("authorization") || is("cookie");
            !(is("host") || (drop_body && names_body) || (!same_origin && is_secret))
        });
        let (method, body) = if drop_body {
            ("GET".to_owned(), None)
        } else {
            (self.method.clone(), self.body.clone())
        };
        let headers = headers.cloned().collect();
        let mut next =
            Self::build(method, url, headers, body, self.limits, tls, self.origin.protocol)?;
        next.origin.route.clone_from(&self.origin.route);
        Ok(next)
    }

    /// Has its connections take another way than straight to the addresses of the host.
    pub fn on_route(mut self, route: &Arc<Route>) -> Result<Self, TemplateError> {
        let protocol = self.origin.protocol;
        let is_datagram = protocol.is_datagram() || protocol.is_quic();
        if is_datagram && (route.proxy.is_some() || route.unix_socket.is_some()) {
            return Err(TemplateError::DatagramRoute);
        }
        self.origin.route = Some(route.clone());
        Ok(self)
    }

    /// Makes this a call on a stream of the protocol that the call is for.
    #[must_use]
    pub fn on_stream(mut self, call: StreamCall, protocol: Protocol) -> Self {
        self.stream = Some(Box::new(call));
        self.origin.protocol = protocol;
        self
    }

    /// The same call with another message.
    #[must_use]
    pub fn with_message(&self, payload: &[u8], is_text: bool) -> Self {
        let stream = self.stream.clone().map(|call| Box::new(StreamCall { is_text, ..*call }));
        Self {
            method: self.method.clone(),
            url: self.url.clone(),
            origin: self.origin.clone(),
            limits: self.limits,
            body: Some(Body { bytes: payload.into(), ..Body::default() }),
            stream,
            headers: self.headers.clone(),
            cookies: self.cookies.clone(),
            origin_hint: AtomicU64::new(self.origin_hint.load(Ordering::Relaxed)),
            http1_head: OnceLock::new(),
            http2: OnceLock::new(),
            http3: OnceLock::new(),
        }
    }

    /// Whether the user set a header of this name.
    #[must_use]
    pub fn has_header(&self, name: &str) -> bool {
        has_header(&self.headers, name)
    }

    #[must_use]
    pub fn is_grpc(&self) -> bool {
        self.origin.protocol.is_grpc()
    }

    #[must_use]
    pub fn is_idempotent(&self) -> bool {
        matches!(self.method.as_str(), "GET" | "HEAD" | "PUT" | "DELETE" | "OPTIONS" | "TRACE")
    }

    pub(in crate::engine) fn origin_in(&self, engine: u32) -> Option<u32> {
        let hint = self.origin_hint.load(Ordering::Relaxed);
        (hint >> 32 == u64::from(engine)).then_some(hint as u32)
    }

    pub(in crate::engine) fn remember_origin(&self, engine: u32, origin: u32) {
        let hint = u64::from(engine) << 32 | u64::from(origin);
        self.origin_hint.store(hint, Ordering::Relaxed);
    }
}

/// An absolute URL with a host, of a scheme that the protocol has.
pub fn parse_url(text: &str, protocol: Protocol) -> Result<Url, TemplateError> {
    let url = Url::parse(text)
        .map_err(|error| TemplateError::Url { url: text.to_owned(), reason: error.to_string() })?;
    check_url(&url, text, protocol)?;
    Ok(url)
}

fn check_url(url: &Url, text: &str, protocol: Protocol) -> Result<(), TemplateError> {
    let [plain, secure] = protocol.schemes();
    let scheme = url.scheme();
    let reason = match (scheme == plain || scheme == secure, url.has_host()) {
        (true, true) => return Ok(()),
        (true, false) => "it has no host".to_owned(),
        (false, _) if plain == secure => format!("scheme {scheme:?} is not {secure}"),
        (false, _) => format!("scheme {scheme:?} is neither {plain} nor {secure}"),
    };
    Err(TemplateError::Url { url: text.to_owned(), reason })
}

/// The host as resolvers and TLS want it: no brackets around IPv6.
fn host_name(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host).to_owned()
}

fn basic_auth(url: &Url) -> String {
    let decode = |text: &str| -> Vec<u8> { percent_decode(text.as_bytes()) };
    let mut pair = decode(url.username());
    pair.push(b':');
    pair.extend(decode(url.password().unwrap_or_default()));
    format!("Basic {}", STANDARD.encode(pair))
}

pub fn percent_decode(input: &[u8]) -> Vec<u8> {
    let digit = |b: Option<&u8>| b.and_then(|&b| (b as char).to_digit(16));
    let mut out = Vec::with_capacity(input.len());
    let mut at = 0;
    while let Some(&byte) = input.get(at) {
        match (byte, digit(input.get(at + 1)), digit(input.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

fn has_header(headers: &[(String, String)], wanted: &str) -> bool {
    headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{Body, Limits, Template};
    use crate::engine::http1;
    use crate::engine::protocol::Protocol;
    use crate::engine::transport::tls::TlsProfile;

    const LIMITS: Limits =
        Limits { connect_ns: 1, read_ns: 1, total_ns: 1, redirects_max: 10, body_bytes_max: 1 };

    fn template(method: &str, url: &str, headers: &[(&str, &str)], body: Option<&str>) -> Template {
        let headers = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let body = body.map(|text| Body { bytes: text.as_bytes().into(), ..Body::default() });
        let tls = TlsProfile::default();
        Template::new(method, url, headers, body, LIMITS, &tls, Protocol::Http1).unwrap()
    }

    fn head(template: &Template) -> String {
        String::from_utf8(http1::head::lines(template).to_vec()).unwrap()
    }

    #[test]
    fn the_head_names_path_host_and_length() {
        let text = head(&template("POST", "http://h:81/a b?q=1#frag", &[], Some("xyz")));
        assert!(text.starts_with("POST /a%20b?q=1 HTTP/1.1\r\nHost: h:81\r\n"), "{text}");
        assert!(text.contains("Content-Length: 3\r\n"));
        assert!(head(&template("GET", "https://h:443", &[], None)).contains("Host: h\r\n"));
    }

    #[test]
    fn headers_of_the_user_replace_the_defaults() {
        let text =
            head(&template("GET", "http://h/", &[("user-agent", "me"), ("Host", "other")], None));
        assert!(text.contains("user-agent: me\r\n") && !text.contains("hyperscale/"));
        assert!(text.contains("Host: other\r\n") && !text.contains("Host: h\r\n"));
    }

    #[test]
    fn injection_and_nonsense_are_refused() {
        let tls = TlsProfile::default();
        let bad = |method: &str, url: &str, name: &str, value: &str| {
            let headers = vec![(name.to_owned(), value.to_owned())];
            Template::new(method, url, headers, None, LIMITS, &tls, Protocol::Http1)
                .unwrap_err()
                .to_string()
        };
        assert!(bad("GET", "http://h/", "X", "a\r\nEvil: 1").contains("line break"));
        assert!(bad("GET", "http://h/", "X Y", "a").contains("header name"));
        assert!(bad("GE T", "http://h/", "X", "a").contains("method"));
        assert!(bad("GET", "ftp://h/", "X", "a").contains("neither http nor https"));
        assert!(bad("GET", "h/path", "X", "a").contains("not a URL"));
    }

    #[test]
    fn credentials_in_the_url_become_a_header() {
        let text = head(&template("GET", "http://us%40er:pa%3Ass@h/", &[], None));
        assert!(text.contains("Authorization: Basic dXNAZXI6cGE6c3M=\r\n"), "{text}");
        assert!(text.contains("Host: h\r\n"));
    }

    #[test]
    fn redirects_follow_the_rules_of_the_web() {
        let post =
            template("POST", "http://h/a/b", &[("Authorization", "s"), ("X", "1")], Some("body"));
        let tls = TlsProfile::default();
        let seen = post.redirected(302, "../c", &tls).unwrap();
        assert_eq!((seen.method.as_str(), seen.url.as_str()), ("GET", "http://h/c"));
        assert!(seen.body.is_none() && head(&seen).contains("Authorization: s"));
        let kept = post.redirected(307, "http://other/", &tls).unwrap();
        assert!(kept.method == "POST" && kept.body.is_some());
        assert!(!head(&kept).contains("Authorization") && head(&kept).contains("X: 1"));
        assert!(post.redirected(302, "gopher://x/", &tls).is_err());
    }

    #[test]
    fn ipv6_hosts_lose_their_brackets_only_for_the_resolver() {
        let parsed = template("GET", "http://[::1]:8080/", &[], None);
        assert_eq!(parsed.origin.host, "::1");
        assert!(head(&parsed).contains("Host: [::1]:8080\r\n"));
    }
}
