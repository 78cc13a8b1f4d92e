//! Heads of HTTP/2 and HTTP/3: from fields to what a request asks for, and from a reply made for
//! HTTP/1 to fields.

use httparse::Header;
use hyperscale_core::http2::fields::Fields;

use crate::counts::Method;
use crate::request::{Framing, Head, HEADERS_MAX};
use crate::routes::{self, Plan};

/// What the fields of a request ask for, or why they are no request.
pub fn plan(fields: &Fields, version: u8) -> Result<(Plan, Method), &'static str> {
    let text = |name: &[u8]| std::str::from_utf8(fields.get(name).unwrap_or_default());
    let (Ok(method), Ok(target)) = (text(b":method"), text(b":path")) else {
        return Err("a request head that is not text");
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut headers = Vec::with_capacity(16);
    if let Some(authority) = fields.get(b":authority") {
        headers.push(Header { name: "host", value: authority });
    }
    for (name, value) in fields.iter().filter(|(name, _)| !name.starts_with(b":")) {
        let name = std::str::from_utf8(name).unwrap_or_default();
        headers.push(Header { name, value });
    }
    if headers.len() > HEADERS_MAX {
        return Err("more than 100 headers");
    }
    let head = Head {
        method,
        path,
        query,
        version,
        headers: &headers,
        keep_alive: true,
        framing: Framing::None,
        expects_continue: false,
    };
    let method = Method::parse(method);
    Ok((routes::plan(&head, method), method))
}

/// Hands the fields of a reply made for HTTP/1 to `encode`. Returns where its body begins.
pub fn fields(reply: &[u8], mut encode: impl FnMut(&str, &[u8])) -> Option<usize> {
    let mut slots = [httparse::EMPTY_HEADER; 32];
    let mut parsed = httparse::Response::new(&mut slots);
    let Ok(httparse::Status::Complete(used)) = parsed.parse(reply) else { return None };
    encode(":status", parsed.code.unwrap_or_default().to_string().as_bytes());
    for header in parsed.headers.iter().filter(|h| !h.name.eq_ignore_ascii_case("connection")) {
        encode(&header.name.to_ascii_lowercase(), header.value);
    }
    Some(used)
}
