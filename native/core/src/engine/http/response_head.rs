//! Response heads of HTTP/2 and HTTP/3: their limits and the rules they have to keep.

use crate::http2::fields::Fields;

/// Header bytes of one response, compressed or not.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Header fields of one response.
pub const FIELDS_MAX: usize = 128;
/// The status of a response head, and what is wrong with the fields of a head or of trailers.
pub fn judge(fields: &Fields, is_trailers: bool, is_end: bool) -> (u16, Option<&'static str>) {
    let pseudo: &[&[u8]] = if is_trailers { &[] } else { &[b":status"] };
    let status = fields.get(b":status").and_then(status_of).unwrap_or(0);
    let fault = fields.fault(pseudo).or(match (is_trailers, status) {
        (true, _) if !is_end => Some("trailers that do not end the response"),
        (true, _) => None,
        (false, 0..=99) => Some("a response without a status"),
        (false, 101) => Some("a switch of protocols"),
        (false, 100..=199) if is_end => Some("an interim response that ends the stream"),
        (false, _) => None,
    });
    (status, fault)
}

pub fn length_of(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn status_of(value: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(value).ok().filter(|text| text.len() == 3)?;
    text.parse().ok()
}
