//! Names of images as people write them, and the one form in which they are kept.
//!
//! `python:3.12` is `docker.io/library/python:3.12`, as it is for Docker: what comes before the first slash is a
//! registry if it has a dot or a port or is `localhost`, else it belongs to the repository.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use stockade_core::clean_foreign;

use crate::digest::Digest;

/// The registry of names that name none.
const DEFAULT_REGISTRY: &str = "docker.io";
/// Other names of the same registry.
const DEFAULT_REGISTRY_ALIASES: [&str; 2] = ["index.docker.io", "registry-1.docker.io"];
const DEFAULT_TAG: &str = "latest";

/// Bounds of the field's grammar.
const MAX_REPOSITORY_BYTES: usize = 255;
const MAX_TAG_BYTES: usize = 128;
const MAX_REGISTRY_BYTES: usize = 255;

/// An image of a registry: `NAME[:TAG][@DIGEST]`.
///
/// `Display` writes the canonical form, with registry and tag; [`ImageReference::familiar`] the short one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageReference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// A text that names no image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no image's name: {reason}", clean_foreign(.given))]
pub struct ReferenceError {
    given: String,
    reason: &'static str,
}

impl ImageReference {
    /// The registry: a host with its port, if one is named.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The repository in the registry.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag. `latest` where neither tag nor digest was named; nothing where only a digest was.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest, if one was named.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// The same image by its digest.
    pub fn with_digest(&self, digest: Digest) -> Self {
        Self { digest: Some(digest), ..self.clone() }
    }

    /// Refuses a name for something new that has a digest: only contents decide that.
    pub fn check_assignable(&self) -> Result<(), ReferenceError> {
        let reason = "a digest cannot be given to an image";
        match self.digest {
            Some(_) => Err(ReferenceError { given: self.to_string(), reason }),
            None => Ok(()),
        }
    }

    /// What a registry is asked for: the digest, or else the tag.
    pub(crate) fn version(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, tag) => tag.as_deref().unwrap_or(DEFAULT_TAG).to_owned(),
        }
    }

    /// The form that people write: without Docker's registry and its `library/`.
    pub fn familiar(&self) -> String {
        let whole = self.to_string();
        match whole.strip_prefix("docker.io/") {
            Some(rest) => rest.strip_prefix("library/").unwrap_or(rest).to_owned(),
            None => whole,
        }
    }
}

impl FromStr for ImageReference {
    type Err = ReferenceError;

    fn from_str(given: &str) -> Result<Self, ReferenceError> {
        parse_reference(given).map_err(|reason| ReferenceError { given: given.to_owned(), reason })
    }
}

fn parse_reference(given: &str) -> Result<ImageReference, &'static str> {
    let (rest, digest) = match given.split_once('@') {
        Some((rest, digest)) => {
            (rest, Some(digest.parse().map_err(|_| "its digest is not `sha256:` with 64 digits")?))
        }
        None => (given, None),
    };
    let (name, tag) = split_tag(rest);
    let (registry, repository) = split_registry(name);
    if !is_registry(&registry) {
        return Err("its registry is no host with an optional port");
    }
    if repository.len() > MAX_REPOSITORY_BYTES || !repository.split('/').all(is_component) {
        return Err(
            "its name has lower-case letters, digits and `.`, `_`, `-`, `/` between them only",
        );
    }
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err("its tag has up to 128 letters, digits, `.`, `_` and `-`");
    }
    let tag = tag.or(digest.is_none().then_some(DEFAULT_TAG)).map(str::to_owned);
    Ok(ImageReference { registry, repository, tag, digest })
}

/// The tag is behind the last colon, unless that belongs to a port.
fn split_tag(name: &str) -> (&str, Option<&str>) {
    match name.rsplit_once(':') {
        Some((before, tag)) if !tag.contains('/') => (before, Some(tag)),
        Some(_) | None => (name, None),
    }
}

fn split_registry(name: &str) -> (String, String) {
    let (registry, repository) = match name.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':', '[']) || first == "localhost" => {
            (first, rest)
        }
        Some(_) | None => (DEFAULT_REGISTRY, name),
    };
    let registry = registry.to_ascii_lowercase();
    let is_default =
        registry == DEFAULT_REGISTRY || DEFAULT_REGISTRY_ALIASES.contains(&registry.as_str());
    match is_default {
        true if !repository.contains('/') => {
            (DEFAULT_REGISTRY.to_owned(), format!("library/{repository}"))
        }
        true => (DEFAULT_REGISTRY.to_owned(), repository.to_owned()),
        false => (registry, repository.to_owned()),
    }
}

/// Whether this is `host[:port]`, with an IPv6 address in brackets.
pub(crate) fn is_registry(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) if address.parse::<std::net::Ipv6Addr>().is_ok() => {
            return rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
        }
        Some(_) => return false,
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let is_label = |label: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= MAX_REGISTRY_BYTES && host.split('.').all(is_label) && port.is_none_or(is_port)
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Lower-case words of letters and digits, with `.`, `_`, `__` or dashes between them.
fn is_component(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends = bytes.first().zip(bytes.last()).is_some_and(|(a, z)| word(*a) && word(*z));
    let separators =
        text.split(|letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit());
    ends && separators.into_iter().all(|between| {
        matches!(between, "" | "." | "_" | "__") || between.bytes().all(|byte| byte == b'-')
    })
}

fn is_tag(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    text.len() <= MAX_TAG_BYTES
        && text.bytes().all(inner)
        && text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric() || first == b'_')
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl TryFrom<String> for ImageReference {
    type Error = ReferenceError;

    fn try_from(text: String) -> Result<Self, ReferenceError> {
        text.parse()
    }
}

impl From<ImageReference> for String {
    fn from(reference: ImageReference) -> Self {
        reference.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn familiar_names_mean_what_they_mean_to_docker() {
        let digest = format!("sha256:{}", "0f".repeat(32));
        for (given, canonical) in [
            ("python", "docker.io/library/python:latest".to_owned()),
            ("python:3.12", "docker.io/library/python:3.12".to_owned()),
            ("docker.io/python", "docker.io/library/python:latest".to_owned()),
            ("index.docker.io/a/b", "docker.io/a/b:latest".to_owned()),
            ("a/b", "docker.io/a/b:latest".to_owned()),
            ("localhost/a", "localhost/a:latest".to_owned()),
            ("localhost:5000/a/b:1.2", "localhost:5000/a/b:1.2".to_owned()),
            ("[::1]:5000/a", "[::1]:5000/a:latest".to_owned()),
            ("GHCR.io/a/b_c", "ghcr.io/a/b_c:latest".to_owned()),
            (&format!("a@{digest}"), format!("docker.io/library/a@{digest}")),
            (&format!("a:1@{digest}"), format!("docker.io/library/a:1@{digest}")),
        ] {
            let parsed: ImageReference = given.parse().unwrap();
            assert_eq!(parsed.to_string(), canonical, "{given}");
            assert_eq!(canonical.parse::<ImageReference>().unwrap(), parsed, "{given}");
            assert_eq!(parsed.familiar().parse::<ImageReference>().unwrap(), parsed, "{given}");
        }
    }

    #[test]
    fn what_could_be_a_path_an_option_or_a_query_is_no_name() {
        for given in [
            "",
            ":",
            "a:",
            "a@",
            "a@sha256:0f",
            "-v",
            "/etc",
            "../x",
            "a/../b",
            "a b",
            "a\n",
            "a//b",
            "a?x=1",
            "A",
            "a/B",
            "a:-x",
            "host:0/a",
            "host:99999/a",
            "[::g]/a",
            "a..b",
            "a___b",
            "ho st.org/a",
            "-a.org/b",
            "user@host.org/a",
        ] {
            assert!(given.parse::<ImageReference>().is_err(), "{given:?}");
        }
        assert!("a".repeat(256).parse::<ImageReference>().is_err());
        assert!("a--b/c__d".parse::<ImageReference>().is_ok());
    }
}
