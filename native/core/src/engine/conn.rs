//! One connection: its transport, the session that speaks on it, and whose it is.

use super::protocol::AnySession;
use super::transport::Transport;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Connecting,
    /// Through a proxy, which has not passed the connection on yet.
    Tunnelling,
    Handshaking,
    Open,
}

#[derive(Debug)]
pub struct Conn {
    pub transport: Transport,
    /// None until the connection is open.
    pub session: Option<AnySession>,
    pub stage: Stage,
    pub origin: u32,
    /// The virtual user this connection belongs to, where connections are not shared.
    pub vu: u32,
    /// The request it is opened for.
    pub opener: u32,
    pub generation: u32,
    /// A request has been put on it.
    pub was_used: bool,
    /// Requests find it: it has room, or will have.
    pub is_listed: bool,
}
