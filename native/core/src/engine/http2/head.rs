//! A request as HTTP/2 sends it.

use crate::engine::http::prepared::{prepare, Prepared};
use crate::engine::http::template::Template;
use crate::http2::hpack::{self, Secrecy};

pub fn prepared(template: &Template) -> &Prepared {
    template.http2.get_or_init(|| prepare(template, &[], hpack::encode))
}

/// The field of a request with cookies.
pub fn write_cookies(out: &mut Vec<u8>, value: &str) {
    hpack::encode(out, "cookie", value.as_bytes(), Secrecy::NeverIndexed);
}
