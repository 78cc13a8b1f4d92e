//! The opening handshake (RFC 6455 §4): from an HTTP request to a WebSocket.

use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;
use cookie_store::CookieStore;
use ring::digest::{digest, SHA1_FOR_LEGACY_USE_ONLY};

use super::deflate::OFFER;
use crate::engine::error::Failure;
use crate::engine::http::cookies;
use crate::engine::http::reply::Reply;
use crate::engine::http::template::{Template, USER_AGENT};
use crate::engine::streams::StreamCall;

const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const HEADERS_MAX: usize = 128;
pub const SWITCHING: u16 = 101;

/// What a handshake agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    pub deflate: bool,
}

/// The request that opens a socket.
pub fn request_head(template: &Template, key: &str, jar: Option<&CookieStore>) -> Vec<u8> {
    let mut head = Vec::with_capacity(512);
    let mut line = |parts: &[&str]| {
        for part in parts {
            head.extend_from_slice(part.as_bytes());
        }
        head.extend_from_slice(b"\r\n");
    };
    let url = &template.url;
    match url.query() {
        Some(query) => line(&["GET ", url.path(), "?", query, " HTTP/1.1"]),
        None => line(&["GET ", url.path(), " HTTP/1.1"]),
    }
    if !template.has_header("host") {
        let host = url.host_str().unwrap_or_default();
        match url.port() {
            Some(port) => line(&["Host: ", host, ":", &port.to_string()]),
            None => line(&["Host: ", host]),
        }
    }
    if !template.has_header("user-agent") {
        line(&["User-Agent: ", USER_AGENT]);
    }
    line(&["Upgrade: websocket"]);
    line(&["Connection: Upgrade"]);
    line(&["Sec-WebSocket-Version: 13"]);
    line(&["Sec-WebSocket-Key: ", key]);
    if let Some(call) = &template.stream {
        if let Some(names) = &call.subprotocols {
            line(&["Sec-WebSocket-Protocol: ", names]);
        }
        if call.deflate {
            line(&["Sec-WebSocket-Extensions: ", OFFER]);
        }
    }
    for (name, value) in &template.headers {
        if !name.eq_ignore_ascii_case("cookie") {
            line(&[name, ": ", value]);
        }
    }
    if let Some(value) = cookies::header_value(template, jar) {
        line(&["Cookie: ", &value]);
    }
    line(&[]);
    head
}

/// Reads the reply to a handshake. None: the server refused with a status of 400 or more.
pub fn read_reply(
    head: &[u8],
    key: &str,
    call: Option<&StreamCall>,
    reply: &mut Reply,
) -> Result<Option<Agreed>, Failure> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Response::new(&mut headers);
    if parsed.parse(head).is_err() {
        return Err(Failure::protocol("the reply to the handshake is not HTTP"));
    }
    let status = parsed.code.unwrap_or(0);
    reply.status = status;
    for header in parsed.headers.iter() {
        reply.note_header(header.name, header.value);
    }
    if status >= 400 {
        return Ok(None);
    }
    if status != SWITCHING {
        let detail = format!("the server answered the handshake with status {status}, not 101");
        return Err(Failure::protocol(detail));
    }
    let values = |name: &'static str| {
        let all = parsed.headers.iter().filter(move |h| h.name.eq_ignore_ascii_case(name));
        all.filter_map(|header| std::str::from_utf8(header.value).ok())
    };
    let has = |name, word| values(name).any(|value| has_word(value, word));
    if !has("upgrade", "websocket") || !has("connection", "upgrade") {
        return Err(Failure::protocol("the server switched to another protocol than WebSocket"));
    }
    if values("sec-websocket-accept").map(str::trim).next() != Some(accept_of(key).as_str()) {
        return Err(Failure::protocol("the server accepted another handshake than ours"));
    }
    let offered = call.and_then(|call| call.subprotocols.as_deref()).unwrap_or_default();
    let chosen = values("sec-websocket-protocol").map(str::trim).next();
    if let Some(chosen) = chosen.filter(|name| !has_word(offered, name)) {
        let detail = format!("the server chose the subprotocol {chosen:?}, which was not offered");
        return Err(Failure::protocol(detail));
    }
    let extensions: Vec<&str> = values("sec-websocket-extensions").collect();
    let deflate = extensions.iter().any(|value| names_extension(value, "permessage-deflate"));
    let is_known = call.is_some_and(|call| call.deflate) == deflate || !deflate;
    if !is_known || (!extensions.is_empty() && !deflate) {
        return Err(Failure::protocol("the server chose an extension that was not offered"));
    }
    // Without this parameter the server may refer to messages before.
    let without_context =
        extensions.iter().any(|value| value.contains("server_no_context_takeover"));
    if deflate && !without_context {
        let detail = "the server compresses messages together, which was not offered";
        return Err(Failure::protocol(detail));
    }
    Ok(Some(Agreed { deflate }))
}

/// The reply to a `Sec-WebSocket-Key`.
#[must_use]
pub fn accept_of(key: &str) -> String {
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes()))
}

/// Whether a header value such as `keep-alive, Upgrade` has a word, in any case.
#[must_use]
pub fn has_word(value: &str, word: &str) -> bool {
    value.split(',').any(|part| part.trim().eq_ignore_ascii_case(word))
}

/// Whether a `Sec-WebSocket-Extensions` value names an extension.
#[must_use]
pub fn names_extension(value: &str, name: &str) -> bool {
    let names = value.split(',').filter_map(|offer| offer.split(';').next());
    names.into_iter().any(|offered| offered.trim().eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reply_is_that_of_the_standard() {
        assert_eq!(accept_of("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn words_and_extensions_are_found_in_lists() {
        assert!(has_word("keep-alive, Upgrade", "upgrade") && !has_word("upgraded", "upgrade"));
        let offer = "x-webkit, permessage-deflate; client_max_window_bits";
        assert!(names_extension(offer, "permessage-deflate") && !names_extension(offer, "deflate"));
    }
}
