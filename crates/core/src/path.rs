//! Paths as callers give them. What parses here cannot escape by its spelling; what symbolic links do
//! is decided by the kernel when the path is used (C-21), never here.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where the workspace appears in a sandbox that has a file tree of its own.
pub const WORKSPACE_ROOT: &str = "/workspace";

/// A path that is refused for its spelling (C-04).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("path `{given}` {problem}")]
pub struct PathError {
    given: String,
    problem: &'static str,
}

impl PathError {
    fn new(given: &str, problem: &'static str) -> Self {
        Self { given: given.escape_debug().to_string(), problem }
    }
}

/// A path inside the sandbox: absolute ones name its own tree, relative ones start at the workspace
/// root (C-22).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxPath(String);

/// An absolute path on the host, without `..`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPath(String);

fn check_path(given: &str) -> Result<(), PathError> {
    if given.is_empty() {
        return Err(PathError::new(given, "is empty"));
    }
    if given.len() > 4096 {
        return Err(PathError::new(
            &given[..given.floor_char_boundary(80)],
            "is longer than 4096 bytes",
        ));
    }
    if given.contains('\0') {
        return Err(PathError::new(given, "contains a zero byte"));
    }
    Ok(())
}

/// Whether following the components one by one ever leaves the starting directory.
fn is_escaping(path: &Path) -> bool {
    let mut depth = 0usize;
    for component in path.components() {
        match component {
            Component::ParentDir if depth == 0 => return true,
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    false
}

impl SandboxPath {
    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it names the sandbox's own tree rather than the workspace.
    pub fn is_absolute(&self) -> bool {
        self.0.starts_with('/')
    }
}

impl HostPath {
    /// The path.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl FromStr for SandboxPath {
    type Err = PathError;

    fn from_str(given: &str) -> Result<Self, PathError> {
        check_path(given)?;
        if is_escaping(Path::new(given)) {
            return Err(PathError::new(given, "leaves its root by `..`"));
        }
        Ok(Self(given.to_owned()))
    }
}

impl FromStr for HostPath {
    type Err = PathError;

    fn from_str(given: &str) -> Result<Self, PathError> {
        check_path(given)?;
        if !given.starts_with('/') {
            return Err(PathError::new(given, "is not absolute"));
        }
        if Path::new(given).components().any(|part| part == Component::ParentDir) {
            return Err(PathError::new(given, "contains `..`: give the directory itself"));
        }
        Ok(Self(given.to_owned()))
    }
}

impl TryFrom<PathBuf> for HostPath {
    type Error = PathError;

    fn try_from(given: PathBuf) -> Result<Self, PathError> {
        match given.to_str() {
            Some(text) => text.parse(),
            None => Err(PathError::new(&given.to_string_lossy(), "is not valid UTF-8")),
        }
    }
}

macro_rules! text_form {
    ($type:ident) => {
        impl TryFrom<String> for $type {
            type Error = PathError;

            fn try_from(given: String) -> Result<Self, PathError> {
                given.parse()
            }
        }

        impl From<$type> for String {
            fn from(path: $type) -> String {
                path.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

text_form!(SandboxPath);
text_form!(HostPath);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_escape_by_spelling_are_refused_by_name() {
        for given in ["..", "../x", "a/../../x", "/..", "/../etc/passwd", "./../x", "a/./../.."] {
            let error = given.parse::<SandboxPath>().unwrap_err();
            assert!(error.to_string().contains(given), "{error}");
        }
        for given in ["a/..", "a/../b", "/a/../b", ".", "...", "..a", "-rf"] {
            assert!(given.parse::<SandboxPath>().is_ok(), "{given}");
        }
    }

    #[test]
    fn host_paths_are_absolute_and_plain() {
        assert!("/srv/work".parse::<HostPath>().is_ok());
        for given in ["", "work", "/srv/../etc", "/a\0b"] {
            assert!(given.parse::<HostPath>().is_err(), "{given:?}");
        }
    }
}
