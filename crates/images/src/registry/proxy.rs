//! The operator's proxy on the way to registries, as Docker and Podman take it: from `HTTPS_PROXY`, `HTTP_PROXY` and
//! `NO_PROXY` of this process.
//!
//! Hosts with TLS are reached through a tunnel (`CONNECT`), so that the proxy sees neither contents nor credentials;
//! others by requests that name the whole URL. This host itself is never reached through a proxy. Where a registry
//! sends elsewhere, names that this host can resolve are held to the same rules as without a proxy; those that only the
//! proxy can resolve are left to it.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::PROXY_AUTHORIZATION;
use http::{HeaderValue, Request, Uri};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::body::RequestBody;
use super::connect::{MAX_ADDRESSES, Reach, connect, refuse_address, refused};
use super::endpoint::{Endpoint, is_loopback};
use crate::ImageError;

/// Upper bound of the head of a proxy's answer.
const MAX_HEAD_BYTES: usize = 8 << 10;
const HEAD_END: &[u8] = b"\r\n\r\n";
/// Upper bound of the entries of `NO_PROXY`.
const MAX_BYPASSES: usize = 1000;

/// Proxies as the environment of this process names them. Not read before a registry is asked.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RegistryProxies {
    https: Option<String>,
    http: Option<String>,
    bypass: String,
}

impl fmt::Debug for RegistryProxies {
    /// Without the URLs, which may have a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (https, http) = (self.https.is_some(), self.http.is_some());
        let mut shown = f.debug_struct("RegistryProxies");
        shown.field("https", &https).field("http", &http).field("bypass", &self.bypass).finish()
    }
}

impl RegistryProxies {
    /// Those of these variables: in capitals first, as others read them.
    pub fn of_environment(lookup: impl Fn(&str) -> Option<OsString>) -> Self {
        let value = |name: &str| lookup(name).and_then(|value| value.into_string().ok());
        let either = |name: &str| {
            value(name).or_else(|| value(&name.to_ascii_lowercase())).filter(|url| !url.is_empty())
        };
        Self {
            https: either("HTTPS_PROXY"),
            http: either("HTTP_PROXY"),
            bypass: either("NO_PROXY").unwrap_or_default(),
        }
    }

    /// The proxies, ready to be used. What cannot be read is not repeated: a password may stand in it.
    pub(super) fn read(&self) -> Result<ProxyRoutes, ImageError> {
        let read = |name: &str, url: &Option<String>| {
            let wrong = || ImageError::Settings(format!("`{name}` is no `http://HOST:PORT`"));
            url.as_deref().map(|url| Proxy::parse(url).ok_or_else(wrong)).transpose()
        };
        Ok(ProxyRoutes {
            https: read("HTTPS_PROXY", &self.https)?,
            http: read("HTTP_PROXY", &self.http)?,
            bypass: self.bypass.split(',').take(MAX_BYPASSES).filter_map(Bypass::parse).collect(),
        })
    }
}

/// Which hosts are reached through which proxy.
#[derive(Default)]
pub(super) struct ProxyRoutes {
    https: Option<Proxy>,
    http: Option<Proxy>,
    bypass: Vec<Bypass>,
}

/// One proxy.
pub(super) struct Proxy {
    endpoint: Endpoint,
    authorization: Option<HeaderValue>,
}

/// A host that is reached without a proxy.
enum Bypass {
    All,
    /// An address range: its first address, and how many of its bits count.
    Range(IpAddr, u8),
    /// A name and all below it; with a port, at that port.
    Name(String, Option<u16>),
}

impl ProxyRoutes {
    /// The proxy that leads to a host.
    pub fn find(&self, endpoint: &Endpoint) -> Option<&Proxy> {
        let proxy = if endpoint.tls { &self.https } else { &self.http };
        let is_direct =
            is_loopback(&endpoint.host) || self.bypass.iter().any(|bypass| bypass.covers(endpoint));
        proxy.as_ref().filter(|_| !is_direct)
    }
}

impl Bypass {
    fn parse(entry: &str) -> Option<Self> {
        let entry = entry.trim().to_ascii_lowercase();
        if entry == "*" {
            return Some(Self::All);
        }
        let (address, bits) = entry.split_once('/').unwrap_or((&entry, ""));
        let address = address.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = address.parse::<IpAddr>() {
            let most = if address.is_ipv4() { 32 } else { 128 };
            let bits = if bits.is_empty() { most } else { bits.parse().ok()? };
            return (bits <= most).then_some(Self::Range(address, bits));
        }
        let (name, port) = match entry.rsplit_once(':') {
            Some((name, port)) => (name, Some(port.parse().ok()?)),
            None => (entry.as_str(), None),
        };
        let name = name.trim_start_matches("*.").trim_matches('.');
        (!name.is_empty()).then(|| Self::Name(name.to_owned(), port))
    }

    fn covers(&self, endpoint: &Endpoint) -> bool {
        match self {
            Self::All => true,
            Self::Range(first, bits) => {
                endpoint.host.parse().is_ok_and(|address| is_in_range(address, *first, *bits))
            }
            Self::Name(name, port) => {
                let below = endpoint.host.strip_suffix(name.as_str());
                let is_named = below.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
                is_named && port.is_none_or(|port| port == endpoint.port)
            }
        }
    }
}

fn is_in_range(address: IpAddr, first: IpAddr, bits: u8) -> bool {
    let (address, first, width) = match (address, first) {
        (IpAddr::V4(address), IpAddr::V4(first)) => {
            (u128::from(address.to_bits()), u128::from(first.to_bits()), 32)
        }
        (IpAddr::V6(address), IpAddr::V6(first)) => (address.to_bits(), first.to_bits(), 128),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
    };
    let ignored = u32::from(width - bits);
    address.checked_shr(ignored).unwrap_or(0) == first.checked_shr(ignored).unwrap_or(0)
}

impl Proxy {
    /// `http://[USER:PASSWORD@]HOST[:PORT]`, with or without the scheme.
    fn parse(url: &str) -> Option<Self> {
        let rest = url.strip_prefix("http://").unwrap_or(url);
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains('/') {
            return None;
        }
        let (user, authority) = match rest.rsplit_once('@') {
            Some((user, authority)) => (Some(user), authority),
            None => (None, rest),
        };
        let authorization = match user {
            Some(user) => Some(basic_header(user)?),
            None => None,
        };
        let endpoint = Endpoint::of_registry(authority, true, false)?;
        Some(Self { endpoint, authorization })
    }

    /// A connection that leads to an endpoint: a tunnel for TLS, else to the proxy itself. With the endpoint's address,
    /// where it is one.
    pub async fn connect(
        &self,
        endpoint: &Endpoint,
        reach: Reach,
        stall: Duration,
    ) -> Result<(TcpStream, Option<IpAddr>), ImageError> {
        self.check_reach(endpoint, reach, stall).await?;
        let (mut stream, _) = connect(&self.endpoint, Reach::Any, stall).await?;
        if endpoint.tls {
            let opened = timeout(stall, self.open_tunnel(&mut stream, endpoint)).await;
            let stalled = |_| ImageError::Stalled { host: self.endpoint.authority(), after: stall };
            opened.map_err(stalled)??;
        }
        Ok((stream, endpoint.host.parse().ok()))
    }

    /// Refuses hosts that must not be reached, as far as this host can tell.
    async fn check_reach(
        &self,
        endpoint: &Endpoint,
        reach: Reach,
        stall: Duration,
    ) -> Result<(), ImageError> {
        if reach == Reach::Any {
            return Ok(());
        }
        let looked_up = timeout(stall, lookup_host((endpoint.host.as_str(), endpoint.port))).await;
        let Ok(Ok(addresses)) = looked_up else { return Ok(()) };
        for address in addresses.take(MAX_ADDRESSES) {
            if let Some(reason) = refuse_address(address.ip(), reach) {
                return Err(refused(endpoint, address.ip(), reason));
            }
        }
        Ok(())
    }

    async fn open_tunnel(
        &self,
        stream: &mut TcpStream,
        endpoint: &Endpoint,
    ) -> Result<(), ImageError> {
        let unreachable =
            |source| ImageError::Unreachable { host: self.endpoint.authority(), source };
        let broken = |what: String| ImageError::Protocol { host: self.endpoint.authority(), what };
        let host = &endpoint.host;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        let target = format!("{host}:{}", endpoint.port);
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
        if let Some(authorization) = &self.authorization {
            request.extend_from_slice(b"Proxy-Authorization: ");
            request.extend_from_slice(authorization.as_bytes());
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        stream.write_all(&request).await.map_err(unreachable)?;
        let head = read_head(stream).await.map_err(unreachable)?;
        match parse_status(&head) {
            Some(200..=299) => Ok(()),
            Some(status) => Err(broken(format!("as a proxy it answers {status} for {target}"))),
            None => Err(broken("as a proxy it sends no HTTP/1 answer".to_owned())),
        }
    }

    /// A request without TLS as the proxy takes it.
    pub fn address_request(
        &self,
        endpoint: &Endpoint,
        mut request: Request<RequestBody>,
    ) -> Result<Request<RequestBody>, ImageError> {
        let whole = format!("http://{}{}", endpoint.authority(), request.uri());
        let wrong = |_| ImageError::Settings(format!("`{}` is no host", endpoint.authority()));
        *request.uri_mut() = whole.parse::<Uri>().map_err(wrong)?;
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(PROXY_AUTHORIZATION, authorization.clone());
        }
        Ok(request)
    }
}

/// Byte by byte: what follows the head is the tunnel's.
async fn read_head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(HEAD_END) {
        if head.len() >= MAX_HEAD_BYTES {
            return Err(io::Error::other("the head of a proxy's answer is too long"));
        }
        head.push(stream.read_u8().await?);
    }
    Ok(head)
}

fn parse_status(head: &[u8]) -> Option<u16> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let (version, rest) = line.split_once(' ')?;
    let status = rest.split(' ').next()?.parse().ok()?;
    version.starts_with("HTTP/1.").then_some(status)
}

fn basic_header(user: &str) -> Option<HeaderValue> {
    let pair = decode_percent(user)?;
    let text = format!("Basic {}", STANDARD.encode(pair));
    let mut header = HeaderValue::from_str(&text).ok()?;
    header.set_sensitive(true);
    Some(header)
}

/// The bytes that a part of a URL stands for.
fn decode_percent(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'%' {
            decoded.push(*byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        decoded.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> RegistryProxies {
        RegistryProxies::of_environment(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    fn endpoint(url: &str) -> Endpoint {
        super::super::endpoint::Target::parse(url).unwrap().endpoint
    }

    #[test]
    fn a_host_is_reached_by_the_proxy_of_its_kind_unless_it_is_named_or_this_host() {
        let routes = proxies(&[
            ("HTTPS_PROXY", "http://secure.example:3128"),
            ("http_proxy", "plain.example:8080"),
            ("NO_PROXY", "corp.example, .dot.example,10.0.0.0/8,port.example:5000,fd00::/8"),
        ]);
        let routes = routes.read().unwrap();
        let proxy = |url| routes.find(&endpoint(url)).map(|proxy| proxy.endpoint.authority());
        let (secure, plain) =
            (Some("secure.example:3128".to_owned()), Some("plain.example:8080".to_owned()));
        for (url, expected) in [
            ("https://ghcr.io/", &secure),
            ("http://ghcr.io/", &plain),
            ("https://corp.example/", &None),
            ("https://a.corp.example/", &None),
            ("https://notcorp.example/", &secure),
            ("https://a.dot.example/", &None),
            ("https://10.1.2.3/", &None),
            ("https://11.1.2.3/", &secure),
            ("https://[fd00::1]/", &None),
            ("https://port.example:5000/", &None),
            ("https://port.example/", &secure),
            ("https://localhost:5000/", &None),
            ("http://127.0.0.1:5000/", &None),
        ] {
            assert_eq!(proxy(url), *expected, "{url}");
        }
        let none = proxies(&[("HTTPS_PROXY", "http://p.example:1"), ("no_proxy", "*")]);
        assert!(none.read().unwrap().find(&endpoint("https://ghcr.io/")).is_none());
    }

    #[test]
    fn a_proxy_that_cannot_be_read_is_named_without_its_password() {
        for url in ["socks5://u:secret@p", "https://u:secret@p:1", "http://u:%zz@p:1", "http://"] {
            let settings = proxies(&[("HTTPS_PROXY", url)]);
            let error = settings.read().err().unwrap().to_string();
            assert!(error.contains("HTTPS_PROXY") && !error.contains("secret"), "{error}");
        }
        let fine = proxies(&[("HTTPS_PROXY", "http://u:se%40cret@p.example:1/")]);
        assert!(!format!("{fine:?}").contains("se%40cret"));
        let routes = fine.read().unwrap();
        let proxy = routes.find(&endpoint("https://ghcr.io/")).unwrap();
        let expected = format!("Basic {}", STANDARD.encode("u:se@cret"));
        assert_eq!(proxy.authorization.as_ref().unwrap(), expected.as_str());
    }
}
