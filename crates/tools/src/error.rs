//! Why a tool did not do what was asked: a stable code, what is wrong, what to do about it.

use std::fmt;

use stockade_core::{Error, ErrorCode, PathError};

/// Why a tool did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolError {
    /// What programs decide by.
    pub code: ErrorCode,
    /// What is wrong, naming the field, path or id.
    pub message: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl ToolError {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), remedy: None }
    }

    /// An argument that is wrong, by the name of its field.
    pub(crate) fn field(field: &str, problem: impl fmt::Display) -> Self {
        Self::new(ErrorCode::Invalid, format!("`{field}`: {problem}"))
    }

    #[must_use]
    pub(crate) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    pub(crate) fn unprintable(error: serde_json::Error) -> Self {
        Self::new(ErrorCode::System, format!("the answer cannot be written as JSON: {error}"))
    }

    pub(crate) fn cancelled() -> Self {
        Self::new(ErrorCode::Gone, "the call was cancelled")
    }
}

impl From<Error> for ToolError {
    fn from(error: Error) -> Self {
        Self {
            code: error.code(),
            message: format!("{}: {}", error.operation(), error.message()),
            remedy: error.hint().map(str::to_owned),
        }
    }
}

impl From<PathError> for ToolError {
    fn from(error: PathError) -> Self {
        Self::new(ErrorCode::PathEscapes, error.to_string())
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.remedy {
            Some(remedy) => write!(f, " (remedy: {remedy})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ToolError {}
