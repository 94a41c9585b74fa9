//! A picture of a page that the sandbox serves.

use schemars::JsonSchema;
use serde::Deserialize;
use stockade_core::{ErrorCode, SandboxId};

use crate::toolbox::Session;
use crate::{Call, ToolAnswer, ToolError};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Screenshot {
    /// The sandbox to use; the bound one if left out.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub sandbox_id: Option<SandboxId>,
    /// The page: `http://localhost:PORT/…` or a file in the workspace.
    pub url: String,
}

pub(crate) async fn screenshot(
    _session: &Session,
    _args: Screenshot,
    _call: &Call,
) -> Result<ToolAnswer, ToolError> {
    Err(ToolError::new(ErrorCode::Unavailable, "there is no browser here yet"))
}
