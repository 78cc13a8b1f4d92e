//! Content encodings. Bounded: a bomb is an error, not an allocation.

use std::io::{self, Read};

use crate::engine::error::{ErrorClass, Failure};

/// The decoded body. `encoding` is the Content-Encoding value, possibly a list.
pub fn decode(encoding: &str, body: Vec<u8>, bytes_max: u64) -> Result<Vec<u8>, Failure> {
    let mut body = body;
    // Applied left to right by the server, so undone right to left.
    for coding in encoding.rsplit(',').map(str::trim) {
        body = match coding {
            "" | "identity" => body,
            "gzip" | "x-gzip" => read(flate2::read::MultiGzDecoder::new(&body[..]), bytes_max)?,
            "deflate" => inflate(&body, bytes_max)?,
            "br" => read(brotli_decompressor::Decompressor::new(&body[..], 4096), bytes_max)?,
            "zstd" => {
                let decoder =
                    zstd::stream::read::Decoder::new(&body[..]).map_err(|e| broken(&e))?;
                read(decoder, bytes_max)?
            }
            // Unknown to us: the user gets what the server sent.
            _ => return Ok(body),
        };
    }
    Ok(body)
}

/// "deflate" is zlib by the standard and raw deflate by the habit of some servers.
fn inflate(body: &[u8], bytes_max: u64) -> Result<Vec<u8>, Failure> {
    let looks_like_zlib = matches!(body, [cmf, flg, ..]
        if cmf & 0x0f == 8 && (u16::from(*cmf) << 8 | u16::from(*flg)).is_multiple_of(31));
    if looks_like_zlib {
        read(flate2::read::ZlibDecoder::new(body), bytes_max)
    } else {
        read(flate2::read::DeflateDecoder::new(body), bytes_max)
    }
}

fn read(decoder: impl Read, bytes_max: u64) -> Result<Vec<u8>, Failure> {
    let mut out = Vec::new();
    decoder.take(bytes_max.saturating_add(1)).read_to_end(&mut out).map_err(|e| broken(&e))?;
    if out.len() as u64 > bytes_max {
        let detail = format!("decoded response body is over {bytes_max} bytes");
        return Err(Failure::new(ErrorClass::TooLarge, detail));
    }
    Ok(out)
}

fn broken(error: &io::Error) -> Failure {
    Failure::protocol(format!("the encoded body is broken: {error}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;

    use super::decode;
    use crate::engine::error::ErrorClass;

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn every_coding_and_a_list_of_them_is_undone() {
        let text = b"hello hello hello".to_vec();
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        zlib.write_all(&text).unwrap();
        let mut raw =
            flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        raw.write_all(&text).unwrap();
        assert_eq!(decode("gzip", gzip(&text), 100).unwrap(), text);
        assert_eq!(decode("deflate", zlib.finish().unwrap(), 100).unwrap(), text);
        assert_eq!(decode("deflate", raw.finish().unwrap(), 100).unwrap(), text);
        let zstd = zstd::stream::encode_all(&text[..], 1).unwrap();
        assert_eq!(decode("zstd", zstd.clone(), 100).unwrap(), text);
        assert_eq!(decode("zstd, gzip", gzip(&zstd), 100).unwrap(), text);
        assert_eq!(decode("identity", text.clone(), 100).unwrap(), text);
        assert_eq!(decode("unheard-of", text.clone(), 100).unwrap(), text);
    }

    #[test]
    fn bombs_and_broken_bodies_are_errors() {
        let bomb = gzip(&vec![0; 1_000_000]);
        assert_eq!(decode("gzip", bomb, 1000).unwrap_err().class, ErrorClass::TooLarge);
        let mut cut = gzip(b"hello hello hello");
        cut.truncate(cut.len() - 4);
        assert_eq!(decode("gzip", cut, 1000).unwrap_err().class, ErrorClass::Protocol);
        for coding in ["gzip", "deflate", "br", "zstd"] {
            let failure = decode(coding, vec![0xff; 64], 1000).unwrap_err();
            assert_eq!(failure.class, ErrorClass::Protocol, "{coding}");
        }
    }
}
