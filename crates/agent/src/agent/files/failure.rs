//! Why a file operation failed, and at which path.

use std::io;

use rustix::io::Errno;

use crate::protocol::{FileErrorKind, FromAgent};

/// The most of a path that is repeated in a message.
const MAX_QUOTED_BYTES: usize = 8192;

/// Why a file operation failed.
#[derive(Debug)]
pub struct OperationFailure {
    kind: FileErrorKind,
    errno: i32,
    path: String,
    detail: String,
}

impl OperationFailure {
    /// The system refused.
    pub fn new(path: &str, errno: Errno) -> Self {
        let error = io::Error::from(errno);
        Self::build(kind_of(errno), errno.raw_os_error(), path, error.to_string())
    }

    /// The same from an error of the standard library, which may be its own.
    pub fn from_io(path: &str, error: &io::Error) -> Self {
        let kind = Errno::from_io_error(error).map_or(FileErrorKind::System, kind_of);
        Self::build(kind, error.raw_os_error().unwrap_or(libc::EIO), path, error.to_string())
    }

    /// What is there cannot be used that way.
    pub fn unsuitable(path: &str, detail: &str) -> Self {
        Self::with_kind(path, FileErrorKind::Unsuitable, detail)
    }

    /// The path leaves its root.
    pub fn escapes(path: &str) -> Self {
        Self::with_kind(path, FileErrorKind::PathEscapes, "leaves its root")
    }

    /// The agent itself refuses.
    pub fn with_kind(path: &str, kind: FileErrorKind, detail: &str) -> Self {
        Self::build(kind, libc::EINVAL, path, detail.to_owned())
    }

    fn build(kind: FileErrorKind, errno: i32, path: &str, detail: String) -> Self {
        // A zero byte cannot travel as text; archives can hold names with one.
        let path = path[..path.floor_char_boundary(MAX_QUOTED_BYTES)].replace('\0', "\\0");
        Self { kind, errno, path, detail: detail.replace('\0', "\\0") }
    }

    /// Whether nothing was there.
    pub fn is_missing(&self) -> bool {
        self.kind == FileErrorKind::NotFound
    }

    /// The answer that says so.
    pub fn to_message(&self, number: u32) -> FromAgent<'_> {
        FromAgent::FileError(number, self.kind, self.errno, &self.path, &self.detail)
    }
}

fn kind_of(errno: Errno) -> FileErrorKind {
    match errno {
        Errno::NOENT => FileErrorKind::NotFound,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => FileErrorKind::Denied,
        Errno::NOTDIR
        | Errno::ISDIR
        | Errno::EXIST
        | Errno::NOTEMPTY
        | Errno::LOOP
        | Errno::NAMETOOLONG
        | Errno::INVAL
        | Errno::BUSY
        | Errno::XDEV
        | Errno::NXIO => FileErrorKind::Unsuitable,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => FileErrorKind::TooLarge,
        _ => FileErrorKind::System,
    }
}
