//! What is asked about the whole state of a sandbox: capture it, bring it back, stop it, describe it.

use stockade_core::{Feature, Result};

use super::host::Host;
use crate::lasting::message::{Described, Reply, Request};

/// The answer to a request about its state; nothing if it is not one.
pub async fn answer(host: &Host, request: Request) -> Result<Option<Reply>> {
    Ok(Some(match request {
        Request::Snapshot { kind } => {
            Reply::Snapshot(Box::new(host.engine.snapshot(&host.id, kind).await?))
        }
        Request::Restore { snapshot } => {
            host.engine.restore(&host.id, &snapshot).await?;
            Reply::Done
        }
        Request::Pause => {
            host.pause().await?;
            Reply::Done
        }
        Request::Resume => {
            host.resume().await?;
            Reply::Done
        }
        Request::Describe => Reply::Described(Box::new(described(host).await?)),
        Request::Hello { .. }
        | Request::Info
        | Request::Exec { .. }
        | Request::Logs { .. }
        | Request::Stat { .. }
        | Request::List { .. }
        | Request::Read { .. }
        | Request::Write { .. }
        | Request::MakeDir { .. }
        | Request::Destroy
        | Request::Stdin
        | Request::StdinEnd
        | Request::Signal { .. }
        | Request::Resize { .. }
        | Request::Cancel => return Ok(None),
    }))
}

async fn described(host: &Host) -> Result<Described> {
    let (backend, _) = host.engine.walls(&host.id)?;
    let measured = host.engine.detect_one(&backend).await;
    Ok(Described {
        spec: host.spec.clone(),
        full: measured.is_some_and(|it| it.has(Feature::FullSnapshot)),
        idle: host.idle,
        lifetime: host.lifetime,
    })
}
