//! The engine against servers that a test scripts.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{spawn, JoinHandle};

use super::http::reply::Keep;
use super::http::template::{Limits, Template};
use super::protocol::Protocol;
use super::request::{Caller, PartKind};
use super::transport::tls::TlsProfile;
use super::{Engine, Options};
use crate::clock::now_ns;
use crate::recorder::Recorder;

const SECOND_NS: u64 = 1_000_000_000;
const LIMITS: Limits = Limits {
    connect_ns: 30 * SECOND_NS,
    read_ns: 30 * SECOND_NS,
    total_ns: 30 * SECOND_NS,
    redirects_max: 0,
    body_bytes_max: 1 << 20,
};

/// Answers the one request of one connection.
fn serve(pieces: &'static [&'static str]) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let served = spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let mut room = [0; 4096];
        assert!(peer.read(&mut room).unwrap() > 0);
        for piece in pieces {
            peer.write_all(piece.as_bytes()).unwrap();
        }
        // Until the client closes.
        while peer.read(&mut room).unwrap_or(0) > 0 {}
    });
    (url, served)
}

fn template(url: &str) -> Arc<Template> {
    let tls = TlsProfile::default();
    Arc::new(Template::new("GET", url, Vec::new(), None, LIMITS, &tls, Protocol::Http1).unwrap())
}

#[test]
fn a_body_in_parts_is_delivered_before_the_request_ends() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (url, served) = serve(&[
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "3\r\none\r\n",
        "3\r\ntwo\r\n",
        "0\r\n\r\n",
    ]);
    let mut recorder = Recorder::new(1);
    let mut engine = Engine::new(Options::default()).unwrap();
    let caller = Caller { vu: 0, step: 0, keep: Keep::Parts };
    let key = engine.send(&template(&url), caller, "token", now_ns(), &mut recorder);
    let (mut kinds, mut body) = (Vec::new(), Vec::new());
    let done = loop {
        engine.wait(SECOND_NS).unwrap();
        while engine.handle_next(&mut recorder) {}
        while let Some((of, part)) = engine.take_part() {
            assert_eq!(of, key);
            match part.kind {
                PartKind::Text | PartKind::Close => {}
                PartKind::Head => assert_eq!(part.bytes, head.as_bytes()),
                PartKind::Data => body.extend(part.bytes),
            }
            kinds.push(part.kind);
        }
        if let Some(done) = engine.take_done() {
            break done;
        }
        assert_eq!(engine.token(key), Some(&"token"));
    };
    assert_eq!((kinds.first(), body.as_slice()), (Some(&PartKind::Head), &b"onetwo"[..]));
    assert_eq!((done.exchange().status, done.exchange().body.len()), (200, 0));
    assert_eq!((engine.token(key), engine.connections()), (None, 1));
    drop(engine);
    served.join().unwrap();
}
