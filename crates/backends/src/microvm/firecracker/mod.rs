//! The `firecracker` driver: one Firecracker process per machine, told what to do over its API socket.
//! The operator supplies the binary and the kernel; no distribution ships them.
//!
//! Every path that a machine knows is a plain name in its own directory. So a saved machine holds no
//! path of the host that saved it, and its clones, each in a directory of their own, need no
//! rewriting.

mod api;
mod copy;
mod jail;
mod jailed;
mod process;
mod stop;
mod version;
mod vm;
mod walls;

#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use stockade_core::{Boundary, Bytes, Error, ErrorCode, LimitKind, Result, SandboxId};

use self::api::Method;
use self::jail::{Place, Shown};
use self::jailed::{Jailed, Threaded};
use self::process::{Inside, Process};
use self::version::Version;
use self::vm::{Base, Machinery};
use super::NAME;
use super::driver::{Driver, Machine, Saved, Vm};
use crate::linux::limits::delegation_remedy;
use crate::linux::{find, fingerprint, running};
use crate::native::Native;

/// Firecracker's limit of a machine's processors.
const MAX_CPUS: u32 = 32;
/// Size limit of a CPU template: Firecracker's for a request, less what goes before the body.
const MAX_CPU_TEMPLATE_BYTES: u64 = 50_000;
/// The guest's vsock context id. Every machine has a bus of its own.
const GUEST_CID: u32 = 3;

/// The files in a machine's directory.
const KERNEL_FILE: &str = "kernel";
const INITRAMFS_FILE: &str = "initramfs";
const STATE_FILE: &str = "state";
const MEMORY_FILE: &str = "memory";

/// Where Firecracker is, and what it runs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// The program `firecracker`.
    pub binary: PathBuf,
    /// An uncompressed kernel for its machines. Absent: the one that the backend prepares.
    #[serde(default)]
    pub kernel: Option<PathBuf>,
    /// A custom CPU template, so that a saved machine fits other hosts too.
    #[serde(default)]
    pub cpu_template: Option<PathBuf>,
    /// Firecracker's own jail, which only root can build. Absent: native walls.
    #[serde(default)]
    pub jailer: Option<Jailer>,
}

/// Whom Firecracker runs as in its own jail.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Jailer {
    /// The program `jailer`, of the same version.
    pub binary: PathBuf,
    /// The user that a machine's process runs as.
    pub uid: u32,
    /// And the group.
    pub gid: u32,
}

impl Settings {
    /// Changes with everything that a prepared machine depends on. Not with the jailer, which only decides who
    /// runs it.
    pub(super) fn fingerprint(&self) -> String {
        let version = |path: &Path| {
            // The file behind all links: that is the one that is read.
            let file = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
            fingerprint::version(&file).unwrap_or_default()
        };
        let or_none = |path: &Option<PathBuf>| path.as_deref().map_or("none".into(), version);
        let (kernel, template) = (or_none(&self.kernel), or_none(&self.cpu_template));
        format!("firecracker {} kernel {kernel} cpu {template}", version(&self.binary))
    }
}

/// How long everything may take.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// To say its version, to listen, to be gone after having been killed.
    soon: Duration,
    /// To answer a request that needs no work.
    answer: Duration,
    /// To connect to the guest, once.
    attempt: Duration,
    /// To connect to the guest, with every attempt that it takes.
    connect: Duration,
}

const DEFAULT_TIMEOUTS: Patience = Patience {
    soon: Duration::from_secs(5),
    answer: Duration::from_secs(10),
    attempt: Duration::from_millis(500),
    connect: Duration::from_secs(20),
};

/// The driver.
pub(super) struct Firecracker {
    settings: Settings,
    patience: Patience,
    version: Version,
    template: Option<Value>,
    around: Around,
}

/// What is built around its processes.
enum Around {
    Walls(Arc<Native>),
    Jail(Jailer, Arc<Threaded>),
}

impl Firecracker {
    /// Looks whether what the settings name can be used. Says nothing about KVM. Without a jailer its
    /// processes run in these walls, which show them what they need of the host's devices.
    pub(super) async fn open(settings: Settings, native: Arc<Native>) -> Result<Self> {
        Self::with_patience(settings, native, DEFAULT_TIMEOUTS).await
    }

    async fn with_patience(
        settings: Settings,
        native: Arc<Native>,
        patience: Patience,
    ) -> Result<Self> {
        let asked = |binary, name| version::of(binary, name, patience.soon);
        let version = asked(&settings.binary, "Firecracker").await?;
        version.is_new_enough()?;
        let around = match &settings.jailer {
            None => Around::Walls(native),
            Some(jailer) => {
                jail::needs_root()?;
                version.is_that_of(asked(&jailer.binary, "Jailer").await?)?;
                Around::Jail(jailer.clone(), Arc::new(Threaded::start()?))
            }
        };
        let template = settings.cpu_template.as_deref().map(read_cpu_template).transpose()?;
        Ok(Self { settings, patience, version, template, around })
    }

    /// A process that runs no machine yet, with what that will need in its directory.
    async fn start(
        &self,
        place: &Place,
        machine: &Machine,
        mut files: Vec<Shown>,
    ) -> Result<Process> {
        self.around.can_hold(machine)?;
        let disks = machine.disks.iter().enumerate();
        files.extend(disks.map(|(number, disk)| Shown::disk(number, disk)));
        place.put(files.clone()).await?;
        let (sockets, binary) = (place.sockets()?, &self.settings.binary);
        let inside = match &self.around {
            Around::Walls(native) => {
                Inside::Walls(walls::start(native, place, machine, binary, &files).await?)
            }
            Around::Jail(jailer, threaded) => {
                Inside::Jail(Jailed::start(threaded, place.command(jailer, binary)).await?)
            }
        };
        Process::start(inside, sockets, self.patience).await
    }

    async fn configure(&self, process: &Process, machine: &Machine) -> Result<()> {
        let put = |path: String, body: Value| async move {
            process.ask("create", Method::PUT, &path, &body, self.patience.answer).await
        };
        put("/machine-config".into(), machine_config(machine)).await?;
        if let Some(template) = &self.template {
            put("/cpu-config".into(), template.clone()).await?;
        }
        put("/boot-source".into(), boot_source(machine)).await?;
        for (number, disk) in machine.disks.iter().enumerate() {
            let name = disk_name(number);
            put(format!("/drives/{name}"), drive(&name, disk.read_only)).await?;
        }
        put("/vsock".into(), json!({ "guest_cid": GUEST_CID, "uds_path": vm::VSOCK_SOCKET }))
            .await?;
        put("/actions".into(), json!({ "action_type": "InstanceStart" })).await
    }

    /// What loads a saved machine. Older versions know the third field by another name.
    fn load(&self) -> Value {
        let tracked = if self.version.tracks_by_its_own_name() {
            "track_dirty_pages"
        } else {
            "enable_diff_snapshots"
        };
        json!({
            "snapshot_path": STATE_FILE,
            "mem_backend": { "backend_type": "File", "backend_path": MEMORY_FILE },
            tracked: true,
            "resume_vm": true,
        })
    }

    fn place(&self, id: &SandboxId, dir: &Path) -> Result<Place> {
        Place::make(id, dir, &self.settings.binary, self.settings.jailer.as_ref())
    }
}

impl Around {
    /// Whether there is something here that holds a machine to its share of processor time.
    fn can_hold(&self, machine: &Machine) -> Result<()> {
        let remedy = match self {
            Self::Walls(native) if native.holds_cpu_rate() => return Ok(()),
            Self::Walls(_) => delegation_remedy(LimitKind::CpuRate),
            Self::Jail(..) => "take `jailer` out of `[microvm.firecracker]`".into(),
        };
        match machine.cpu_rate {
            None => Ok(()),
            Some(_) => {
                let what = "nothing here holds it to a share of processor time";
                Err(failed(ErrorCode::Unavailable, "create", what).remedy(remedy))
            }
        }
    }
}

/// Ends whatever is there of a sandbox's machine in a jail, whoever started it. What runs in native walls
/// ends with those.
pub(super) async fn clear(id: &SandboxId) -> Result<()> {
    let runs = |pid: i32| jail::runs(pid, id);
    for pid in find::pids().filter(|pid| runs(*pid)) {
        if let Some(pidfd) = find::kill_if(pid, runs) {
            let _ = tokio::time::timeout(DEFAULT_TIMEOUTS.soon, running::ended(&pidfd)).await;
        }
    }
    match find::pids().find(|pid| runs(*pid)) {
        Some(_) => Err(running::left_behind(&NAME, id, "its Firecracker does not end")),
        None => Ok(()),
    }
}

#[async_trait]
impl Driver for Firecracker {
    fn boundary(&self) -> Boundary {
        Boundary::Hardware
    }

    async fn version(&self) -> Result<String> {
        Ok(format!("Firecracker {}", self.version))
    }

    async fn boot(&self, id: &SandboxId, machine: &Machine, dir: &Path) -> Result<Box<dyn Vm>> {
        check_cpu_count(machine)?;
        let place = self.place(id, dir)?;
        let kernel = self.settings.kernel.as_ref().unwrap_or(&machine.kernel);
        let files =
            vec![Shown::new(kernel, KERNEL_FILE), Shown::new(&machine.initramfs, INITRAMFS_FILE)];
        let process = self.start(&place, machine, files).await?;
        let configured = self.configure(&process, machine).await;
        let process = process.or_end(configured).await?;
        Ok(Box::new(Machinery::new(process, place, machine.memory, Base::Nothing)))
    }

    async fn resume(
        &self,
        id: &SandboxId,
        machine: &Machine,
        saved: &Saved,
        dir: &Path,
    ) -> Result<Box<dyn Vm>> {
        let place = self.place(id, dir)?;
        let files = vec![
            Shown::prepared(&saved.state, STATE_FILE),
            Shown::prepared(&saved.memory, MEMORY_FILE),
        ];
        // Held open: what was written since is relative to it, whoever removes its name.
        let base =
            fs::File::open(&saved.memory).map_err(|error| unreadable(&saved.memory, error))?;
        let process = self.start(&place, machine, files).await?;
        let limit = self.patience.answer + vm::time_for(machine.memory);
        let loaded =
            process.ask("create", Method::PUT, "/snapshot/load", &self.load(), limit).await;
        let process = process.or_end(loaded).await?;
        Ok(Box::new(Machinery::new(process, place, machine.memory, Base::File(base))))
    }
}

fn check_cpu_count(machine: &Machine) -> Result<()> {
    if !(1..=MAX_CPUS).contains(&machine.cpus) {
        let told = format!("{} processors are not what Firecracker offers", machine.cpus);
        return Err(failed(ErrorCode::Invalid, "create", told).remedy("ask for 1 to 32"));
    }
    Ok(())
}

fn machine_config(machine: &Machine) -> Value {
    json!({
        "vcpu_count": machine.cpus,
        "mem_size_mib": mebibytes(machine.memory),
        // So that saving costs what was touched and not all there is.
        "track_dirty_pages": true,
    })
}

fn boot_source(machine: &Machine) -> Value {
    json!({
        "kernel_image_path": KERNEL_FILE,
        "initrd_path": INITRAMFS_FILE,
        "boot_args": machine.command_line,
    })
}

fn drive(name: &str, read_only: bool) -> Value {
    json!({
        "drive_id": name,
        "path_on_host": name,
        "is_root_device": false,
        "is_read_only": read_only,
    })
}

fn disk_name(number: usize) -> String {
    format!("disk{number}")
}

/// Whole ones: a part of one is rounded up.
fn mebibytes(bytes: Bytes) -> u64 {
    bytes.0.div_ceil(1 << 20)
}

fn read_cpu_template(path: &Path) -> Result<Value> {
    let told = |what: String| {
        let what = format!("the CPU template `{}` {what}", path.display());
        failed(ErrorCode::Invalid, "configure", what)
            .remedy("give a custom CPU template as Firecracker's documentation describes it")
    };
    let size = fs::metadata(path).map_err(|error| unreadable(path, error))?.len();
    if size > MAX_CPU_TEMPLATE_BYTES {
        return Err(told(format!("has {size} bytes; Firecracker takes {MAX_CPU_TEMPLATE_BYTES}")));
    }
    let text = fs::read(path).map_err(|error| unreadable(path, error))?;
    let value: Value =
        serde_json::from_slice(&text).map_err(|error| told("is not JSON".into()).source(error))?;
    if value.is_object() { Ok(value) } else { Err(told("is not an object".into())) }
}

fn failed(code: ErrorCode, operation: &'static str, message: impl Into<String>) -> Error {
    Error::new(code, operation, message).backend(NAME)
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    failed(ErrorCode::Unavailable, "create", format!("`{}` cannot be read", path.display()))
        .remedy("see that it is there and that this user may read it")
        .source(error)
}
