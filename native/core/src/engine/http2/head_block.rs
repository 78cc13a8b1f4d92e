//! Response heads whose frames are still coming, within limits.

use crate::engine::http::response_head::HEAD_BYTES_MAX;
use crate::http2::frame::{ErrorCode, Violation};

/// Frames that one header block may come in.
const HEAD_FRAMES_MAX: u32 = 32;

/// A header block whose frames are still coming.
#[derive(Debug)]
pub struct HeadBlock {
    pub stream: u32,
    pub is_end: bool,
    pub bytes: Vec<u8>,
    frames: u32,
}

impl HeadBlock {
    pub fn new(stream: u32, is_end: bool) -> Self {
        Self { stream, is_end, bytes: Vec::new(), frames: 0 }
    }

    pub fn extended(mut self, fragment: &[u8]) -> Result<Self, Violation> {
        self.frames += 1;
        self.bytes.extend_from_slice(fragment);
        if self.bytes.len() > HEAD_BYTES_MAX || self.frames > HEAD_FRAMES_MAX {
            let what = "a response head of more than 65536 bytes or 32 frames";
            return Err(Violation::new(ErrorCode::ENHANCE_YOUR_CALM, what));
        }
        Ok(self)
    }
}
