//! The built-in target server: what demos, tests and benchmarks send load to.
//!
//! Its own counts are the truth that results are compared with, so it is exact first and fast
//! second. Plain Rust; knows nothing of Python.

#![forbid(unsafe_code)]

mod answer;
mod broken;
mod clock;
mod connection;
pub mod counts;
mod datagrams;
mod encoded;
mod grpc;
mod head;
mod http2;
mod http3;
mod json;
mod quic;
mod reflection;
mod reply;
pub mod request;
mod routes;
mod server;
mod session;
mod tls;
mod websocket;
mod worker;

pub use server::{Options, StartError, Target};
pub use tls::{self_signed, Identity, TlsError};
