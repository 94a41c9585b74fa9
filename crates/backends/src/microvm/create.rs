//! Makes a sandbox: a copy of the template, who it is from now on, and the walls inside it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use stockade_core::{
    Admitted, Bytes, Error, ErrorCode, Image, Millicores, Result, Sandbox, SandboxId, SnapshotFiles,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::capture::{self, MachineSource};
use super::driver::Vm;
use super::image::RootSource;
use super::private::PrivateDir;
use super::sandbox::MicrovmSandbox;
use super::store::HeldEntry;
use super::template::{BOOT_TIMEOUT, WantedMachine};
use super::{MicrovmWalls, NAME, identity, system_error};
use crate::linux::freezer::{Freezer, Stopper};
use crate::linux::{lock, paths, private_dirs};
use crate::peer::client::{self, FarSandbox, Peer, PeerConnection, WorkspaceSync};
use crate::peer::protocol::HELLO_LINE;

/// Timeout for a copy to send its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(30);

/// Minimum CPU rate of a whole machine: one processor.
const MIN_CPU_RATE: Millicores = Millicores(1000);

/// A sandbox of this value, or one that it is about to build.
pub(super) struct LiveSandbox {
    pub now: Arc<Now>,
    pub freezer: Arc<Freezer>,
    /// Taken by who destroys it.
    pub sync: tokio::sync::Mutex<Option<Arc<WorkspaceSync>>>,
    /// Held while its machine is ended, or replaced by another one.
    pub changing: tokio::sync::Mutex<()>,
}

/// The machine of a sandbox, which another one takes the place of when it is taken back.
pub(super) struct Now(Mutex<Arc<Incarnation>>);

/// One machine, and what it is made of.
pub(super) struct Incarnation {
    pub vm: Box<dyn Vm>,
    pub memory: Bytes,
    pub cpus: u32,
    /// Its own disk, which has no name.
    pub disk: File,
    /// Its memory before its own writes, and its root, as open files: their names may change or go.
    pub base: File,
    pub root: File,
    /// Keeps what they were in the cache from being cleaned away: their bytes would not be freed.
    _held: Vec<HeldEntry>,
}

impl Now {
    pub(super) fn get(&self) -> Arc<Incarnation> {
        Arc::clone(&lock(&self.0))
    }

    /// The one that was there before.
    pub(super) fn replace(&self, next: Arc<Incarnation>) -> Arc<Incarnation> {
        std::mem::replace(&mut lock(&self.0), next)
    }
}

#[async_trait]
impl Stopper for Arc<Now> {
    async fn set(&self, stop: bool) -> Result<()> {
        let now = self.get();
        if stop { now.vm.pause().await } else { now.vm.unpause().await }
    }
}

impl MicrovmWalls {
    /// The root that a spec asks for.
    fn resolve_root(&self, image: &Image) -> Result<RootSource> {
        match image {
            Image::Host => Ok(self.default_root()),
            Image::Directory(path) => {
                paths::resolve_directory(&NAME, "image", path).map(RootSource::Directory)
            }
            Image::Oci(path) => paths::resolve_path(&NAME, "image", path).map(RootSource::Archive),
            // Not admitted on this backend.
            Image::Named(_) | Image::Wasm(_) => {
                Err(system_error("create", "this kind of image cannot be the root of a machine"))
            }
        }
    }

    pub(super) async fn build_sandbox(
        self: &Arc<Self>,
        id: &SandboxId,
        admitted: &Admitted,
    ) -> Result<Arc<dyn Sandbox>> {
        client::check_workspace(&NAME, admitted)?;
        let root = self.resolve_root(&admitted.spec().image)?;
        let wanted = WantedMachine::from_limits(root, admitted.limits());
        let workshop = self.workshop().await?;
        let template = workshop.find_or_make_template(&wanted, BOOT_TIMEOUT).await?;
        let live = self.start_machine(id, admitted, &template.machine_source()).await?;
        let now = live.now.get();
        let connection = handshake_with_guest(id, now.vm.connect().await?, &*now.vm).await?;
        let inside = client::build_sandbox(build_peer(), connection, id, admitted).await?;
        Ok(self.finish_sandbox(live, inside, admitted).await)
    }

    /// Builds one from a machine that was captured with its memory.
    pub(super) async fn build_from_snapshot(
        self: &Arc<Self>,
        id: &SandboxId,
        admitted: &Admitted,
        parts: &SnapshotFiles,
    ) -> Result<Arc<dyn Sandbox>> {
        client::check_workspace(&NAME, admitted)?;
        let driver = &self.workshop().await?.driver;
        let (source, used) = capture::resolve_source(parts, &**driver, admitted).await?;
        let live = self.start_machine(id, admitted, &source).await?;
        let connection = connection_from_stream(live.now.get().vm.connect().await?);
        let identity = identity::generate_identity(id)?;
        let inside =
            client::take_over(build_peer(), connection, (id, admitted), identity, used).await?;
        Ok(self.finish_sandbox(live, inside, admitted).await)
    }

    async fn finish_sandbox(
        self: &Arc<Self>,
        live: Arc<LiveSandbox>,
        inside: FarSandbox,
        admitted: &Admitted,
    ) -> Arc<dyn Sandbox> {
        *live.sync.lock().await = Some(Arc::clone(&inside.sync));
        Arc::new(MicrovmSandbox::new(self, live, inside, admitted.clone()))
    }

    /// Starts the machine of a sandbox.
    async fn start_machine(
        &self,
        id: &SandboxId,
        admitted: &Admitted,
        source: &MachineSource,
    ) -> Result<Arc<LiveSandbox>> {
        let private = PrivateDir::make(id)?;
        let now = self.resume_machine(&private, admitted, source).await?;
        let now = Arc::new(Now(Mutex::new(Arc::new(now))));
        let freezer = Freezer::new(NAME, Arc::clone(&now));
        let (sync, changing) = (tokio::sync::Mutex::default(), tokio::sync::Mutex::default());
        let live = Arc::new(LiveSandbox { now, freezer, sync, changing });
        lock(&self.live).insert(id.clone(), Arc::clone(&live));
        Ok(live)
    }

    /// Continues a machine that was saved, with a copy of its disk.
    pub(super) async fn resume_machine(
        &self,
        private: &PrivateDir,
        admitted: &Admitted,
        source: &MachineSource,
    ) -> Result<Incarnation> {
        let disk = private.path().join("disk");
        copy_disk(source.disk.clone(), disk.clone()).await?;
        let mut machine = source.machine_with_disk(disk.clone());
        // What the guest may use is held inside. A machine that is slower than one processor would keep
        // its own kernel from building the walls in time.
        machine.cpu_rate = admitted.limits().cpu_rate.map(|rate| rate.max(MIN_CPU_RATE));
        let driver = &self.workshop().await?.driver;
        let unusable = |error| {
            system_error("create", "the files it is made from cannot be opened").source(error)
        };
        let held = |path: &Path| File::open(path).map_err(unusable);
        let incarnation = Incarnation {
            disk: held(&disk)?,
            base: held(&source.saved.memory)?,
            root: held(&source.root)?,
            _held: source.held.clone(),
            memory: source.memory,
            cpus: source.cpus,
            vm: driver.resume(private.id(), &machine, &source.saved, private.path()).await?,
        };
        // The disk stays open: without a name it is gone with the machine, however that ends.
        std::fs::remove_file(&disk).map_err(unusable)?;
        Ok(incarnation)
    }
}

fn build_peer() -> Peer {
    Peer { backend: NAME, called: "its machine".into(), capacity: None }
}

/// A connection to a machine that waits for who it is.
pub(super) fn connection_from_stream(pipe: UnixStream) -> PeerConnection {
    let (output, input) = pipe.into_split();
    let output = Box::new(BufReader::with_capacity(64 * 1024, output));
    PeerConnection { input: Box::new(input), output, carrier: Box::new(()) }
}

pub(super) async fn copy_disk(from: PathBuf, to: PathBuf) -> Result<()> {
    let copy =
        move || stockade_fs::copy_sparse(&File::open(from)?, private_dirs::create_file(&to)?);
    let copied = tokio::task::spawn_blocking(copy).await;
    let copied = copied.unwrap_or_else(|error| Err(io::Error::other(error)));
    copied
        .map(drop)
        .map_err(|error| system_error("create", "its disk cannot be made").source(error))
}

/// Tells a copy who it is, and waits for its first word.
pub(super) async fn handshake_with_guest(
    id: &SandboxId,
    mut pipe: UnixStream,
    vm: &dyn Vm,
) -> Result<PeerConnection> {
    let identity = identity::generate_identity(id)?;
    let greeting = async {
        let mut line = serde_json::to_vec(&identity)?;
        line.push(b'\n');
        pipe.write_all(&line).await?;
        let mut word = vec![0; HELLO_LINE.len()];
        pipe.read_exact(&mut word).await?;
        match word == HELLO_LINE {
            true => Ok(()),
            false => Err(io::Error::from(io::ErrorKind::InvalidData)),
        }
    };
    let wrote = || match vm.said() {
        said if said.is_empty() => String::new(),
        said => format!("; it wrote: {said}"),
    };
    match timeout(HELLO_TIMEOUT, greeting).await {
        Ok(Ok(())) => Ok(connection_from_stream(pipe)),
        Ok(Err(error)) => {
            let message = format!("its machine ended before it connected{}", wrote());
            Err(Error::new(ErrorCode::WallMissing, "create", message).backend(NAME).source(error))
        }
        Err(_) => {
            let message =
                format!("its machine did not connect within {HELLO_TIMEOUT:?}{}", wrote());
            Err(Error::new(ErrorCode::TooSlow, "create", message).backend(NAME))
        }
    }
}
