//! Requests read whole, byte by byte, and with the next one behind them.

use std::mem::MaybeUninit;

use super::*;

fn head_of<T>(
    input: &[u8],
    look: impl FnOnce(&Head<'_>) -> T,
) -> Result<Option<(T, usize)>, Refused> {
    let mut slots: HeaderSlots<'_> = [MaybeUninit::uninit(); HEADERS_MAX];
    Ok(parse_head(input, &mut slots)?.map(|(head, used)| (look(&head), used)))
}

fn refusal(input: &[u8]) -> Option<Refused> {
    head_of(input, |_| ()).err()
}

#[test]
fn a_head_is_complete_at_its_last_byte_and_takes_nothing_behind_it() {
    let head = b"POST /echo?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n";
    for end in 0..head.len() {
        assert_eq!(head_of(&head[..end], |_| ()), Ok(None), "{end}");
    }
    let mut pipelined = head.to_vec();
    pipelined.extend_from_slice(b"abcGET / HTTP/1.1\r\n\r\n");
    for input in [&head[..], &pipelined] {
        let seen = head_of(input, |head| {
            assert_eq!((head.method, head.path, head.query), ("POST", "/echo", "a=b"));
            (head.framing, head.keep_alive)
        });
        assert_eq!(seen, Ok(Some(((Framing::Length(3), true), head.len()))));
    }
}

#[test]
fn a_target_may_be_absolute_and_its_fragment_is_no_part_of_it() {
    for (target, path, query) in [
        ("/a/b?c=d", "/a/b", "c=d"),
        ("http://host:80/a?b", "/a", "b"),
        ("http://host", "/", ""),
        ("http://host?b", "/", "b"),
        ("/a#top", "/a", ""),
        ("/a?b=http://c/", "/a", "b=http://c/"),
        ("*", "*", ""),
    ] {
        assert_eq!(split_target(target), (path, query), "{target}");
    }
}

#[test]
fn connections_persist_as_their_version_says() {
    for (version, header, keep_alive) in [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: te, Close\r\n", false),
        ("1.0", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
    ] {
        let head = format!("GET / HTTP/{version}\r\nHost: x\r\n{header}\r\n");
        let seen = head_of(head.as_bytes(), |head| head.keep_alive);
        assert_eq!(seen, Ok(Some((keep_alive, head.len()))), "{head}");
    }
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    for headers in [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: \r\n",
        "Content-Length: 99999999999999999999999\r\n",
        "Host: y\r\n",
    ] {
        let head = format!("POST / HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
        assert!(matches!(refusal(head.as_bytes()), Some(Refused::Malformed(_))), "{head}");
    }
    assert!(matches!(refusal(b"GET / HTTP/1.1\r\n\r\n"), Some(Refused::Malformed(_))));
    let repeated = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(refusal(repeated), None);
}

#[test]
fn what_is_too_large_or_unknown_has_its_own_refusal() {
    let with = |headers: &str| format!("POST / HTTP/1.1\r\nHost: x\r\n{headers}\r\n").into_bytes();
    let many = "X-A: b\r\n".repeat(HEADERS_MAX);
    let long = format!("X-A: {}\r\n", "b".repeat(HEAD_BYTES_MAX));
    let body = format!("Content-Length: {}\r\n", BODY_BYTES_MAX + 1);
    for (input, expected) in [
        (with(&many), Refused::HeadTooLarge),
        (with(&long), Refused::HeadTooLarge),
        (with(&long)[..HEAD_BYTES_MAX].to_vec(), Refused::HeadTooLarge),
        (with(&body), Refused::BodyTooLarge),
        (with("Transfer-Encoding: gzip, chunked\r\n"), Refused::UnknownTransferCoding),
        (with("Expect: a miracle\r\n"), Refused::UnknownExpectation),
        (b"GET / HTTP/2.0\r\n\r\n".to_vec(), Refused::UnknownVersion),
    ] {
        assert_eq!(refusal(&input), Some(expected));
    }
}

#[test]
fn garbage_is_refused() {
    for input in
        [&b"\x00\x01\x02"[..], b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"= = =\r\n\r\n"]
    {
        assert!(refusal(input).is_some(), "{input:?}");
    }
}

/// Feeds `input` in pieces of `size` bytes; the body, and how many bytes were taken.
fn read_body(framing: Framing, input: &[u8], size: usize) -> Result<(Vec<u8>, usize), Refused> {
    let mut reader = BodyReader::new(framing, true);
    let mut taken = 0;
    for piece in input.chunks(size) {
        if reader.is_done() {
            break;
        }
        let used = reader.feed(piece)?;
        assert!(used == piece.len() || reader.is_done());
        taken += used;
    }
    assert!(reader.is_done(), "incomplete after {taken} bytes");
    Ok((reader.into_body(), taken))
}

#[test]
fn bodies_read_the_same_whole_byte_by_byte_and_with_bytes_behind_them() {
    let chunked = b"5\r\nhello\r\n00B;name=\"v\"\r\n world and \r\n2 \r\nus\r\n0\r\nTrailer: x\r\nB: y\r\n\r\n";
    for (framing, wire, body) in [
        (Framing::Length(5), &b"hello"[..], &b"hello"[..]),
        (Framing::Chunked, chunked, b"hello world and us"),
        (Framing::Chunked, b"0\r\n\r\n", b""),
    ] {
        let mut followed = wire.to_vec();
        followed.extend_from_slice(b"GET / HTTP/1.1\r\n\r\n");
        for input in [wire, &followed] {
            for size in [1, 2, 3, 7, 1000] {
                let read = read_body(framing, input, size);
                assert_eq!(read, Ok((body.to_vec(), wire.len())), "pieces of {size}");
            }
        }
    }
}

#[test]
fn broken_chunks_are_refused_where_they_break() {
    for wire in [
        &b"\r\n"[..],
        b"x\r\n",
        b"-1\r\n",
        b"5hello",
        b"5\nhello\r\n",
        b"5\r\nhelloworld",
        b"5\r\nhello\n",
        b"5;a\nhello",
        b"0\r\n\n",
        b"0\r\nA: b\n\r\n",
        b"fffffffffffffffff\r\n",
    ] {
        for size in [1, 1000] {
            let mut reader = BodyReader::new(Framing::Chunked, true);
            let outcome: Result<Vec<_>, _> =
                wire.chunks(size).map(|piece| reader.feed(piece)).collect();
            assert!(outcome.is_err(), "{wire:?} in pieces of {size}");
        }
    }
}

#[test]
fn a_body_beyond_the_limit_is_refused_however_it_is_framed() {
    let piece = vec![b'a'; 1 << 20];
    let mut reader = BodyReader::new(Framing::Chunked, false);
    let mut outcome = reader.feed(b"ffffffff\r\n");
    for _ in 0..=BODY_BYTES_MAX >> 20 {
        outcome = outcome.and_then(|_| reader.feed(&piece));
    }
    assert_eq!(outcome, Err(Refused::BodyTooLarge));
}

#[test]
fn endless_chunk_extensions_and_trailers_are_refused() {
    for start in [&b"5;"[..], b"0\r\nA: "] {
        let mut reader = BodyReader::new(Framing::Chunked, false);
        assert_eq!(reader.feed(start), Ok(start.len()));
        let outcome = reader.feed(&vec![b'a'; CHUNK_META_BYTES_MAX + 1]);
        assert!(matches!(outcome, Err(Refused::Malformed(_))));
    }
}
