//! Conversations with servers of every kind, without a socket.

use super::*;
use crate::http2::hpack::{encode, Secrecy};

/// What a stream told, in order.
#[derive(Debug, Default)]
struct Told(Vec<String>);

impl Sink for Told {
    fn arrived(&mut self, _request: u32, _bytes: usize) {}

    fn head(&mut self, request: u32, status: u16, _fields: &Fields) -> Result<(), Failure> {
        self.0.push(format!("{request}: head {status}"));
        Ok(())
    }

    fn data(&mut self, request: u32, data: &[u8]) -> Result<(), Failure> {
        self.0.push(format!("{request}: data {}", data.len()));
        Ok(())
    }

    fn trailers(&mut self, request: u32, fields: &Fields) {
        self.0.push(format!("{request}: trailers {}", fields.iter().count()));
    }

    fn ended(&mut self, request: u32, end: StreamEnd) {
        self.0.push(match end {
            StreamEnd::Whole => format!("{request}: whole"),
            StreamEnd::Unprocessed(failure) => format!("{request}: unprocessed, {failure}"),
            StreamEnd::Failed(failure) => format!("{request}: {failure}"),
        });
    }
}

/// A client that has sent `count` requests (numbered from 10) and has the server's settings.
fn client(count: u32) -> Streams {
    let mut streams = Streams::default();
    for request in 0..count {
        streams.send(10 + request, [b"\x82", b""], None, true, false);
    }
    let unwritten = streams.unwritten().len();
    streams.advance(unwritten);
    let mut settings = Vec::new();
    frame::write_settings(&mut settings, &[]);
    streams.receive(&settings, &mut Told::default()).unwrap();
    streams
}

fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        encode(&mut out, name, value.as_bytes(), Secrecy::Open);
    }
    out
}

fn headers(stream: u32, fields: &[(&str, &str)], is_end: bool) -> Vec<u8> {
    let mut out = Vec::new();
    frame::write_headers(&mut out, stream, [&block(fields), &[]], is_end);
    out
}

fn raw(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::write_head(&mut out, payload.len(), kind, flags, stream);
    out.extend_from_slice(payload);
    out
}

const OK: &[(&str, &str)] = &[(":status", "200")];

/// What the streams of a client tell, and how the connection fails, if it does.
fn told(streams: &mut Streams, input: &[u8]) -> (Vec<String>, Option<Failure>) {
    let mut told = Told::default();
    let failure = streams.receive(input, &mut told).err();
    (told.0, failure)
}

#[test]
fn responses_of_several_streams_are_told_apart_however_they_are_split() {
    let input = [
        headers(3, OK, false),
        headers(1, &[(":status", "103")], false),
        headers(1, &[(":status", "404"), ("content-length", "3")], false),
        raw(kind::DATA, flag::PADDED, 3, b"\x02abc\0\0"),
        raw(kind::DATA, flag::END_STREAM, 1, b"xyz"),
        headers(3, &[("grpc-status", "0")], true),
    ]
    .concat();
    let whole = told(&mut client(2), &input);
    assert_eq!(whole.1, None);
    let expected = [
        "11: head 200",
        "10: head 404",
        "11: data 3",
        "10: data 3",
        "10: whole",
        "11: trailers 1",
        "11: whole",
    ];
    assert_eq!(whole.0, expected);
    for size in 1..20 {
        let mut streams = client(2);
        let mut seen = Told::default();
        for piece in input.chunks(size) {
            streams.receive(piece, &mut seen).unwrap();
        }
        assert_eq!(seen.0, expected, "{size}");
        assert!(streams.is_idle() && streams.is_open());
    }
}

#[test]
fn a_body_waits_for_the_windows_and_is_sent_whole() {
    let mut streams = client(0);
    let body: Arc<[u8]> = vec![7; 200_000].into();
    streams.send(5, [b"\x83", b""], Some(&body), true, false);
    let mut sent = 0;
    for _ in 0..10 {
        let written = streams.unwritten().len();
        streams.advance(written);
        sent += written;
        assert_eq!(streams.take_sent().is_some(), sent > 200_000);
        let mut more = Vec::new();
        frame::write_window_update(&mut more, 0, 50_000);
        frame::write_window_update(&mut more, 1, 50_000);
        streams.receive(&more, &mut Told::default()).unwrap();
        if sent > 200_000 {
            return;
        }
    }
    panic!("{sent} bytes were sent");
}

#[test]
fn resets_and_goaway_say_what_can_be_sent_again() {
    let mut streams = client(4);
    let mut input = Vec::new();
    frame::write_reset(&mut input, 1, ErrorCode::REFUSED_STREAM);
    frame::write_reset(&mut input, 3, ErrorCode::INTERNAL_ERROR);
    frame::write_goaway(&mut input, 5, ErrorCode::NO_ERROR);
    let (seen, failure) = told(&mut streams, &input);
    assert_eq!(failure, None);
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert!(seen[0].starts_with("10: unprocessed, reset: stream reset: REFUSED_STREAM"));
    assert!(seen[1].starts_with("11: reset: stream reset: INTERNAL_ERROR"));
    assert!(seen[2].starts_with("13: unprocessed"));
    assert!(!streams.is_open() && streams.room(100) == 0 && !streams.is_idle());
    let (seen, _) = told(&mut streams, &headers(5, OK, true));
    assert_eq!(seen, ["12: head 200", "12: whole"]);
}

#[test]
fn what_a_server_must_not_send_ends_the_connection_with_a_reason() {
    let settings = [0, 4, 0xff, 0xff, 0xff, 0xff];
    let faults: [(&str, Vec<u8>); 17] = [
        ("pushes", raw(kind::PUSH_PROMISE, flag::END_HEADERS, 1, &[0, 0, 0, 2])),
        ("never opened", headers(7, OK, true)),
        ("never opened", headers(2, OK, true)),
        ("never opened", raw(kind::DATA, 0, 0, b"x")),
        ("before the response head", raw(kind::DATA, 0, 1, b"x")),
        ("padding", raw(kind::DATA, flag::PADDED, 1, b"\x09x")),
        ("CONTINUATION", raw(kind::CONTINUATION, 0, 1, b"")),
        ("interrupted", [raw(kind::HEADERS, 0, 1, b""), raw(kind::PING, 0, 0, &[0; 8])].concat()),
        ("table size", raw(kind::HEADERS, flag::END_HEADERS, 1, &[0x3f, 0xff, 0xff, 0x03])),
        ("no such entry", raw(kind::HEADERS, flag::END_HEADERS, 1, &[0xff, 0x20])),
        ("PING", raw(kind::PING, 0, 0, b"x")),
        ("settings of a stream", raw(kind::SETTINGS, 0, 1, &[])),
        ("window", raw(kind::SETTINGS, 0, 0, &settings)),
        ("frame size", raw(kind::SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1])),
        ("SETTINGS", raw(kind::SETTINGS, 0, 0, &[0; 5])),
        ("window", raw(kind::WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("16384", raw(kind::DATA, 0, 1, &[0; 16_385])),
    ];
    for (reason, input) in faults {
        let mut streams = client(1);
        let (_, failure) = told(&mut streams, &input);
        let failure = failure.unwrap_or_else(|| panic!("{reason}: accepted"));
        assert!(failure.detail.contains(reason), "{reason}: {failure}");
        assert!(!streams.unwritten().is_empty(), "{reason}: no GOAWAY");
    }
    let mut streams = Streams::default();
    let (_, failure) = told(&mut streams, b"HTTP/1.1 400 Bad Request\r\n\r\n");
    assert!(failure.is_some_and(|failure| failure.detail.contains("speaks HTTP/1.1")));
}

#[test]
fn a_wrong_response_fails_its_stream_alone() {
    let faults = [
        headers(1, &[("server", "x")], true),
        headers(1, &[(":status", "abc")], true),
        headers(1, &[(":status", "200"), ("Upper", "x")], true),
        headers(1, &[(":status", "200"), ("connection", "close")], true),
        headers(1, &[(":status", "200"), (":path", "/")], true),
        headers(1, &[(":status", "200"), ("x", "a\r\nb: c")], true),
        headers(1, &[(":status", "101")], false),
        [headers(1, OK, false), headers(1, &[("a", "b")], false)].concat(),
        [
            headers(1, &[(":status", "200"), ("content-length", "2")], false),
            raw(kind::DATA, flag::END_STREAM, 1, b"x"),
        ]
        .concat(),
    ];
    for input in faults {
        let mut streams = client(2);
        let (seen, failure) = told(&mut streams, &[input, headers(3, OK, true)].concat());
        assert_eq!(failure, None);
        assert!(seen.iter().any(|line| line.starts_with("10: protocol:")), "{seen:?}");
        assert_eq!(seen.last().map(String::as_str), Some("11: whole"));
    }
}

#[test]
fn floods_end_the_connection_and_take_little_memory() {
    let mut settings = Vec::new();
    frame::write_settings(&mut settings, &[]);
    let floods = [
        raw(kind::PING, 0, 0, &[0; 8]),
        settings,
        raw(kind::DATA, 0, 1, b""),
        raw(kind::PRIORITY, 0, 1, &[0; 5]),
        raw(0xbe, 0, 0, b"unheard of"),
        headers(1, &[(":status", "100")], false),
    ];
    for frame in floods {
        let mut streams = client(1);
        let (_, before) = told(&mut streams, &headers(1, OK, false));
        // An interim response cannot follow the final one.
        let mut streams = if frame.get(3) == Some(&kind::HEADERS) { client(1) } else { streams };
        assert_eq!(before, None);
        let failure = (0..2000).find_map(|_| told(&mut streams, &frame).1);
        assert!(failure.is_some_and(|failure| failure.class == ErrorClass::Protocol));
        assert!(streams.unwritten().len() < 64 * 1024);
    }
    let mut streams = client(1);
    let mut failure = told(&mut streams, &raw(kind::HEADERS, 0, 1, b"")).1;
    for _ in 0..100 {
        failure = failure.or(told(&mut streams, &raw(kind::CONTINUATION, 0, 1, b"")).1);
    }
    assert!(failure.is_some_and(|failure| failure.class == ErrorClass::TooLarge));
}

#[test]
fn a_head_that_unpacks_to_too_much_fails_its_stream_alone() {
    let mut bomb = Vec::from(*b"\x88\x40\x01a\x7f\xa1\x1e");
    bomb.extend([b'x'; 4000]);
    bomb.extend([0xbe; 10_000]);
    let mut streams = client(2);
    let input = [raw(kind::HEADERS, flag::END_HEADERS, 1, &bomb), headers(3, OK, true)].concat();
    let (seen, failure) = told(&mut streams, &input);
    assert_eq!(failure, None);
    assert!(seen[0].starts_with("10: too_large"), "{seen:?}");
    assert_eq!(seen.last().map(String::as_str), Some("11: whole"));
}

#[test]
fn frames_of_a_cancelled_stream_are_ignored() {
    let mut streams = client(2);
    streams.cancel(10);
    let input = [
        headers(1, OK, false),
        raw(kind::DATA, flag::END_STREAM, 1, b"late"),
        headers(3, OK, true),
    ];
    let (seen, failure) = told(&mut streams, &input.concat());
    assert_eq!((seen, failure), (vec!["11: head 200".to_owned(), "11: whole".to_owned()], None));
}

#[test]
fn a_server_that_sends_too_much_data_hears_of_more_room_or_is_cut_off() {
    let mut streams = client(1);
    told(&mut streams, &headers(1, OK, false));
    let piece = raw(kind::DATA, 0, 1, &[0; 16_384]);
    for _ in 0..300 {
        assert_eq!(told(&mut streams, &piece).1, None);
    }
    let updates = streams.unwritten().len();
    assert!(updates > 0, "no window update after 4.9 MB");
}
