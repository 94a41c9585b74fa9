//! An engine process for the kit to kill: opens an engine, builds a sandbox, starts something in it
//! that does not end by itself, says which sandbox that is, and waits.

use std::io::Write;
use std::path::PathBuf;

use stockade_core::{Command, Feature, HostPath, Workspace};
use stockade_engine::{Engine, EngineConfig, OutputEvent};

use crate::{ENGINE_STATE, ENGINE_WORKSPACE, MARK, Subject};

/// Why it could not get as far as waiting.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

fn variable(name: &str) -> Result<PathBuf, Failure> {
    Ok(std::env::var_os(name).ok_or(format!("{name} is not set"))?.into())
}

/// Does what [`Subject::engine_process`] describes; returns only if it fails.
pub async fn serve_engine(subject: &dyn Subject) -> Result<(), Failure> {
    let backend = subject.backend();
    let mut spec = subject.spec();
    if backend.probe().await.has(Feature::LocalWorkspace) {
        spec.workspace = Workspace::Local(HostPath::try_from(variable(ENGINE_WORKSPACE)?)?);
    }
    // So that what is left behind can be told apart from everybody else's.
    spec.env.insert(MARK.parse()?, std::env::var(MARK).unwrap_or_default());
    let engine = Engine::open(EngineConfig::at(variable(ENGINE_STATE)?), vec![backend]).await?;
    let id = engine.create(spec).await?;
    let command = Command::program(["./probe", "ignore-signals-then-sleep", "60000"]);
    let (_execution, mut follower) = engine.exec_followed(&id, command).await?;
    if let Some(OutputEvent::Output { .. }) = follower.next().await {
        writeln!(std::io::stdout(), "{id}")?;
        std::io::stdout().flush()?;
    }
    std::future::pending().await
}
