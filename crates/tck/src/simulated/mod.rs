//! The probe as a program of the mock backend: the same verbs over a virtual guest, and the mock as a
//! subject. It proves that the kit and everything above the backends work, and nothing about walls.

mod facts;
mod files;
mod presence;
mod verbs;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use stockade_backends::mock::{Guest, Mock, MockProgram};
use stockade_core::{Backend, ExitStatus, SandboxId};

use crate::{Observer, ProbeForm, Subject};
use presence::SimulatedPrograms;

/// The simulated probe. It keeps count of everything that runs, so that leaks can be seen without
/// asking the backend.
#[derive(Clone, Default)]
pub struct SimulatedProbe {
    presence: SimulatedPrograms,
}

#[async_trait]
impl MockProgram for SimulatedProbe {
    async fn run(&self, guest: &mut Guest) -> ExitStatus {
        let _present = self.presence.register_guest(guest);
        verbs::run_verb(guest, &self.presence).await
    }
}

impl Observer for SimulatedProbe {
    fn leftovers(&self, id: &SandboxId) -> Vec<String> {
        self.presence.list_matching(|present| present.sandbox == *id)
    }

    fn marked(&self, mark: &str) -> Vec<String> {
        self.presence.list_matching(|present| present.mark.starts_with(mark))
    }
}

/// The mock as a subject, or a backend built around it.
pub struct Simulated {
    name: String,
    probe: SimulatedProbe,
    backend: Arc<dyn Backend>,
    engine: Option<(PathBuf, Vec<String>)>,
}

impl Default for Simulated {
    fn default() -> Self {
        Self::around("mock", |mock| Arc::new(mock))
    }
}

impl Simulated {
    /// A backend built around a mock that plays the probe.
    pub fn around(name: &str, build: impl FnOnce(Mock) -> Arc<dyn Backend>) -> Self {
        let probe = SimulatedProbe::default();
        let backend = build(Mock::new().with_program("./probe", probe.clone()));
        Self { name: name.to_owned(), probe, backend, engine: None }
    }

    /// With a program that takes the name of a subject and plays an engine process for it.
    #[must_use]
    pub fn with_engine_process(self, program: PathBuf) -> Self {
        self.with_engine_command(program, vec!["mock".to_owned()])
    }

    /// The same, by these arguments.
    #[must_use]
    pub fn with_engine_command(self, program: PathBuf, arguments: Vec<String>) -> Self {
        Self { engine: Some((program, arguments)), ..self }
    }
}

impl Subject for Simulated {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend)
    }

    fn probe(&self) -> ProbeForm {
        ProbeForm::Simulated
    }

    fn observer(&self) -> Arc<dyn Observer> {
        Arc::new(self.probe.clone())
    }

    fn engine_process(&self) -> Option<std::process::Command> {
        let (program, arguments) = self.engine.as_ref()?;
        let mut process = std::process::Command::new(program);
        process.args(arguments);
        Some(process)
    }
}
