#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use super::{Decoder, Progress};
use crate::engine::error::{ErrorClass, Failure};
use crate::engine::http::reply::{Expect, Keep, Reply, NO_SAMPLES};
use crate::engine::http1::memo::HeadMemo;

const KEEP: Expect = Expect {
    is_head: false,
    keep: Keep::Body,
    body_bytes_max: 1 << 20,
    sampled_status: NO_SAMPLES,
};

struct Parsed {
    decoder: Decoder,
    reply: Reply,
}

impl Parsed {
    fn end(&mut self) -> Result<(), Failure> {
        self.decoder.end(&self.reply)
    }
}

/// Feeds `input` in pieces of `size`; the response and how much of the input it used.
fn parse(input: &[u8], size: usize, expect: Expect) -> Result<(Parsed, Option<usize>), ErrorClass> {
    let mut parsed = Parsed { decoder: Decoder::default(), reply: Reply::new(expect) };
    let mut memo = HeadMemo::default();
    let mut offset = 0;
    for piece in input.chunks(size.max(1)) {
        parsed.reply.start();
        match parsed.decoder.feed(piece, &mut parsed.reply, &mut memo) {
            Ok(Progress::More) => offset += piece.len(),
            Ok(Progress::Done(used)) => return Ok((parsed, Some(offset + used))),
            Err(failure) => return Err(failure.class),
        }
    }
    Ok((parsed, None))
}

/// Whole, byte by byte and with trailing bytes: the same response, the same end.
fn assert_parses(input: &[u8], status: u16, body: &[u8]) {
    let mut longer = input.to_vec();
    longer.extend_from_slice(b"HTTP/1.1 500 next\r\n");
    for bytes in [input, &longer] {
        for size in [1, 2, 3, 7, bytes.len()] {
            let (parsed, used) = parse(bytes, size, KEEP).unwrap();
            assert_eq!(used, Some(input.len()), "pieces of {size}");
            assert_eq!((parsed.reply.status, parsed.reply.body.as_slice()), (status, body));
        }
    }
}

fn assert_fails(input: &[u8], class: ErrorClass) {
    for size in [1, 3, input.len()] {
        assert_eq!(parse(input, size, KEEP).map(|_| ()), Err(class), "pieces of {size}");
    }
}

#[test]
fn a_body_by_content_length() {
    assert_parses(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello");
    assert_parses(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b"");
    assert_parses(b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"");
    assert_parses(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 304, b"");
}

#[test]
fn a_chunked_body_with_extensions_and_trailers() {
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    let plain = [&head[..], b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"].concat();
    assert_parses(&plain, 200, b"hello world");
    let rich = [&head[..], b"5;a=b\r\nhello\r\n0\r\nX-Sum: 1\r\nY: 2\r\n\r\n"].concat();
    assert_parses(&rich, 200, b"hello");
}

#[test]
fn interim_responses_are_passed_over() {
    let input = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n\
                  HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok";
    assert_parses(input, 201, b"ok");
    let endless = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(40);
    assert_fails(&endless, ErrorClass::Protocol);
}

#[test]
fn a_body_until_close_ends_with_the_connection() {
    let (mut parsed, used) = parse(b"HTTP/1.0 200 OK\r\n\r\nsome bytes", 4, KEEP).unwrap();
    assert_eq!(used, None);
    assert!(!parsed.decoder.keep_alive);
    parsed.end().unwrap();
    assert_eq!(parsed.reply.body, b"some bytes");
}

#[test]
fn a_response_to_head_has_no_body() {
    let expect = Expect { is_head: true, ..KEEP };
    let input = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n";
    assert_eq!(parse(input, 8, expect).unwrap().1, Some(input.len()));
}

#[test]
fn broken_framing_is_a_protocol_error() {
    assert_fails(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", ErrorClass::Protocol);
    assert_fails(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", ErrorClass::Protocol);
    assert_fails(
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        ErrorClass::Protocol,
    );
    assert_fails(
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        ErrorClass::Protocol,
    );
    assert_fails(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", ErrorClass::Protocol);
    assert_fails(b"SSH-2.0-OpenSSH\r\n\r\n", ErrorClass::Protocol);
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for body in [&b"zz\r\n"[..], b"3\r\nabcdef\r\n", b"fffffffffffffffff\r\n", b"\r\n", b"-1\r\n"] {
        assert_fails(&[&head[..], body].concat(), ErrorClass::Protocol);
    }
    assert_fails(&[&head[..], b"1;".as_ref(), &vec![b'x'; 400]].concat(), ErrorClass::Protocol);
}

#[test]
fn what_is_too_large_is_refused_before_it_is_held() {
    assert_fails(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", ErrorClass::TooLarge);
    let header = [&b"HTTP/1.1 200 OK\r\nX: "[..], &vec![b'a'; 70_000]].concat();
    assert_eq!(parse(&header, 4096, KEEP).map(|_| ()), Err(ErrorClass::TooLarge));
    let many = [&b"HTTP/1.1 200 OK\r\n"[..], &b"A: b\r\n".repeat(200), b"\r\n"].concat();
    assert_eq!(parse(&many, 4096, KEEP).map(|_| ()), Err(ErrorClass::TooLarge));
    let small = Expect { body_bytes_max: 10, ..KEEP };
    let chunked =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n12345678\r\n8\r\n12345678\r\n";
    assert_eq!(parse(chunked, 5, small).map(|_| ()), Err(ErrorClass::TooLarge));
}

#[test]
fn an_early_close_is_a_reset() {
    for input in [&b""[..], b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"] {
        let (mut parsed, _) = parse(input, 4, KEEP).unwrap();
        assert_eq!(parsed.end().map_err(|f| f.class), Err(ErrorClass::Reset));
    }
}

#[test]
fn headers_the_engine_needs_are_read() {
    let input = b"HTTP/1.1 302 Found\r\nLocation: /next\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n\
                  Connection: Close\r\nContent-Length: 0\r\n\r\n";
    let (parsed, _) = parse(input, 9, Expect { keep: Keep::Nothing, ..KEEP }).unwrap();
    let rare = parsed.reply.rare.as_deref().unwrap();
    assert_eq!(rare.location.as_deref(), Some("/next"));
    assert_eq!(rare.set_cookies, ["a=1", "b=2"]);
    assert!(!parsed.decoder.keep_alive);
    assert!(parsed.reply.head.is_none());
}
