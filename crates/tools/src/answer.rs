//! What a tool answers: for programs, for readers, for eyes.

use serde::Serialize;
use serde_json::Value;

use crate::ToolError;

/// What a tool answers.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolAnswer {
    /// The answer as data.
    pub structured: Value,
    /// The same for a reader.
    pub text: String,
    /// Pictures, if there are any.
    pub images: Vec<AnswerImage>,
}

/// One picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerImage {
    /// Its media type, such as `image/png`.
    pub mime: String,
    /// The picture itself.
    pub bytes: Vec<u8>,
}

impl ToolAnswer {
    /// An answer that reads as its own data.
    pub(crate) fn data(structured: &impl Serialize) -> Result<Self, ToolError> {
        let structured = serde_json::to_value(structured).map_err(ToolError::unprintable)?;
        let text = structured.to_string();
        Ok(Self { structured, text, images: Vec::new() })
    }

    /// An answer with a form of its own for readers.
    pub(crate) fn told(structured: &impl Serialize, text: String) -> Result<Self, ToolError> {
        Ok(Self { text, ..Self::data(structured)? })
    }
}
