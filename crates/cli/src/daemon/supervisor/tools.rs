//! An agent's tools in this sandbox: the Model Context Protocol over the rest of a connection. The sandbox goes on after
//! the session; what the agent has made beside it, and its programs, end with it.

use std::sync::Arc;

use stockade_core::{Result, SandboxSpec, Workspace};
use stockade_server::mcp::{Desk, DeskOptions, serve_client};
use stockade_tools::{AdoptedSandbox, AllowedDirectories, SandboxQuota, Toolbox, ToolboxOptions};

use super::host::SupervisorHost;
use super::session::ClientSession;
use crate::config::Settings;
use crate::daemon::frame::SupervisorFrameError;
use crate::daemon::message::{SupervisorReply, ToolsRequest};
use crate::daemon::port_stream::carry_stream;
use crate::terminal::printer::Printer;

const TOOLS_OPERATION: &str = "mcp";
/// Bytes of the protocol that wait between the connection and the server.
const PROTOCOL_BUFFER_BYTES: usize = 64 << 10;

/// Serves an agent until it is gone, or the sandbox.
pub async fn serve_tools(
    mut session: ClientSession,
    request: ToolsRequest,
) -> std::result::Result<(), SupervisorFrameError> {
    let desk = match open_desk(&session.host, request) {
        Ok(desk) => desk,
        Err(error) => return session.fail(&error).await,
    };
    session.reply(&SupervisorReply::Done).await?;
    let (near, far) = tokio::io::duplex(PROTOCOL_BUFFER_BYTES);
    let (input, output) = tokio::io::split(near);
    let serving = tokio::spawn(serve_client(Arc::clone(&desk), input, output));
    tokio::select! {
        // However it ends, the server sees the end of its input.
        _ = carry_stream(&mut session.reader, &mut session.writer, far) => {}
        _ = session.host.ended() => {}
    }
    desk.close().await;
    serving.abort();
    Ok(())
}

/// By the rules that hold now, which may be others than when the sandbox was made.
fn open_desk(host: &SupervisorHost, request: ToolsRequest) -> Result<Arc<Desk>> {
    host.refuse_paused(TOOLS_OPERATION)?;
    let settings = Settings::load(Some(&host.origin), &Printer::new(true))?;
    let (id, workspaces) = (host.id.clone(), host.workspaces.clone());
    let adopted = AdoptedSandbox { id, spec: host.spec.clone(), workspaces };
    let options = ToolboxOptions {
        adopted: Some(adopted),
        approval: settings.approval.clone(),
        template: build_template(host),
        directories: AllowedDirectories::new(request.allowed),
        quota: SandboxQuota::new(request.max_sandboxes),
        ..ToolboxOptions::at(settings.state_dir()?)
    };
    let engine = Arc::new(host.engine.clone());
    let patience = options.approval.patience();
    let open = move || Toolbox::new(Arc::clone(&engine), options.clone());
    Ok(Desk::new(open, DeskOptions { patience, ..DeskOptions::default() }))
}

/// What further sandboxes are like: layers of a workspace are this sandbox's alone.
fn build_template(host: &SupervisorHost) -> SandboxSpec {
    let mut template = host.spec.clone();
    if host.has_made_workspace {
        template.workspace = Workspace::Ephemeral;
        template.workspace_at = None;
    }
    template
}
