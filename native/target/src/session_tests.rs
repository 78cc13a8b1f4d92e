//! Conversations over a session without a socket, cut in every way.

use super::*;
use crate::counts::Totals;

const AT: Now = Now { ns: 1_000, unix_offset_ns: 5_000_000_000 };

/// A peer that takes whatever the session gives.
struct Peer {
    session: Session,
    totals: Totals,
    tally: Tally,
    kept: Vec<u8>,
    received: Vec<u8>,
    now: Now,
}

impl Peer {
    fn new() -> Self {
        let totals = Totals::default();
        let tally = totals.tally();
        tally.accepted();
        Self {
            session: Session::new(),
            totals,
            tally,
            kept: Vec::new(),
            received: Vec::new(),
            now: AT,
        }
    }

    /// What the session waits for once it has gone as far as it can.
    fn send(&mut self, bytes: &[u8]) -> Next {
        self.kept.extend_from_slice(bytes);
        let kept = std::mem::take(&mut self.kept);
        let mut input = &kept[..];
        let mut out = Vec::new();
        loop {
            match self.session.advance(&mut input, &mut out, self.now, &self.tally) {
                Next::Flush => {
                    self.session.sent(out.len());
                    self.received.append(&mut out);
                }
                next => {
                    assert!(out.is_empty());
                    self.kept = input.to_vec();
                    return next;
                }
            }
        }
    }

    fn received(&self) -> String {
        String::from_utf8_lossy(&self.received).into_owned()
    }

    fn counts(&self) -> String {
        String::from_utf8_lossy(&self.totals.to_json()).into_owned()
    }
}

fn converse(input: &[u8], size: usize) -> (Peer, Next) {
    let mut peer = Peer::new();
    let mut next = Next::NeedInput;
    for piece in input.chunks(size) {
        next = peer.send(piece);
    }
    (peer, next)
}

fn conversation(input: &[u8], size: usize) -> (String, Next, String) {
    let (peer, next) = converse(input, size);
    (peer.received(), next, peer.counts())
}

#[test]
fn pipelined_requests_are_answered_in_order_however_they_are_cut() {
    let input = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n\
        POST /echo?raw HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello\
        POST /echo?raw HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nyes\r\n0\r\n\r\n\
        GET /status/404 HTTP/1.1\r\nHost: x\r\n\r\n";
    let whole = conversation(input, input.len());
    let (received, next, counts) = &whole;
    assert_eq!(*next, Next::NeedInput);
    assert_eq!(received.matches("HTTP/1.1 200 OK").count(), 3);
    assert!(received.ends_with("404 Not Found\n"), "{received}");
    let order = ["Hello", "\r\n\r\nhello", "\r\n\r\nyes", "404"].map(|text| received.find(text));
    assert!(order.is_sorted() && order.iter().all(Option::is_some), "{order:?}");
    let routes = r#""routes":{"/":{"GET":1},"/echo":{"POST":2},"/status/{code}":{"GET":1}}"#;
    assert!(counts.contains(routes), "{counts}");
    assert!(counts.contains(&format!(r#""bytes_in":{}"#, input.len())), "{counts}");
    assert!(counts.contains(&format!(r#""bytes_out":{}"#, received.len())), "{counts}");
    for size in [1, 2, 3, 5, 17, 64] {
        assert_eq!(conversation(input, size), whole, "pieces of {size}");
    }
}

#[test]
fn a_request_counts_when_its_last_byte_was_read_and_not_before() {
    let mut peer = Peer::new();
    let request = b"POST /delay/50 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab";
    let (almost, last) = request.split_at(request.len() - 1);
    assert_eq!(peer.send(almost), Next::NeedInput);
    assert!(peer.counts().contains(r#""total":0"#));
    assert_eq!(peer.send(last), Next::WaitUntil(50_001_000));
    assert!(peer.counts().contains(r#""total":1"#));
    assert!(peer.counts().contains(r#""in_flight":{"current":1,"peak":1}"#));
    assert!(peer.received.is_empty());
}

#[test]
fn a_delayed_reply_comes_at_its_time_and_what_follows_waits_behind_it() {
    let mut peer = Peer::new();
    let due = Next::WaitUntil(50_001_000);
    assert_eq!(peer.send(b"GET /delay/50 HTTP/1.1\r\nHost: x\r\n\r\n"), due);
    assert_eq!(peer.send(b"GET /json HTTP/1.1\r\nHost: x\r\n\r\n"), due);
    peer.now.ns = 50_000_999;
    assert_eq!(peer.send(b""), due);
    assert!(peer.received.is_empty());
    peer.now.ns = 50_001_000;
    assert_eq!(peer.send(b""), Next::NeedInput);
    assert!(peer.received().ends_with('}'), "{}", peer.received());
    assert!(peer.counts().contains(r#""residence":{"count":2"#));
}

#[test]
fn a_client_that_waits_for_the_go_ahead_gets_it_once() {
    let mut peer = Peer::new();
    let head =
        b"POST /echo?raw HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
    assert_eq!(peer.send(head), Next::NeedInput);
    assert_eq!(peer.received, CONTINUE);
    assert_eq!(peer.send(b"a"), Next::NeedInput);
    assert_eq!(peer.send(b"b"), Next::NeedInput);
    let received = peer.received();
    assert!(received.contains("HTTP/1.1 200 OK") && received.ends_with("\r\n\r\nab"), "{received}");
    assert_eq!(received.matches("100 Continue").count(), 1);
    assert!(peer.counts().contains(&format!(r#""bytes_out":{}"#, received.len())));

    let mut eager = Peer::new();
    let mut request = head.to_vec();
    request.extend_from_slice(b"ab");
    eager.send(&request);
    assert!(!eager.received().contains("100 Continue"));
}

#[test]
fn the_last_reply_of_a_connection_says_so() {
    for (request, next) in [
        ("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", Next::Close),
        ("GET / HTTP/1.0\r\n\r\n", Next::Close),
        ("GET /close HTTP/1.1\r\nHost: x\r\n\r\n", Next::Close),
        ("GET /reset HTTP/1.1\r\nHost: x\r\n\r\n", Next::Reset),
        ("nonsense\r\n\r\n", Next::Linger),
        ("GET /broken/no-response HTTP/1.1\r\nHost: x\r\n\r\n", Next::Hold),
    ] {
        let mut peer = Peer::new();
        let answered = matches!(next, Next::Close | Next::Linger);
        assert_eq!(peer.send(request.as_bytes()), next, "{request}");
        assert_eq!(peer.received().contains("Connection: close\r\n"), answered, "{request}");
    }
}

#[test]
fn what_is_malformed_is_counted_apart_and_ends_the_conversation() {
    let mut peer = Peer::new();
    let next = peer.send(
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\nPOST / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
    );
    assert_eq!(next, Next::Linger);
    assert_eq!(peer.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), Next::Linger);
    let counts = peer.counts();
    assert!(counts.contains(r#""total":1"#) && counts.contains(r#""malformed":1"#), "{counts}");
}

#[test]
fn looking_at_the_counts_changes_nothing() {
    let mut peer = Peer::new();
    peer.send(b"GET /counts HTTP/1.1\r\nHost: x\r\n\r\n");
    let counts = peer.counts();
    assert!(counts.contains(r#""total":0,"routes":{},"seconds":{},"connections":{"current":0,"peak":0,"silent":0,"total":0}"#), "{counts}");
    assert!(counts.contains(r#""bytes_in":0,"bytes_out":0"#), "{counts}");
    peer.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    let counts = peer.counts();
    assert!(
        counts.contains(r#""connections":{"current":1,"peak":1,"silent":0,"total":1}"#),
        "{counts}"
    );
}

#[test]
fn a_connection_lost_in_the_middle_leaves_nothing_in_flight() {
    let mut peer = Peer::new();
    peer.send(b"GET /delay/50 HTTP/1.1\r\nHost: x\r\n\r\n");
    let Peer { session, totals, tally, .. } = peer;
    assert!(session.owes_reply());
    session.closed(&tally);
    let counts = String::from_utf8_lossy(&totals.to_json()).into_owned();
    assert!(counts.contains(r#""in_flight":{"current":0,"peak":1}"#), "{counts}");
    assert!(
        counts.contains(r#""connections":{"current":0,"peak":1,"silent":0,"total":1}"#),
        "{counts}"
    );
    assert!(counts.contains(r#""residence":{"count":0"#), "{counts}");
}

#[test]
fn no_garbage_upsets_a_session() {
    // A small generator of our own: the bytes must be the same in every run.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    };
    let seeds: [&[u8]; 4] = [
        b"GET /echo?raw HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"PUT /bytes/70?chunked HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nabcd",
        b"GET /cookies HTTP/1.0\r\nCookie: a=b; c\r\nConnection: keep-alive\r\n\r\n",
    ];
    for _ in 0..5_000 {
        let mut input = seeds[random(seeds.len())].to_vec();
        for _ in 0..=random(4) {
            let place = random(input.len());
            match random(3) {
                0 => input[place] = random(256) as u8,
                1 => drop(input.remove(place)),
                _ => input.insert(place, random(256) as u8),
            }
        }
        let (whole, whole_next) = converse(&input, input.len());
        let (pieces, pieces_next) = converse(&input, 1 + random(9));
        assert_eq!(whole.received(), pieces.received(), "{:?}", String::from_utf8_lossy(&input));
        assert_eq!(whole_next, pieces_next, "{:?}", String::from_utf8_lossy(&input));
    }
}
