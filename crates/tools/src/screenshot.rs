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
    session: &Session,
    args: Screenshot,
    _call: &Call,
) -> Result<ToolAnswer, ToolError> {
    let place = session.places.find(args.sandbox_id.as_ref()).await?;
    let message = format!("sandbox `{}` has no browser to open `{}`", place.id, args.url);
    Err(ToolError::new(ErrorCode::Unavailable, message))
}
