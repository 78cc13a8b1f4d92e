//! The `/json` document in the content encodings a client must understand, and the broken ones.

use std::io::Write as _;
use std::sync::OnceLock;

use flate2::write::{GzEncoder, ZlibEncoder};
use flate2::{Compress, Compression, Crc, FlushCompress};

/// What every encoding decodes to: long and repetitive enough that compression does something.
pub const PLAIN: &[u8] = include_bytes!("encoded/document.json");
/// Written once by the reference encoder (quality 11); a test decodes it again.
const BROTLI: &[u8] = include_bytes!("encoded/document.json.br");

const BOMB_PIECE_BYTES: usize = 1 << 20;
const BOMB_PIECES: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

impl Encoding {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }

    #[must_use]
    pub fn body(self) -> &'static [u8] {
        static GZIP: OnceLock<Vec<u8>> = OnceLock::new();
        static DEFLATE: OnceLock<Vec<u8>> = OnceLock::new();
        static ZSTD: OnceLock<Vec<u8>> = OnceLock::new();
        // Compressing into a vector cannot fail; an empty body would show if it did.
        match self {
            Self::Gzip => GZIP.get_or_init(|| {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
                let _ = encoder.write_all(PLAIN);
                encoder.finish().unwrap_or_default()
            }),
            Self::Deflate => DEFLATE.get_or_init(|| {
                let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
                let _ = encoder.write_all(PLAIN);
                encoder.finish().unwrap_or_default()
            }),
            Self::Brotli => BROTLI,
            Self::Zstd => ZSTD.get_or_init(|| zstd::encode_all(PLAIN, 3).unwrap_or_default()),
        }
    }
}

/// The first half of the gzip body.
#[must_use]
pub fn truncated_gzip() -> &'static [u8] {
    let whole = Encoding::Gzip.body();
    whole.get(..whole.len() / 2).unwrap_or_default()
}

/// About 1 MiB of valid gzip that decodes to 1 GiB of zeros.
#[must_use]
pub fn gzip_bomb() -> &'static [u8] {
    static BOMB: OnceLock<Vec<u8>> = OnceLock::new();
    BOMB.get_or_init(|| {
        // A full flush ends on a byte boundary and refers to nothing before it, so one
        // compressed piece can be repeated instead of compressing a whole gigabyte.
        let zeros = vec![0; BOMB_PIECE_BYTES];
        let mut deflate = Compress::new(Compression::best(), false);
        let mut piece = Vec::with_capacity(BOMB_PIECE_BYTES);
        let _ = deflate.compress_vec(&zeros, &mut piece, FlushCompress::Full);
        let mut piece_crc = Crc::new();
        piece_crc.update(&zeros);

        let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
        let mut crc = Crc::new();
        for _ in 0..BOMB_PIECES {
            out.extend_from_slice(&piece);
            crc.combine(&piece_crc);
        }
        out.extend_from_slice(&[3, 0]); // the final, empty block
        out.extend_from_slice(&crc.sum().to_le_bytes());
        out.extend_from_slice(&((BOMB_PIECES * BOMB_PIECE_BYTES) as u32).to_le_bytes());
        out
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Read as _;

    fn read_all(mut reader: impl std::io::Read) -> Vec<u8> {
        let mut out = Vec::new();
        reader.read_to_end(&mut out).unwrap();
        out
    }

    #[test]
    fn every_encoding_decodes_to_the_document_and_is_smaller() {
        let decoded = |encoding: Encoding| match encoding {
            Encoding::Gzip => read_all(flate2::read::GzDecoder::new(encoding.body())),
            Encoding::Deflate => read_all(flate2::read::ZlibDecoder::new(encoding.body())),
            Encoding::Brotli => {
                read_all(brotli_decompressor::Decompressor::new(encoding.body(), 4096))
            }
            Encoding::Zstd => zstd::decode_all(encoding.body()).unwrap(),
        };
        for encoding in [Encoding::Gzip, Encoding::Deflate, Encoding::Brotli, Encoding::Zstd] {
            assert_eq!(decoded(encoding), PLAIN, "{encoding:?}");
            assert!(encoding.body().len() < PLAIN.len(), "{encoding:?}");
        }
    }

    #[test]
    fn the_bomb_is_small_valid_and_decodes_to_a_gibibyte() {
        let bomb = gzip_bomb();
        assert!(bomb.len() < 2 << 20, "{}", bomb.len());
        let mut decoder = flate2::read::GzDecoder::new(bomb);
        let mut buffer = vec![0; 1 << 20];
        let mut total = 0;
        loop {
            let count = decoder.read(&mut buffer).unwrap();
            if count == 0 {
                break;
            }
            total += count;
        }
        assert_eq!(total, 1 << 30);
    }

    #[test]
    fn the_truncated_body_does_not_decode() {
        let mut out = Vec::new();
        assert!(flate2::read::GzDecoder::new(truncated_gzip()).read_to_end(&mut out).is_err());
    }
}
