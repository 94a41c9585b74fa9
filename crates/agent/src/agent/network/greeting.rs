//! What a client says to a proxy before its connection stands: an HTTP request, or SOCKS5's greeting. Pure: it
//! looks at the bytes that have come so far.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::protocol::network::{MAX_HOST_BYTES, Via};

/// The longest head of a request.
pub const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Which proxy was connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyKind {
    /// HTTP: `CONNECT`, and plain requests with an absolute address.
    Http,
    /// SOCKS version 5, without authentication.
    Socks,
}

/// What the bytes so far mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Greeting {
    /// Nothing yet.
    Incomplete,
    /// This is to be sent, and so many bytes are used up.
    Reply(&'static [u8], usize),
    /// A connection is wanted, and so many bytes are used up; the rest goes to the peer.
    Wants {
        /// A name or an address.
        host: String,
        /// The port.
        port: u16,
        /// How it was asked for.
        via: Via,
        /// How many bytes the peer does not see.
        used: usize,
    },
    /// It makes no sense: this is sent, and the connection closed.
    Bad(&'static [u8]),
}

const BAD_REQUEST: Greeting = Greeting::Bad(
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n\
      stockade: this proxy takes CONNECT host:port and requests for http://host/path\n",
);
const SOCKS_NO_METHOD: Greeting = Greeting::Bad(&[5, 0xFF]);
const SOCKS_BAD_COMMAND: Greeting = Greeting::Bad(&[5, 7, 0, 1, 0, 0, 0, 0, 0, 0]);
const SOCKS_BAD_ADDRESS: Greeting = Greeting::Bad(&[5, 8, 0, 1, 0, 0, 0, 0, 0, 0]);

impl ProxyKind {
    /// Looks at what has come; `greeted` says whether a SOCKS client has had its first reply.
    pub fn read_greeting(self, bytes: &[u8], greeted: bool) -> Greeting {
        match (self, greeted) {
            (Self::Http, _) => read_http(bytes),
            (Self::Socks, false) => read_socks_methods(bytes),
            (Self::Socks, true) => read_socks_request(bytes).unwrap_or(Greeting::Incomplete),
        }
    }
}

fn read_http(bytes: &[u8]) -> Greeting {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return if bytes.len() < MAX_HEAD_BYTES { Greeting::Incomplete } else { BAD_REQUEST };
    };
    let head = std::str::from_utf8(&bytes[..end]).ok();
    let line = head.and_then(|head| head.split("\r\n").next()).unwrap_or_default();
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some("HTTP/1.1" | "HTTP/1.0"), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return BAD_REQUEST;
    };
    let wanted = if method == "CONNECT" {
        split_authority(target, None).map(|at| (at, Via::Connect, end + 4))
    } else {
        target
            .split_at_checked("http://".len())
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("http://"))
            .and_then(|(_, rest)| rest.split(['/', '?', '#']).next())
            .and_then(|authority| split_authority(authority, Some(80)))
            .map(|at| (at, Via::Http, 0))
    };
    match wanted {
        Some(((host, port), via, used)) => Greeting::Wants { host, port, via, used },
        None => BAD_REQUEST,
    }
}

/// `host:port`. Nothing else is in it: no user, no second host.
fn split_authority(text: &str, default_port: Option<u16>) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => port.parse().ok()?,
        Some(_) => return None,
        None => default_port?,
    };
    is_host(host).then(|| (host.to_owned(), port))
}

fn is_host(text: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':');
    (1..=MAX_HOST_BYTES).contains(&text.len()) && text.bytes().all(allowed)
}

fn read_socks_methods(bytes: &[u8]) -> Greeting {
    let [version, count, ..] = *bytes else {
        return Greeting::Incomplete;
    };
    let end = 2 + usize::from(count);
    match bytes.get(2..end) {
        _ if version != 5 => SOCKS_NO_METHOD,
        None => Greeting::Incomplete,
        Some(methods) if methods.contains(&0) => Greeting::Reply(&[5, 0], end),
        Some(_) => SOCKS_NO_METHOD,
    }
}

/// Nothing: not all of it has come.
fn read_socks_request(bytes: &[u8]) -> Option<Greeting> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    if head[..2] != [5, 1] {
        return Some(SOCKS_BAD_COMMAND);
    }
    let (host, after) = match head[3] {
        1 => {
            let (address, after) = rest.split_first_chunk::<4>()?;
            (Ipv4Addr::from(*address).to_string(), after)
        }
        3 => {
            let (length, rest) = rest.split_first()?;
            let (name, after) = rest.split_at_checked((*length).into())?;
            (String::from_utf8_lossy(name).into_owned(), after)
        }
        4 => {
            let (address, after) = rest.split_first_chunk::<16>()?;
            (Ipv6Addr::from(*address).to_string(), after)
        }
        _ => return Some(SOCKS_BAD_ADDRESS),
    };
    let (port, after) = after.split_first_chunk::<2>()?;
    if !is_host(&host) {
        return Some(SOCKS_BAD_ADDRESS);
    }
    let (port, used) = (u16::from_be_bytes(*port), bytes.len() - after.len());
    Some(Greeting::Wants { host, port, via: Via::Socks, used })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(kind: ProxyKind, bytes: &[u8]) -> Greeting {
        kind.read_greeting(bytes, true)
    }

    fn wants(host: &str, port: u16, via: Via, used: usize) -> Greeting {
        Greeting::Wants { host: host.into(), port, via, used }
    }

    #[test]
    fn connect_names_a_host_and_leaves_what_follows_to_it() {
        let request = b"CONNECT pypi.org:443 HTTP/1.1\r\nHost: elsewhere.org\r\n\r\n\x16\x03";
        let head = request.len() - 2;
        assert_eq!(read(ProxyKind::Http, request), wants("pypi.org", 443, Via::Connect, head));
        assert_eq!(read(ProxyKind::Http, &request[..head - 1]), Greeting::Incomplete);
        let request = b"CONNECT [2001:db8::1]:8443 HTTP/1.1\r\n\r\n";
        let wanted = wants("2001:db8::1", 8443, Via::Connect, request.len());
        assert_eq!(read(ProxyKind::Http, request), wanted);
    }

    #[test]
    fn a_plain_request_goes_on_whole() {
        for (target, host, port) in [
            ("http://a.org/x?y", "a.org", 80),
            ("HTTP://a.org:8080", "a.org", 8080),
            ("http://10.0.0.1?q", "10.0.0.1", 80),
        ] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: a.org\r\n\r\n");
            assert_eq!(read(ProxyKind::Http, request.as_bytes()), wants(host, port, Via::Http, 0));
        }
    }

    #[test]
    fn requests_that_can_be_read_in_two_ways_are_refused() {
        for line in [
            "CONNECT user@a.org:443 HTTP/1.1",
            "CONNECT a.org HTTP/1.1",
            "CONNECT a.org:443:80 HTTP/1.1",
            "CONNECT a.org:+443 HTTP/1.1",
            "CONNECT a.org:443  HTTP/1.1",
            "GET http://user@a.org/ HTTP/1.1",
            "GET https://a.org/ HTTP/1.1",
            "GET / HTTP/1.1",
            "GET http:///x HTTP/1.1",
            "GET http://a.org/ HTTP/2.0",
            "nonsense",
        ] {
            let request = format!("{line}\r\n\r\n");
            assert_eq!(read(ProxyKind::Http, request.as_bytes()), BAD_REQUEST, "{line}");
        }
        assert_eq!(read(ProxyKind::Http, &[b'a'; MAX_HEAD_BYTES]), BAD_REQUEST);
    }

    #[test]
    fn socks_takes_names_and_addresses() {
        let first = ProxyKind::Socks.read_greeting(&[5, 2, 2, 0], false);
        assert_eq!(first, Greeting::Reply(&[5, 0], 4));
        assert_eq!(ProxyKind::Socks.read_greeting(&[5, 1, 2], false), SOCKS_NO_METHOD);
        assert_eq!(ProxyKind::Socks.read_greeting(&[4, 1], false), SOCKS_NO_METHOD);
        let named = [&[5, 1, 0, 3, 5][..], b"a.org", &[1, 187, 9]].concat();
        assert_eq!(read(ProxyKind::Socks, &named), wants("a.org", 443, Via::Socks, 12));
        let addressed = [5, 1, 0, 1, 10, 0, 0, 1, 0, 80];
        assert_eq!(read(ProxyKind::Socks, &addressed), wants("10.0.0.1", 80, Via::Socks, 10));
        assert_eq!(read(ProxyKind::Socks, &addressed[..9]), Greeting::Incomplete);
        assert_eq!(read(ProxyKind::Socks, &[5, 2, 0, 1, 0, 0, 0, 0, 0, 0]), SOCKS_BAD_COMMAND);
        let odd = [&[5, 1, 0, 3, 3][..], b"a\0b", &[0, 80]].concat();
        assert_eq!(read(ProxyKind::Socks, &odd), SOCKS_BAD_ADDRESS);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..80)) {
            for (kind, greeted) in [(ProxyKind::Http, true), (ProxyKind::Socks, false), (ProxyKind::Socks, true)] {
                match kind.read_greeting(&bytes, greeted) {
                    Greeting::Reply(_, used) | Greeting::Wants { used, .. } => {
                        proptest::prop_assert!(used <= bytes.len());
                    }
                    Greeting::Incomplete | Greeting::Bad(_) => {}
                }
            }
        }
    }
}
