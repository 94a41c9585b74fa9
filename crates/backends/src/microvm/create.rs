//! Makes a sandbox: a copy of the template, who it is from now on, and the walls inside it.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use stockade_core::{Admitted, Error, ErrorCode, Image, Millicores, Result, Sandbox, SandboxId};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::driver::Vm;
use super::image::Root;
use super::private::Private;
use super::sandbox::MicrovmSandbox;
use super::template::{Template, Wanted};
use super::{Inner, NAME, failed, identity, sparse};
use crate::across::near::{self, Bridge, Connection, Peer};
use crate::across::words::HELLO;
use crate::linux::brake::{Brake, Stopper};
use crate::linux::{lock, paths};

/// How long a copy may take to say its first word.
const FIRST_WORD: Duration = Duration::from_secs(30);

/// The least that all of a machine gets.
const ONE_PROCESSOR: Millicores = Millicores(1000);

/// A sandbox of this value, or one that it is about to build.
pub(super) struct Live {
    pub vm: Arc<dyn Vm>,
    pub brake: Arc<Brake>,
    /// Taken by who destroys it.
    pub bridge: tokio::sync::Mutex<Option<Arc<Bridge>>>,
}

/// A machine that is stopped and continued.
struct Machine(Arc<dyn Vm>);

#[async_trait]
impl Stopper for Machine {
    async fn set(&self, stop: bool) -> Result<()> {
        if stop { self.0.pause().await } else { self.0.unpause().await }
    }
}

impl Inner {
    /// The root that a spec asks for.
    fn root_of(&self, image: &Image) -> Result<Root> {
        match image {
            Image::Host => Ok(self.root()),
            Image::Directory(path) => paths::directory(&NAME, "image", path).map(Root::Directory),
            // Not admitted on this backend.
            Image::Oci(_) | Image::Named(_) | Image::Wasm(_) => {
                Err(failed("create", "images of that kind are not made into machines"))
            }
        }
    }

    pub(super) async fn build(
        &self,
        id: &SandboxId,
        admitted: &Admitted,
    ) -> Result<Arc<dyn Sandbox>> {
        near::check_workspace(&NAME, admitted)?;
        let root = self.root_of(&admitted.spec().image)?;
        let template = self.workshop().await?.ready(&Wanted::of(root, admitted.limits())).await?;
        let live = self.copy(id, admitted, &template).await?;
        let connection = greet(id, live.vm.connect().await?).await?;
        let peer = Peer { backend: NAME, called: "its machine".into(), capacity: None };
        let (inside, bridge) = near::build(peer, connection, id, admitted).await?;
        *live.bridge.lock().await = Some(bridge);
        Ok(Arc::new(MicrovmSandbox::new(inside, Arc::clone(&live.brake))))
    }

    /// Starts a copy of the template.
    async fn copy(
        &self,
        id: &SandboxId,
        admitted: &Admitted,
        template: &Template,
    ) -> Result<Arc<Live>> {
        let private = Private::make(id)?;
        let disk = private.path().join("disk");
        copy_disk(template.disk(), disk.clone()).await?;
        let mut machine = template.machine(disk.clone());
        // What the guest may use is held inside. A machine that is slower than one processor would keep
        // its own kernel from building the walls in time.
        machine.cpu_rate = admitted.limits().cpu_rate.map(|rate| rate.max(ONE_PROCESSOR));
        let driver = &self.workshop().await?.driver;
        let vm = driver.resume(id, &machine, &template.saved(), private.path()).await?;
        let vm: Arc<dyn Vm> = Arc::from(vm);
        let brake = Brake::new(NAME, Machine(Arc::clone(&vm)));
        let live = Arc::new(Live { vm, brake, bridge: tokio::sync::Mutex::default() });
        lock(&self.live).insert(id.clone(), Arc::clone(&live));
        // It is open: without a name it is gone with the machine, whatever ends that.
        let gone = std::fs::remove_file(&disk);
        gone.map_err(|error| failed("create", "its disk cannot be used").source(error))?;
        Ok(live)
    }
}

async fn copy_disk(from: PathBuf, to: PathBuf) -> Result<()> {
    let copy = move || sparse::copy(&File::open(from)?, File::create_new(to)?);
    let copied = tokio::task::spawn_blocking(copy).await;
    let copied = copied.unwrap_or_else(|error| Err(io::Error::other(error)));
    copied.map(drop).map_err(|error| failed("create", "its disk cannot be made").source(error))
}

/// Tells a copy who it is, and waits for its first word.
async fn greet(id: &SandboxId, mut pipe: UnixStream) -> Result<Connection> {
    let identity = identity::fresh(id)?;
    let greeting = async {
        let mut line = serde_json::to_vec(&identity)?;
        line.push(b'\n');
        pipe.write_all(&line).await?;
        let mut word = vec![0; HELLO.len()];
        pipe.read_exact(&mut word).await?;
        match word == HELLO {
            true => Ok(()),
            false => Err(io::Error::from(io::ErrorKind::InvalidData)),
        }
    };
    match timeout(FIRST_WORD, greeting).await {
        Ok(Ok(())) => {
            let (output, input) = pipe.into_split();
            let output = Box::new(BufReader::with_capacity(64 * 1024, output));
            Ok(Connection { input: Box::new(input), output, carrier: Box::new(()) })
        }
        Ok(Err(error)) => {
            let message = "its machine ended before it said a word";
            Err(Error::new(ErrorCode::WallMissing, "create", message).backend(NAME).source(error))
        }
        Err(_) => {
            let message = format!("its machine said nothing for {FIRST_WORD:?}");
            Err(Error::new(ErrorCode::TooSlow, "create", message).backend(NAME))
        }
    }
}
