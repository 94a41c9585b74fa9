//! Where a daemon listens: a socket of this host, or a loopback address. Nothing else is connected to, because
//! traffic is not encrypted and a token is in it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

/// What to do instead of connecting to another machine.
const FORWARD_REMEDY: &str =
    "use `ssh -L 7070:127.0.0.1:7070 HOST` and give `http://127.0.0.1:7070`";

/// Where a daemon listens.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum DaemonUrl {
    /// A socket of this host.
    Socket(PathBuf),
    /// An address of this host.
    Loopback(SocketAddr),
}

impl DaemonUrl {
    /// Its name in the `Host` of a request.
    pub(super) fn host(&self) -> String {
        match self {
            Self::Socket(_) => "localhost".into(),
            Self::Loopback(address) => address.to_string(),
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
        if given.starts_with("https://") {
            return Err(format!("`{shown}`: https is not supported yet; {FORWARD_REMEDY}"));
        }
        let Some(address) = given.strip_prefix("http://") else {
            return Err(format!(
                "`{shown}` is not where a daemon listens: give `unix:///PATH` or `http://127.0.0.1:PORT`"
            ));
        };
        let address = address.strip_suffix('/').unwrap_or(address);
        match parse_address(address) {
            Some(address) if address.ip().is_loopback() => Ok(Self::Loopback(address)),
            Some(_) => {
                Err(format!("`{shown}`: traffic to other hosts is not encrypted; {FORWARD_REMEDY}"))
            }
            None => Err(format!(
                "`{shown}` has no address of this host with a port: give `http://127.0.0.1:PORT`"
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_and_loopback_addresses_are_connected_to() {
        for given in ["unix:///run/a.sock", "http://127.0.0.1:7070", "http://[::1]:1"] {
            assert_eq!(given.parse::<DaemonUrl>().unwrap().to_string(), given);
        }
        let localhost: DaemonUrl = "http://localhost:80/".parse().unwrap();
        assert_eq!(localhost.to_string(), "http://127.0.0.1:80");
        for (given, why) in [
            ("https://127.0.0.1:7070", "https is not supported yet"),
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
