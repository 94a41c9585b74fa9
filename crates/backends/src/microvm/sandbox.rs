//! A sandbox in a machine of its own: what is inside it speaks as another host would, and the machine as a
//! whole can be stopped, captured and taken back.

use std::path::Path;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use stockade_core::{
    Admitted, CarriedProgram, Command, EffectiveLimits, Files, Process, Result, Sandbox, SandboxId,
    SandboxPath, SnapshotFiles, SnapshotKind,
};

use super::create::{Incarnation, LiveSandbox, connection_from_stream};
use super::private::PrivateDir;
use super::{MicrovmWalls, NAME, capture, identity, system_error};
use crate::linux;
use crate::managed::to_its_end;
use crate::peer::client::{FarSandbox, UsedNumbers};

/// A sandbox in a machine of its own.
pub(super) struct MicrovmSandbox(Arc<Parted>);

/// What it is made of.
struct Parted {
    /// Not to keep it from ending.
    backend: Weak<MicrovmWalls>,
    live: Arc<LiveSandbox>,
    inside: FarSandbox,
    admitted: Admitted,
}

impl MicrovmSandbox {
    pub(super) fn new(
        backend: &Arc<MicrovmWalls>,
        live: Arc<LiveSandbox>,
        inside: FarSandbox,
        admitted: Admitted,
    ) -> Self {
        let backend = Arc::downgrade(backend);
        Self(Arc::new(Parted { backend, live, inside, admitted }))
    }
}

impl Parted {
    fn upgrade_backend(&self, operation: &'static str) -> Result<Arc<MicrovmWalls>> {
        self.backend.upgrade().ok_or_else(|| system_error(operation, "its backend is gone"))
    }

    /// Captures the machine as a whole. It stands still meanwhile, and goes on also if the capture fails.
    async fn capture_machine(&self, into: &Path) -> Result<()> {
        self.inside.sync.push_changes().await?;
        let _goes_on = self.live.freezer.goes_on("snapshot").await?;
        let link = self.inside.sync.link();
        let _standing = link.stand_still("snapshot").await?;
        let (now, used) = (self.live.now.get(), self.inside.executions.numbers()?);
        let backend = self.upgrade_backend("snapshot")?;
        let driver = &backend.workshop().await?.driver;
        let captured =
            capture::capture_machine(&now, into, (&**driver, &self.admitted), used).await;
        now.vm.unpause().await?;
        captured
    }

    /// Replaces the machine by one that is restored from a snapshot.
    async fn restore_machine(&self, from: &SnapshotFiles) -> Result<()> {
        let backend = self.upgrade_backend("restore")?;
        let _alone = self.live.changing.lock().await;
        let _goes_on = self.live.freezer.goes_on("restore").await?;
        let driver = &backend.workshop().await?.driver;
        let (source, used) = capture::resolve_source(from, &**driver, &self.admitted).await?;
        // The one there is has the sandbox's name.
        let private = PrivateDir::make(&linux::trial_id())?;
        let next = backend.resume_machine(&private, &self.admitted, &source).await;
        let taken = match next {
            Ok(next) => self.replace_machine(next, used).await,
            Err(error) => Err(error),
        };
        if taken.is_err() {
            backend.end_machine(private.id()).await?;
        }
        private.remove()?;
        taken
    }

    async fn replace_machine(&self, next: Incarnation, used: UsedNumbers) -> Result<()> {
        let connection = connection_from_stream(next.vm.connect().await?);
        let identity = identity::generate_identity(self.inside.sandbox.id())?;
        self.inside.executions.go_back(connection, identity, used).await?;
        let before = self.live.now.replace(Arc::new(next));
        before.vm.end().await
    }
}

#[async_trait]
impl Sandbox for MicrovmSandbox {
    fn id(&self) -> &SandboxId {
        self.0.inside.sandbox.id()
    }

    fn alive(&self) -> bool {
        self.0.inside.sandbox.alive()
    }

    fn is_paused(&self) -> bool {
        self.0.live.freezer.is_paused()
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let process = self.0.inside.sandbox.spawn(command, limits).await?;
        Ok(self.0.live.freezer.wrap_process(process))
    }

    fn take_carried(&self) -> Vec<CarriedProgram> {
        let carried = self.0.inside.sandbox.take_carried().into_iter();
        carried
            .map(|CarriedProgram { command, process }| CarriedProgram {
                command,
                process: self.0.live.freezer.wrap_process(process),
            })
            .collect()
    }

    async fn archive_tree(&self, path: &SandboxPath, into: &Path, most: u64) -> Result<()> {
        self.0.inside.sandbox.archive_tree(path, into, most).await
    }

    fn files(&self) -> Result<&dyn Files> {
        self.0.inside.sandbox.files()
    }

    async fn open_network(&self) -> Result<Process> {
        self.0.inside.sandbox.open_network().await
    }

    async fn snapshot(&self, kind: SnapshotKind, into: &Path) -> Result<()> {
        match kind {
            SnapshotKind::Files => {
                drop(self.0.live.freezer.goes_on("snapshot").await?);
                self.0.inside.sandbox.snapshot(kind, into).await
            }
            SnapshotKind::Full => {
                let (parted, into) = (Arc::clone(&self.0), into.to_owned());
                to_its_end(NAME, async move { parted.capture_machine(&into).await }).await
            }
        }
    }

    async fn restore(&self, from: &SnapshotFiles) -> Result<()> {
        match from.kind {
            SnapshotKind::Files => {
                drop(self.0.live.freezer.goes_on("restore").await?);
                self.0.inside.sandbox.restore(from).await
            }
            SnapshotKind::Full => {
                let (parted, from) = (Arc::clone(&self.0), from.clone());
                to_its_end(NAME, async move { parted.restore_machine(&from).await }).await
            }
        }
    }

    async fn pause(&self) -> Result<()> {
        self.0.live.freezer.set(true).await
    }

    async fn resume(&self) -> Result<()> {
        self.0.live.freezer.set(false).await
    }
}
