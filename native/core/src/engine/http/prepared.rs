//! A request as HTTP/2 and HTTP/3 send it: its header block and its body, prepared once.

use std::sync::Arc;

use super::template::{Body, Template, DEFAULT_HEADERS};
use crate::http2::hpack::Secrecy;

/// Appends a field to a header block, as HPACK or QPACK has it.
pub type Encode = fn(&mut Vec<u8>, &str, &[u8], Secrecy);

/// What every stream of a request sends.
#[derive(Debug)]
pub struct Prepared {
    pub block: Box<[u8]>,
    pub body: Option<Arc<[u8]>>,
}

/// Headers that HTTP/2 and HTTP/3 do not have, or that are sent in another way.
const LEFT_OUT: [&str; 7] = [
    "connection",
    "cookie",
    "host",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
];

pub fn prepare(template: &Template, prefix: &[u8], encode: Encode) -> Prepared {
    let body = template.body.as_ref().map(body_of);
    Prepared { block: block(template, body.as_deref(), prefix, encode).into(), body }
}

fn block(template: &Template, body: Option<&[u8]>, prefix: &[u8], encode: Encode) -> Vec<u8> {
    let Template { method, url, headers, .. } = template;
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(prefix);
    let mut field = |name: &str, value: &str| {
        let is_secret = matches!(name, "authorization" | "proxy-authorization");
        let secrecy = if is_secret { Secrecy::NeverIndexed } else { Secrecy::Open };
        encode(&mut out, name, value.as_bytes(), secrecy);
    };
    let given = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("host"));
    let host = url.host_str().unwrap_or_default();
    let authority = match (given, url.port()) {
        (Some((_, value)), _) => value.clone(),
        (None, Some(port)) => format!("{host}:{port}"),
        (None, None) => host.to_owned(),
    };
    let path = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    field(":method", method);
    field(":scheme", url.scheme());
    field(":authority", &authority);
    field(":path", &path);
    for (name, value) in DEFAULT_HEADERS {
        if !template.has_header(name) {
            field(&name.to_ascii_lowercase(), value);
        }
    }
    for (name, value) in headers {
        let name = name.to_ascii_lowercase();
        if !LEFT_OUT.contains(&name.as_str()) && (name != "te" || value == "trailers") {
            field(&name, value);
        }
    }
    let kind = template.body.as_ref().and_then(|body| body.content_type.as_deref());
    if let Some(kind) = kind.filter(|_| !template.has_header("content-type")) {
        field("content-type", kind);
    }
    let has_length = template.has_header("content-length");
    match body {
        Some(body) if !has_length && !template.is_grpc() => {
            field("content-length", &body.len().to_string());
        }
        None if matches!(method.as_str(), "POST" | "PUT" | "PATCH") && !has_length => {
            field("content-length", "0");
        }
        _ => {}
    }
    out
}

/// The bytes of a body, without the chunks that HTTP/1.1 would send them in.
fn body_of(body: &Body) -> Arc<[u8]> {
    if !body.chunked {
        return body.bytes.clone();
    }
    let mut plain = Vec::with_capacity(body.bytes.len());
    let mut rest = &body.bytes[..];
    while let Ok(httparse::Status::Complete((used, size))) = httparse::parse_chunk_size(rest) {
        let data = rest.get(used..).unwrap_or_default();
        let Some((chunk, after)) = data.split_at_checked(size as usize) else { break };
        plain.extend_from_slice(chunk);
        rest = after.strip_prefix(b"\r\n").unwrap_or_default();
    }
    plain.into()
}
