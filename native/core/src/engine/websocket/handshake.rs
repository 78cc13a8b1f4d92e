//! The opening handshake (RFC 6455 §4): from an HTTP request to a WebSocket.

use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;
use ring::digest::{digest, SHA1_FOR_LEGACY_USE_ONLY};

const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

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
