//! The parts of HTTP/2 that client and server share: frames and header compression.
//!
//! Bytes in, bytes out: no sockets, no clocks, no streams.

pub mod fields;
pub mod frame;
pub mod hpack;
mod huffman;
pub mod text;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests;
