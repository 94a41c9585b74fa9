//! The changes of a copy-on-write workspace: shown, and brought to the user's own files.

use stockade_core::ErrorCode;

use crate::arguments::{WorkspaceApply, WorkspaceDiff};
use crate::toolbox::Session;
use crate::{Call, ToolAnswer, ToolError};

pub(crate) async fn diff(
    _session: &Session,
    _args: WorkspaceDiff,
    _call: &Call,
) -> Result<ToolAnswer, ToolError> {
    Err(unavailable())
}

pub(crate) async fn apply(
    _session: &Session,
    _args: WorkspaceApply,
    _call: &Call,
) -> Result<ToolAnswer, ToolError> {
    Err(unavailable())
}

fn unavailable() -> ToolError {
    ToolError::new(ErrorCode::Unavailable, "this workspace keeps no changes apart")
        .remedy("bind a sandbox with a copy-on-write workspace")
}
