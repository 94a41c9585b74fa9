//! What is asked about the whole state of a sandbox: capture it, bring it back, stop it, describe it.

use stockade_core::{Feature, Network, Result};

use super::host::SupervisorHost;
use crate::daemon::message::{Described, SandboxStateRequest, SupervisorReply};

/// Answers one request.
pub async fn answer_state_request(
    host: &SupervisorHost,
    request: SandboxStateRequest,
) -> Result<SupervisorReply> {
    Ok(match request {
        SandboxStateRequest::Snapshot { kind } => {
            SupervisorReply::Snapshot(Box::new(host.engine.snapshot(&host.id, kind).await?))
        }
        SandboxStateRequest::Restore { snapshot } => {
            host.engine.restore(&host.id, &snapshot).await?;
            SupervisorReply::Done
        }
        SandboxStateRequest::Pause => {
            host.pause().await?;
            SupervisorReply::Done
        }
        SandboxStateRequest::Resume => {
            host.resume().await?;
            SupervisorReply::Done
        }
        SandboxStateRequest::Archive { path, into, most } => {
            host.engine.archive_tree(&host.id, &path, into.as_path(), most).await?;
            SupervisorReply::Done
        }
        SandboxStateRequest::Describe => {
            SupervisorReply::Described(Box::new(describe_sandbox(host).await?))
        }
    })
}

async fn describe_sandbox(host: &SupervisorHost) -> Result<Described> {
    let (backend, _) = host.engine.walls(&host.id)?;
    let measured = host.engine.detect_one(&backend).await;
    let mut spec = host.spec.clone();
    // A copy gets the rules in force, not those that were once asked for.
    if let Network::Egress(rules) = &mut spec.network
        && let Network::Egress(now) = host.engine.network(&host.id)?
    {
        *rules = now;
    }
    Ok(Described {
        spec,
        has_made_workspace: host.has_made_workspace,
        full: measured.is_some_and(|it| it.has(Feature::FullSnapshot)),
        idle: host.idle,
        lifetime: host.lifetime,
    })
}
