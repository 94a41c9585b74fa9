//! What can go wrong, with the file or the variable that it went wrong with.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Why a program could not be built.
#[derive(Debug)]
pub enum StaticBinError {
    /// A variable that cargo sets for build scripts is missing or no text.
    Variable(String),
    /// `OUT_DIR` is not within a profile's directory.
    OutDir(PathBuf),
    /// A file could not be read, written or run.
    File {
        /// The file.
        path: PathBuf,
        /// The failure.
        source: io::Error,
    },
    /// The inner build failed; cargo has said why.
    Cargo {
        /// Name of the program.
        bin: String,
        /// How cargo ended.
        status: ExitStatus,
    },
}

impl StaticBinError {
    pub(crate) fn file(path: &Path, source: io::Error) -> Self {
        Self::File { path: path.to_owned(), source }
    }
}

impl fmt::Display for StaticBinError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => write!(out, "{name} is not set, or is no text"),
            Self::OutDir(path) => {
                write!(out, "OUT_DIR is not within a target directory: {}", path.display())
            }
            Self::File { path, .. } => write!(out, "{} cannot be used", path.display()),
            Self::Cargo { bin, status } => write!(out, "building {bin} failed: {status}"),
        }
    }
}

impl std::error::Error for StaticBinError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File { source, .. } => Some(source),
            Self::Variable(_) | Self::OutDir(_) | Self::Cargo { .. } => None,
        }
    }
}
