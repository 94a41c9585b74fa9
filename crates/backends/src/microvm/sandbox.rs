//! A sandbox in a machine of its own: what is inside it speaks as another host would, and the machine as a
//! whole can be stopped, captured and taken back.

use std::path::Path;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use stockade_core::{
    Admitted, CarriedProgram, Command, EffectiveLimits, Files, Parts, Process, ProcessControl,
    Result, Sandbox, SandboxId, SnapshotKind,
};

use super::create::{Incarnation, Live, connection};
use super::private::Private;
use super::{Inner, NAME, capture, failed, identity};
use crate::across::near::{FarSandbox, Numbers};
use crate::linux;
use crate::linux::brake::Braked;
use crate::linux::turns::to_its_end;

/// A sandbox in a machine of its own.
pub(super) struct MicrovmSandbox(Arc<Parted>);

/// What it is made of.
struct Parted {
    /// Not to keep it from ending.
    backend: Weak<Inner>,
    live: Arc<Live>,
    inside: FarSandbox,
    admitted: Admitted,
}

impl MicrovmSandbox {
    pub(super) fn new(
        backend: &Arc<Inner>,
        live: Arc<Live>,
        inside: FarSandbox,
        admitted: Admitted,
    ) -> Self {
        let backend = Arc::downgrade(backend);
        Self(Arc::new(Parted { backend, live, inside, admitted }))
    }
}

impl Parted {
    /// A program that is let go on before it is ended.
    fn braked(&self, Process { events, control }: Process) -> Process {
        let brake = Arc::clone(&self.live.brake);
        let control: Arc<dyn ProcessControl> = Arc::new(Braked { control, brake });
        Process { events, control }
    }

    fn backend(&self, operation: &'static str) -> Result<Arc<Inner>> {
        self.backend.upgrade().ok_or_else(|| failed(operation, "its backend is gone"))
    }

    /// Captures the machine as a whole. It stands still meanwhile, and goes on whatever comes of it.
    async fn capture(&self, into: &Path) -> Result<()> {
        self.inside.push().await?;
        let _goes_on = self.live.brake.goes_on("snapshot").await?;
        let link = self.inside.link();
        let _standing = link.stand_still("snapshot").await?;
        let (now, used) = (self.live.now.get(), self.inside.numbers());
        let backend = self.backend("snapshot")?;
        let driver = &backend.workshop().await?.driver;
        let captured = capture::capture(&now, into, (&**driver, &self.admitted), used).await;
        now.vm.unpause().await?;
        captured
    }

    /// Goes on with a machine that was captured, in the place of the one there is.
    async fn go_back(&self, from: &Parts) -> Result<()> {
        let backend = self.backend("restore")?;
        let _turn = backend.turns.take(self.inside.id()).await;
        let _goes_on = self.live.brake.goes_on("restore").await?;
        let driver = &backend.workshop().await?.driver;
        let (source, used) = capture::source(from, &**driver, &self.admitted).await?;
        // The one there is has the sandbox's name.
        let private = Private::make(&linux::trial_id())?;
        let next = backend.incarnate(&private, &self.admitted, &source).await;
        let taken = match next {
            Ok(next) => self.take(next, used).await,
            Err(error) => Err(error),
        };
        if taken.is_err() {
            backend.end_machine(private.id()).await?;
        }
        private.remove()?;
        taken
    }

    async fn take(&self, next: Incarnation, used: Numbers) -> Result<()> {
        let connection = connection(next.vm.connect().await?);
        let identity = identity::fresh(self.inside.id())?;
        self.inside.go_back(connection, identity, used).await?;
        let before = self.live.now.replace(Arc::new(next));
        before.vm.end().await
    }
}

#[async_trait]
impl Sandbox for MicrovmSandbox {
    fn id(&self) -> &SandboxId {
        self.0.inside.id()
    }

    fn alive(&self) -> bool {
        self.0.inside.alive()
    }

    async fn spawn(&self, command: &Command, limits: &EffectiveLimits) -> Result<Process> {
        let process = self.0.inside.spawn(command, limits).await?;
        Ok(self.0.braked(process))
    }

    fn take_carried(&self) -> Vec<CarriedProgram> {
        let carried = self.0.inside.take_carried().into_iter();
        carried
            .map(|CarriedProgram { command, process }| CarriedProgram {
                command,
                process: self.0.braked(process),
            })
            .collect()
    }

    fn files(&self) -> Result<&dyn Files> {
        self.0.inside.files()
    }

    async fn snapshot(&self, kind: SnapshotKind, into: &Path) -> Result<()> {
        match kind {
            SnapshotKind::Files => {
                drop(self.0.live.brake.goes_on("snapshot").await?);
                self.0.inside.snapshot(kind, into).await
            }
            SnapshotKind::Full => {
                let (parted, into) = (Arc::clone(&self.0), into.to_owned());
                to_its_end(NAME, async move { parted.capture(&into).await }).await
            }
        }
    }

    async fn restore(&self, from: &Parts) -> Result<()> {
        match from.kind {
            SnapshotKind::Files => {
                drop(self.0.live.brake.goes_on("restore").await?);
                self.0.inside.restore(from).await
            }
            SnapshotKind::Full => {
                let (parted, from) = (Arc::clone(&self.0), from.clone());
                to_its_end(NAME, async move { parted.go_back(&from).await }).await
            }
        }
    }

    async fn pause(&self) -> Result<()> {
        self.0.live.brake.set(true).await
    }

    async fn resume(&self) -> Result<()> {
        self.0.live.brake.set(false).await
    }
}
