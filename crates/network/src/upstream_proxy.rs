//! The operator's proxy: where one is set, addresses of the public network are reached through its tunnels (HTTP
//! `CONNECT`).
//!
//! The proxy is asked for an address, never for a name: names are resolved and checked here, and a proxy that resolved
//! them again might connect to another address than the one that was checked. The settings alone name a proxy: neither
//! a variable of this process (`HTTPS_PROXY`) nor anything inside a sandbox does.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use rustix::fs::{Mode, OFlags};
use stockade_core::{EgressRule, Error, ErrorCode, Result, classify_special};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::policy::EgressTarget;
use crate::resolver::NameResolver;
use crate::special::OwnAddresses;

/// How long the proxy may take to open one tunnel, from the connection to it to the end of its answer.
const TUNNEL_TIMEOUT: Duration = Duration::from_secs(15);
/// The longest head of an answer that is read.
const MAX_REPLY_BYTES: usize = 8 * 1024;
/// The largest file of credentials that is read.
const MAX_CREDENTIALS_BYTES: u64 = 4096;
/// How a head ends.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// Through which proxy other hosts are reached. The operator's setting; nothing inside a sandbox changes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamProxySettings {
    /// Where it listens.
    pub url: UpstreamProxyUrl,
    /// A private file of one line, `USER:PASSWORD`, for a proxy that wants to know.
    pub credentials_file: Option<PathBuf>,
    /// Hosts that are reached without it.
    pub bypass: Vec<ProxyBypass>,
}

/// Where a proxy listens: `http://HOST:PORT`. It never holds credentials, so that it can be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamProxyUrl {
    host: EgressTarget,
    port: u16,
}

impl FromStr for UpstreamProxyUrl {
    type Err = &'static str;

    /// What is refused is not repeated: a password may stand in it.
    fn from_str(url: &str) -> std::result::Result<Self, &'static str> {
        let Some(authority) = url.strip_prefix("http://") else {
            return Err("an upstream proxy is given as `http://HOST:PORT`");
        };
        if authority.contains('@') {
            return Err("the URL of an upstream proxy holds no credentials: \
                        `upstreamProxyCredentialsFile` names a file with them");
        }
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        Self::parse_authority(authority)
            .ok_or("an upstream proxy is given as `http://HOST:PORT`, without a path")
    }
}

impl UpstreamProxyUrl {
    fn parse_authority(authority: &str) -> Option<Self> {
        let (host, port) = authority.rsplit_once(':')?;
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = EgressTarget::parse(bracketed.unwrap_or(host))?;
        let is_v6 = matches!(host, EgressTarget::Address(IpAddr::V6(_)));
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse::<u16>().ok().filter(|port| is_number && *port != 0)?;
        (is_v6 == bracketed.is_some()).then_some(Self { host, port })
    }
}

/// A host that is reached without the proxy: a name, a wildcard, an address or a range, as in rules, with or without a
/// port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyBypass(EgressRule);

impl FromStr for ProxyBypass {
    type Err = String;

    fn from_str(given: &str) -> std::result::Result<Self, String> {
        let rule: EgressRule = given.parse()?;
        if rule.denies() || rule.observes() || rule.asks() || rule.names_requests() {
            return Err(format!("`{}` names no host", given.escape_debug()));
        }
        // A rule that allows and names no port means those of the web; one that denies means all of them.
        Ok(Self(rule.with_denial(true)))
    }
}

impl ProxyBypass {
    fn covers(&self, target: &EgressTarget, address: SocketAddr) -> bool {
        let port = address.port();
        let covers_name = match target {
            EgressTarget::Name(name) => self.0.covers_name(name, port),
            EgressTarget::Address(_) => false,
        };
        covers_name || self.0.covers_address(address.ip(), port)
    }
}

/// Opens tunnels through the operator's proxy.
pub struct UpstreamProxy {
    url: UpstreamProxyUrl,
    /// The header line with the credentials; empty where there are none. Never shown.
    authorization: String,
    bypass: Vec<ProxyBypass>,
}

impl UpstreamProxy {
    /// A proxy with these settings. Its credentials are read here, once.
    pub fn new(settings: &UpstreamProxySettings) -> Result<Self> {
        let credentials = settings.credentials_file.as_deref().map(read_credentials).transpose()?;
        let authorization = credentials.map(|credentials| {
            format!("Proxy-Authorization: Basic {}\r\n", STANDARD.encode(credentials))
        });
        Ok(Self {
            url: settings.url.clone(),
            authorization: authorization.unwrap_or_default(),
            bypass: settings.bypass.clone(),
        })
    }

    /// Whether this address of a host is reached through it. A special address is not: from where the proxy is, it may
    /// be another host than the one that a rule names. Where this host's own addresses cannot be listed, none is taken
    /// for one: what the operator sends through the proxy must not go past it.
    pub fn serves(&self, target: &EgressTarget, address: SocketAddr, own: &OwnAddresses) -> bool {
        classify_special(address.ip()).is_none()
            && !own.lists(address.ip())
            && !self.bypass.iter().any(|bypass| bypass.covers(target, address))
    }

    /// A connection to exactly this address. Why there is none, otherwise.
    pub async fn open_tunnel(
        &self,
        resolver: &NameResolver,
        address: SocketAddr,
    ) -> std::result::Result<TcpStream, String> {
        let opening = timeout(TUNNEL_TIMEOUT, self.request_tunnel(resolver, address)).await;
        opening.unwrap_or_else(|_| {
            let seconds = TUNNEL_TIMEOUT.as_secs();
            Err(format!("the upstream proxy did not reach {address} in {seconds} s"))
        })
    }

    async fn request_tunnel(
        &self,
        resolver: &NameResolver,
        address: SocketAddr,
    ) -> std::result::Result<TcpStream, String> {
        let mut socket = self.connect(resolver).await?;
        let request = self.write_request(address);
        socket.write_all(request.as_bytes()).await.map_err(|error| describe_broken(&error))?;
        let head = read_head(&mut socket).await?;
        let Some(status) = parse_status(&head) else {
            return Err("the upstream proxy answers with something that is not HTTP/1".into());
        };
        // The phrase is this program's own: what the proxy says beside the number is not repeated.
        if !status.is_success() {
            return Err(format!("the upstream proxy answers {status} for {address}"));
        }
        register_anew(socket).map_err(|error| describe_broken(&error))
    }

    /// Connects to the proxy itself. Its address is the operator's choice, and is not checked by rules.
    async fn connect(&self, resolver: &NameResolver) -> std::result::Result<TcpStream, String> {
        let unreachable = |reason: &dyn std::fmt::Display| {
            format!("the upstream proxy cannot be reached: {reason}")
        };
        let addresses = match &self.url.host {
            EgressTarget::Address(address) => vec![*address],
            EgressTarget::Name(name) => {
                resolver.resolve(name).await.map_err(|reason| unreachable(&reason))?
            }
        };
        let addresses: Vec<_> =
            addresses.into_iter().map(|address| SocketAddr::new(address, self.url.port)).collect();
        TcpStream::connect(&addresses[..]).await.map_err(|error| unreachable(&error))
    }

    /// The request for a tunnel to this address: an IPv6 one stands in brackets, as `SocketAddr` writes it.
    fn write_request(&self, address: SocketAddr) -> String {
        let authorization = &self.authorization;
        format!("CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n{authorization}\r\n")
    }
}

/// The same socket, of which nothing is known yet. It was readable for the proxy's answer, which would pass for a host
/// that speaks first.
fn register_anew(socket: TcpStream) -> io::Result<TcpStream> {
    TcpStream::from_std(socket.into_std()?)
}

/// Reads the head of an answer and not a byte more: what follows is the host's.
async fn read_head(socket: &mut TcpStream) -> std::result::Result<Vec<u8>, String> {
    let mut head = Vec::new();
    while !head.ends_with(HEAD_END) {
        if head.len() == MAX_REPLY_BYTES {
            return Err(format!(
                "the upstream proxy answers with more than {MAX_REPLY_BYTES} bytes"
            ));
        }
        head.push(socket.read_u8().await.map_err(|error| describe_broken(&error))?);
    }
    Ok(head)
}

/// The status in the head of an answer. Nothing for what is not HTTP/1.
fn parse_status(head: &[u8]) -> Option<StatusCode> {
    let rest = head.strip_prefix(b"HTTP/1.1 ").or_else(|| head.strip_prefix(b"HTTP/1.0 "))?;
    let (code, after) = rest.split_at_checked(3)?;
    let ends = after.first().is_some_and(|next| matches!(next, b' ' | b'\r'));
    StatusCode::from_bytes(code).ok().filter(|_| ends)
}

fn describe_broken(error: &io::Error) -> String {
    format!("the upstream proxy broke the connection off: {error}")
}

/// The one line of a file that other users cannot read.
fn read_credentials(path: &Path) -> Result<String> {
    let unusable = |what: &str| {
        let message =
            format!("the credentials of the upstream proxy in `{}` {what}", path.display());
        Error::new(ErrorCode::Denied, "network", message)
    };
    let (about, text) = read_private_text(path).map_err(|error| {
        unusable("cannot be read").remedy("write `USER:PASSWORD` to it, on one line").source(error)
    })?;
    if about.mode() & 0o077 != 0 || about.uid() != rustix::process::geteuid().as_raw() {
        let remedy = format!("chown it to this user and `chmod 600 {}`", path.display());
        return Err(unusable("can be read by other users").remedy(remedy));
    }
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let has_user = line.split_once(':').is_some_and(|(user, _)| !user.is_empty());
    if !has_user || line.chars().any(char::is_control) {
        return Err(unusable("are none").remedy("write `USER:PASSWORD` to it, on one line"));
    }
    Ok(line.to_owned())
}

/// A regular file: opening a pipe of that name could block this process.
fn read_private_text(path: &Path) -> io::Result<(std::fs::Metadata, String)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let about = file.metadata()?;
    if !about.is_file() || about.len() > MAX_CREDENTIALS_BYTES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut text = String::new();
    file.take(MAX_CREDENTIALS_BYTES).read_to_string(&mut text)?;
    Ok((about, text))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn settings(url: &str) -> UpstreamProxySettings {
        UpstreamProxySettings {
            url: url.parse().unwrap(),
            credentials_file: None,
            bypass: Vec::new(),
        }
    }

    #[test]
    fn a_url_is_a_host_and_a_port_and_what_is_refused_is_not_repeated() {
        for url in ["http://proxy.corp:3128", "http://10.0.0.1:80/", "http://[fd12::1]:3128"] {
            assert!(url.parse::<UpstreamProxyUrl>().is_ok(), "{url}");
        }
        for url in [
            "https://proxy.corp:3128",
            "socks5://proxy.corp:1080",
            "proxy.corp:3128",
            "http://proxy.corp",
            "http://proxy.corp:0",
            "http://proxy.corp:+80",
            "http://proxy.corp:3128/hunter2",
            "http://fd12::1:3128",
            "http://[proxy.corp]:3128",
            "http://user:hunter2@proxy.corp:3128",
            "",
        ] {
            let error = url.parse::<UpstreamProxyUrl>().unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn hosts_of_the_list_and_special_addresses_are_reached_without_it() {
        let bypass = ["*.corp.example", "9.9.9.0/24", "a.org:8443"];
        let bypass = bypass.map(|host| host.parse().unwrap()).to_vec();
        let proxy = UpstreamProxy::new(&UpstreamProxySettings {
            bypass,
            ..settings("http://proxy.corp:3128")
        });
        let (proxy, own) = (proxy.unwrap(), OwnAddresses::list());
        for (host, address, serves) in [
            ("b.org", "8.8.8.8:443", true),
            ("8.8.8.8", "8.8.8.8:22", true),
            ("b.org", "[2a00::1]:443", true),
            ("git.corp.example", "8.8.8.8:22", false),
            ("corp.example", "8.8.8.8:22", true),
            ("b.org", "9.9.9.9:22", false),
            ("a.org", "8.8.8.8:443", true),
            ("a.org", "8.8.8.8:8443", false),
            ("b.org", "10.0.0.1:443", false),
            ("127.0.0.1", "127.0.0.1:80", false),
            ("169.254.169.254", "169.254.169.254:80", false),
        ] {
            let target = EgressTarget::parse(host).unwrap();
            let address = address.parse().unwrap();
            assert_eq!(proxy.serves(&target, address, &own), serves, "{host} {address}");
        }
        let literal = EgressTarget::parse("8.8.8.8").unwrap();
        let unlisted = OwnAddresses::unlisted();
        assert!(proxy.serves(&literal, "8.8.8.8:22".parse().unwrap(), &unlisted));
        assert!(!proxy.serves(&literal, "10.0.0.1:22".parse().unwrap(), &unlisted));
        for entry in ["!a.org", "observe", "ask", "GET@a.org", "a.org/v1", "a b"] {
            assert!(entry.parse::<ProxyBypass>().is_err(), "{entry}");
        }
    }

    #[test]
    fn a_request_names_the_address_and_carries_the_credentials_in_one_header() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("credentials");
        std::fs::write(&file, "user:hunter2\n").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let plain = UpstreamProxy::new(&settings("http://proxy.corp:3128")).unwrap();
        let request = plain.write_request("[2a00::1]:443".parse().unwrap());
        assert_eq!(request, "CONNECT [2a00::1]:443 HTTP/1.1\r\nHost: [2a00::1]:443\r\n\r\n");
        let known = UpstreamProxySettings {
            credentials_file: Some(file),
            ..settings("http://proxy.corp:3128")
        };
        let request =
            UpstreamProxy::new(&known).unwrap().write_request("8.8.8.8:443".parse().unwrap());
        let header =
            format!("Proxy-Authorization: Basic {}\r\n\r\n", STANDARD.encode("user:hunter2"));
        assert!(request.ends_with(&header), "{request}");
    }

    #[test]
    fn credentials_that_others_can_read_or_that_are_none_are_refused_and_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("credentials");
        for (text, mode, reason) in [
            ("user:hunter2\n", 0o644, "can be read by other users"),
            ("hunter2\n", 0o600, "are none"),
            (":hunter2\n", 0o600, "are none"),
            ("user:hunter2\nX-Header: 1\n", 0o600, "are none"),
            ("", 0o600, "are none"),
        ] {
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let error = read_credentials(&file).unwrap_err();
            assert!(error.message().ends_with(reason), "{error}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
        assert!(read_credentials(dir.path()).is_err());
        assert!(read_credentials(Path::new("/nowhere/credentials")).is_err());
    }

    #[test]
    fn an_answer_is_read_by_its_status_alone() {
        let status = |head: &str| parse_status(head.as_bytes()).map(|status| status.as_u16());
        assert_eq!(status("HTTP/1.1 200 OK\r\n\r\n"), Some(200));
        assert_eq!(status("HTTP/1.0 403\r\n\r\n"), Some(403));
        for head in ["HTTP/2 200\r\n\r\n", "HTTP/1.1 2000\r\n\r\n", "200 OK\r\n\r\n", "\r\n\r\n"] {
            assert_eq!(status(head), None, "{head:?}");
        }
    }
}
