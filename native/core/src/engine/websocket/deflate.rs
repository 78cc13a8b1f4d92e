//! Compressed messages (permessage-deflate, RFC 7692), each by itself.
//!
//! Neither side keeps its window from one message to the next (`no_context_takeover`), so that one
//! pair of compressors serves every connection of an engine and an idle socket holds none.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::frames::{FrameError, PROTOCOL_ERROR, TOO_BIG};

/// What a client offers, and a server that accepts replies.
pub const OFFER: &str =
    "permessage-deflate; client_no_context_takeover; server_no_context_takeover";
/// The end of a flushed block, which is not sent.
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];
const PIECE_BYTES: usize = 4096;

/// Made when they are first used: most runs compress nothing.
#[derive(Debug, Default)]
pub struct Deflate {
    compress: Option<Compress>,
    decompress: Option<Decompress>,
}

impl Deflate {
    pub fn deflate(&mut self, data: &[u8]) -> Vec<u8> {
        let compress =
            self.compress.get_or_insert_with(|| Compress::new(Compression::fast(), false));
        compress.reset();
        let mut out = Vec::with_capacity(data.len() / 2 + 64);
        let mut rest = data;
        loop {
            out.reserve(PIECE_BYTES);
            let before = compress.total_in();
            // Neither buffer is empty: it cannot fail.
            let _ = compress.compress_vec(rest, &mut out, FlushCompress::Sync);
            let used = (compress.total_in() - before) as usize;
            rest = rest.get(used..).unwrap_or_default();
            if rest.is_empty() && out.len() < out.capacity() {
                break;
            }
        }
        if out.ends_with(&TAIL) {
            out.truncate(out.len() - TAIL.len());
        }
        out
    }

    pub fn inflate(&mut self, data: &[u8], bytes_max: u64) -> Result<Vec<u8>, FrameError> {
        let decompress = self.decompress.get_or_insert_with(|| Decompress::new(false));
        decompress.reset(false);
        let mut out = Vec::with_capacity(data.len().saturating_mul(2).min(1 << 16));
        for part in [data, &TAIL] {
            let mut rest = part;
            loop {
                out.reserve(PIECE_BYTES);
                let before = (decompress.total_in(), decompress.total_out());
                let status =
                    decompress.decompress_vec(rest, &mut out, FlushDecompress::Sync).map_err(
                        |_| FrameError::new(PROTOCOL_ERROR, "a compressed message is broken"),
                    )?;
                let used = (decompress.total_in() - before.0) as usize;
                rest = rest.get(used..).unwrap_or_default();
                if out.len() as u64 > bytes_max {
                    let detail = format!("a message is over {bytes_max} bytes");
                    return Err(FrameError::new(TOO_BIG, detail));
                }
                let moved = (decompress.total_in(), decompress.total_out()) != before;
                if status == Status::StreamEnd || !moved {
                    break;
                }
                if rest.is_empty() && out.len() < out.capacity() {
                    break;
                }
            }
        }
        Ok(out)
    }
}
