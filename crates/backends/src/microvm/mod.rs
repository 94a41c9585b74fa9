//! A machine of its own for each sandbox, with a kernel of its own: inside it the native backend builds the
//! walls that it builds anywhere, and speaks as another host would. Every machine is a copy of one that
//! was started once. `docs/backends/microvm.md` says what this does not protect from.
//!
//! What runs the machine is itself inside native walls, and is shown little of this host; or in a jail of its own.

mod capture;
mod create;
mod decompress;
mod dirty_pages;
mod driver;
#[cfg(feature = "factory")]
pub mod factory;
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
mod store;
mod template;
mod tsc;
mod vmm_output;
mod vmm_sandbox;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use stockade_core::{
    Admitted, Backend, BackendName, Boundary, Capabilities, Error, ErrorCode, Result, Sandbox,
    SandboxId, SandboxSpec, SnapshotFiles,
};
use tokio::time::timeout;

use crate::linux::{fingerprint, lock};
use crate::managed::{Cancellation, Managed, WallBuilder};
use crate::native::Native;
use crate::peer::far_program::FAR_DIGEST;
use crate::peer::protocol::RemoteRequest;
use create::LiveSandbox;
use driver::Driver;
use firecracker::Firecracker;
use image::RootSource;
use kvm::Kvm;
use private::PRIVATE_DIRS;
use qemu::{Power, Qemu};
use store::MachineStore;
use template::{MachineTemplate, TemplateWorkshop, WantedMachine};

/// The microvm backend's name.
pub const NAME: BackendName = BackendName::literal("microvm");

/// The reason why an emulating backend is chosen only by its name.
const EMULATED_REASON: &str = "its machines are emulated in software, which claims no security";

/// KVM's name among the host's devices.
const KVM_DEVICE_NAME: &str = "kvm";

/// Timeout for a machine to bring its last changes; after it the machine is ended without them.
const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a paused machine that is to be removed may take to go on.
const RESUME_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for a template machine to boot while the backend is measured. Less than engines wait for a
/// measurement, which is a minute: the backend itself says what is wrong.
const PROBE_BOOT_TIMEOUT: Duration = Duration::from_secs(45);

/// What is said while a machine is prepared, which may take a minute.
pub type Progress = Arc<dyn Fn(&str) + Send + Sync>;

/// How machines are made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "factory", derive(serde::Deserialize))]
#[cfg_attr(feature = "factory", serde(rename_all = "camelCase", deny_unknown_fields, default))]
pub struct Options {
    /// The directory that is the root of machines where the caller names no other; absent: what the native
    /// backend shows of this host.
    pub root: Option<PathBuf>,
    /// Where what was prepared is kept; absent: below the user's cache.
    pub cache: Option<PathBuf>,
    /// The Firecracker that runs them; absent: QEMU does.
    pub firecracker: Option<firecracker::FirecrackerSettings>,
    /// Whether what is not prepared yet is prepared to be measured, which may take minutes and gigabytes.
    #[cfg_attr(feature = "factory", serde(skip))]
    pub prepare: bool,
}

/// Begins to find out whether KVM runs guests here, which the first backend of this process that wants to
/// know then need not wait for. Starts a thread, so that this process can be forked no more.
pub fn begin_kvm_probe() {
    kvm::begin_probe();
}

/// The microvm backend. Its sandboxes end with this value.
pub type Microvm = Managed<MicrovmWalls>;

/// What has the microvm backend's walls built: machines.
pub struct MicrovmWalls {
    options: Options,
    progress: Progress,
    /// Builds the walls around what runs machines and what packs their roots.
    native: Arc<Native>,
    workshop: tokio::sync::OnceCell<TemplateWorkshop>,
    live: Mutex<HashMap<SandboxId, Arc<LiveSandbox>>>,
    kvm: OnceLock<Kvm>,
}

fn system_error(operation: &'static str, message: impl Into<String>) -> Error {
    Error::new(ErrorCode::System, operation, message).backend(NAME)
}

impl Microvm {
    /// A backend that has not touched anything yet.
    pub fn new(options: Options) -> Self {
        Self::with_progress(options, Arc::new(|_| {}))
    }

    /// The same, which says what it prepares.
    pub fn with_progress(options: Options, progress: Progress) -> Self {
        Self::of(MicrovmWalls {
            options,
            progress,
            native: Arc::new(Native::new()),
            workshop: tokio::sync::OnceCell::new(),
            live: Mutex::default(),
            kvm: OnceLock::new(),
        })
    }
}

impl MicrovmWalls {
    async fn workshop(&self) -> Result<&TemplateWorkshop> {
        self.workshop.get_or_try_init(|| self.open_workshop()).await
    }

    async fn open_workshop(&self) -> Result<TemplateWorkshop> {
        let store = MachineStore::open(self.options.cache.clone())?;
        store.remove_stale_drafts();
        let driver: Arc<dyn Driver> = match &self.options.firecracker {
            Some(settings) => Arc::new(self.open_firecracker(settings).await?),
            None => Arc::new(self.open_qemu(&store)?),
        };
        let (native, progress) = (Arc::clone(&self.native), Arc::clone(&self.progress));
        Ok(TemplateWorkshop { store, native, driver, runner: self.runner_fingerprint(), progress })
    }

    /// The driver that needs a processor which runs guests, if there is one.
    async fn open_firecracker(
        &self,
        settings: &firecracker::FirecrackerSettings,
    ) -> Result<Firecracker> {
        match self.probe_kvm() {
            Kvm::Works => Firecracker::open(settings.clone(), native_with_kvm()).await,
            lacking @ (Kvm::Absent | Kvm::Denied | Kvm::CannotRunLinux { .. }) => {
                Err(Error::new(ErrorCode::Unavailable, "create", lacking.to_string())
                    .backend(NAME)
                    .remedy(lacking.remedy()))
            }
        }
    }

    /// The driver that works anywhere, in walls that show it no more than it needs.
    fn open_qemu(&self, store: &MachineStore) -> Result<Qemu> {
        let power = self.choose_power();
        let native = match power {
            Power::Processor => native_with_kvm(),
            Power::Software => Arc::clone(&self.native),
        };
        Qemu::open(native, power, store.ensure_program_file()?)
    }

    /// What KVM is good for here. Looked at once, which takes about a millisecond.
    fn probe_kvm(&self) -> &Kvm {
        self.kvm.get_or_init(|| kvm::finish_probe().unwrap_or_else(kvm::probe_kvm))
    }

    fn choose_power(&self) -> Power {
        match self.probe_kvm() {
            Kvm::Works => Power::Processor,
            Kvm::Absent | Kvm::Denied | Kvm::CannotRunLinux { .. } => Power::Software,
        }
    }

    /// What would stand between a guest and the host, if a machine could be had.
    fn boundary(&self) -> Boundary {
        match (&self.options.firecracker, self.choose_power()) {
            (Some(_), _) | (None, Power::Processor) => Boundary::Hardware,
            (None, Power::Software) => Boundary::Emulated,
        }
    }

    /// Tells what runs machines from another that would not continue its templates.
    fn runner_fingerprint(&self) -> String {
        match &self.options.firecracker {
            Some(settings) => settings.fingerprint(),
            None => {
                let version = |path: &Path| fingerprint::hash_file_state(path).unwrap_or_default();
                let program = qemu::find_program().map(version).unwrap_or_default();
                format!("qemu {program} {:?}", self.choose_power())
            }
        }
    }

    /// The root of a machine whose spec does not ask for another.
    fn default_root(&self) -> RootSource {
        self.options.root.clone().map_or(RootSource::Host, RootSource::Directory)
    }

    /// The machine that serves most.
    fn default_wanted(&self) -> WantedMachine {
        WantedMachine::from_limits(self.default_root(), &SandboxSpec::default().limits)
    }

    /// One that tells what machines can enforce. What is in its root does not matter: packing a whole host
    /// is left to who uses that.
    async fn find_sample_template(&self, workshop: &TemplateWorkshop) -> Result<MachineTemplate> {
        let usual = self.default_wanted();
        if let Some(found) = workshop.find_template(&usual)? {
            return Ok(found);
        }
        let sample = match usual.root {
            RootSource::Host => WantedMachine { root: RootSource::Empty, ..usual },
            RootSource::Directory(_) | RootSource::Archive(_) | RootSource::Empty => usual,
        };
        match self.options.prepare {
            true => workshop.find_or_make_template(&sample, PROBE_BOOT_TIMEOUT).await,
            false => workshop.find_template(&sample)?.ok_or_else(not_prepared_error),
        }
    }

    async fn measure_capabilities(&self) -> Result<Capabilities> {
        let workshop = self.workshop().await?;
        let template = self.find_sample_template(workshop).await?;
        let mut measured =
            probe::adapt_capabilities(workshop.driver.boundary(), &template.measured);
        if measured.boundary == Boundary::Emulated {
            measured.only_by_name = Some(format!("{EMULATED_REASON}; {}", self.probe_kvm()));
        }
        Ok(measured)
    }

    /// Ends the machine of this name, also of another engine's.
    async fn end_machine(&self, id: &SandboxId) -> Result<()> {
        self.native.destroy(id).await?;
        match self.options.firecracker {
            Some(_) => firecracker::end_jailed_machine(id).await,
            None => Ok(()),
        }
    }
}

/// Walls for what runs machines by the processor. Those who pack roots are not trusted with that.
fn native_with_kvm() -> Arc<Native> {
    Arc::new(Native::trusted_with(&[KVM_DEVICE_NAME]))
}

fn not_prepared_error() -> Error {
    Error::new(ErrorCode::Unavailable, "probe", "no machine is prepared yet")
        .backend(NAME)
        .remedy("prepare it once, which takes a while: `stockade run --backend microvm -- true`")
}

impl LiveSandbox {
    /// Brings the last changes, and ends the machine. What could not be brought is told when nothing is left.
    async fn shut_down(&self) -> Result<()> {
        // One that stands still does not answer. The machine ends all the same, and in time.
        let running = timeout(RESUME_TIMEOUT, self.freezer.keep_running()).await;
        let running = running
            .unwrap_or_else(|_| Err(system_error("destroy", "its machine did not go on in time")));
        let sync = self.sync.lock().await.take();
        if let Some(sync) = &sync {
            let asked = match running {
                Ok(_running) => {
                    timeout(TEARDOWN_TIMEOUT, sync.ask("destroy", &RemoteRequest::Destroy)).await
                }
                Err(error) => Ok(Err(error)),
            };
            sync.link().close();
            sync.wait_until_still().await;
            let slow = || Err(system_error("destroy", "its machine did not remove it in time"));
            if let Err(error) = asked.unwrap_or_else(|_| slow()) {
                sync.mark_parted(error);
            }
        }
        self.now.get().vm.end().await?;
        sync.map_or(Ok(()), |sync| sync.report_conflicts())
    }
}

#[async_trait]
impl WallBuilder for MicrovmWalls {
    const NAME: BackendName = NAME;

    async fn probe(self: Arc<Self>) -> Capabilities {
        match self.measure_capabilities().await {
            Ok(measured) => measured,
            Err(error) => probe::unavailable_capabilities(self.boundary(), &error),
        }
    }

    fn only_by_name(&self) -> Option<String> {
        (self.boundary() == Boundary::Emulated).then(|| EMULATED_REASON.into())
    }

    fn fingerprint(&self) -> Option<String> {
        let template = self.default_wanted().fingerprint(&self.runner_fingerprint()).ok()?;
        let prepare = self.options.prepare;
        Some(format!("{FAR_DIGEST} {template} {prepare}"))
    }

    async fn build(
        self: Arc<Self>,
        id: &SandboxId,
        admitted: &Admitted,
        cancellation: &Cancellation,
    ) -> Result<Arc<dyn Sandbox>> {
        // A machine that is being prepared is of use to the next caller, and one that starts is not half one.
        cancellation.forbid();
        self.build_sandbox(id, admitted).await
    }

    async fn build_from(
        self: Arc<Self>,
        id: &SandboxId,
        admitted: &Admitted,
        from: &SnapshotFiles,
        cancellation: &Cancellation,
    ) -> Result<Arc<dyn Sandbox>> {
        cancellation.forbid();
        self.build_from_snapshot(id, admitted, from).await
    }

    async fn take_down(&self, id: &SandboxId) -> Result<()> {
        let live = lock(&self.live).get(id).cloned();
        let _alone = match &live {
            Some(live) => Some(live.changing.lock().await),
            None => None,
        };
        // Told when nothing is left, unless something is.
        let told = match &live {
            Some(live) => live.shut_down().await,
            None => Ok(()),
        };
        self.end_machine(id).await?;
        PRIVATE_DIRS.remove(id)?;
        lock(&self.live).remove(id);
        told
    }

    async fn list(&self) -> Result<Vec<SandboxId>> {
        Ok(PRIVATE_DIRS.list())
    }

    fn leftovers(&self) -> Vec<SandboxId> {
        PRIVATE_DIRS.list()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn firecracker_options() -> Options {
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
        let (options, backend) = (firecracker_options(), Microvm::new(firecracker_options()));
        let measured = backend.probe().await;
        std::fs::remove_dir_all(options.cache.unwrap()).unwrap();
        assert_eq!(measured.boundary, Boundary::Hardware);
        assert!(measured.unavailable.is_some(), "{measured:?}");
    }
}
