//! What the streams of a connection report, and to whom.

use crate::engine::error::Failure;
use crate::http2::fields::Fields;

/// How a stream ended.
#[derive(Debug, PartialEq, Eq)]
pub enum StreamEnd {
    Whole,
    /// The server did nothing with the request: it can be sent again, whatever it asks for.
    Unprocessed(Failure),
    Failed(Failure),
}

/// What happens to streams. A failure that a method returns ends the stream.
pub trait Sink {
    /// Bytes of this request's response came.
    fn arrived(&mut self, request: u32, bytes: usize);
    fn head(&mut self, request: u32, status: u16, fields: &Fields) -> Result<(), Failure>;
    fn data(&mut self, request: u32, data: &[u8]) -> Result<(), Failure>;
    fn trailers(&mut self, request: u32, fields: &Fields);
    fn ended(&mut self, request: u32, end: StreamEnd);
}
