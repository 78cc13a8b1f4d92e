//! What each path means: from a request head to the action that will answer it.
//!
//! Everything an answer needs from the head is copied out here, because the bytes the head was
//! read from are gone once the body has been read.

use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;

use crate::broken::Fault;
use crate::counts::{Method, Route};
use crate::encoded::Encoding;
use crate::json;
use crate::request::Head;
use crate::websocket::{Push, Upgrade};

const DELAY_MS_MAX: u64 = 3_600_000;
const BYTES_MAX: u64 = 1 << 40;
const EVENTS_MAX: u64 = 1_000_000_000;
const REDIRECTS_MAX: u64 = 1000;

#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    Text,
    Json,
    Delay {
        ms: u64,
    },
    Status(u16),
    Bytes {
        count: u64,
        chunked: bool,
    },
    Redirect {
        status: u16,
        location: String,
    },
    /// The echo document up to where the body belongs.
    Echo(Vec<u8>),
    EchoRaw {
        content_type: Vec<u8>,
    },
    /// A JSON document that needs nothing but the head.
    Document(Vec<u8>),
    SetCookies(Vec<String>),
    Encoded(Encoding),
    Unauthorized,
    Close,
    Reset,
    Slow {
        ms: u64,
        count: u64,
    },
    /// `count` events, `ms` apart, from the one after `last` on; the connection breaks after `cut`.
    Events {
        ms: u64,
        count: u64,
        last: u64,
        cut: Option<u64>,
    },
    WebSocket(Upgrade),
    Graphql {
        /// The events of a subscription are asked for.
        events: bool,
    },
    Broken(Fault),
    Counts,
    CountsReset,
    BadParameter(&'static str),
    NotFound,
    MethodNotAllowed(&'static str),
}

impl Action {
    #[must_use]
    pub fn wants_body(&self) -> bool {
        matches!(self, Self::Echo(_) | Self::EchoRaw { .. } | Self::Graphql { .. })
    }
}

/// What to do with a request; without a route it is not counted.
#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    pub route: Option<Route>,
    pub action: Action,
}

#[must_use]
pub fn plan(head: &Head<'_>, method: Method) -> Plan {
    let counted = |route, action| Plan { route: Some(route), action };
    match head.path {
        "/" => return counted(Route::Root, Action::Text),
        "/json" => return counted(Route::Json, Action::Json),
        "/counts" | "/counts/reset" => {
            return Plan { route: None, action: counts_action(head.path, method) }
        }
        _ => {}
    }
    let mut parts = head.path.split('/').skip(1);
    let parts = (parts.next().unwrap_or_default(), parts.next(), parts.next(), parts.next());
    match parts {
        ("echo", None, ..) => counted(Route::Echo, echo(head)),
        ("delay", Some(ms), None, _) => counted(
            Route::Delay,
            number(ms, DELAY_MS_MAX).map_or(BAD_DELAY, |ms| Action::Delay { ms }),
        ),
        ("status", Some(code), None, _) => counted(Route::Status, status(code)),
        ("bytes", Some(count), None, _) => counted(
            Route::Bytes,
            number(count, BYTES_MAX).map_or(BAD_BYTES, |count| Action::Bytes {
                count,
                chunked: query_has(head.query, "chunked"),
            }),
        ),
        ("redirect", Some(hops), None, _) => counted(Route::Redirect, redirect(hops, head.query)),
        ("cookies", None, ..) => counted(Route::Cookies, cookies(head)),
        ("cookies", Some("set"), None, _) => counted(Route::CookiesSet, set_cookies(head.query)),
        ("gzip", None, ..) => counted(Route::Gzip, Action::Encoded(Encoding::Gzip)),
        ("deflate", None, ..) => counted(Route::Deflate, Action::Encoded(Encoding::Deflate)),
        ("brotli", None, ..) => counted(Route::Brotli, Action::Encoded(Encoding::Brotli)),
        ("zstd", None, ..) => counted(Route::Zstd, Action::Encoded(Encoding::Zstd)),
        ("basic-auth", Some(user), Some(password), None) => {
            counted(Route::BasicAuth, basic_auth(head, user, password))
        }
        ("graphql", None, ..) => counted(Route::Graphql, graphql(head, method)),
        ("headers", None, ..) => counted(Route::Headers, headers(head)),
        ("close", None, ..) => counted(Route::Close, Action::Close),
        ("reset", None, ..) => counted(Route::Reset, Action::Reset),
        ("slow", Some(ms), Some(count), None) => counted(
            Route::Slow,
            match (number(ms, DELAY_MS_MAX), number(count, BYTES_MAX)) {
                (Some(ms), Some(count)) => Action::Slow { ms, count },
                (None, _) => BAD_DELAY,
                (_, None) => BAD_BYTES,
            },
        ),
        ("sse", Some(ms), Some(count), None) => counted(Route::Sse, events(head, ms, count)),
        ("ws", None, ..) => counted(Route::Websocket, websocket(head, None)),
        ("ws", Some(ms), Some(count), None) => counted(
            Route::Websocket,
            match (number(ms, DELAY_MS_MAX), number(count, EVENTS_MAX)) {
                (Some(ms), Some(count)) => {
                    websocket(head, Some(Push { every_ns: ms * 1_000_000, count }))
                }
                (None, _) => BAD_DELAY,
                (_, None) => BAD_EVENTS,
            },
        ),
        ("broken", Some(name), None, _) => match Fault::parse(name) {
            Some(fault) => counted(Route::Broken, Action::Broken(fault)),
            None => counted(Route::Unknown, Action::NotFound),
        },
        _ => counted(Route::Unknown, Action::NotFound),
    }
}

const BAD_EVENTS: Action = Action::BadParameter("the number must be 0 to 1000000000");
const BAD_DELAY: Action = Action::BadParameter("the delay must be 0 to 3600000 milliseconds");
const BAD_BYTES: Action = Action::BadParameter("the size must be 0 to 1099511627776 bytes");

fn events(head: &Head<'_>, ms: &str, count: &str) -> Action {
    let Some(ms) = number(ms, DELAY_MS_MAX) else { return BAD_DELAY };
    let Some(count) = number(count, EVENTS_MAX) else { return BAD_EVENTS };
    let number_in = |text: &[u8]| std::str::from_utf8(text).ok().and_then(|t| number(t, count));
    let last = head.header_values("last-event-id").next().and_then(number_in).unwrap_or(0);
    let cut = query_pairs(head.query).find(|(key, _)| *key == "break");
    match cut.map(|(_, value)| number(value, EVENTS_MAX)) {
        Some(None) => BAD_EVENTS,
        cut => Action::Events { ms, count, last, cut: cut.flatten() },
    }
}

fn websocket(head: &Head<'_>, push: Option<Push>) -> Action {
    Upgrade::read(head, push).map_or_else(Action::BadParameter, Action::WebSocket)
}

fn counts_action(path: &str, method: Method) -> Action {
    match (path, method) {
        ("/counts", Method::Get | Method::Head) => Action::Counts,
        ("/counts", _) => Action::MethodNotAllowed("GET, HEAD"),
        (_, Method::Post) => Action::CountsReset,
        _ => Action::MethodNotAllowed("POST"),
    }
}

fn number(text: &str, max: u64) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|value| *value <= max)
}

fn query_pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

fn query_has(query: &str, name: &str) -> bool {
    query_pairs(query).any(|(key, _)| key == name)
}

fn status(code: &str) -> Action {
    match number(code, 999) {
        Some(code @ 200..) => Action::Status(code as u16),
        _ => Action::BadParameter("the status must be 200 to 999"),
    }
}

fn redirect(hops: &str, query: &str) -> Action {
    let Some(hops) = number(hops, REDIRECTS_MAX) else {
        return Action::BadParameter("the number of hops must be 0 to 1000");
    };
    let code = query_pairs(query).find(|(key, _)| *key == "code").map(|(_, value)| value);
    let status = match code {
        None | Some("302") => 302,
        Some("301") => 301,
        Some("303") => 303,
        Some("307") => 307,
        Some("308") => 308,
        Some(_) => return Action::BadParameter("the code must be 301, 302, 303, 307 or 308"),
    };
    match hops {
        0 => Action::Text,
        1 => Action::Redirect { status, location: "/".to_owned() },
        _ if query.is_empty() => {
            Action::Redirect { status, location: format!("/redirect/{}", hops - 1) }
        }
        _ => Action::Redirect { status, location: format!("/redirect/{}?{query}", hops - 1) },
    }
}

fn write_headers(out: &mut Vec<u8>, head: &Head<'_>) {
    out.extend_from_slice(b"\"headers\":[");
    let mut items = json::Separator::default();
    for header in head.headers {
        items.next(out);
        out.push(b'[');
        json::string(out, header.name);
        out.push(b',');
        json::bytes(out, header.value);
        out.push(b']');
    }
    out.push(b']');
}

fn headers(head: &Head<'_>) -> Action {
    let mut out = vec![b'{'];
    write_headers(&mut out, head);
    out.extend_from_slice(b"}\n");
    Action::Document(out)
}

fn graphql(head: &Head<'_>, method: Method) -> Action {
    if method != Method::Post {
        return Action::MethodNotAllowed("POST");
    }
    let is_asked = |accept: &[u8]| accept.windows(17).any(|words| words == b"text/event-stream");
    Action::Graphql { events: head.header_values("accept").any(is_asked) }
}

fn echo(head: &Head<'_>) -> Action {
    if query_has(head.query, "raw") {
        let content_type = head.header_values("content-type").next();
        let content_type = content_type.unwrap_or(b"application/octet-stream").to_vec();
        return Action::EchoRaw { content_type };
    }
    let mut out = vec![b'{'];
    let mut fields = json::Separator::default();
    for (name, value) in [("method", head.method), ("path", head.path), ("query", head.query)] {
        fields.key(&mut out, name);
        json::string(&mut out, value);
    }
    fields.key(&mut out, "version");
    let version = match head.version {
        0 => "HTTP/1.0",
        1 => "HTTP/1.1",
        2 => "HTTP/2",
        _ => "HTTP/3",
    };
    json::string(&mut out, version);
    fields.next(&mut out);
    write_headers(&mut out, head);
    Action::Echo(out)
}

fn cookies(head: &Head<'_>) -> Action {
    let mut out = b"{\"cookies\":{".to_vec();
    let mut items = json::Separator::default();
    for value in head.header_values("cookie") {
        for pair in value.split(|byte| *byte == b';') {
            let pair = pair.trim_ascii();
            let mut halves = pair.splitn(2, |byte| *byte == b'=');
            let (name, value) = (halves.next(), halves.next().unwrap_or_default());
            if let Some(name) = name.filter(|name| !name.is_empty()) {
                items.next(&mut out);
                json::bytes(&mut out, name);
                out.push(b':');
                json::bytes(&mut out, value);
            }
        }
    }
    out.extend_from_slice(b"}}\n");
    Action::Document(out)
}

fn set_cookies(query: &str) -> Action {
    let safe = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';');
    let pairs: Vec<_> = query_pairs(query).collect();
    if pairs.is_empty() || pairs.iter().any(|(name, value)| name.is_empty() || !safe(value)) {
        return Action::BadParameter("give the cookies as ?name=value, without ';' or spaces");
    }
    Action::SetCookies(
        pairs.iter().map(|(name, value)| format!("{name}={value}; Path=/")).collect(),
    )
}

fn basic_auth(head: &Head<'_>, user: &str, password: &str) -> Action {
    let mut expected = percent_decode(user);
    expected.push(b':');
    expected.extend(percent_decode(password));
    let expected = STANDARD.encode(expected);
    let given = head.header_values("authorization").next().unwrap_or_default();
    let (scheme, credentials) = given.split_at_checked(6).unwrap_or_default();
    if !scheme.eq_ignore_ascii_case(b"basic ") || credentials.trim_ascii() != expected.as_bytes() {
        return Action::Unauthorized;
    }
    let mut out = b"{\"authenticated\":true,\"user\":".to_vec();
    json::bytes(&mut out, &percent_decode(user));
    out.extend_from_slice(b"}\n");
    Action::Document(out)
}

fn percent_decode(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let escaped = (byte == b'%')
            .then(|| after.split_at_checked(2))
            .flatten()
            .and_then(|(digits, tail)| Some((std::str::from_utf8(digits).ok()?, tail)))
            .and_then(|(digits, tail)| Some((u8::from_str_radix(digits, 16).ok()?, tail)));
        match escaped {
            Some((value, tail)) => {
                out.push(value);
                rest = tail;
            }
            None => out.push(byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Framing;

    fn head<'a>(method: &'a str, path: &'a str, query: &'a str) -> Head<'a> {
        Head {
            method,
            path,
            query,
            version: 1,
            headers: &[],
            keep_alive: true,
            framing: Framing::None,
            expects_continue: false,
        }
    }

    fn get(path: &str, query: &str) -> Plan {
        plan(&head("GET", path, query), Method::Get)
    }

    #[test]
    fn paths_find_their_route_and_parameters() {
        assert_eq!(get("/delay/50", "").action, Action::Delay { ms: 50 });
        assert_eq!(get("/status/404", "").action, Action::Status(404));
        assert_eq!(get("/bytes/7", "").action, Action::Bytes { count: 7, chunked: false });
        assert_eq!(get("/bytes/7", "chunked").action, Action::Bytes { count: 7, chunked: true });
        assert_eq!(get("/slow/20/3", "").action, Action::Slow { ms: 20, count: 3 });
        assert_eq!(get("/broken/nonsense", ""), get("/nowhere", ""));
        assert_eq!(get("/nowhere", "").route, Some(Route::Unknown));
    }

    #[test]
    fn a_bad_parameter_is_counted_under_the_route_it_was_meant_for() {
        for (path, route) in [
            ("/delay/-1", Route::Delay),
            ("/delay/+1", Route::Delay),
            ("/delay/", Route::Delay),
            ("/delay/3600001", Route::Delay),
            ("/status/99", Route::Status),
            ("/status/1000", Route::Status),
            ("/bytes/99999999999999999999", Route::Bytes),
            ("/slow/1/x", Route::Slow),
        ] {
            let plan = get(path, "");
            assert_eq!(plan.route, Some(route), "{path}");
            assert!(matches!(plan.action, Action::BadParameter(_)), "{path}");
        }
    }

    #[test]
    fn redirects_count_down_to_the_root_and_keep_their_code() {
        let location = |path, query| match get(path, query).action {
            Action::Redirect { status, location } => (status, location),
            other => (0, format!("{other:?}")),
        };
        assert_eq!(location("/redirect/2", ""), (302, "/redirect/1".to_owned()));
        assert_eq!(location("/redirect/2", "code=307"), (307, "/redirect/1?code=307".to_owned()));
        assert_eq!(location("/redirect/1", "code=308"), (308, "/".to_owned()));
        assert_eq!(get("/redirect/0", "").action, Action::Text);
        assert!(matches!(get("/redirect/2", "code=200").action, Action::BadParameter(_)));
    }

    #[test]
    fn looking_at_the_counts_has_no_route() {
        assert_eq!(get("/counts", "").route, None);
        assert_eq!(get("/counts", "").action, Action::Counts);
        assert_eq!(get("/counts/reset", "").action, Action::MethodNotAllowed("POST"));
        let reset = plan(&head("POST", "/counts/reset", ""), Method::Post);
        assert_eq!(reset, Plan { route: None, action: Action::CountsReset });
    }

    #[test]
    fn percent_escapes_decode_and_broken_ones_stay() {
        assert_eq!(percent_decode("a%20b%2Fc"), b"a b/c");
        assert_eq!(percent_decode("100%"), b"100%");
        assert_eq!(percent_decode("%zz%4"), b"%zz%4");
    }
}
