//! How connections reach their servers where that is not the plain way: addresses that are given
//! instead of looked up, source addresses, Unix sockets and proxies.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyKind {
    /// HTTP with the method CONNECT.
    Http,
    Socks5,
}

/// A proxy that passes connections on. It looks the names of servers up itself.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Proxy {
    pub kind: ProxyKind,
    pub host: String,
    pub port: u16,
    /// User and password.
    pub credentials: Option<(String, String)>,
}

impl std::fmt::Debug for Proxy {
    /// Without the password: debug output may be logged.
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{:?} {}:{}", self.kind, self.host, self.port)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Route {
    /// Addresses of hosts that are not looked up.
    pub resolve: Vec<(String, Vec<IpAddr>)>,
    /// Local addresses, used in turn.
    pub bind: Vec<IpAddr>,
    /// Connections go to this socket, whatever the host.
    pub unix_socket: Option<PathBuf>,
    pub proxy: Option<Proxy>,
}

impl Route {
    /// The addresses given for a host; None if it has to be looked up.
    #[must_use]
    pub fn addresses_of(&self, host: &str) -> Option<&[IpAddr]> {
        let found = self.resolve.iter().find(|(name, _)| name.eq_ignore_ascii_case(host))?;
        Some(&found.1)
    }

    /// The local address of the connection with this number to `to`. None if any will do; an error
    /// if there are local addresses, but none of the same family.
    pub fn source(&self, to: SocketAddr, number: usize) -> Result<Option<IpAddr>, String> {
        if self.bind.is_empty() {
            return Ok(None);
        }
        let fitting = || self.bind.iter().filter(|from| from.is_ipv4() == to.is_ipv4());
        match fitting().count() {
            0 => Err(format!("none of the source addresses can reach {to}")),
            count => Ok(fitting().nth(number % count).copied()),
        }
    }
}

/// One end of a connection to be opened.
#[derive(Clone, Copy, Debug)]
pub enum Peer<'a> {
    Address { to: SocketAddr, from: Option<IpAddr> },
    Unix(&'a Path),
}

impl Peer<'_> {
    #[must_use]
    pub const fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Address { to, .. } => Some(*to),
            Self::Unix(_) => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::Route;

    #[test]
    fn source_addresses_take_turns_within_the_family_of_the_target() {
        let bind = ["127.0.0.2", "::1", "127.0.0.3"].map(|text| text.parse().unwrap()).to_vec();
        let route = Route { bind, ..Route::default() };
        let v4 = |number| route.source("127.0.0.1:80".parse().unwrap(), number).unwrap().unwrap();
        assert_eq!(
            [v4(0), v4(1), v4(2)].map(|each| each.to_string()),
            ["127.0.0.2", "127.0.0.3", "127.0.0.2"]
        );
        let v6 = route.source("[::1]:80".parse().unwrap(), 5).unwrap().unwrap();
        assert_eq!(v6.to_string(), "::1");
        let only_v6 = Route { bind: vec!["::1".parse().unwrap()], ..Route::default() };
        assert!(only_v6.source("127.0.0.1:80".parse().unwrap(), 0).is_err());
        assert_eq!(Route::default().source("127.0.0.1:80".parse().unwrap(), 0), Ok(None));
    }

    #[test]
    fn given_addresses_are_found_by_name_in_any_case() {
        let resolve = vec![("shop.test".to_owned(), vec!["127.0.0.1".parse().unwrap()])];
        let route = Route { resolve, ..Route::default() };
        assert_eq!(route.addresses_of("Shop.Test").unwrap().len(), 1);
        assert!(route.addresses_of("other.test").is_none());
    }
}
