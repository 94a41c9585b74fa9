//! Why a layer was not applied.

use std::io;

/// Why a layer was not applied.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The layer is not one that is taken, whoever unpacks it.
    #[error("{0}")]
    Refused(String),
    /// The host did not let it be applied.
    #[error("{name} cannot be {step}: {source}")]
    Io {
        /// What was to be done.
        step: &'static str,
        /// To what.
        name: String,
        /// Why not.
        source: io::Error,
    },
}

impl UnpackError {
    pub(crate) fn refused(reason: impl Into<String>) -> Self {
        Self::Refused(reason.into())
    }

    pub(crate) fn io(step: &'static str, name: &str, source: impl Into<io::Error>) -> Self {
        Self::Io { step, name: name.to_owned(), source: source.into() }
    }
}
