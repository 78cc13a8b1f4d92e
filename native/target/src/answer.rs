//! From an action to the bytes that answer it.

use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;

use crate::counts::Totals;
use crate::json;
use crate::reply::{reason, End, Manner, Reply, Source, Writer};
use crate::request::Refused;
use crate::routes::Action;

const TEXT: &[u8] = b"Hello from the Hyperscale target\n";
const JSON: &[u8] = br#"{"message":"Hello from the Hyperscale target","items":[{"id":1,"name":"one"},{"id":2,"name":"two"}],"ok":true}"#;

const TEXT_TYPE: &str = "text/plain; charset=utf-8";
/// Events of a GraphQL subscription.
const GRAPHQL_EVENTS: u32 = 3;
const JSON_TYPE: &str = "application/json";

// What most load asks for, ready to be copied; a test compares them with the written ones.
const TEXT_REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 33\r\n\r\nHello from the Hyperscale target\n";
const JSON_REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 110\r\n\r\n{\"message\":\"Hello from the Hyperscale target\",\"items\":[{\"id\":1,\"name\":\"one\"},{\"id\":2,\"name\":\"two\"}],\"ok\":true}";

/// Appends the first bytes of the reply to `out`; the rest is in the returned source.
pub fn write(
    action: &mut Action,
    body: Vec<u8>,
    manner: Manner,
    out: &mut Vec<u8>,
    totals: &Totals,
    now_ns: u64,
) -> Reply {
    let plain = manner.keep_alive && manner.version == 1 && !manner.head_only;
    match action {
        Action::Text | Action::Delay { .. } if plain => ready(out, TEXT_REPLY),
        Action::Json if plain => ready(out, JSON_REPLY),
        Action::Text | Action::Delay { .. } => document(out, manner, TEXT_TYPE, TEXT),
        Action::Json => document(out, manner, JSON_TYPE, JSON),
        Action::Status(code) => {
            let text = format!("{code} {}\n", reason(*code));
            Writer::new(out, manner, *code).header("Content-Type", TEXT_TYPE).body(text.as_bytes())
        }
        Action::Bytes { count, chunked } => {
            let total = *count;
            let writer =
                Writer::new(out, manner, 200).header("Content-Type", "application/octet-stream");
            // HTTP/1.0 knows no chunks.
            if *chunked && manner.version == 1 {
                writer.chunked(Source::Chunks { sent: 0, total })
            } else {
                writer.made(total, Source::Fill { sent: 0, total })
            }
        }
        Action::Redirect { status, location } => {
            Writer::new(out, manner, *status).header("Location", location).body(b"")
        }
        Action::Echo(start) => {
            finish_echo(start, &body);
            document(out, manner, JSON_TYPE, start)
        }
        Action::EchoRaw { content_type } => {
            Writer::new(out, manner, 200).header("Content-Type", content_type).body(&body)
        }
        Action::Graphql { events } => graphql(out, manner, &body, *events),
        Action::Document(text) => document(out, manner, JSON_TYPE, text),
        Action::SetCookies(cookies) => {
            let mut writer = Writer::new(out, manner, 200).header("Content-Type", TEXT_TYPE);
            for cookie in cookies {
                writer = writer.header("Set-Cookie", cookie);
            }
            writer.body(b"cookies set\n")
        }
        Action::Encoded(encoding) => Writer::new(out, manner, 200)
            .header("Content-Type", JSON_TYPE)
            .header("Content-Encoding", encoding.name())
            .body(encoding.body()),
        Action::Unauthorized => Writer::new(out, manner, 401)
            .header("WWW-Authenticate", "Basic realm=\"hyperscale target\"")
            .header("Content-Type", TEXT_TYPE)
            .body(b"wrong or missing user and password\n"),
        Action::Close => document(out, Manner { keep_alive: false, ..manner }, TEXT_TYPE, TEXT),
        Action::Reset => Reply { source: Source::Done, end: End::Reset },
        Action::Slow { ms, count } => {
            let (total, over_ns) = (*count, *ms * 1_000_000);
            Writer::new(out, manner, 200)
                .header("Content-Type", "application/octet-stream")
                .made(total, Source::Spread { sent: 0, total, start_ns: now_ns, over_ns })
        }
        Action::Events { ms, count, last, cut } => {
            let every_ns = *ms * 1_000_000;
            let end = cut.map_or(*count, |cut| (*last + cut).min(*count));
            let is_cut = end < *count;
            let source =
                Source::Events { sent: *last, end, every_ns, due_ns: now_ns + every_ns, is_cut };
            let mut reply = Writer::new(out, manner, 200)
                .header("Content-Type", "text/event-stream")
                .header("Cache-Control", "no-store")
                .chunked(source);
            if is_cut {
                reply.end = End::Close;
            }
            reply
        }
        // The session has opened the socket; a request that asks for none was refused before.
        Action::WebSocket(_) => Reply { source: Source::Done, end: End::Close },
        Action::Broken(fault) => fault.write(out, manner, now_ns),
        Action::Counts => document(out, manner, JSON_TYPE, &totals.to_json()),
        Action::CountsReset => {
            totals.reset();
            document(out, manner, TEXT_TYPE, b"counts reset\n")
        }
        Action::BadParameter(why) => failure(out, manner, 400, why),
        Action::NotFound => failure(out, manner, 404, "no such route"),
        Action::MethodNotAllowed(allowed) => Writer::new(out, manner, 405)
            .header("Allow", *allowed)
            .header("Content-Type", TEXT_TYPE)
            .body(format!("use {allowed}\n").as_bytes()),
    }
}

/// The answer to what could not be read as a request.
pub fn refuse(refused: Refused, out: &mut Vec<u8>) -> Reply {
    let manner = Manner { keep_alive: false, version: 1, head_only: false };
    failure(out, manner, refused.status(), refused.reason())
}

fn ready(out: &mut Vec<u8>, bytes: &[u8]) -> Reply {
    out.extend_from_slice(bytes);
    Reply { source: Source::Done, end: End::KeepAlive }
}

fn document(out: &mut Vec<u8>, manner: Manner, content_type: &str, body: &[u8]) -> Reply {
    Writer::new(out, manner, 200).header("Content-Type", content_type).body(body)
}

fn failure(out: &mut Vec<u8>, manner: Manner, status: u16, why: &str) -> Reply {
    let text = format!("{why}\n");
    Writer::new(out, manner, status).header("Content-Type", TEXT_TYPE).body(text.as_bytes())
}

/// Answers a GraphQL request. The schema is `examples/protocols/shop.graphql`; the target does not
/// pick fields: it sends all of them.
fn graphql(out: &mut Vec<u8>, manner: Manner, body: &[u8], events: bool) -> Reply {
    let has = |words: &[u8]| body.windows(words.len()).any(|window| window == words);
    if !has(b"\"query\"") {
        return failure(out, manner, 400, "the body is no GraphQL request: it has no query");
    }
    if events {
        let mut text = String::new();
        for number in 1..=GRAPHQL_EVENTS {
            text.push_str(&format!(
                "event: next\ndata: {{\"data\":{{\"sold\":{{\"id\":{number}}}}}}}\n\n"
            ));
        }
        text.push_str("event: complete\ndata:\n\n");
        return document(out, manner, "text/event-stream", text.as_bytes());
    }
    let text: &[u8] = if has(b"fail") {
        b"{\"data\":null,\"errors\":[{\"message\":\"as the document asked\"}]}"
    } else if has(b"mutation") {
        b"{\"data\":{\"buy\":{\"id\":1}}}"
    } else {
        b"{\"data\":{\"__typename\":\"Query\",\"shop\":{\"name\":\"Hyperscale\",\"items\":2}}}"
    };
    document(out, manner, JSON_TYPE, text)
}

fn finish_echo(out: &mut Vec<u8>, body: &[u8]) {
    out.extend_from_slice(b",\"body_bytes\":");
    json::number(out, body.len() as u64);
    match std::str::from_utf8(body) {
        Ok(text) => {
            out.extend_from_slice(b",\"body\":");
            json::string(out, text);
        }
        Err(_) => {
            out.extend_from_slice(b",\"body_base64\":");
            json::string(out, &STANDARD.encode(body));
        }
    }
    out.extend_from_slice(b"}\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_replies_equal_the_written_ones() {
        let manner = Manner { keep_alive: true, version: 1, head_only: false };
        for (ready, content_type, body) in
            [(TEXT_REPLY, TEXT_TYPE, TEXT), (JSON_REPLY, JSON_TYPE, JSON)]
        {
            let mut written = Vec::new();
            document(&mut written, manner, content_type, body);
            assert_eq!(String::from_utf8_lossy(&written), String::from_utf8_lossy(ready));
        }
    }
}
