//! What a copy has done: how much was copied, what was left out and why. Bounded, since a guest decides how
//! much there is.

use serde::Serialize;
use stockade_core::{Error, ErrorCode, Result};

use super::CP_OPERATION;

/// Most files and directories of one copy.
const MAX_ENTRIES: u64 = 1_000_000;
/// Reason for leaving out a link.
pub const ESCAPING_LINK_SKIPPED: &str =
    "left out: a symbolic link that leads out of what is copied";
/// Reason for leaving out a device, a socket or a pipe.
pub const SPECIAL_FILE_SKIPPED: &str = "left out: neither a file nor a directory";

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
    pub fn within_bounds(&self) -> Result<()> {
        let left_out = self.skipped.len() as u64;
        let entries = self.files + self.directories + self.links + left_out;
        if entries < MAX_ENTRIES {
            return Ok(());
        }
        let message = format!("there are more than {MAX_ENTRIES} files and directories");
        Err(Error::new(ErrorCode::TooLarge, CP_OPERATION, message)
            .remedy("copy a part, or an archive"))
    }
}
