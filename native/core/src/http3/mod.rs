//! The parts of HTTP/3 that client and server share: frames and header compression.
//!
//! Bytes in, bytes out: no sockets, no clocks, no streams. Fields, texts and the Huffman code are
//! those of `http2`.

pub mod frame;
pub mod qpack;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests;
