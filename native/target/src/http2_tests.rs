//! Conversations over HTTP/2 without a socket.

use super::*;
use crate::counts::Totals;
use crate::session::Session;

const AT: Now = Now { ns: 1_000, unix_offset_ns: 5_000_000_000 };

struct Peer {
    session: Session,
    totals: Totals,
    tally: Tally,
    decoder: Decoder,
    now: Now,
}

/// A frame of the server: kind, flags, stream, payload; header blocks are decoded to lines.
type Seen = (u8, u8, u32, String);

impl Peer {
    fn new() -> Self {
        let totals = Totals::default();
        let tally = totals.tally();
        tally.accepted();
        let mut peer =
            Self { session: Session::new(), totals, tally, decoder: Decoder::default(), now: AT };
        let mut start = PREFACE.to_vec();
        frame::write_settings(&mut start, &[]);
        let seen = peer.send(&start);
        assert_eq!(seen.iter().filter(|frame| frame.0 == kind::SETTINGS).count(), 2);
        peer
    }

    fn send(&mut self, bytes: &[u8]) -> Vec<Seen> {
        let mut received = Vec::new();
        let mut out = Vec::new();
        let mut input = bytes;
        while self.session.advance(&mut input, &mut out, self.now, &self.tally) == Next::Flush {
            received.append(&mut out);
        }
        let mut seen = Vec::new();
        let (mut reader, mut rest) = (FrameReader::default(), &received[..]);
        while let Some((head, payload)) = reader.next(&mut rest).unwrap() {
            let mut text = String::from_utf8_lossy(payload).into_owned();
            if head.kind == kind::HEADERS {
                text.clear();
                let line = |name: &[u8], value: &[u8]| {
                    let show = |bytes| String::from_utf8_lossy(bytes).into_owned();
                    text += &format!("{}={};", show(name), show(value));
                };
                self.decoder.decode(payload, 1 << 16, line).unwrap();
            }
            seen.push((head.kind, head.flags, head.stream, text));
        }
        seen
    }
}

fn request(stream: u32, path: &str, fields: &[(&str, &str)], body: Option<&[u8]>) -> Vec<u8> {
    let mut block = Vec::new();
    let method: &[u8] = if body.is_some() { b"POST" } else { b"GET" };
    hpack::encode(&mut block, ":method", method, Secrecy::Open);
    hpack::encode(&mut block, ":scheme", b"http", Secrecy::Open);
    hpack::encode(&mut block, ":authority", b"host", Secrecy::Open);
    hpack::encode(&mut block, ":path", path.as_bytes(), Secrecy::Open);
    for (name, value) in fields {
        hpack::encode(&mut block, name, value.as_bytes(), Secrecy::Open);
    }
    let mut out = Vec::new();
    frame::write_headers(&mut out, stream, [&block, &[]], body.is_none());
    if let Some(body) = body {
        write_data(&mut out, stream, body, true);
    }
    out
}

#[test]
fn requests_on_several_streams_are_answered_when_they_are_due() {
    let mut peer = Peer::new();
    let seen = peer.send(&[request(1, "/delay/5", &[], None), request(3, "/", &[], None)].concat());
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen[0].2 == 3 && seen[0].3.starts_with(":status=200;content-type=text/plain"));
    assert_eq!((seen[1].0, seen[1].1), (kind::DATA, flag::END_STREAM));
    peer.now.ns += 5_000_000;
    let seen = peer.send(&[]);
    assert_eq!(seen[0].2, 1);
    let counts = String::from_utf8(peer.totals.to_json()).unwrap();
    assert!(
        counts.contains(r#""protocols":{"http/1.1":0,"http/2":2,"http/3":0,"grpc":0}"#),
        "{counts}"
    );
}

#[test]
fn a_large_body_waits_for_the_windows_of_the_client() {
    let mut peer = Peer::new();
    let bytes = |seen: &[Seen]| -> usize {
        seen.iter().filter(|frame| frame.0 == kind::DATA).map(|frame| frame.3.len()).sum()
    };
    let seen = peer.send(&request(1, "/bytes/100000", &[], None));
    assert_eq!(bytes(&seen), 65_535);
    let mut more = Vec::new();
    frame::write_window_update(&mut more, 0, 100_000);
    assert_eq!(bytes(&peer.send(&more)), 0);
    more.clear();
    frame::write_window_update(&mut more, 1, 100_000);
    assert_eq!(bytes(&peer.send(&more)), 100_000 - 65_535);
}

#[test]
fn grpc_calls_are_echoed_with_a_status_in_the_trailers() {
    let mut peer = Peer::new();
    let grpc = [("content-type", "application/grpc")];
    let message = b"\0\0\0\0\x03\x0a\x01x";
    let seen = peer.send(&request(1, "/hyperscale.Echo/Unary", &grpc, Some(message)));
    assert_eq!(seen[0].3, ":status=200;content-type=application/grpc;");
    assert_eq!(seen[1].3.as_bytes(), message);
    assert_eq!((seen[2].1 & flag::END_STREAM, seen[2].3.as_str()), (1, "grpc-status=0;"));
    let seen = peer.send(&request(3, "/no.Such/Method", &grpc, Some(message)));
    assert!(seen[1].3.starts_with("grpc-status=12;"), "{seen:?}");
}

#[test]
fn a_violation_ends_the_connection_with_a_reason() {
    let mut peer = Peer::new();
    let seen = peer.send(&request(2, "/", &[], None));
    assert_eq!(seen[0].0, kind::GOAWAY);
}
