//! Paths of what is copied, as text.

use std::path::{Component, Path};

use stockade_core::{Error, ErrorCode, Result, SandboxPath};

use super::CP_OPERATION;

/// Whether a symbolic link, in a directory this deep in the tree that is copied, leads to something in it.
/// Steps up are taken at the beginning only: after another name they would start from wherever that leads.
pub fn stays_inside(target: &str, depth: usize) -> bool {
    let (mut up, mut down) = (0, false);
    for part in Path::new(target).components() {
        match part {
            Component::Normal(_) => down = true,
            Component::CurDir => {}
            Component::ParentDir if !down => up += 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    !target.is_empty() && up <= depth
}

/// The name of what a path names; nothing where it names a directory by its place: `.`, `..`, `a/.`.
pub fn name_of(path: &str) -> Option<&str> {
    let last = path.trim_end_matches('/').rsplit('/').next()?;
    Some(last).filter(|name| !["", ".", ".."].contains(name))
}

/// A name in a directory.
pub fn join_path(base: &str, name: &str) -> String {
    format!("{}/{name}", base.strip_suffix('/').unwrap_or(base))
}

/// A path in the sandbox, or why it is none.
pub fn parse_sandbox_path(text: &str) -> Result<SandboxPath> {
    text.parse().map_err(|error: stockade_core::PathError| {
        Error::new(ErrorCode::PathEscapes, CP_OPERATION, error.to_string())
            .remedy("name a path inside the sandbox")
    })
}

#[cfg(test)]
mod tests {
    use super::{name_of, stays_inside};

    #[test]
    fn only_links_that_lead_to_something_copied_stay_inside() {
        for (target, depth) in [("a", 0), ("./a/b", 0), ("../a", 1), ("../../a", 2), ("..", 1)] {
            assert!(stays_inside(target, depth), "{target} at {depth}");
        }
        for (target, depth) in [("", 3), ("/a", 3), ("../a", 0), ("../../a", 1), ("a/../..", 5)] {
            assert!(!stays_inside(target, depth), "{target} at {depth}");
        }
    }

    #[test]
    fn a_path_that_ends_in_a_place_has_no_name() {
        for path in ["", ".", "/", "..", "a/.", "a/..", "/a/./"] {
            assert_eq!(name_of(path), None, "{path}");
        }
        for path in ["b", "/b", "a/b", "a/b/", "./b"] {
            assert_eq!(name_of(path), Some("b"), "{path}");
        }
    }
}
