//! An engine process for the kit to kill: opens an engine, builds a sandbox, starts something in it
//! that does not end by itself, says which sandbox that is, and waits.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use stockade_core::{Command, HostPath, SandboxSpec, Workspace};
use stockade_engine::{Engine, EngineConfig, OutputEvent};
use stockade_tck::control::Control;
use stockade_tck::simulated::Simulated;
use stockade_tck::{ENGINE_STATE, ENGINE_WORKSPACE, MARK, Subject};

type Failure = Box<dyn std::error::Error>;

fn variable(name: &str) -> Result<PathBuf, Failure> {
    Ok(std::env::var_os(name).ok_or(format!("{name} is not set"))?.into())
}

fn subject() -> Result<(Box<dyn Subject>, SandboxSpec), Failure> {
    match std::env::args().nth(1).as_deref() {
        Some("mock") => {
            let subject = Simulated::default();
            let spec = subject.spec();
            Ok((Box::new(subject), spec))
        }
        Some("control") => {
            let subject = Control::default();
            let workspace = HostPath::try_from(variable(ENGINE_WORKSPACE)?)?;
            let spec = SandboxSpec { workspace: Workspace::Local(workspace), ..subject.spec() };
            Ok((Box::new(subject), spec))
        }
        _ => Err("name a subject: mock or control".into()),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let (subject, mut spec) = subject()?;
    spec.env.insert(MARK.parse()?, std::env::var(MARK).unwrap_or_default());
    let backends = vec![Arc::clone(&subject.backend())];
    let engine = Engine::open(EngineConfig::at(variable(ENGINE_STATE)?), backends).await?;
    let id = engine.create(spec).await?;
    let command = Command::program(["./probe", "ignore-signals-then-sleep", "60000"]);
    let (_execution, mut follower) = engine.exec_followed(&id, command).await?;
    if let Some(OutputEvent::Output { .. }) = follower.next().await {
        writeln!(std::io::stdout(), "{id}")?;
        std::io::stdout().flush()?;
    }
    std::future::pending().await
}
