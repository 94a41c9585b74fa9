//! The server's side of the protocol: who we are, which tools there are, and calls handed on.

use std::sync::{Arc, OnceLock};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorCode, Implementation, InitializeRequestParams,
    InitializeResult, ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig,
    Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use stockade_tools::Toolbox;

use super::calling;
use super::desk::{Desk, SessionSeat};

const SERVER_INSTRUCTIONS: &str = "\
Tools that run commands and work on files inside a sandbox: no network unless it was allowed, limits \
on time, memory, processes and disk, and nothing of the host but the workspace. Relative paths are \
beneath the workspace, where commands start: `pwd` prints its path. Without `sandbox_id` a tool works in the sandbox \
that was bound when the server was started, and which is made at the first call; `sandbox_create` \
makes further ones. Start servers and other long-running programs with `bash` and the action \
`start`, then read their output with `logs`. When a limit ended a command, the answer names the \
limit; when something was refused, it names the remedy. A `notice` in an answer says that the \
sandbox was lost, or ended by another process, and replaced, and what went with it. If the workspace is an overlay, \
nothing reaches the real files until `workspace_apply`; look at `workspace_diff` first.";

/// One connection, or one request that stands alone.
pub struct Handler {
    desk: Arc<Desk>,
    seat: OnceLock<Option<SessionSeat>>,
}

impl Handler {
    /// For clients of this desk.
    pub const fn new(desk: Arc<Desk>) -> Self {
        Self { desk, seat: OnceLock::new() }
    }

    fn toolbox(&self) -> Arc<Toolbox> {
        match self.seat.get() {
            Some(Some(seat)) => seat.toolbox(),
            Some(None) | None => self.desk.common(),
        }
    }

    fn take_seat(&self) -> Result<(), ErrorData> {
        if self.seat.get().is_some() {
            return Ok(());
        }
        let seat = self.desk.sit().ok_or_else(sessions_full_error)?;
        // The first caller sets the seat; the seat of one that lost this race is dropped and cleared away.
        let _ = self.seat.set(seat);
        Ok(())
    }
}

fn sessions_full_error() -> ErrorData {
    let message = "there are as many sessions as this server takes (remedy: end one, or wait until \
                   an idle one ends)";
    ErrorData::new(ErrorCode::INTERNAL_ERROR, message, None)
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let us = Implementation::new("stockade", env!("CARGO_PKG_VERSION"))
            .with_title("Stockade")
            .with_description(env!("CARGO_PKG_DESCRIPTION"));
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(us)
            .with_instructions(SERVER_INSTRUCTIONS)
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        self.take_seat()?;
        context.peer.set_peer_info(request.clone());
        self.negotiate_initialize(&request)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.desk.tools.clone()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.desk.tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if self.get_tool(&request.name).is_none() {
            let message = format!("unknown tool: `{}`", request.name.escape_debug());
            return Err(ErrorData::invalid_params(message, None));
        }
        calling::call(&self.desk, &self.toolbox(), request, context).await
    }
}
