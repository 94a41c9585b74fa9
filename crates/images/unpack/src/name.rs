//! Names of entries. A name is a list of plain components beneath the root and nothing else.

use crate::UnpackError;

const MAX_NAME_BYTES: usize = 4095;
const MAX_COMPONENT_BYTES: usize = 255;
/// Upper bound of a name's components: less than the descriptors that walking such a tree may hold.
const MAX_COMPONENTS: usize = 256;
/// Characters of a name that are shown.
const MAX_SHOWN_CHARS: usize = 200;

/// The name of an entry beneath the root: components joined by slashes; empty for the root itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EntryName(Vec<u8>);

impl EntryName {
    /// Reads the name of an entry or of the target of a hard link.
    pub fn parse(raw: &[u8]) -> Result<Self, UnpackError> {
        let refused = |reason: &str| UnpackError::refused(format!("{} {reason}", show(raw)));
        if raw.starts_with(b"/") {
            return Err(refused("is an absolute name"));
        }
        if raw.contains(&0) {
            return Err(refused("has a zero byte in its name"));
        }
        let components =
            raw.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
        let components: Vec<&[u8]> = components.collect();
        if components.contains(&b"..".as_slice()) {
            return Err(refused("leads upwards"));
        }
        let name = components.join(&b'/');
        let too_long = components.iter().any(|part| part.len() > MAX_COMPONENT_BYTES);
        if name.len() > MAX_NAME_BYTES || too_long || components.len() > MAX_COMPONENTS {
            return Err(refused("has too long a name"));
        }
        Ok(Self(name))
    }

    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
    }

    /// The directory that it is in, and its last component.
    pub fn split(&self) -> (&[u8], &[u8]) {
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (&self.0[..at], &self.0[at + 1..]),
            None => (b"", &self.0),
        }
    }
}

/// A path for the system: the root is `.`.
pub(crate) fn system_path(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"." } else { path }
}

/// A name as it may be shown.
pub(crate) fn show(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let safe: String = text.escape_debug().take(MAX_SHOWN_CHARS).collect();
    format!("`{safe}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere_but_beneath_the_root() {
        for (raw, name) in [("a", "a"), ("./a/b/", "a/b"), ("./", ""), ("a//b/./c", "a/b/c")] {
            assert_eq!(EntryName::parse(raw.as_bytes()).unwrap().bytes(), name.as_bytes());
        }
        for raw in ["/a", "..", "a/../b", "../a", "a/..", "a\0b"] {
            assert!(EntryName::parse(raw.as_bytes()).is_err(), "{raw:?}");
        }
        for long in ["a".repeat(256), "a/".repeat(257), format!("{}/", "b".repeat(200)).repeat(30)]
        {
            assert!(EntryName::parse(long.as_bytes()).is_err());
        }
    }
}
