//! What all versions of HTTP share: requests, replies, cookies and content encodings. How they are
//! written on a connection is up to each version (`http1`).

pub mod cookies;
pub mod decode;
pub mod prepared;
pub mod reply;
pub mod response_head;
pub mod sink;
pub mod template;
