//! What a case works with: an engine, directories and a mark of its own, the probe in the workspace,
//! and an observer outside. A kit must never share anything with another one.

mod engine_child;
mod ran;
mod room;
mod traces;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stockade_core::{
    Backend, Boundary, Capabilities, Command, Feature, HostPath, OverlayDirs, SandboxId,
    SandboxSpec, SnapshotId, Support, Workspace,
};
use stockade_engine::{Engine, EngineConfig, Execution, SandboxRequest, Watcher};
use tempfile::{TempDir, TempPath};

pub(crate) use engine_child::start_engine_process;
pub use ran::Ran;
pub(crate) use ran::{collect_output, wait_for_output};
pub use room::Room;
pub(crate) use room::carry_probe_in;

use crate::witness::Witness;
use crate::{MARK_VARIABLE, ProbeForm, Stop, Subject, Verdict};

/// Timeout of [`wait_until`]: for a condition that has to hold, but not at once.
pub(crate) const EVENTUAL_TIMEOUT: Duration = Duration::from_secs(15);

/// The certificate of an authority that has signed nothing and whose key is lost.
const TRUSTED_PEM: &str = "-----BEGIN CERTIFICATE-----\n\
MIIBhDCCASugAwIBAgIUJeAzf9vzElKlLb5iglgY3OY9GA4wCgYIKoZIzj0EAwIw\n\
FzEVMBMGA1UEAwwMU3RvY2thZGUga2l0MCAXDTI2MTExODAwMTAyMVoYDzIxMjYx\n\
MDI1MDAxMDIxWjAXMRUwEwYDVQQDDAxTdG9ja2FkZSBraXQwWTATBgcqhkjOPQIB\n\
BggqhkjOPQMBBwNCAAQKbY2CK6VrY/siW/c3gIQ0KN3GtynVSz+5k4AKfKjhlszA\n\
XZ2f+bBsQ80+ZKhwE/M1kYYpVL7eBzDtByvbMt4eo1MwUTAdBgNVHQ4EFgQUCJ2N\n\
dvasCkhtu3XCdA0gtKoWx8cwHwYDVR0jBBgwFoAUCJ2NdvasCkhtu3XCdA0gtKoW\n\
x8cwDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNHADBEAiAYS/bWczaS2E2V\n\
Jg3ZuEpsWNxpkvQutHFhoqDA/jJbaAIgOkOPe0/ZsXUzsLBJOow8zGBh693F57A/\n\
496De58yXwA=\n\
-----END CERTIFICATE-----\n";

/// What a case works with. Clones are the same kit.
#[derive(Clone)]
pub struct Kit(Arc<KitInner>);

struct KitInner {
    subject: Arc<dyn Subject>,
    capabilities: Capabilities,
    shelf: Arc<Shelf>,
    witness: Arc<Witness>,
    engine: Engine,
    mark: String,
    base: TempDir,
}

/// A command that runs a verb of the probe.
pub(crate) fn probe_command<'a>(args: impl AsRef<[&'a str]>) -> Command {
    Command::program(["./probe"].iter().chain(args.as_ref()).copied())
}

impl Kit {
    /// A kit for one case. `hidden` is a feature that the backend is made to lack.
    pub(crate) async fn new(
        subject: Arc<dyn Subject>,
        capabilities: Capabilities,
        shelf: Arc<Shelf>,
        hidden: Option<Feature>,
    ) -> Verdict<Self> {
        let base = lay_out(&shelf)?;
        let capabilities = hidden.into_iter().fold(capabilities, |rest, feature| {
            rest.with(feature, Support::missing("hidden by the kit", "ask the kit to show it"))
        });
        let backend = subject.backend();
        let witness = Arc::new(Witness::new(backend, capabilities.clone(), hidden));
        let mut config = EngineConfig::at(base.path().join("state"));
        // A host without trusted certificates can be judged as well.
        let trusted = base.path().join("trusted.pem");
        fs::write(&trusted, TRUSTED_PEM)?;
        config.trust.ca_file = Some(trusted);
        let engine = Engine::open(config, vec![Arc::clone(&witness) as Arc<dyn Backend>]).await?;
        let mark = format!("mark{}", generate_random_hex()?);
        Ok(Self(Arc::new(KitInner { subject, capabilities, shelf, witness, engine, mark, base })))
    }

    /// The same subject without this feature, with an engine of its own.
    pub(crate) async fn with_hidden_feature(&self, feature: Feature) -> Verdict<Self> {
        let KitInner { subject, capabilities, shelf, .. } = self.0.as_ref();
        Self::new(Arc::clone(subject), capabilities.clone(), Arc::clone(shelf), Some(feature)).await
    }

    /// One more engine on the same state directory, set up as told.
    pub(crate) async fn another_engine(
        &self,
        set_up: impl FnOnce(&mut EngineConfig),
    ) -> Verdict<Engine> {
        let mut config = EngineConfig::at(self.state());
        set_up(&mut config);
        Ok(Engine::open(config, vec![self.backend()]).await?)
    }

    /// Its engine.
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// The backend that is judged.
    pub fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.0.witness) as Arc<dyn Backend>
    }

    /// Who is judged.
    pub fn subject(&self) -> &dyn Subject {
        self.0.subject.as_ref()
    }

    /// Whether the probe is a program of the host's own kind.
    pub fn is_native(&self) -> bool {
        matches!(self.0.subject.probe(), ProbeForm::Native(_))
    }

    /// Whether the probe is WebAssembly, which has no calls for much of what others try.
    pub fn is_wasm(&self) -> bool {
        matches!(self.0.subject.probe(), ProbeForm::Wasm(_))
    }

    /// What stands between the guest and the host.
    pub fn boundary(&self) -> Boundary {
        self.0.capabilities.boundary
    }

    /// Whether a kernel of its own, in user space, stands between the guest and the host's.
    pub fn has_own_kernel(&self) -> bool {
        self.boundary() == Boundary::UserspaceKernel
    }

    /// Whether the probe is a file, so that the host can be looked at too.
    fn is_real(&self) -> bool {
        self.0.subject.probe().bytes().is_some()
    }

    /// A text that nothing else carries.
    pub fn mark(&self) -> &str {
        &self.0.mark
    }

    /// The engine's state directory.
    pub fn state(&self) -> PathBuf {
        self.0.base.path().join("state")
    }

    /// The host's side of a local workspace.
    pub fn workspace(&self) -> PathBuf {
        self.0.base.path().join("workspace")
    }

    /// A directory of the host that no sandbox was given.
    pub fn outside(&self) -> PathBuf {
        self.0.base.path().join("outside")
    }

    /// A directory of the host that holds nothing but the probe.
    pub fn programs(&self) -> PathBuf {
        self.0.base.path().join("programs")
    }

    /// Whether the backend declares a feature in full.
    pub fn has(&self, feature: Feature) -> bool {
        self.0.capabilities.has(feature)
    }

    /// Skips the rest of the case unless the backend declares this feature in full.
    pub fn require(&self, feature: Feature) -> Verdict {
        if self.has(feature) { Ok(()) } else { Err(Stop::Lacking(feature)) }
    }

    /// Whether the backend says that it does not keep a clause in full here.
    pub fn has_gap(&self, clause: &str) -> bool {
        self.0.capabilities.has_gap(clause)
    }

    /// How far the backend declares a feature.
    pub fn support(&self, feature: Feature) -> Support {
        self.0.capabilities.support(feature)
    }

    /// A verb of the probe that keeps what it has taken, where the limit is only polled: when the next poll comes
    /// depends on how busy the host is.
    pub fn staying_if_watched<'a>(&self, feature: Feature, verb: &[&'a str]) -> Vec<&'a str> {
        let watched = matches!(self.support(feature), Support::Partial { .. });
        let stay = if watched { &["600000"][..] } else { &[] };
        [verb, stay].concat()
    }

    /// What cases start from: the probe in the workspace, the mark in the environment.
    pub fn spec(&self) -> SandboxSpec {
        let mut spec = self.0.subject.spec();
        if self.is_real() && self.has(Feature::LocalWorkspace) {
            spec.workspace = host_path(&self.workspace()).map_or(spec.workspace, Workspace::Local);
        }
        spec.env.extend(MARK_VARIABLE.parse().map(|name| (name, self.0.mark.clone())));
        spec
    }

    /// Like `spec`, with a workspace that no other number has.
    pub fn spec_apart(&self, number: usize) -> Verdict<SandboxSpec> {
        let mut spec = self.spec();
        if let Workspace::Local(_) = spec.workspace {
            let own = self.0.base.path().join(format!("workspace-{number}"));
            create_probe_directory(&own, Some(&self.0.shelf))?;
            spec.workspace = Workspace::Local(host_path(&own)?);
        }
        Ok(spec)
    }

    /// Like `spec`, with a copy-on-write view of the workspace; the same layers each time.
    pub fn spec_overlaid(&self) -> Verdict<SandboxSpec> {
        let mut spec = self.spec();
        let layer = |name| -> Verdict<HostPath> {
            let path = self.layer(name);
            fs::create_dir_all(&path)?;
            host_path(&path)
        };
        let (upper, work) = (layer("upper")?, layer("work")?);
        let lower = host_path(&self.workspace())?;
        spec.workspace = Workspace::Overlay(OverlayDirs { lower, upper, work });
        Ok(spec)
    }

    /// A layer of that view, by its name.
    pub fn layer(&self, name: &str) -> PathBuf {
        self.0.base.path().join("layers").join(name)
    }

    /// Starts a command in a sandbox of its own.
    pub async fn start(&self, spec: SandboxSpec, command: Command) -> Verdict<Execution> {
        if self.carries_the_probe_in() {
            return self.start_in_room(spec, command).await;
        }
        Ok(self.engine().run(spec, command).await?)
    }

    /// The same with the probe carried in first: the sandbox ends with the command all the same.
    async fn start_in_room(&self, spec: SandboxSpec, command: Command) -> Verdict<Execution> {
        let room = self.room_with(spec).await?;
        let execution = room.start(command).await?;
        let watcher = Watcher::clone(&execution);
        tokio::spawn(async move {
            watcher.outcome().await;
            // What is left is found by the case.
            let _ = room.destroy().await;
        });
        Ok(execution)
    }

    /// Puts the probe into a sandbox of another engine, where there is no workspace to put it into.
    pub async fn equip(&self, engine: &Engine, id: &SandboxId) -> Verdict {
        if self.carries_the_probe_in() {
            carry_probe_in(engine.sandbox(id)?.as_ref(), self.0.subject.probe()).await?;
        }
        Ok(())
    }

    /// Runs a verb of the probe in a sandbox of its own, to its end.
    pub async fn run<'a>(&self, verb: impl AsRef<[&'a str]>) -> Verdict<Ran> {
        self.run_with(self.spec(), probe_command(verb)).await
    }

    /// Runs a command in a sandbox of its own, to its end.
    pub async fn run_with(&self, spec: SandboxSpec, command: Command) -> Verdict<Ran> {
        if self.carries_the_probe_in() {
            let room = self.room_with(spec).await?;
            let ran = room.run_command(command).await?;
            room.destroy().await?;
            return Ok(ran);
        }
        let (_execution, follower) = self.engine().run_followed(spec, command).await?;
        collect_output(follower).await
    }

    /// The facts an attempt of the probe printed.
    pub async fn facts<'a>(&self, verb: impl AsRef<[&'a str]>) -> Verdict<Value> {
        self.run(verb).await?.facts()
    }

    /// A sandbox that stays.
    pub async fn room(&self) -> Verdict<Room> {
        self.room_with(self.spec()).await
    }

    /// A sandbox that stays, built as told.
    pub async fn room_with(&self, request: impl Into<SandboxRequest>) -> Verdict<Room> {
        let id = self.engine().create(request).await?;
        let room = Room::new(self.clone(), id);
        if self.carries_the_probe_in() {
            room.carry_in(self.0.subject.probe()).await?;
        }
        Ok(room)
    }

    /// A sandbox that the engine has created already.
    pub fn room_of(&self, id: SandboxId) -> Room {
        Room::new(self.clone(), id)
    }

    /// A sandbox that stays, made from a captured state, with a workspace of its own.
    pub async fn room_from(&self, snapshot: &SnapshotId) -> Verdict<Room> {
        let spec = SandboxSpec { workspace: Workspace::Ephemeral, ..self.spec() };
        let id = self.engine().create_from(snapshot, spec).await?;
        Ok(Room::new(self.clone(), id))
    }

    /// Whether there is no local workspace to put the probe into, so that it has to be carried in.
    fn carries_the_probe_in(&self) -> bool {
        self.is_real() && !self.has(Feature::LocalWorkspace)
    }

    /// Ends all sandboxes that are left.
    pub(crate) async fn close(&self) -> Verdict {
        Ok(self.engine().close().await?)
    }
}

/// The directories of a kit. Open to everybody, because the guest may be any user.
fn lay_out(shelf: &Shelf) -> Verdict<TempDir> {
    let base = tempfile::Builder::new().prefix("stockade-tck-").tempdir()?;
    fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755))?;
    create_probe_directory(&base.path().join("workspace"), Some(shelf))?;
    create_probe_directory(&base.path().join("programs"), Some(shelf))?;
    create_probe_directory(&base.path().join("outside"), None)?;
    Ok(base)
}

/// A directory with the probe in it, if there is one to be carried in.
fn create_probe_directory(directory: &Path, shelf: Option<&Shelf>) -> Verdict {
    fs::create_dir(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777))?;
    let probe = shelf.and_then(|shelf| shelf.probe.as_ref());
    Ok(probe.map_or(Ok(()), |probe| fs::hard_link(probe, directory.join("probe")))?)
}

/// The probe as a file, written before anything is started: a program that is still open for writing,
/// be it in a child that is about to execute something else, cannot be executed.
pub(crate) struct Shelf {
    probe: Option<TempPath>,
}

impl Shelf {
    pub(crate) fn new(form: ProbeForm) -> Verdict<Self> {
        let Some(bytes) = form.bytes() else {
            return Ok(Self { probe: None });
        };
        let mut file = tempfile::Builder::new().prefix("stockade-probe-").tempfile()?;
        file.write_all(bytes)?;
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o755))?;
        Ok(Self { probe: Some(file.into_temp_path()) })
    }
}

pub(crate) fn host_path(path: &Path) -> Verdict<HostPath> {
    Ok(HostPath::try_from(path.to_owned())?)
}

fn generate_random_hex() -> Verdict<String> {
    let mut bytes = [0u8; 10];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Waits until the condition holds, for as long as anything may take.
pub(crate) async fn wait_until<F>(what: &str, mut holds: impl FnMut() -> F) -> Verdict
where
    F: Future<Output = Verdict>,
{
    let until = tokio::time::Instant::now() + EVENTUAL_TIMEOUT;
    loop {
        match holds().await {
            Ok(()) => return Ok(()),
            Err(Stop::Failed(why)) if tokio::time::Instant::now() > until => {
                return Err(Stop::Failed(format!("{what} within {EVENTUAL_TIMEOUT:?}: {why}")));
            }
            Err(Stop::Failed(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(other) => return Err(other),
        }
    }
}
