//! What goes wrong in a step, before it is told as the one public error.

use std::io;

use rustix::io::Errno;
use stockade_core::{Error, ErrorCode, WorkspaceId};

/// A step that failed, and at what.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkspaceFault {
    #[error("cannot {step} `{path}`")]
    Io { step: &'static str, path: String, source: io::Error },
    #[error("there is no workspace {0}")]
    Unknown(WorkspaceId),
    #[error("workspace {0} is busy: another process works on it")]
    Busy(WorkspaceId),
    #[error("`{0}` is in use by another process")]
    Held(String),
    #[error("`{path}` {problem}")]
    Refused { path: String, problem: &'static str, remedy: &'static str },
    #[error("{what} has more than {most} entries")]
    TooMany { what: &'static str, most: usize },
    #[error("`{path}` is damaged: {problem}")]
    Damaged { path: String, problem: String },
    #[error(
        "`{path}` was changed while apply was being undone; its earlier content is kept in `{kept}`"
    )]
    Stuck { path: String, kept: String },
    #[error("{0}")]
    Git(#[from] crate::git::GitFault),
}

pub(crate) type FaultResult<T> = Result<T, WorkspaceFault>;

impl WorkspaceFault {
    /// What was looked at is not what is there any more (C-23).
    pub(crate) fn changed_meanwhile(path: impl ToString) -> Self {
        Self::Refused {
            path: path.to_string(),
            problem: "was changed after its diff was read",
            remedy: "end what still writes there, and read the diff again",
        }
    }

    /// The public error of an operation.
    pub(crate) fn during(self, operation: &'static str) -> Error {
        let error = Error::new(self.code(), operation, self.to_string());
        let error = match self.remedy() {
            Some(remedy) => error.remedy(remedy),
            None => error,
        };
        match self {
            Self::Io { source, .. } => error.source(source),
            Self::Unknown(_)
            | Self::Busy(_)
            | Self::Held(_)
            | Self::Refused { .. }
            | Self::TooMany { .. }
            | Self::Damaged { .. }
            | Self::Stuck { .. }
            | Self::Git(_) => error,
        }
    }

    fn code(&self) -> ErrorCode {
        match self {
            Self::Io { source, .. } => io_code(source),
            Self::Unknown(_) => ErrorCode::NotFound,
            Self::Busy(_) | Self::Held(_) => ErrorCode::TooSlow,
            Self::Refused { .. } => ErrorCode::Invalid,
            Self::TooMany { .. } => ErrorCode::TooLarge,
            Self::Damaged { .. } | Self::Stuck { .. } => ErrorCode::StateUnavailable,
            Self::Git(fault) => fault.code(),
        }
    }

    fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Io { source, .. } => io_remedy(source),
            Self::Unknown(_) => Some("`stockade workspace ls` lists them"),
            Self::Busy(_) | Self::Held(_) => Some("try again when it is done"),
            Self::Refused { remedy, .. } => Some(remedy),
            Self::TooMany { .. } => Some("discard it, or work on a smaller tree"),
            Self::Damaged { .. } => Some("discard the workspace"),
            Self::Stuck { .. } => Some("take from there what you need and remove it"),
            Self::Git(fault) => fault.remedy(),
        }
    }
}

fn io_code(error: &io::Error) -> ErrorCode {
    match Errno::from_io_error(error) {
        Some(Errno::NOENT) => ErrorCode::NotFound,
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => ErrorCode::Denied,
        Some(Errno::LOOP | Errno::XDEV) => ErrorCode::PathEscapes,
        _ => ErrorCode::System,
    }
}

fn io_remedy(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error) {
        Some(Errno::XDEV) => {
            Some("another file system is mounted there: name that directory itself")
        }
        Some(Errno::NOSPC | Errno::DQUOT) => Some("make room on the disk"),
        _ => None,
    }
}

/// Names the step that an error happened in.
pub(crate) trait FaultStep<T> {
    fn step(self, step: &'static str, path: impl ToString) -> FaultResult<T>;
}

impl<T, E: Into<io::Error>> FaultStep<T> for Result<T, E> {
    fn step(self, step: &'static str, path: impl ToString) -> FaultResult<T> {
        self.map_err(|error| WorkspaceFault::Io {
            step,
            path: path.to_string(),
            source: error.into(),
        })
    }
}
