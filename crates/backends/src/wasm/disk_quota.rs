//! How much the workers of one sandbox may still write, in a file that they share. Each takes from it
//! before it writes, so that what a worker wrote counts though it was killed, and workers that run at
//! once have no more together than one has alone.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};

/// The quota's file name in the directory of answers.
pub(super) const QUOTA_FILE_NAME: &str = "disk";

/// The bytes that are left, in a shared file.
pub(super) struct DiskQuota(File);

impl DiskQuota {
    /// Makes one of this many bytes.
    pub(super) fn create_file(path: &Path, bytes: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all_at(&bytes.to_le_bytes(), 0)
    }

    /// The one that was made.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).map(Self)
    }

    /// Changes the number, or leaves it where there is no such change. A lock that its holder did not
    /// live to give back is given back by the kernel.
    pub(super) fn update_bytes_left(
        &self,
        by: impl FnOnce(u64) -> Option<u64>,
    ) -> io::Result<bool> {
        flock(&self.0, FlockOperation::LockExclusive)?;
        let changed = self.replace_bytes_left(by);
        flock(&self.0, FlockOperation::Unlock)?;
        changed
    }

    fn replace_bytes_left(&self, by: impl FnOnce(u64) -> Option<u64>) -> io::Result<bool> {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, 0)?;
        match by(u64::from_le_bytes(bytes)) {
            Some(left) => self.0.write_all_at(&left.to_le_bytes(), 0).map(|()| true),
            None => Ok(false),
        }
    }
}
