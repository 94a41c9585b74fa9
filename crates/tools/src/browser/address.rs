//! Which page is meant: one that is served on loopback, or a file beneath the workspace.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use stockade_core::{ErrorCode, SandboxPath, WORKSPACE_ROOT};

use crate::ToolError;

/// A page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PageAddress {
    /// At this address.
    Served(String),
    /// In this file.
    File(SandboxPath),
}

const MAX_URL_BYTES: usize = 2048;

impl PageAddress {
    pub(super) fn parse(given: &str) -> Result<Self, ToolError> {
        let wrong = |why: &str| {
            let shown: String = given.escape_debug().take(200).collect();
            ToolError::field("url", format!("`{shown}` {why}"))
                .remedy("give http://localhost:PORT/PATH, or the path of a file in the workspace")
        };
        if given.len() > MAX_URL_BYTES {
            return Err(wrong("is too long"));
        }
        if let Some(rest) = given.strip_prefix("http://").or(given.strip_prefix("https://")) {
            if !given.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\<>^`{|}".contains(&byte))
            {
                return Err(wrong("has characters that an address cannot have"));
            }
            let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
            return match is_loopback(authority) {
                true => Ok(Self::Served(given.to_owned())),
                false => Err(wrong("is not served by the sandbox itself")),
            };
        }
        let path = match given.strip_prefix("file://") {
            Some(path) if path.starts_with('/') => path,
            Some(_) => return Err(wrong("is on another machine")),
            None if given.contains("://") => return Err(wrong("is neither served nor a file")),
            None => given,
        };
        let inner = match path.strip_prefix(WORKSPACE_ROOT) {
            Some(rest) => rest.strip_prefix('/').unwrap_or("/"),
            None => path,
        };
        match inner {
            "" => Err(wrong("names no file")),
            inner if inner.starts_with('/') => Err(wrong("is not beneath the workspace")),
            inner => Ok(Self::File(inner.parse()?)),
        }
    }

    /// The port, if it is served.
    pub(super) fn port(&self) -> Option<u16> {
        let Self::Served(url) = self else { return None };
        let (scheme, rest) = url.split_once("://")?;
        let authority = rest.split(['/', '?', '#']).next()?;
        let usual = if scheme == "https" { 443 } else { 80 };
        let named = authority.rsplit_once(':').filter(|(_, port)| !port.contains(']'));
        named.map_or(Some(usual), |(_, port)| port.parse().ok())
    }

    /// The file, if it is one.
    pub(super) const fn path(&self) -> Option<&SandboxPath> {
        match self {
            Self::Served(_) => None,
            Self::File(path) => Some(path),
        }
    }
}

fn is_loopback(authority: &str) -> bool {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        Some(_) | None => (authority, None),
    };
    let port_fits = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port != 0));
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let named = host == "localhost" || host.ends_with(".localhost");
    let numbered = match v6 {
        Some(host) => host.parse().is_ok_and(|host: Ipv6Addr| host.is_loopback()),
        None => host.parse().is_ok_and(|host: Ipv4Addr| host.is_loopback()),
    };
    let plain = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.[]:".contains(&byte));
    port_fits && plain && (named || numbered)
}

/// The address of a file: every byte that could mean something else is written out.
pub(super) fn file_url(path: &str) -> String {
    let mut url = String::from("file://");
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte) {
            url.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(url, "%{byte:02X}");
        }
    }
    url
}

/// That no server answers at an address. `prefix` says what failed by it.
pub(super) fn unserved_error(prefix: &str, url: &str) -> ToolError {
    let message = format!("{prefix}: nothing listens at {url}");
    ToolError::new(ErrorCode::Unavailable, message)
        .remedy("start the server with `bash` and the action `start`, and wait until it listens")
}

/// Width and height of a picture, if it is one.
pub(super) fn png_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let head = bytes.strip_prefix(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")?;
    let side = |at: usize| Some(u32::from_be_bytes(head.get(at..at + 4)?.try_into().ok()?));
    Some((side(0)?, side(4)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_sandbox_serves_can_be_looked_at() {
        for url in [
            "http://localhost",
            "http://localhost:8000/a?b=c#d",
            "https://127.0.0.1:8443/",
            "http://127.1.2.3/",
            "http://[::1]:3000/",
            "http://app.localhost:5173/",
        ] {
            assert_eq!(PageAddress::parse(url).unwrap(), PageAddress::Served(url.into()));
        }
    }

    #[test]
    fn a_page_is_served_at_a_port() {
        for (url, port) in [
            ("http://localhost", 80),
            ("https://localhost/a:1", 443),
            ("http://127.0.0.1:8000/a?b=c:9", 8000),
            ("http://[::1]:3000/", 3000),
            ("http://[::1]/", 80),
        ] {
            assert_eq!(PageAddress::parse(url).unwrap().port(), Some(port), "{url}");
        }
        assert_eq!(PageAddress::parse("index.html").unwrap().port(), None);
    }

    #[test]
    fn files_of_the_workspace_can_be_looked_at() {
        for (given, path) in [
            ("index.html", "index.html"),
            ("/workspace/a/b.html", "a/b.html"),
            ("file:///workspace/x y.html", "x y.html"),
        ] {
            assert_eq!(
                PageAddress::parse(given).unwrap(),
                PageAddress::File(path.parse().unwrap()),
                "{given}"
            );
        }
        assert_eq!(file_url("/workspace/a #?%ä"), "file:///workspace/a%20%23%3F%25%C3%A4");
    }

    #[test]
    fn anything_else_is_refused_by_its_name() {
        for url in [
            "",
            "http://",
            "http://example.org/",
            "http://localhost@example.org/",
            "http://localhost:80@example.org/",
            "http://user@localhost/",
            "http://localhost.example.org/",
            "http://127.0.0.1.example.org/",
            "http://localhost\\@example.org/",
            "http://[::2]/",
            "http://0x7f.1/",
            "http://localhost:0/",
            "http://localhost:99999/",
            "http://localhost/\n--remote-debugging-port=1",
            "ftp://localhost/",
            "javascript://localhost/%0aalert(1)",
            "file:///etc/passwd",
            "/etc/passwd",
            "/workspaces/x",
            "file://host/workspace/x",
            "/workspace/../etc/passwd",
            "../x",
        ] {
            assert!(PageAddress::parse(url).is_err(), "{url}");
        }
        assert!(PageAddress::parse(&"x".repeat(5000)).is_err());
    }

    #[test]
    fn only_a_picture_has_a_size() {
        let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
        assert_eq!(png_size(&png), None);
        png.extend([0, 0, 2, 128, 0, 0, 1, 224]);
        assert_eq!(png_size(&png), Some((640, 480)));
        assert_eq!(png_size(b"<html>"), None);
    }
}
