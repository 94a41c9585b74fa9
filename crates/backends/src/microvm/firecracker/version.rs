//! Which Firecracker it is: it is asked, for a file's name says nothing.

use std::fmt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use stockade_core::{ErrorCode, Result};
use tokio::io::AsyncReadExt;

use super::microvm_error;

/// The oldest usable version: from here on a restored guest hears that its connections are gone, and
/// a partial memory file is written over a whole one.
const MIN_VERSION: Version = Version(1, 10, 0);
/// The first version that calls dirty page tracking the same when loading a snapshot as when booting.
const TRACK_DIRTY_PAGES_VERSION: Version = Version(1, 16, 0);
/// Size limit of the answer to `--version`.
const MAX_ANSWER_BYTES: u64 = 4096;

/// Major, minor, patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u32, u32, u32);

impl Version {
    /// As in `Firecracker v1.16.0` or `Firecracker v1.17.0-dev`, in the first line.
    fn parse(text: &str, program: &str) -> Option<Self> {
        let line = text.lines().next()?.trim();
        let numbers = line.strip_prefix(program)?.trim_start().strip_prefix('v')?;
        let numbers = numbers.split(['-', '+', ' ']).next()?;
        let mut parts = numbers.split('.').map(|part| part.parse().ok());
        let version = Self(parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(version)
    }

    pub(super) fn check_new_enough(self) -> Result<()> {
        if self >= MIN_VERSION {
            return Ok(());
        }
        let told =
            format!("this is Firecracker {self}, and {MIN_VERSION} is the oldest that will do");
        Err(microvm_error(ErrorCode::Unavailable, "detect", told)
            .remedy("install a newer Firecracker"))
    }

    pub(super) fn check_matches_jailer(self, jailer: Self) -> Result<()> {
        if self == jailer {
            return Ok(());
        }
        let told = format!("the jailer is of version {jailer}, and Firecracker of {self}");
        Err(microvm_error(ErrorCode::Unavailable, "detect", told)
            .remedy("take both from one release"))
    }

    pub(super) fn has_track_dirty_pages(self) -> bool {
        self >= TRACK_DIRTY_PAGES_VERSION
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// Asks a program for its version.
pub(super) async fn query_version(
    binary: &Path,
    program: &str,
    limit: Duration,
) -> Result<Version> {
    let told = |what: &str| {
        let what = format!("`{} --version` {what}", binary.display());
        microvm_error(ErrorCode::Unavailable, "detect", what)
            .remedy(format!("name a working {program} in `[microvm.firecracker]`"))
    };
    let mut child = tokio::process::Command::new(binary)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| told("cannot be started").source(error))?;
    let Some(stdout) = child.stdout.take() else { return Err(told("has no output")) };
    let mut said = Vec::new();
    let hear = async {
        stdout.take(MAX_ANSWER_BYTES).read_to_end(&mut said).await?;
        child.wait().await
    };
    let status = tokio::time::timeout(limit, hear)
        .await
        .map_err(|_| told(&format!("did not answer within {limit:?}")))?
        .map_err(|error| told("cannot be heard").source(error))?;
    if !status.success() {
        return Err(told(&format!("failed: {status}")));
    }
    Version::parse(&String::from_utf8_lossy(&said), program)
        .ok_or_else(|| told(&format!("does not answer as {program} does")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_the_first_line_and_from_nowhere_else() {
        let read = |text| Version::parse(text, "Firecracker");
        assert_eq!(read("Firecracker v1.16.0\n\nSupported: v1.2.3\n"), Some(Version(1, 16, 0)));
        assert_eq!(read("Firecracker v1.17.0-dev\n"), Some(Version(1, 17, 0)));
        for wrong in ["", "v1.2.3", "Firecracker 1.2.3", "Firecracker v1.2", "Firecracker v1.2.3.4"]
        {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert_eq!(read("something\nFirecracker v1.16.0\n"), None);
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert!(Version(1, 9, 9) < MIN_VERSION && Version(1, 10, 0) >= MIN_VERSION);
        assert!(Version(1, 9, 1).check_new_enough().unwrap_err().to_string().contains("1.10.0"));
    }
}
