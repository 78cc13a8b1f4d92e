//! WebSocket (RFC 6455, RFC 7692): the opening handshake, frames and compressed messages.

pub mod deflate;
pub mod frames;
pub mod handshake;
