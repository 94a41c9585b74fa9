//! Where a daemon listens: a socket of this host, a loopback address, or any host by TLS. Without TLS no other host
//! is connected to, because a token would be in what is sent.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustls::pki_types::ServerName;
use serde::Deserialize;

/// What to do instead of connecting to another machine without TLS.
const ENCRYPT_REMEDY: &str = "give `https://HOST` for a daemon with TLS, or use `ssh -L 7070:127.0.0.1:7070 HOST` and \
     give `http://127.0.0.1:7070`";
const HTTPS_PORT: u16 = 443;

/// Where a daemon listens.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum DaemonUrl {
    /// A socket of this host.
    Socket(PathBuf),
    /// An address of this host.
    Loopback(SocketAddr),
    /// Any host, by TLS.
    Tls(TlsHost),
}

/// A host that is connected to by TLS. Its certificate has to be for that name or address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsHost {
    pub(super) name: ServerName<'static>,
    pub(super) port: u16,
}

impl DaemonUrl {
    /// Its name in the `Host` of a request.
    pub(super) fn host(&self) -> String {
        match self {
            Self::Socket(_) => "localhost".into(),
            Self::Loopback(address) => address.to_string(),
            Self::Tls(host) => host.to_string(),
        }
    }
}

impl FromStr for DaemonUrl {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let shown = given.escape_debug();
        if let Some(path) = given.strip_prefix("unix://") {
            return match Path::new(path).is_absolute() && !path.contains('\0') {
                true => Ok(Self::Socket(path.into())),
                false => Err(format!("`{shown}` is no absolute path: give `unix:///PATH`")),
            };
        }
        if let Some(host) = given.strip_prefix("https://") {
            let host = parse_tls_host(host.strip_suffix('/').unwrap_or(host));
            return host.map(Self::Tls).ok_or_else(|| {
                format!("`{shown}` is not where a daemon listens: give `https://HOST[:PORT]`")
            });
        }
        let Some(address) = given.strip_prefix("http://") else {
            return Err(format!(
                "`{shown}` is not where a daemon listens: give `unix:///PATH`, `http://127.0.0.1:PORT` or \
                 `https://HOST[:PORT]`"
            ));
        };
        let address = address.strip_suffix('/').unwrap_or(address);
        match parse_address(address) {
            Some(address) if address.ip().is_loopback() => Ok(Self::Loopback(address)),
            Some(_) => {
                Err(format!("`{shown}`: traffic to other hosts is not encrypted; {ENCRYPT_REMEDY}"))
            }
            None => Err(format!(
                "`{shown}` has no address of this host with a port: give `http://127.0.0.1:PORT`, or \
                 `https://HOST[:PORT]` for another host"
            )),
        }
    }
}

fn parse_address(given: &str) -> Option<SocketAddr> {
    match given.strip_prefix("localhost:") {
        Some(port) => Some((IpAddr::V4(Ipv4Addr::LOCALHOST), port.parse().ok()?).into()),
        None => given.parse().ok(),
    }
}

/// A name or address, with a port or without. One of IPv6 has brackets.
fn parse_tls_host(given: &str) -> Option<TlsHost> {
    let (name, rest) = match given.strip_prefix('[') {
        Some(address) => {
            address.split_once(']').filter(|(address, _)| address.parse::<Ipv6Addr>().is_ok())?
        }
        None => given.find(':').map_or((given, ""), |at| given.split_at(at)),
    };
    let port = match rest.strip_prefix(':') {
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => port.parse().ok()?,
        None if rest.is_empty() => HTTPS_PORT,
        Some(_) | None => return None,
    };
    let name = ServerName::try_from(name.to_ascii_lowercase()).ok()?;
    (port != 0).then_some(TlsHost { name, port })
}

impl TryFrom<String> for DaemonUrl {
    type Error = String;

    fn try_from(given: String) -> Result<Self, String> {
        given.parse()
    }
}

impl fmt::Display for DaemonUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "unix://{}", path.display()),
            Self::Loopback(address) => write!(f, "http://{address}"),
            Self::Tls(host) => write!(f, "https://{host}"),
        }
    }
}

/// As in a URL and in the `Host` of a request.
impl fmt::Display for TlsHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.to_str();
        match name.contains(':') {
            true => write!(f, "[{name}]")?,
            false => f.write_str(&name)?,
        }
        match self.port {
            HTTPS_PORT => Ok(()),
            port => write!(f, ":{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_and_loopback_addresses_are_connected_to_without_tls() {
        for given in [
            "unix:///run/a.sock",
            "http://127.0.0.1:7070",
            "http://[::1]:1",
            "https://a.example.org",
            "https://localhost:7070",
            "https://192.0.2.1:7070",
            "https://[2001:db8::1]",
            "https://[::1]:7070",
        ] {
            assert_eq!(given.parse::<DaemonUrl>().unwrap().to_string(), given);
        }
        let localhost: DaemonUrl = "http://localhost:80/".parse().unwrap();
        assert_eq!(localhost.to_string(), "http://127.0.0.1:80");
        let usual: DaemonUrl = "https://A.example.org:443/".parse().unwrap();
        assert_eq!(usual.to_string(), "https://a.example.org");
        for (given, why) in [
            ("https://", "https://HOST[:PORT]"),
            ("https://a.example.org:0", "https://HOST[:PORT]"),
            ("https://a.example.org:", "https://HOST[:PORT]"),
            ("https://a.example.org:+1", "https://HOST[:PORT]"),
            ("https://a.example.org:65536", "https://HOST[:PORT]"),
            ("https://a.example.org/v1", "https://HOST[:PORT]"),
            ("https://u@a.example.org", "https://HOST[:PORT]"),
            ("https://::1", "https://HOST[:PORT]"),
            ("https://[127.0.0.1]:1", "https://HOST[:PORT]"),
            ("https://[::1]x", "https://HOST[:PORT]"),
            ("https://a b", "https://HOST[:PORT]"),
            ("http://192.0.2.1:7070", "not encrypted"),
            ("http://example.org:7070", "no address of this host"),
            ("http://127.0.0.1", "no address of this host"),
            ("http://127.0.0.1:7070/v1", "no address of this host"),
            ("http://u@127.0.0.1:7070", "no address of this host"),
            ("unix://a.sock", "no absolute path"),
            ("ftp://x", "not where a daemon listens"),
            ("", "not where a daemon listens"),
        ] {
            let error = given.parse::<DaemonUrl>().unwrap_err();
            assert!(error.contains(why), "{given}: {error}");
        }
    }
}
