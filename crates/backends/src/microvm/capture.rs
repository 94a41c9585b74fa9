//! A machine captured with its memory: the parts of a snapshot, and a machine that is continued from them.
//! What the machine was made of is the same for all that are copies of one, and is linked, not copied.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, linkat};
use serde::{Deserialize, Serialize};
use stockade_core::{
    Admitted, Bytes, Error, ErrorCode, Limits, Result, SandboxSpec, SnapshotFiles, Workspace,
};
use stockade_fs::copy_sparse;

use super::create::Incarnation;
use super::driver::{Driver, MachineDisk, MachineSpec, Saved};
use super::store::HeldEntry;
use super::{NAME, system_error};
use crate::peer::client::UsedNumbers;
use crate::peer::far_program::FAR_DIGEST;

/// The parts of a capture, as files: the machine's description, its root and its disk.
const MACHINE_FILE: &str = "machine";
const ROOT_FILE: &str = "root";
const DISK_FILE: &str = "disk";
/// Size limit of a machine's description.
const MAX_MACHINE_BYTES: u64 = 64 * 1024;

/// What is said about a captured machine.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CapturedMachine {
    /// The program inside.
    program: String,
    /// What ran it.
    runner: String,
    memory: Bytes,
    cpus: u32,
    /// What the walls inside were built for.
    walls: SandboxSpec,
    /// Whether the workspace is a copy of a directory of the host's.
    copied: bool,
    used: UsedNumbers,
}

/// What a machine is continued from.
#[derive(Debug, Clone)]
pub(super) struct MachineSource {
    pub saved: Saved,
    /// What its disk is a copy of.
    pub disk: PathBuf,
    pub root: PathBuf,
    pub memory: Bytes,
    pub cpus: u32,
    /// What of it lies in the cache of prepared machines.
    pub held: Vec<HeldEntry>,
}

impl MachineSource {
    /// The machine, with this disk of its own.
    pub(super) fn machine_with_disk(&self, disk: PathBuf) -> MachineSpec {
        MachineSpec {
            kernel: PathBuf::new(),
            initramfs: PathBuf::new(),
            command_line: String::new(),
            memory: self.memory,
            cpus: self.cpus,
            cpu_rate: None,
            disks: vec![
                MachineDisk { path: self.root.clone(), read_only: true },
                MachineDisk { path: disk, read_only: false },
            ],
        }
    }
}

/// Captures a machine, which stands still from then on.
pub(super) async fn capture_machine(
    now: &Arc<Incarnation>,
    into: &Path,
    (driver, admitted): (&dyn Driver, &Admitted),
    used: UsedNumbers,
) -> Result<()> {
    let said = CapturedMachine {
        program: FAR_DIGEST.to_owned(),
        runner: driver.version().await?,
        memory: now.memory,
        cpus: now.cpus,
        walls: walls_spec(admitted),
        copied: is_copied(admitted),
        used,
    };
    now.vm.save(into).await?;
    let (now, into) = (Arc::clone(now), into.to_owned());
    let kept = tokio::task::spawn_blocking(move || write_parts(&now, &said, &into)).await;
    kept.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|error| {
        system_error("snapshot", "the machine cannot be kept")
            .remedy("make room in the state directory")
            .source(error)
    })
}

fn write_parts(now: &Incarnation, said: &CapturedMachine, into: &Path) -> io::Result<()> {
    fs::write(into.join(MACHINE_FILE), serde_json::to_vec(said)?)?;
    copy_sparse(&now.disk, File::create_new(into.join(DISK_FILE))?)?;
    link_or_copy(&now.root, &into.join(ROOT_FILE))?;
    let saved = Saved::within(into);
    if saved.memory.exists() { Ok(()) } else { link_or_copy(&now.base, &saved.memory) }
}

/// Another name for an open file; a copy where there can be none.
fn link_or_copy(file: &File, name: &Path) -> io::Result<()> {
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    match linkat(CWD, open, CWD, name, AtFlags::SYMLINK_FOLLOW) {
        Ok(()) => Ok(()),
        Err(_) => copy_sparse(&reopen_file(file)?, File::create_new(name)?).map(drop),
    }
}

/// Not to move where others read.
fn reopen_file(file: &File) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// What the walls of a sandbox are built for: not what is each command's, and not where it lies.
fn walls_spec(admitted: &Admitted) -> SandboxSpec {
    let spec = admitted.spec();
    let each =
        Limits { cpu_time: None, wall_time: None, output: None, fuel: None, ..*admitted.limits() };
    SandboxSpec {
        image: spec.image.clone(),
        root: spec.root,
        read_only: spec.read_only,
        user: spec.user,
        network: spec.network.clone(),
        without: spec.without.clone(),
        limits: each,
        ..SandboxSpec::default()
    }
}

fn is_copied(admitted: &Admitted) -> bool {
    matches!(admitted.spec().workspace, Workspace::Local(_))
}

fn unsupported_error(message: impl Into<String>, remedy: &str) -> Error {
    Error::new(ErrorCode::Unsupported, "restore", message).backend(NAME).remedy(remedy)
}

/// What a captured machine is continued from, if it can be as it is asked for.
pub(super) async fn resolve_source(
    parts: &SnapshotFiles,
    driver: &dyn Driver,
    admitted: &Admitted,
) -> Result<(MachineSource, UsedNumbers)> {
    let said = read_description(parts.get(MACHINE_FILE)?)?;
    let other = "take another one here, or bring the same version";
    if said.program != FAR_DIGEST {
        return Err(unsupported_error("it was captured by another version of stockade", other));
    }
    let runner = driver.version().await?;
    if said.runner != runner {
        let message = format!("it was captured under {}, and this is {runner}", said.runner);
        return Err(unsupported_error(message, other));
    }
    if said.walls != walls_spec(admitted) {
        let message = "its walls were built for other limits, another image, user or network";
        return Err(unsupported_error(message, "ask for what it was captured with"));
    }
    if is_copied(admitted) && !said.copied {
        let message = "it was captured with a workspace that no directory is a copy of";
        return Err(unsupported_error(message, "ask for an ephemeral workspace"));
    }
    let touched = parts.get(Saved::DIRTY_PAGES_FILE).ok().map(Path::to_owned);
    let saved = Saved {
        state: parts.get(Saved::STATE_FILE)?.to_owned(),
        memory: parts.get(Saved::MEMORY_FILE)?.to_owned(),
        touched,
    };
    let (disk, root) = (parts.get(DISK_FILE)?.to_owned(), parts.get(ROOT_FILE)?.to_owned());
    let (memory, cpus, held) = (said.memory, said.cpus, Vec::new());
    Ok((MachineSource { saved, disk, root, memory, cpus, held }, said.used))
}

fn read_description(path: &Path) -> Result<CapturedMachine> {
    use std::io::Read;
    let read = || {
        let mut text = Vec::new();
        File::open(path)?.take(MAX_MACHINE_BYTES).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    };
    read().map_err(|error: io::Error| {
        Error::new(ErrorCode::Invalid, "restore", "its machine description is invalid")
            .backend(NAME)
            .remedy("take another one with this version of the backend")
            .source(error)
    })
}
