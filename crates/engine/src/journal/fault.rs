//! What can go wrong with the journal, by step, and what a caller is told about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use stockade_core::{Error, ErrorCode};

use super::record::MAX_LINE;
use super::verify::{Break, Damage};

#[derive(Debug, thiserror::Error)]
pub(super) enum JournalFault {
    #[error("cannot {step} `{file}`")]
    Io { step: &'static str, file: PathBuf, source: io::Error },
    #[error("another process has held `{file}` locked for {waited:?}")]
    Locked { file: PathBuf, waited: Duration },
    #[error("there is no journal at `{0}`")]
    Missing(PathBuf),
    #[error("{0}")]
    Broken(Break),
    #[error("`{file}` was {what} by another process")]
    Damaged { file: PathBuf, what: Damage },
    #[error("the event takes more than the {MAX_LINE} bytes that a record may have")]
    TooLong,
    #[error("what happens to its files is recorded by the journal itself, never by a caller")]
    NotForCallers,
    #[error("the event has no JSON form")]
    Encoding(#[from] serde_json::Error),
}

/// What is done to find damage.
pub(super) const VERIFY_OPERATION: &str = "verify the journal";
const DAMAGE_REMEDY: &str = "keep the journal directory as evidence, move it away and start again";

impl JournalFault {
    fn code(&self) -> ErrorCode {
        match self {
            Self::Io { .. } | Self::Broken(_) | Self::Damaged { .. } => {
                ErrorCode::JournalUnavailable
            }
            Self::Locked { .. } => ErrorCode::TooSlow,
            Self::Missing(_) => ErrorCode::NotFound,
            Self::TooLong => ErrorCode::TooLarge,
            Self::NotForCallers | Self::Encoding(_) => ErrorCode::Invalid,
        }
    }

    fn remedy(&self) -> &'static str {
        match self {
            Self::Io { source, .. } => io_remedy(source.kind()),
            Self::Broken(_) | Self::Damaged { .. } => DAMAGE_REMEDY,
            Self::Locked { .. } => "find the process that holds it (`fuser`) and end it",
            Self::Missing(_) => "name a state directory in which something was run",
            Self::TooLong => "pass the command's long arguments as a file or as input",
            Self::NotForCallers | Self::Encoding(_) => "leave the event out",
        }
    }

    pub(super) fn during(self, operation: &'static str) -> Error {
        let is_damaged = matches!(self, Self::Broken(_) | Self::Damaged { .. });
        let remedy = match is_damaged && operation == VERIFY_OPERATION {
            true => DAMAGE_REMEDY.to_owned(),
            false if is_damaged => format!("`stockade audit verify` says where; {DAMAGE_REMEDY}"),
            false => self.remedy().to_owned(),
        };
        let error = Error::new(self.code(), operation, self.to_string()).remedy(remedy);
        match self {
            Self::Io { source, .. } => error.source(source),
            Self::Encoding(source) => error.source(source),
            Self::Locked { .. }
            | Self::Missing(_)
            | Self::Broken(_)
            | Self::Damaged { .. }
            | Self::TooLong
            | Self::NotForCallers => error,
        }
    }
}

fn io_remedy(kind: io::ErrorKind) -> &'static str {
    if matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        return "free some disk space; nothing runs unrecorded";
    }
    "make the journal directory readable and writable for this user; nothing runs unrecorded"
}

/// Names the step and the file of an input or output error.
pub(super) trait During<T> {
    fn during(self, step: &'static str, file: impl FnOnce() -> PathBuf) -> Result<T, JournalFault>;
}

impl<T> During<T> for io::Result<T> {
    fn during(self, step: &'static str, file: impl FnOnce() -> PathBuf) -> Result<T, JournalFault> {
        self.map_err(|source| JournalFault::Io { step, file: file(), source })
    }
}
