//! The decoders of HTTP/2 and of WebSockets, for fuzzing.

use hyperscale_core::engine::replay;
use hyperscale_core::engine::websocket::frames::Event;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

type Bytes<'py> = Bound<'py, PyBytes>;
/// status, head, body, trailers, and how it ended
type Replayed<'py> = (u16, Bytes<'py>, Bytes<'py>, Bytes<'py>, Option<String>);

/// What requests on one connection of HTTP/2 receive from these pieces, why the connection failed,
/// and the most bytes that waited to be written.
#[pyfunction]
pub fn replay_http2<'py>(
    py: Python<'py>,
    requests: u32,
    pieces: Vec<Bound<'py, PyBytes>>,
) -> (Vec<Replayed<'py>>, Option<String>, usize) {
    let pieces: Vec<&[u8]> = pieces.iter().map(|piece| piece.as_bytes()).collect();
    let (seen, failure, most) = replay::http2(requests, &pieces);
    let bytes = |data: &[u8]| PyBytes::new(py, data);
    let shown = seen
        .into_iter()
        .map(|one| (one.status, bytes(&one.head), bytes(&one.body), bytes(&one.trailers), one.end));
    (shown.collect(), failure, most)
}

/// What a client reads of these pieces on a WebSocket, as kinds and contents, and why it closes it.
#[pyfunction]
pub fn replay_websocket<'py>(
    py: Python<'py>,
    bytes_max: u64,
    is_deflating: bool,
    pieces: Vec<Bound<'py, PyBytes>>,
) -> (Vec<(&'static str, Bytes<'py>)>, Option<String>) {
    let pieces: Vec<&[u8]> = pieces.iter().map(|piece| piece.as_bytes()).collect();
    let (events, failure) = replay::websocket(bytes_max, is_deflating, &pieces);
    let shown = events.into_iter().map(|event| match event {
        Event::Message { is_text: true, data } => ("text", PyBytes::new(py, &data)),
        Event::Message { is_text: false, data } => ("bytes", PyBytes::new(py, &data)),
        Event::Ping(data) => ("ping", PyBytes::new(py, &data)),
        Event::Pong(data) => ("pong", PyBytes::new(py, &data)),
        Event::Close { code, reason } => {
            ("close", PyBytes::new(py, &[&code.to_be_bytes(), reason.as_bytes()].concat()))
        }
    });
    (shown.collect(), failure)
}
