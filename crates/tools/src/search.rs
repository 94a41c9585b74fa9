//! `glob` and `grep`.

use stockade_core::ErrorCode;

use crate::arguments::{Glob, Grep};
use crate::toolbox::Session;
use crate::{Call, ToolAnswer, ToolError};

pub(crate) async fn glob(_s: &Session, _a: Glob, _c: &Call) -> Result<ToolAnswer, ToolError> {
    Err(ToolError::new(ErrorCode::Unavailable, "not here yet"))
}

pub(crate) async fn grep(_s: &Session, _a: Grep, _c: &Call) -> Result<ToolAnswer, ToolError> {
    Err(ToolError::new(ErrorCode::Unavailable, "not here yet"))
}
