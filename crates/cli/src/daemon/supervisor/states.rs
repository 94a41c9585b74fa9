//! What is asked about the whole state of a sandbox: capture it, bring it back, stop it, describe it.

use stockade_core::{Feature, Result};

use super::host::SupervisorHost;
use crate::daemon::message::{Described, SupervisorReply, SupervisorRequest};

/// The answer to a request about its state; nothing if it is not one.
pub async fn answer_state_request(
    host: &SupervisorHost,
    request: SupervisorRequest,
) -> Result<Option<SupervisorReply>> {
    Ok(Some(match request {
        SupervisorRequest::Snapshot { kind } => {
            SupervisorReply::Snapshot(Box::new(host.engine.snapshot(&host.id, kind).await?))
        }
        SupervisorRequest::Restore { snapshot } => {
            host.engine.restore(&host.id, &snapshot).await?;
            SupervisorReply::Done
        }
        SupervisorRequest::Pause => {
            host.pause().await?;
            SupervisorReply::Done
        }
        SupervisorRequest::Resume => {
            host.resume().await?;
            SupervisorReply::Done
        }
        SupervisorRequest::Describe => {
            SupervisorReply::Described(Box::new(describe_sandbox(host).await?))
        }
        SupervisorRequest::Hello { .. }
        | SupervisorRequest::Info
        | SupervisorRequest::Exec { .. }
        | SupervisorRequest::Logs { .. }
        | SupervisorRequest::Stat { .. }
        | SupervisorRequest::List { .. }
        | SupervisorRequest::Read { .. }
        | SupervisorRequest::Write { .. }
        | SupervisorRequest::MakeDir { .. }
        | SupervisorRequest::Destroy
        | SupervisorRequest::Stdin
        | SupervisorRequest::StdinEnd
        | SupervisorRequest::Signal { .. }
        | SupervisorRequest::Resize { .. }
        | SupervisorRequest::Cancel => return Ok(None),
    }))
}

async fn describe_sandbox(host: &SupervisorHost) -> Result<Described> {
    let (backend, _) = host.engine.walls(&host.id)?;
    let measured = host.engine.detect_one(&backend).await;
    Ok(Described {
        spec: host.spec.clone(),
        full: measured.is_some_and(|it| it.has(Feature::FullSnapshot)),
        idle: host.idle,
        lifetime: host.lifetime,
    })
}
