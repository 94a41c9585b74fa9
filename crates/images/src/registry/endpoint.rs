//! Hosts to connect to, and where a redirect leads.

use std::net::IpAddr;

use http::Uri;

/// The host that serves Docker's registry.
const DOCKER_HUB_HOST: &str = "registry-1.docker.io";

/// A host and a port, with or without TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub tls: bool,
    /// A name or an address, without brackets.
    pub host: String,
    pub port: u16,
}

/// A resource of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub endpoint: Endpoint,
    /// Path and query.
    pub path: String,
}

impl Endpoint {
    /// The endpoint of a registry, `host[:port]`.
    pub fn of_registry(registry: &str, plain: bool, has_ca_file: bool) -> Option<Self> {
        let registry = if registry == "docker.io" { DOCKER_HUB_HOST } else { registry };
        let (host, port) = split_authority(registry)?;
        // As for Docker, a registry on loopback needs no certificate.
        let plain = plain || (is_loopback(&host) && port != Some(443) && !has_ca_file);
        let default = if plain { 80 } else { 443 };
        Some(Self { tls: !plain, host, port: port.unwrap_or(default) })
    }

    /// As the `Host` header and URLs have it.
    pub fn authority(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.tls, self.port) {
            (true, 443) | (false, 80) => host,
            (true | false, port) => format!("{host}:{port}"),
        }
    }
}

fn split_authority(text: &str) -> Option<(String, Option<u16>)> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => Some(port.parse().ok()?),
        None if rest.is_empty() => None,
        None => return None,
    };
    (!host.is_empty()).then(|| (host.to_ascii_lowercase(), port))
}

/// Whether a host is this one by its name.
pub(super) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl Target {
    /// Reads an absolute URL of a host. Nothing for other schemes and for URLs that carry a user.
    pub fn parse(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let tls = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = uri.authority()?.as_str();
        if authority.contains('@') {
            return None;
        }
        let (host, port) = split_authority(authority)?;
        let endpoint = Endpoint { tls, host, port: port.unwrap_or(if tls { 443 } else { 80 }) };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Some(Self { endpoint, path: path.to_owned() })
    }

    /// Where a `Location` leads from here: an absolute URL, or an absolute path of the same host.
    pub fn resolve_location(&self, location: &str) -> Option<Self> {
        match location.starts_with('/') && !location.starts_with("//") {
            true => {
                let uri: Uri = location.parse().ok()?;
                let path = uri.path_and_query()?.as_str().to_owned();
                Some(Self { endpoint: self.endpoint.clone(), path })
            }
            false => Self::parse(location),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_plain_without_being_told() {
        let endpoint = |name| Endpoint::of_registry(name, false, false).unwrap();
        assert!(endpoint("ghcr.io").tls && endpoint("10.0.0.1:5000").tls);
        assert!(!endpoint("localhost:5000").tls && !endpoint("[::1]:5000").tls);
        assert!(Endpoint::of_registry("localhost:5000", false, true).unwrap().tls);
        assert!(!Endpoint::of_registry("10.0.0.1:5000", true, false).unwrap().tls);
        assert_eq!(endpoint("docker.io").authority(), "registry-1.docker.io");
        assert_eq!(endpoint("[::1]:5000").authority(), "[::1]:5000");
    }

    #[test]
    fn a_location_is_a_url_or_a_path_of_the_same_host() {
        let here = Target::parse("https://a.org/v2/x").unwrap();
        let there =
            |location| here.resolve_location(location).map(|t| (t.endpoint.authority(), t.path));
        assert_eq!(there("/y?z=1"), Some(("a.org".into(), "/y?z=1".into())));
        assert_eq!(there("https://B.org:8443/y"), Some(("b.org:8443".into(), "/y".into())));
        for bad in
            ["", "y", "//b.org/y", "ftp://b.org/y", "https://u:p@b.org/", "file:///etc/passwd"]
        {
            assert_eq!(there(bad), None, "{bad}");
        }
    }
}
