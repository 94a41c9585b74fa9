//! Copies between the host's files and a sandbox's.
//!
//! The guest may change its tree, and a workspace that both sides see, while it is copied. So on the
//! host nothing is reached but through handles, and no symbolic link is followed below what the
//! caller named; and what a guest says about its tree is checked before it becomes a name here.

mod guest;
mod host;
pub mod inward;
pub mod outward;
mod programs;

use std::path::{Component, Path};

use serde::Serialize;
use stockade_core::{Error, ErrorCode, Result, SandboxPath};

pub use guest::GuestFiles;
pub use programs::CopyPrograms;

const CP_OPERATION: &str = "cp";
/// Most files and directories of one copy.
const MOST_ENTRIES: u64 = 1_000_000;
const ESCAPING_LINK_SKIPPED: &str = "left out: a symbolic link that leads out of what is copied";
const SPECIAL_FILE_SKIPPED: &str = "left out: neither a file nor a directory";

/// What was copied.
#[derive(Debug, Default)]
pub struct CopySummary {
    /// Files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub links: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// What was left out, and why.
    pub skipped: Vec<SkippedFile>,
    /// Files that can be executed, and should be on the other side.
    pub executables: Vec<String>,
    /// Links that are still to be made in the sandbox: target and path.
    pub links_due: Vec<(String, String)>,
}

/// Something that was left out.
#[derive(Debug, Serialize)]
pub struct SkippedFile {
    /// Where it is.
    pub path: String,
    /// Why it was left out.
    pub why: &'static str,
}

impl CopySummary {
    /// Notes what was left out.
    pub fn skip(&mut self, path: &str, why: &'static str) {
        self.skipped.push(SkippedFile { path: path.to_owned(), why });
    }

    /// Refuses trees without end.
    fn within_bounds(&self) -> Result<()> {
        let left_out = self.skipped.len() as u64;
        let entries = self.files + self.directories + self.links + left_out;
        if entries < MOST_ENTRIES {
            return Ok(());
        }
        let message = format!("there are more than {MOST_ENTRIES} files and directories");
        Err(Error::new(ErrorCode::TooLarge, CP_OPERATION, message)
            .remedy("copy a part, or an archive"))
    }
}

/// Whether a symbolic link, in a directory this deep in the tree that is copied, leads to something in it.
/// Steps up are taken at the beginning only: after another name they would start from wherever that leads.
fn stays_inside(target: &str, depth: usize) -> bool {
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
fn name_of(path: &str) -> Option<&str> {
    let last = path.trim_end_matches('/').rsplit('/').next()?;
    Some(last).filter(|name| !["", ".", ".."].contains(name))
}

fn join_path(base: &str, name: &str) -> String {
    format!("{}/{name}", base.strip_suffix('/').unwrap_or(base))
}

fn parse_sandbox_path(text: &str) -> Result<SandboxPath> {
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
