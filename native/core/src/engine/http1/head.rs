//! The head of a request as HTTP/1.1 writes it.

use cookie_store::CookieStore;

use crate::engine::http::cookies;
use crate::engine::http::template::{Template, DEFAULT_HEADERS};

const END: &[u8] = b"\r\n";

/// The head of a request that has no cookies, the empty line included. Rendered once.
pub fn whole(template: &Template) -> &[u8] {
    template.http1_head.get_or_init(|| render(template).into())
}

/// Everything up to, not including, cookies and the empty line.
#[must_use]
pub fn lines(template: &Template) -> &[u8] {
    whole(template).strip_suffix(END).unwrap_or_default()
}

/// A head of its own: with cookies, or one that asks for the connection to close.
pub fn own(template: &Template, jar: Option<&CookieStore>, close: bool) -> Box<[u8]> {
    let mut head = lines(template).to_vec();
    if let Some(value) = cookies::header_value(template, jar) {
        head.extend_from_slice(b"Cookie: ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(END);
    }
    head.extend_from_slice(if close { b"Connection: close\r\n\r\n" } else { END });
    head.into()
}

fn render(template: &Template) -> Vec<u8> {
    let mut head = Vec::with_capacity(256);
    let mut line = |parts: &[&str]| {
        for part in parts {
            head.extend_from_slice(part.as_bytes());
        }
        head.extend_from_slice(END);
    };
    let Template { method, url, headers, body, .. } = template;
    let path = url.path();
    match url.query() {
        Some(query) => line(&[method, " ", path, "?", query, " HTTP/1.1"]),
        None => line(&[method, " ", path, " HTTP/1.1"]),
    }
    let host = url.host_str().unwrap_or_default();
    if !template.has_header("host") {
        match url.port() {
            Some(port) => line(&["Host: ", host, ":", &port.to_string()]),
            None => line(&["Host: ", host]),
        }
    }
    for (name, value) in DEFAULT_HEADERS {
        if !template.has_header(name) {
            line(&[name, ": ", value]);
        }
    }
    for (name, value) in headers {
        if !name.eq_ignore_ascii_case("cookie") {
            line(&[name, ": ", value]);
        }
    }
    match body {
        Some(body) => {
            if let Some(kind) = &body.content_type {
                if !template.has_header("content-type") {
                    line(&["Content-Type: ", kind]);
                }
            }
            if body.chunked {
                line(&["Transfer-Encoding: chunked"]);
            } else if !template.has_header("content-length") {
                line(&["Content-Length: ", &body.bytes.len().to_string()]);
            }
        }
        None if matches!(method.as_str(), "POST" | "PUT" | "PATCH") => line(&["Content-Length: 0"]),
        None => {}
    }
    head.extend_from_slice(END);
    head
}
