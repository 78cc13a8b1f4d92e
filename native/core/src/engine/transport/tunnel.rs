//! A tunnel through a proxy: HTTP CONNECT (RFC 9110 §9.3.6) or SOCKS5 (RFC 1928, RFC 1929).
//!
//! Bytes in, bytes out. What the server behind the proxy says follows the last reply of the proxy
//! at once, so `take` says how many bytes are the proxy's.

use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;

use super::route::{Proxy, ProxyKind};
use crate::engine::error::{ErrorClass, Failure};
use crate::engine::http::template::USER_AGENT;

/// Longest reply of a proxy.
pub const REPLY_BYTES_MAX: usize = 16 * 1024;
const NAME_BYTES_MAX: usize = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    HttpHead,
    SocksMethod,
    SocksPassword,
    SocksReply,
    Nothing,
}

#[derive(Debug)]
pub struct Tunnel {
    proxy: Proxy,
    /// Of the server, as the proxy is asked for it.
    host: String,
    port: u16,
    awaited: Awaited,
    /// To be written.
    pub pending: Vec<u8>,
}

impl Tunnel {
    pub fn new(proxy: &Proxy, host: &str, port: u16) -> Result<Self, Failure> {
        let (awaited, pending) = match proxy.kind {
            ProxyKind::Http => (Awaited::HttpHead, connect_head(proxy, host, port)),
            ProxyKind::Socks5 => {
                let methods: &[u8] =
                    if proxy.credentials.is_some() { &[5, 2, 0, 2] } else { &[5, 1, 0] };
                (Awaited::SocksMethod, methods.to_vec())
            }
        };
        if host.len() > NAME_BYTES_MAX {
            return Err(refused(format!("the name {host} is too long for a proxy")));
        }
        Ok(Self { proxy: proxy.clone(), host: host.to_owned(), port, awaited, pending })
    }

    /// Whether the proxy passes everything on from now on.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.awaited == Awaited::Nothing
    }

    /// Looks at what came. Returns how many bytes of it belong to the proxy's reply; 0 if that is
    /// not there yet as a whole.
    pub fn take(&mut self, seen: &[u8]) -> Result<usize, Failure> {
        let taken = match self.awaited {
            Awaited::HttpHead => self.take_head(seen)?,
            Awaited::SocksMethod => self.take_method(seen)?,
            Awaited::SocksPassword => self.take_password(seen)?,
            Awaited::SocksReply => self.take_reply(seen)?,
            Awaited::Nothing => 0,
        };
        if taken == 0 && seen.len() >= REPLY_BYTES_MAX {
            return Err(refused("the reply of the proxy has no end"));
        }
        Ok(taken)
    }

    /// What to say of a proxy that closed the connection.
    #[must_use]
    pub fn closed(&self) -> Failure {
        refused(format!("the proxy closed the connection to {}:{}", self.host, self.port))
    }

    fn take_head(&mut self, seen: &[u8]) -> Result<usize, Failure> {
        if !seen.starts_with(b"HTTP/1.") && seen.len() >= 7 {
            return Err(refused("the proxy does not speak HTTP"));
        }
        let Some(end) = seen.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(0) };
        let line = seen.split(|&byte| byte == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let mut words = line.splitn(3, ' ').skip(1);
        let status = words.next().and_then(|word| word.parse::<u16>().ok());
        let reason = words.next().unwrap_or_default();
        match status {
            Some(200..=299) => {
                self.awaited = Awaited::Nothing;
                Ok(end + 4)
            }
            Some(407) if self.proxy.credentials.is_none() => {
                Err(refused("the proxy asks for a user and a password (407)"))
            }
            Some(407) => Err(refused("the proxy refuses the user or the password (407)")),
            Some(status) => {
                let (host, port) = (&self.host, self.port);
                Err(refused(format!("the proxy refuses {host}:{port}: {status} {reason}")))
            }
            None => Err(refused("the proxy does not speak HTTP")),
        }
    }

    fn take_method(&mut self, seen: &[u8]) -> Result<usize, Failure> {
        match (seen, &self.proxy.credentials) {
            ([5, 0, ..], _) => self.ask(),
            ([5, 2, ..], Some((user, password))) => {
                self.pending.push(1);
                for text in [user, password] {
                    self.pending.push(text.len().min(NAME_BYTES_MAX) as u8);
                    self.pending.extend(text.bytes().take(NAME_BYTES_MAX));
                }
                self.awaited = Awaited::SocksPassword;
            }
            ([5, _, ..], None) => {
                return Err(refused("the proxy asks for a user and a password"));
            }
            ([5, _, ..], Some(_)) => {
                return Err(refused("the proxy takes no user and password"));
            }
            ([] | [5], _) => return Ok(0),
            _ => return Err(refused("the proxy does not speak SOCKS5")),
        }
        Ok(2)
    }

    fn take_password(&mut self, seen: &[u8]) -> Result<usize, Failure> {
        match seen {
            [_, 0, ..] => {
                self.ask();
                Ok(2)
            }
            [_, _, ..] => Err(refused("the proxy refuses the user or the password")),
            _ => Ok(0),
        }
    }

    /// Asks a SOCKS5 proxy for the server.
    fn ask(&mut self) {
        self.pending.extend([5, 1, 0]);
        match self.host.parse() {
            Ok(std::net::IpAddr::V4(address)) => {
                self.pending.push(1);
                self.pending.extend(address.octets());
            }
            Ok(std::net::IpAddr::V6(address)) => {
                self.pending.push(4);
                self.pending.extend(address.octets());
            }
            Err(_) => {
                self.pending.extend([3, self.host.len() as u8]);
                self.pending.extend(self.host.bytes());
            }
        }
        self.pending.extend(self.port.to_be_bytes());
        self.awaited = Awaited::SocksReply;
    }

    fn take_reply(&mut self, seen: &[u8]) -> Result<usize, Failure> {
        let address_bytes = match seen {
            [5, code, ..] if *code != 0 => {
                let (host, port, reason) = (&self.host, self.port, socks_reason(*code));
                return Err(refused(format!("the proxy refuses {host}:{port}: {reason}")));
            }
            [5, 0, _, 1, ..] => 4,
            [5, 0, _, 4, ..] => 16,
            [5, 0, _, 3, length, ..] => 1 + usize::from(*length),
            [] | [5] | [5, 0] | [5, 0, _] | [5, 0, _, 3] => return Ok(0),
            _ => return Err(refused("the reply of the proxy is not SOCKS5")),
        };
        let taken = 4 + address_bytes + 2;
        if seen.len() < taken {
            return Ok(0);
        }
        self.awaited = Awaited::Nothing;
        Ok(taken)
    }
}

fn refused(detail: impl Into<std::borrow::Cow<'static, str>>) -> Failure {
    Failure::new(ErrorClass::Proxy, detail)
}

fn connect_head(proxy: &Proxy, host: &str, port: u16) -> Vec<u8> {
    let place =
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let mut head =
        format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\nUser-Agent: {USER_AGENT}\r\n");
    if let Some((user, password)) = &proxy.credentials {
        let encoded = STANDARD.encode(format!("{user}:{password}"));
        head.push_str(&format!("Proxy-Authorization: Basic {encoded}\r\n"));
    }
    head.push_str("\r\n");
    head.into_bytes()
}

/// What a SOCKS5 proxy says with a code (RFC 1928 §6).
const fn socks_reason(code: u8) -> &'static str {
    match code {
        2 => "not allowed by its rules",
        3 => "network unreachable",
        4 => "host unreachable",
        5 => "connection refused",
        6 => "TTL expired",
        7 => "command not supported",
        8 => "address type not supported",
        _ => "general failure",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::{Proxy, ProxyKind, Tunnel, REPLY_BYTES_MAX};

    fn tunnel(kind: ProxyKind, credentials: Option<(&str, &str)>, host: &str) -> Tunnel {
        let credentials = credentials.map(|(user, pw)| (user.to_owned(), pw.to_owned()));
        let proxy = Proxy { kind, host: "proxy.test".to_owned(), port: 3128, credentials };
        Tunnel::new(&proxy, host, 443).unwrap()
    }

    /// Feeds a script of replies whole and byte by byte, each with a byte of the server behind it.
    fn run(mut tunnel: Tunnel, replies: &[&[u8]]) -> Result<(), String> {
        for reply in replies {
            let mut seen = reply.to_vec();
            seen.push(b'S');
            for length in 0..reply.len() {
                match tunnel.take(&seen[..length]) {
                    Ok(taken) => assert_eq!(taken, 0, "{length} of {reply:?}"),
                    Err(failure) => return Err(failure.detail.into_owned()),
                }
            }
            let taken = tunnel.take(&seen).map_err(|failure| failure.detail.into_owned())?;
            assert_eq!(taken, reply.len());
        }
        assert!(tunnel.is_open());
        Ok(())
    }

    #[test]
    fn a_connect_proxy_opens_with_any_status_of_200() {
        let made = tunnel(ProxyKind::Http, Some(("a", "b")), "::1");
        let text = String::from_utf8(made.pending.clone()).unwrap();
        assert!(text.starts_with("CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\n"), "{text}");
        assert!(text.ends_with("Proxy-Authorization: Basic YTpi\r\n\r\n"), "{text}");
        run(made, &[b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n"]).unwrap();
    }

    #[test]
    fn socks5_asks_by_name_or_address_and_reads_replies_exactly() {
        let mut named = tunnel(ProxyKind::Socks5, Some(("us", "pw")), "h.test");
        assert_eq!(named.pending, [5, 2, 0, 2]);
        named.pending.clear();
        assert_eq!(named.take(&[5, 2]), Ok(2));
        assert_eq!(named.pending, [&[1, 2][..], b"us", &[2], b"pw"].concat());
        named.pending.clear();
        assert_eq!(named.take(&[1, 0]), Ok(2));
        assert_eq!(named.pending, [&[5, 1, 0, 3, 6][..], b"h.test", &[1, 187]].concat());
        run(named, &[&[5, 0, 0, 3, 2, b'x', b'y', 0, 80]]).unwrap();
        let plain = || tunnel(ProxyKind::Socks5, None, "10.0.0.1");
        run(plain(), &[&[5, 0], &[5, 0, 0, 1, 1, 2, 3, 4, 0, 80]]).unwrap();
        let long = [&[5, 0, 0, 4][..], &[0; 18]].concat();
        run(plain(), &[&[5, 0], &long]).unwrap();
    }

    #[test]
    fn refusals_and_garbage_are_described() {
        let http = || tunnel(ProxyKind::Http, None, "h.test");
        let known = || tunnel(ProxyKind::Http, Some(("a", "b")), "h.test");
        let socks = || tunnel(ProxyKind::Socks5, None, "h.test");
        let cases: [(Tunnel, &[&[u8]], &str); 8] = [
            (http(), &[b"HTTP/1.1 407 Auth\r\n\r\n"], "asks for a user and a password"),
            (known(), &[b"HTTP/1.1 407 Auth\r\n\r\n"], "refuses the user or the password"),
            (http(), &[b"HTTP/1.1 502 Bad Gateway\r\n\r\n"], "h.test:443: 502 Bad Gateway"),
            (http(), &[b"SSH-2.0-OpenSSH\r\n\r\n"], "does not speak HTTP"),
            (http(), &[b"HTTP/1.1 nonsense\r\n\r\n"], "does not speak HTTP"),
            (socks(), &[&[5, 255]], "asks for a user and a password"),
            (socks(), &[b"HTTP"], "does not speak SOCKS5"),
            (socks(), &[&[5, 0], &[5, 5, 0, 1]], "h.test:443: connection refused"),
        ];
        for (made, replies, words) in cases {
            let error = run(made, replies).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let endless = [&b"HTTP/1.1 200 "[..], &vec![b'x'; REPLY_BYTES_MAX]].concat();
        assert!(http().take(&endless).is_err());
    }
}
