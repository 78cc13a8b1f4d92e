//! A request as HTTP/3 sends it.

use crate::engine::http::prepared::{prepare, Prepared};
use crate::engine::http::template::Template;
use crate::http3::frame::{self, kind};
use crate::http3::qpack::{self, Secrecy};

/// Bodies up to this size are copied behind their head, so that both are written at once.
const COPIED_BYTES_MAX: usize = 4096;

pub fn prepared(template: &Template) -> &Prepared {
    template.http3.get_or_init(|| prepare(template, &qpack::PREFIX, qpack::encode))
}

/// The first bytes of a request's stream: its head with `cookies` and the beginning of its body.
/// The rest of the body, which may be all of it or nothing, follows from the returned place.
pub fn write(prepared: &Prepared, cookies: Option<&str>) -> (Vec<u8>, usize) {
    let mut own = Vec::new();
    if let Some(value) = cookies {
        qpack::encode(&mut own, "cookie", value.as_bytes(), Secrecy::NeverIndexed);
    }
    let Prepared { block, body } = prepared;
    let mut out = Vec::with_capacity(block.len() + own.len() + 16);
    frame::write_head(&mut out, kind::HEADERS, block.len() + own.len());
    out.extend_from_slice(block);
    out.extend_from_slice(&own);
    match body.as_deref().filter(|body| !body.is_empty()) {
        None => (out, 0),
        Some(body) => {
            frame::write_head(&mut out, kind::DATA, body.len());
            let copied = if body.len() <= COPIED_BYTES_MAX { body.len() } else { 0 };
            out.extend_from_slice(body.get(..copied).unwrap_or_default());
            (out, copied)
        }
    }
}
