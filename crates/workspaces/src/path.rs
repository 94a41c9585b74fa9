//! Paths within a tree, as the kernel has them: any bytes but `/` and zero in a name.
//!
//! A value of this type cannot leave its tree by its spelling; what symbolic links do is the kernel's to
//! decide when the path is used (C-21). Its text form is one line without control characters, for any file
//! name that a guest chose, and parses back to the same path.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use stockade_core::{WORKSPACE_ROOT, is_unsafe_to_show};

/// Longest path that the kernel takes in one call.
pub(crate) const MAX_PATH_BYTES: usize = 4095;

/// A path beneath a workspace's root. The empty one is the root itself.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TreePath(Box<[u8]>);

/// A path that names nothing in a tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("path `{given}` {problem}")]
pub struct TreePathError {
    given: String,
    problem: &'static str,
}

impl TreePath {
    /// The root of the tree.
    pub fn root() -> Self {
        Self(Box::default())
    }

    /// A path from bytes as the kernel gives them: names between single slashes.
    pub fn from_bytes(given: &[u8]) -> Result<Self, TreePathError> {
        let wrong = |problem| {
            let given = String::from_utf8_lossy(given).chars().take(80).collect::<String>();
            Err(TreePathError { given: given.escape_debug().to_string(), problem })
        };
        if given.contains(&0) {
            return wrong("contains a zero byte");
        }
        if given.starts_with(b"/") {
            return wrong("is absolute: name it from the workspace's root");
        }
        let mut path = Self::root();
        for name in given.split(|byte| *byte == b'/') {
            match name {
                b"" | b"." => {}
                b".." => return wrong("contains `..`"),
                name => path = path.join(name),
            }
        }
        if path.0.len() > MAX_PATH_BYTES { wrong("is longer than 4095 bytes") } else { Ok(path) }
    }

    /// The path of a name in this directory. The name comes from the kernel, so it is a plain one.
    pub(crate) fn join(&self, name: &[u8]) -> Self {
        if self.is_root() {
            return Self(name.into());
        }
        Self([&self.0, b"/".as_slice(), name].concat().into())
    }

    /// Whether this is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The path's bytes, relative to the root.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path as the standard library has paths, relative to the root.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// The directory it is in and its name there; nothing for the root.
    pub fn split(&self) -> Option<(Self, &[u8])> {
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(at) => Some((Self(self.0[..at].into()), &self.0[at + 1..])),
            None if self.is_root() => None,
            None => Some((Self::root(), &self.0)),
        }
    }

    /// Whether this or a directory above it is among some.
    pub(crate) fn is_within_any(&self, others: &HashSet<Self>) -> bool {
        let mut here = (!others.is_empty()).then(|| self.clone());
        while let Some(path) = here {
            if others.contains(&path) {
                return true;
            }
            here = path.split().map(|(parent, _)| parent);
        }
        false
    }

    /// The names from the root down.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }

    /// Whether this is the other path or lies beneath it.
    pub fn is_within(&self, other: &Self) -> bool {
        let Some(rest) = self.0.strip_prefix(&*other.0) else { return false };
        other.is_root() || rest.is_empty() || rest[0] == b'/'
    }
}

impl Ord for TreePath {
    /// Name by name, so that what is in a directory follows it before its next neighbour.
    fn cmp(&self, other: &Self) -> Ordering {
        self.names().cmp(other.names())
    }
}

impl PartialOrd for TreePath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{self}`")
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() {
            return f.write_char('.');
        }
        for chunk in self.0.utf8_chunks() {
            chunk.valid().chars().try_for_each(|c| write_escaped(f, c))?;
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

/// Everything that would move a cursor, turn text around or not show at all is written as bytes.
fn write_escaped(f: &mut fmt::Formatter<'_>, c: char) -> fmt::Result {
    match c {
        '\\' => f.write_str("\\\\"),
        c if is_unsafe_to_show(c) => {
            let mut bytes = [0; 4];
            c.encode_utf8(&mut bytes).bytes().try_for_each(|byte| write!(f, "\\x{byte:02x}"))
        }
        c => f.write_char(c),
    }
}

impl FromStr for TreePath {
    type Err = TreePathError;

    /// Parses the text form. `/workspace/…`, as a guest names it, is accepted too (C-22).
    fn from_str(given: &str) -> Result<Self, TreePathError> {
        let inside = given.strip_prefix(WORKSPACE_ROOT).filter(|rest| rest.starts_with('/'));
        let relative = inside.map_or(given, |rest| rest.trim_start_matches('/'));
        let problem = "has a `\\` that begins neither `\\\\` nor `\\xNN`";
        let wrong = || TreePathError { given: given.escape_debug().to_string(), problem };
        Self::from_bytes(&unescape_path(relative).ok_or_else(wrong)?)
    }
}

fn unescape_path(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let (escape, after) = rest.split_first()?;
        rest = after;
        match escape {
            b'\\' => bytes.push(b'\\'),
            b'x' => {
                let (digits, after) = rest.split_at_checked(2)?;
                bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                rest = after;
            }
            _ => return None,
        }
    }
    Some(bytes)
}

impl TryFrom<String> for TreePath {
    type Error = TreePathError;

    fn try_from(given: String) -> Result<Self, TreePathError> {
        given.parse()
    }
}

impl From<TreePath> for String {
    fn from(path: TreePath) -> String {
        path.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_that_leaves_its_tree_does_not_parse() {
        for given in ["..", "a/../b", "/etc", "/workspacex", "a/..", "\\x2e."] {
            assert!(given.parse::<TreePath>().is_err(), "{given}");
        }
        assert_eq!("/workspace/a/./b/".parse::<TreePath>().unwrap().to_string(), "a/b");
    }

    #[test]
    fn neighbours_come_after_what_is_inside() {
        let mut paths: Vec<TreePath> =
            ["a.b", "a/z", "a", "b", "a/b/c"].iter().map(|path| path.parse().unwrap()).collect();
        paths.sort();
        let shown: Vec<_> = paths.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["a", "a/b/c", "a/z", "a.b", "b"]);
    }

    #[test]
    fn beneath_means_whole_names() {
        let path = |text: &str| text.parse::<TreePath>().unwrap();
        assert!(path("a/b").is_within(&path("a")) && path("a").is_within(&path("a")));
        assert!(!path("ab").is_within(&path("a")) && path("ab").is_within(&TreePath::root()));
    }

    proptest! {
        #[test]
        fn any_name_is_shown_on_one_line_and_parses_back(
            names in prop::collection::vec(prop::collection::vec(1u8..=255, 1..12), 1..4)
        ) {
            let path = TreePath::from_bytes(&names.join(&b'/'));
            prop_assume!(path.is_ok());
            let path = path.unwrap();
            let shown = path.to_string();
            prop_assert!(!shown.chars().any(char::is_control), "{shown:?}");
            prop_assert_eq!(shown.parse::<TreePath>().unwrap(), path);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,40}") {
            let _ = text.parse::<TreePath>();
        }
    }
}
