//! Text of requests and responses for people: credentials masked, bounded, printable.

use std::fmt::Write as _;

use url::Url;

pub const MASK: &str = "***";
const BODY_BYTES_MAX: usize = 1024;
const HEADERS_BYTES_MAX: usize = 2048;
const VALUE_BYTES_MAX: usize = 400;

/// Names of headers and query parameters that contain one of these have secret values.
const SECRET: [&str; 10] = [
    "authorization",
    "cookie",
    "token",
    "secret",
    "passw",
    "pwd",
    "credential",
    "session",
    "signature",
    "jwt",
];

/// Whether a header or query parameter of this name has a secret value.
#[must_use]
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_key = name.ends_with("key") || matches!(&*name, "sig" | "auth" | "x-auth");
    is_key || SECRET.iter().any(|word| name.contains(word))
}

/// The URL without user and password, and without the values of secret parameters.
#[must_use]
pub fn mask_url(url: &Url) -> String {
    let mut url = url.clone();
    if !url.username().is_empty() || url.password().is_some() {
        // Neither call fails on a URL that has a host.
        let _ = url.set_username(MASK);
        let _ = url.set_password(None);
    }
    if url.query_pairs().any(|(name, _)| is_secret(&name)) {
        let query = url.query().unwrap_or_default();
        let parts: Vec<String> = query.split('&').map(mask_pair).collect();
        url.set_query(Some(&parts.join("&")));
    }
    bounded(url.as_str(), VALUE_BYTES_MAX).to_owned()
}

fn mask_pair(pair: &str) -> String {
    let secret = url::form_urlencoded::parse(pair.as_bytes()).next();
    match (secret, pair.split_once('=')) {
        (Some((name, _)), Some((written, _))) if is_secret(&name) => format!("{written}={MASK}"),
        _ => pair.to_owned(),
    }
}

/// The value of a header; URLs in it, and paths with a query, are masked like any other.
#[must_use]
pub fn mask_value(name: &str, value: &str) -> String {
    if is_secret(name) {
        return MASK.to_owned();
    }
    match Url::parse(value) {
        Ok(url) if url.has_host() => mask_url(&url),
        _ => match value.split_once('?') {
            Some((path, query)) if query.contains('=') => {
                let parts: Vec<String> = query.split('&').map(mask_pair).collect();
                format!("{path}?{}", parts.join("&"))
            }
            _ => value.to_owned(),
        },
    }
}

/// The headers of a response, a line each; nothing if the head is not whole.
#[must_use]
pub fn shown_head(head: &[u8]) -> String {
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut parsed = httparse::Response::new(&mut headers);
    if !parsed.parse(head).is_ok_and(|status| status.is_complete()) {
        return String::new();
    }
    let mut shown = String::new();
    for header in parsed.headers.iter() {
        // Latin-1, as HTTP has it.
        let value: String = header.value.iter().map(|&byte| char::from(byte)).collect();
        let value = printable(&mask_value(header.name, &value));
        let line = format!("{}: {}\n", header.name, bounded(&value, VALUE_BYTES_MAX));
        if shown.len() + line.len() > HEADERS_BYTES_MAX {
            break;
        }
        shown.push_str(&line);
    }
    shown
}

/// The start of a body as text; how long it is if it is not text.
#[must_use]
pub fn shown_body(body: &[u8]) -> String {
    let start = body.get(..BODY_BYTES_MAX).unwrap_or(body);
    let text = match std::str::from_utf8(start) {
        Ok(text) => text.to_owned(),
        // Cut within a character.
        Err(error) if error.error_len().is_none() => {
            String::from_utf8_lossy(start.get(..error.valid_up_to()).unwrap_or_default()).into()
        }
        Err(_) => String::from_utf8_lossy(start).into_owned(),
    };
    let strange =
        text.chars().filter(|&c| c == '\u{fffd}' || (c.is_control() && !c.is_whitespace()));
    if strange.count() * 8 > text.chars().count() {
        return format!("({} bytes that are not text)", body.len());
    }
    printable(&text)
}

/// The text with control characters, line breaks and tabs aside, escaped.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' && c != '\t' {
            let _ = write!(shown, "{}", c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// The longest start of the text that has at most `bytes_max` bytes.
#[must_use]
pub fn bounded(text: &str, bytes_max: usize) -> &str {
    let mut end = bytes_max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::{bounded, mask_url, shown_body, shown_head};
    use url::Url;

    #[test]
    fn credentials_in_urls_are_masked_and_the_rest_stays() {
        let url = Url::parse("https://joe:pw@shop.test/a?page=2&api_key=k1&Access%5FToken=x&q=a+b");
        assert_eq!(
            mask_url(&url.unwrap()),
            "https://***@shop.test/a?page=2&api_key=***&Access%5FToken=***&q=a+b"
        );
    }

    #[test]
    fn credentials_in_headers_are_masked_and_the_rest_stays() {
        let head = b"HTTP/1.1 401 No\r\nSet-Cookie: id=7\r\nX-Api-Key: k\r\nServer: n\r\n\
            WWW-Authenticate: Basic\r\nLocation: https://u:p@a.test/?token=t&b=1\r\n\
            Refresh: 0;url=/x?password=hunter2\r\n\r\n";
        assert_eq!(
            shown_head(head),
            "Set-Cookie: ***\nX-Api-Key: ***\nServer: n\nWWW-Authenticate: Basic\n\
             Location: https://***@a.test/?token=***&b=1\nRefresh: 0;url=/x?password=***\n"
        );
    }

    #[test]
    fn a_head_that_is_missing_or_broken_off_shows_nothing() {
        assert_eq!(shown_head(b""), "");
        assert_eq!(shown_head(b"HTTP/1.1 500 No\r\nServer: n\r\n"), "");
    }

    #[test]
    fn bodies_are_shown_as_text_only_if_they_are_text() {
        assert_eq!(shown_body("größe\u{1b}[2J\n".as_bytes()), "größe\\u{1b}[2J\n");
        assert_eq!(shown_body(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 3]), "(8 bytes that are not text)");
        let long = "ä".repeat(2000);
        assert_eq!(shown_body(long.as_bytes()), "ä".repeat(512));
        assert_eq!(shown_body(&long.as_bytes()[..1023]).len(), 1022);
        assert_eq!(bounded("äö", 3), "ä");
    }
}
