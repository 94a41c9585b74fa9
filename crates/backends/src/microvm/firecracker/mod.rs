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
use self::jail::{MachineDir, MachineFile};
use self::jailed::{Jailed, Threaded};
use self::process::{Confinement, FirecrackerProcess};
use self::version::Version;
use self::vm::{Machinery, MemoryBase};
use super::NAME;
use super::driver::{Driver, MachineSpec, Saved, Vm};
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
pub struct FirecrackerSettings {
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

/// The user that Firecracker runs as in its own jail.
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

impl FirecrackerSettings {
    /// Changes with everything that a prepared machine depends on. Not with the jailer, which only decides who
    /// runs it.
    pub(super) fn fingerprint(&self) -> String {
        let version = |path: &Path| {
            // The file behind all links: that is the one that is read.
            let file = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
            fingerprint::hash_file_state(&file).unwrap_or_default()
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
    settings: FirecrackerSettings,
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
    pub(super) async fn open(settings: FirecrackerSettings, native: Arc<Native>) -> Result<Self> {
        Self::open_with_timeouts(settings, native, DEFAULT_TIMEOUTS).await
    }

    async fn open_with_timeouts(
        settings: FirecrackerSettings,
        native: Arc<Native>,
        patience: Patience,
    ) -> Result<Self> {
        let asked = |binary, name| version::query_version(binary, name, patience.soon);
        let version = asked(&settings.binary, "Firecracker").await?;
        version.check_new_enough()?;
        let around = match &settings.jailer {
            None => Around::Walls(native),
            Some(jailer) => {
                jail::check_root()?;
                version.check_matches_jailer(asked(&jailer.binary, "Jailer").await?)?;
                Around::Jail(jailer.clone(), Arc::new(Threaded::start()?))
            }
        };
        let template = settings.cpu_template.as_deref().map(read_cpu_template).transpose()?;
        Ok(Self { settings, patience, version, template, around })
    }

    /// A process that runs no machine yet, with what that will need in its directory.
    async fn start_process(
        &self,
        place: &MachineDir,
        machine: &MachineSpec,
        mut files: Vec<MachineFile>,
    ) -> Result<FirecrackerProcess> {
        self.around.check_cpu_rate(machine)?;
        let disks = machine.disks.iter().enumerate();
        files.extend(disks.map(|(number, disk)| MachineFile::disk(number, disk)));
        place.put_files(files.clone()).await?;
        let (sockets, binary) = (place.open_sockets()?, &self.settings.binary);
        let inside = match &self.around {
            Around::Walls(native) => Confinement::Walls(
                walls::start_in_walls(native, place, machine, binary, &files).await?,
            ),
            Around::Jail(jailer, threaded) => Confinement::Jail(
                Jailed::start(threaded, place.build_jailer_command(jailer, binary)).await?,
            ),
        };
        FirecrackerProcess::start(inside, sockets, self.patience).await
    }

    async fn configure_machine(
        &self,
        process: &FirecrackerProcess,
        machine: &MachineSpec,
    ) -> Result<()> {
        let put = |path: String, body: Value| async move {
            process.send_request("create", Method::PUT, &path, &body, self.patience.answer).await
        };
        put("/machine-config".into(), machine_config(machine)).await?;
        if let Some(template) = &self.template {
            put("/cpu-config".into(), template.clone()).await?;
        }
        put("/boot-source".into(), boot_source(machine)).await?;
        for (number, disk) in machine.disks.iter().enumerate() {
            let name = disk_name(number);
            put(format!("/drives/{name}"), drive_config(&name, disk.read_only)).await?;
        }
        put("/vsock".into(), json!({ "guest_cid": GUEST_CID, "uds_path": vm::VSOCK_SOCKET }))
            .await?;
        put("/actions".into(), json!({ "action_type": "InstanceStart" })).await
    }

    /// What loads a saved machine. Older versions know the third field by another name.
    fn build_load_request(&self) -> Value {
        let tracked = if self.version.has_track_dirty_pages() {
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

    fn create_machine_dir(&self, id: &SandboxId, dir: &Path) -> Result<MachineDir> {
        MachineDir::make(id, dir, &self.settings.binary, self.settings.jailer.as_ref())
    }
}

impl Around {
    /// Whether there is something here that holds a machine to its share of processor time.
    fn check_cpu_rate(&self, machine: &MachineSpec) -> Result<()> {
        let remedy = match self {
            Self::Walls(native) if native.holds_cpu_rate() => return Ok(()),
            Self::Walls(_) => delegation_remedy(LimitKind::CpuRate),
            Self::Jail(..) => "take `jailer` out of `[microvm.firecracker]`".into(),
        };
        match machine.cpu_rate {
            None => Ok(()),
            Some(_) => {
                let what = "nothing here holds it to a share of processor time";
                Err(microvm_error(ErrorCode::Unavailable, "create", what).remedy(remedy))
            }
        }
    }
}

/// Ends every process of a sandbox's machine in a jail, also of another engine. What runs in native walls
/// ends with those.
pub(super) async fn end_jailed_machine(id: &SandboxId) -> Result<()> {
    let runs = |pid: i32| jail::is_process_of_machine(pid, id);
    for pid in find::list_pids().filter(|pid| runs(*pid)) {
        if let Some(pidfd) = find::kill_if(pid, runs) {
            let _ =
                tokio::time::timeout(DEFAULT_TIMEOUTS.soon, running::wait_for_exit(&pidfd)).await;
        }
    }
    match find::list_pids().find(|pid| runs(*pid)) {
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

    async fn boot(&self, id: &SandboxId, machine: &MachineSpec, dir: &Path) -> Result<Box<dyn Vm>> {
        check_cpu_count(machine)?;
        let place = self.create_machine_dir(id, dir)?;
        let kernel = self.settings.kernel.as_ref().unwrap_or(&machine.kernel);
        let files = vec![
            MachineFile::new(kernel, KERNEL_FILE),
            MachineFile::new(&machine.initramfs, INITRAMFS_FILE),
        ];
        let process = self.start_process(&place, machine, files).await?;
        let configured = self.configure_machine(&process, machine).await;
        let process = process.or_kill(configured).await?;
        Ok(Box::new(Machinery::new(process, place, machine.memory, MemoryBase::Nothing)))
    }

    async fn resume(
        &self,
        id: &SandboxId,
        machine: &MachineSpec,
        saved: &Saved,
        dir: &Path,
    ) -> Result<Box<dyn Vm>> {
        let place = self.create_machine_dir(id, dir)?;
        let files = vec![
            MachineFile::prepared(&saved.state, STATE_FILE),
            MachineFile::prepared(&saved.memory, MEMORY_FILE),
        ];
        // Held open: what was written since is relative to it, also when its name is removed.
        let base = fs::File::open(&saved.memory)
            .map_err(|error| unreadable_error(&saved.memory, error))?;
        let process = self.start_process(&place, machine, files).await?;
        let limit = self.patience.answer + vm::transfer_timeout(machine.memory);
        let loaded = process
            .send_request(
                "create",
                Method::PUT,
                "/snapshot/load",
                &self.build_load_request(),
                limit,
            )
            .await;
        let process = process.or_kill(loaded).await?;
        Ok(Box::new(Machinery::new(process, place, machine.memory, MemoryBase::File(base))))
    }
}

fn check_cpu_count(machine: &MachineSpec) -> Result<()> {
    if !(1..=MAX_CPUS).contains(&machine.cpus) {
        let told = format!("{} processors are not what Firecracker offers", machine.cpus);
        return Err(microvm_error(ErrorCode::Invalid, "create", told).remedy("ask for 1 to 32"));
    }
    Ok(())
}

fn machine_config(machine: &MachineSpec) -> Value {
    json!({
        "vcpu_count": machine.cpus,
        "mem_size_mib": to_mebibytes(machine.memory),
        // So that saving costs what was touched and not all there is.
        "track_dirty_pages": true,
    })
}

fn boot_source(machine: &MachineSpec) -> Value {
    json!({
        "kernel_image_path": KERNEL_FILE,
        "initrd_path": INITRAMFS_FILE,
        "boot_args": machine.command_line,
    })
}

fn drive_config(name: &str, read_only: bool) -> Value {
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
fn to_mebibytes(bytes: Bytes) -> u64 {
    bytes.0.div_ceil(1 << 20)
}

fn read_cpu_template(path: &Path) -> Result<Value> {
    let told = |what: String| {
        let what = format!("the CPU template `{}` {what}", path.display());
        microvm_error(ErrorCode::Invalid, "configure", what)
            .remedy("give a custom CPU template as Firecracker's documentation describes it")
    };
    let size = fs::metadata(path).map_err(|error| unreadable_error(path, error))?.len();
    if size > MAX_CPU_TEMPLATE_BYTES {
        return Err(told(format!("has {size} bytes; Firecracker takes {MAX_CPU_TEMPLATE_BYTES}")));
    }
    let text = fs::read(path).map_err(|error| unreadable_error(path, error))?;
    let value: Value =
        serde_json::from_slice(&text).map_err(|error| told("is not JSON".into()).source(error))?;
    if value.is_object() { Ok(value) } else { Err(told("is not an object".into())) }
}

fn microvm_error(code: ErrorCode, operation: &'static str, message: impl Into<String>) -> Error {
    Error::new(code, operation, message).backend(NAME)
}

fn unreadable_error(path: &Path, error: std::io::Error) -> Error {
    microvm_error(ErrorCode::Unavailable, "create", format!("`{}` cannot be read", path.display()))
        .remedy("see that it is there and that this user may read it")
        .source(error)
}
