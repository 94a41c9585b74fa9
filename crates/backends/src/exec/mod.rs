//! A backend outside this repository, as a program that builds walls and starts the agent behind them. For the
//! conformance kit (`stockade tck --exec PROGRAM`), in no registry. `docs/adding-a-backend.md` has the protocol.
//!
//! What the program says is a peer's: bounded, parsed strictly, cleaned. Nothing is taken on trust that the kit can
//! look at: a sandbox that was destroyed must not be listed any more.

mod agent;
mod verb;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use stockade_core::{
    Admitted, BackendName, Boundary, Capabilities, Command, Error, ErrorCode, Result, Sandbox,
    SandboxId,
};

use crate::agent_sandbox::AgentSandbox;
use crate::linux::{DEFAULT_USER, lock};
use crate::managed::{Cancellation, Managed, WallBuilder};
use agent::ExecAgent;
use verb::run_verb;

/// The name under which such a program is judged.
pub const NAME: BackendName = BackendName::literal("exec");
/// Why it is never chosen.
const ONLY_BY_NAME: &str = "it is a program outside of this build";

/// A backend that is a program.
pub type Exec = Managed<ExecWalls>;

/// What calls the program.
pub struct ExecWalls {
    program: PathBuf,
    arguments: Vec<String>,
    running: Mutex<HashMap<SandboxId, Arc<ExecAgent>>>,
}

impl Exec {
    /// The program, with arguments that come before those of the protocol.
    pub fn program(program: impl Into<PathBuf>, arguments: Vec<String>) -> Self {
        Self::of(ExecWalls { program: program.into(), arguments, running: Mutex::default() })
    }
}

impl ExecWalls {
    async fn measure(&self) -> Result<Capabilities> {
        let told = run_verb(self, &["capabilities"]).await?;
        let mut told: Capabilities = serde_json::from_slice(&told).map_err(|error| {
            let message = "what `capabilities` prints is not a table of capabilities";
            Error::new(ErrorCode::Protocol, "probe", message).backend(NAME).source(error)
        })?;
        told.backend = NAME;
        told.only_by_name = Some(ONLY_BY_NAME.into());
        Ok(told.from_a_peer())
    }

    async fn list_ids(&self) -> Result<Vec<SandboxId>> {
        let told = run_verb(self, &["list"]).await?;
        let wrong = || {
            let message = "what `list` prints is not an id on each line";
            Error::new(ErrorCode::Protocol, "list", message).backend(NAME)
        };
        let text = String::from_utf8(told).map_err(|_| wrong())?;
        text.lines().map(|line| line.parse().map_err(|_| wrong())).collect()
    }
}

#[async_trait]
impl WallBuilder for ExecWalls {
    const NAME: BackendName = NAME;

    async fn probe(self: Arc<Self>) -> Capabilities {
        self.measure().await.unwrap_or_else(|error| {
            let remedy = "see the protocol in docs/adding-a-backend.md";
            Capabilities::unavailable(NAME, Boundary::None, error.to_string(), remedy)
        })
    }

    fn only_by_name(&self) -> Option<String> {
        Some(ONLY_BY_NAME.into())
    }

    async fn build(
        self: Arc<Self>,
        id: &SandboxId,
        admitted: &Admitted,
        _: &Cancellation,
    ) -> Result<Arc<dyn Sandbox>> {
        let (running, client) = ExecAgent::start(&self, id, admitted).await?;
        lock(&self.running).insert(id.clone(), Arc::new(running));
        let sandbox = AgentSandbox::new(id, client, DEFAULT_USER)
            // The program has chosen the user: its walls may have no other.
            .with_command_rule(|command| Ok(Command { user: None, ..command.clone() }));
        Ok(Arc::new(sandbox))
    }

    async fn take_down(&self, id: &SandboxId) -> Result<()> {
        let running = lock(&self.running).remove(id);
        if let Some(running) = running {
            running.end().await;
        }
        run_verb(self, &["destroy", id.as_str()]).await?;
        if !self.list_ids().await?.contains(id) {
            return Ok(());
        }
        let message = format!("`list` names `{id}` after `destroy`");
        Err(Error::new(ErrorCode::LeftBehind, "destroy", message).backend(NAME))
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        self.list_ids().await
    }
}
