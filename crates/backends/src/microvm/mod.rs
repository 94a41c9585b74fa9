//! A machine of its own for each sandbox, with a kernel of its own: inside it the native backend builds the
//! walls that it builds anywhere, and speaks as another host would. Every machine is a copy of one that
//! was started once. `docs/backends/microvm.md` says what this does not protect from.
//!
//! What runs the machine is itself inside native walls, and is shown little of this host; or in a jail of its own.

mod cage;
mod capture;
mod create;
mod decompress;
mod driver;
pub mod firecracker;
mod identity;
mod image;
mod initramfs;
mod kernel;
mod kvm;
mod modules;
mod oci;
mod private;
mod probe;
mod qemu;
mod sandbox;
mod sparse;
mod store;
mod template;
mod touched;
mod tsc;
mod words;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use stockade_core::{
    Admitted, Backend, BackendName, Boundary, Capabilities, Error, ErrorCode, Parts, Result,
    Sandbox, SandboxId, SandboxSpec, SnapshotKind, create_and_restore,
};
use tokio::time::timeout;

use crate::across::far::FAR_DIGEST;
use crate::across::words::Ask;
use crate::linux::cgroup::throwaway;
use crate::linux::turns::{Turns, to_its_end};
use crate::linux::{fingerprint, lock};
use crate::native::Native;
use create::Live;
use driver::Driver;
use firecracker::Firecracker;
use image::Root;
use kvm::Kvm;
use qemu::{Power, Qemu};
use store::Store;
use template::{Template, Wanted, Workshop};

/// The microvm backend's name.
pub const NAME: BackendName = BackendName::literal("microvm");

/// The reason why an emulating backend is chosen only by its name.
const EMULATED_REASON: &str = "its machines are emulated in software, which claims no security";

/// KVM's name among the host's devices.
const KVM_DEVICE_NAME: &str = "kvm";

/// Timeout for a machine to bring its last changes; after it the machine is ended without them.
const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(15);

/// What is said while a machine is prepared, which may take a minute.
pub type Progress = Arc<dyn Fn(&str) + Send + Sync>;

/// How machines are made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// The directory that is the root of machines where nobody asks for another; absent: what the native
    /// backend shows of this host.
    pub root: Option<PathBuf>,
    /// Where what was prepared is kept; absent: below the user's cache.
    pub cache: Option<PathBuf>,
    /// The Firecracker that runs them; absent: QEMU does.
    pub firecracker: Option<firecracker::Settings>,
    /// Whether what is not prepared yet is prepared to be measured, which may take minutes and gigabytes.
    pub prepare: bool,
}

/// The microvm backend. Its sandboxes end with this value.
pub struct Microvm(Arc<Inner>);

struct Inner {
    options: Options,
    progress: Progress,
    /// Builds the walls around what runs machines and what packs their roots.
    native: Arc<Native>,
    workshop: tokio::sync::OnceCell<Workshop>,
    live: Mutex<HashMap<SandboxId, Arc<Live>>>,
    swept: tokio::sync::OnceCell<()>,
    turns: Turns,
    kvm: OnceLock<Kvm>,
}

fn failed(operation: &'static str, message: impl Into<String>) -> Error {
    Error::new(ErrorCode::System, operation, message).backend(NAME)
}

impl Microvm {
    /// A backend that has not touched anything yet.
    pub fn new(options: Options) -> Self {
        Self::with_progress(options, Arc::new(|_| {}))
    }

    /// The same, which says what it prepares.
    pub fn with_progress(options: Options, progress: Progress) -> Self {
        Self(Arc::new(Inner {
            options,
            progress,
            native: Arc::new(Native::new()),
            workshop: tokio::sync::OnceCell::new(),
            live: Mutex::default(),
            swept: tokio::sync::OnceCell::new(),
            turns: Turns::default(),
            kvm: OnceLock::new(),
        }))
    }
}

impl Inner {
    async fn workshop(&self) -> Result<&Workshop> {
        self.workshop.get_or_try_init(|| self.open()).await
    }

    async fn open(&self) -> Result<Workshop> {
        let store = Store::open(self.options.cache.clone())?;
        let driver: Arc<dyn Driver> = match &self.options.firecracker {
            Some(settings) => Arc::new(self.firecracker(settings).await?),
            None => Arc::new(self.qemu(&store)?),
        };
        let (native, progress) = (Arc::clone(&self.native), Arc::clone(&self.progress));
        Ok(Workshop { store, native, driver, runner: self.runner(), progress })
    }

    /// The driver that needs a processor which runs guests, if there is one.
    async fn firecracker(&self, settings: &firecracker::Settings) -> Result<Firecracker> {
        match self.kvm() {
            Kvm::Works => Firecracker::open(settings.clone(), trusted_with_kvm()).await,
            lacking @ (Kvm::Absent | Kvm::Denied | Kvm::CannotRunLinux { .. }) => {
                Err(Error::new(ErrorCode::Unavailable, "create", lacking.to_string())
                    .backend(NAME)
                    .remedy(lacking.remedy()))
            }
        }
    }

    /// The driver that works anywhere, in walls that show it no more than it needs.
    fn qemu(&self, store: &Store) -> Result<Qemu> {
        let power = self.power();
        let native = match power {
            Power::Processor => trusted_with_kvm(),
            Power::Software => Arc::clone(&self.native),
        };
        Qemu::open(native, power, store.program()?)
    }

    /// What KVM is good for here. Looked at once, which takes about a millisecond.
    fn kvm(&self) -> &Kvm {
        self.kvm.get_or_init(kvm::probe)
    }

    fn power(&self) -> Power {
        match self.kvm() {
            Kvm::Works => Power::Processor,
            Kvm::Absent | Kvm::Denied | Kvm::CannotRunLinux { .. } => Power::Software,
        }
    }

    /// What would stand between a guest and the host, if a machine could be had.
    fn boundary(&self) -> Boundary {
        match (&self.options.firecracker, self.power()) {
            (Some(_), _) | (None, Power::Processor) => Boundary::Hardware,
            (None, Power::Software) => Boundary::Emulated,
        }
    }

    /// Tells what runs machines from another that would not continue its templates.
    fn runner(&self) -> String {
        match &self.options.firecracker {
            Some(settings) => settings.fingerprint(),
            None => {
                let version = |path: &Path| fingerprint::version(path).unwrap_or_default();
                let program = qemu::program().map(version).unwrap_or_default();
                format!("qemu {program} {:?}", self.power())
            }
        }
    }

    /// The root of a machine for whoever does not ask for another.
    fn root(&self) -> Root {
        self.options.root.clone().map_or(Root::Host, Root::Directory)
    }

    /// The machine that serves most.
    fn usual(&self) -> Wanted {
        Wanted::of(self.root(), &SandboxSpec::default().limits)
    }

    /// One that tells what machines can enforce. What is in its root does not matter: packing a whole host
    /// is left to who uses that.
    async fn sample(&self, workshop: &Workshop) -> Result<Template> {
        let usual = self.usual();
        if let Some(found) = workshop.find(&usual)? {
            return Ok(found);
        }
        let sample = match usual.root {
            Root::Host => Wanted { root: Root::Empty, ..usual },
            Root::Directory(_) | Root::Archive(_) | Root::Empty => usual,
        };
        match self.options.prepare {
            true => workshop.ready(&sample).await,
            false => workshop.find(&sample)?.ok_or_else(not_prepared),
        }
    }

    async fn measure(&self) -> Result<Capabilities> {
        let workshop = self.workshop().await?;
        let template = self.sample(workshop).await?;
        let mut measured = probe::adapted(workshop.driver.boundary(), &template.measured);
        if measured.boundary == Boundary::Emulated {
            measured.only_by_name = Some(format!("{EMULATED_REASON}; {}", self.kvm()));
        }
        Ok(measured)
    }

    /// What was built, or nothing of it.
    async fn or_end<T>(&self, id: &SandboxId, built: Result<T>) -> Result<T> {
        if built.is_err() {
            self.end(id).await?;
        }
        built
    }

    /// Ends a sandbox and removes every trace, whoever made it.
    async fn end(&self, id: &SandboxId) -> Result<()> {
        let live = lock(&self.live).get(id).cloned();
        // Told when nothing is left, unless something is.
        let told = match live {
            Some(live) => live.end().await,
            None => Ok(()),
        };
        self.end_machine(id).await?;
        private::remove(id)?;
        lock(&self.live).remove(id);
        self.turns.forget(id);
        told
    }

    /// Ends the machine of this name, whoever started it.
    async fn end_machine(&self, id: &SandboxId) -> Result<()> {
        self.native.destroy(id).await?;
        match self.options.firecracker {
            Some(_) => firecracker::clear(id).await,
            None => Ok(()),
        }
    }

    /// Removes what trials of engines that are gone have left: no lease names them. Once is enough.
    async fn sweep(&self) {
        let sweep = async {
            for id in private::ids().iter().filter(|id| throwaway::is_forsaken(id.as_str())) {
                // Whoever comes next tries again.
                let _ = self.end(id).await;
            }
            if let Ok(workshop) = self.workshop().await {
                workshop.store.tidy();
            }
        };
        self.swept.get_or_init(|| sweep).await;
    }
}

/// Walls for what runs machines by the processor. Those who pack roots are not trusted with that.
fn trusted_with_kvm() -> Arc<Native> {
    Arc::new(Native::trusted_with(&[KVM_DEVICE_NAME]))
}

fn not_prepared() -> Error {
    Error::new(ErrorCode::Unavailable, "probe", "no machine is prepared yet")
        .backend(NAME)
        .remedy("prepare it once, which takes a while: `stockade run --backend microvm -- true`")
}

impl Live {
    /// Brings the last changes, and ends the machine. What could not be brought is told when nothing is left.
    async fn end(&self) -> Result<()> {
        // One that stands still does not answer.
        let goes_on = self.brake.set(false).await;
        let bridge = self.bridge.lock().await.take();
        if let Some(bridge) = &bridge {
            let asked = match goes_on {
                Ok(()) => timeout(TEARDOWN_TIMEOUT, bridge.ask("destroy", &Ask::Destroy)).await,
                Err(error) => Ok(Err(error)),
            };
            bridge.link().close();
            bridge.still().await;
            let slow = || Err(failed("destroy", "its machine takes too long to take it down"));
            if let Err(error) = asked.unwrap_or_else(|_| slow()) {
                bridge.part(error);
            }
        }
        self.now.get().vm.end().await?;
        bridge.map_or(Ok(()), |bridge| bridge.tell())
    }
}

#[async_trait]
impl Backend for Microvm {
    fn name(&self) -> BackendName {
        NAME
    }

    async fn probe(&self) -> Capabilities {
        self.0.sweep().await;
        match self.0.measure().await {
            Ok(measured) => measured,
            Err(error) => probe::cannot(self.0.boundary(), &error),
        }
    }

    fn only_by_name(&self) -> Option<String> {
        (self.0.boundary() == Boundary::Emulated).then(|| EMULATED_REASON.into())
    }

    fn fingerprint(&self) -> Option<String> {
        let template = self.0.usual().fingerprint(&self.0.runner()).ok()?;
        let prepare = self.0.options.prepare;
        Some(format!("{FAR_DIGEST} {template} {prepare}"))
    }

    async fn create(&self, id: &SandboxId, admitted: &Admitted) -> Result<Arc<dyn Sandbox>> {
        self.0.sweep().await;
        let turn = self.0.turns.take(id).await;
        let (inner, id, admitted) = (Arc::clone(&self.0), id.clone(), admitted.clone());
        to_its_end(NAME, async move {
            let _turn = turn;
            let built = inner.build(&id, &admitted).await;
            inner.or_end(&id, built).await
        })
        .await
    }

    async fn create_from(
        &self,
        id: &SandboxId,
        admitted: &Admitted,
        from: &Parts,
    ) -> Result<Arc<dyn Sandbox>> {
        if from.kind == SnapshotKind::Files {
            return create_and_restore(self, id, admitted, from).await;
        }
        self.0.sweep().await;
        let turn = self.0.turns.take(id).await;
        let (inner, id, admitted) = (Arc::clone(&self.0), id.clone(), admitted.clone());
        let from = from.clone();
        to_its_end(NAME, async move {
            let _turn = turn;
            let built = inner.build_from(&id, &admitted, &from).await;
            inner.or_end(&id, built).await
        })
        .await
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        self.0.sweep().await;
        Ok(private::ids())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<()> {
        let _turn = self.0.turns.take(id).await;
        self.0.end(id).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn firecracker() -> Options {
        let text = serde_json::json!({ "binary": "/nonexistent/firecracker" });
        let cache = std::env::temp_dir().join(format!("stockade-none-{}", std::process::id()));
        Options {
            firecracker: Some(serde_json::from_value(text).unwrap()),
            cache: Some(cache),
            ..Options::default()
        }
    }

    #[tokio::test]
    async fn a_firecracker_that_cannot_be_had_is_not_replaced_by_emulation() {
        let (options, backend) = (firecracker(), Microvm::new(firecracker()));
        let measured = backend.probe().await;
        std::fs::remove_dir_all(options.cache.unwrap()).unwrap();
        assert_eq!(measured.boundary, Boundary::Hardware);
        assert!(measured.unavailable.is_some(), "{measured:?}");
    }
}
