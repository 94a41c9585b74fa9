//! The directory that a Firecracker process sees as its own: the machine's, or below it the root of
//! Firecracker's own jail. Everything a machine needs is put there under a plain name, and nothing that
//! the process made there is trusted.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, fchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use stockade_core::{Error, ErrorCode, Result, SandboxId};

use super::api::{self, SocketDir};
use super::copy::{self, FileOwner};
use super::{Jailer, disk_name, microvm_error};
use crate::linux::lock;
use crate::microvm::driver::MachineDisk;

/// Where a machine's process works.
#[derive(Clone)]
pub(super) struct MachineDir {
    id: SandboxId,
    base: PathBuf,
    root: PathBuf,
    jailer: Option<Jailer>,
    /// The disks that were given to the user of the jail.
    disks: Arc<Mutex<Vec<PathBuf>>>,
}

/// The machine's own directory below its base, inside native walls.
pub(super) const ROOM_DIR: &str = "room";
/// The directory inside native walls at which files outside of the room are mounted.
const MOUNT_DIR: &str = "/stockade";

/// A file that a machine needs, and its name there.
#[derive(Clone)]
pub(super) struct MachineFile {
    pub file: PathBuf,
    pub name: String,
    pub access: Access,
}

/// What a machine may do with a file, and whose it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Read it; it is the operator's, who decides who may.
    Read,
    /// Read it; it was prepared here for machines, large, and the same for many of them.
    ReadPrepared,
    /// Read and write it: a disk of this machine's own.
    Write,
}

impl MachineFile {
    pub(super) fn new(file: &Path, name: impl Into<String>) -> Self {
        Self { file: file.to_owned(), name: name.into(), access: Access::Read }
    }

    /// A part of a machine that was prepared here.
    pub(super) fn prepared(file: &Path, name: impl Into<String>) -> Self {
        Self { access: Access::ReadPrepared, ..Self::new(file, name) }
    }

    pub(super) fn disk(number: usize, disk: &MachineDisk) -> Self {
        let access = if disk.read_only { Access::ReadPrepared } else { Access::Write };
        Self { access, ..Self::new(&disk.path, disk_name(number)) }
    }
}

/// Only root can build Firecracker's own jail.
pub(super) fn check_root() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(microvm_error(ErrorCode::Denied, "detect", "only root can run Firecracker's jailer")
        .remedy("run as root, or take `jailer` out of `[microvm.firecracker]`"))
}

impl MachineDir {
    pub(super) fn make(
        id: &SandboxId,
        dir: &Path,
        binary: &Path,
        jailer: Option<&Jailer>,
    ) -> Result<Self> {
        let (id, base) = (id.clone(), dir.to_owned());
        let Some(jailer) = jailer else {
            let root = base.join(ROOM_DIR);
            // The base directory is private: no other user gets to what the process makes of its own.
            let closed = fs::set_permissions(&base, Permissions::from_mode(0o700));
            let made = closed.and_then(|()| private_dir_builder().create(&root));
            made.map_err(|error| misplaced_error(&root, error))?;
            return Ok(Self { id, root, base, jailer: None, disks: Arc::default() });
        };
        // The jailer follows links before it takes the name.
        let binary = resolve_symlinks(binary)?;
        let name = binary.file_name().unwrap_or_default();
        let root = base.join(name).join(id.as_str()).join("root");
        let made = private_dir_builder().create(&root);
        made.and_then(|()| chown(&root, Some(jailer.uid), Some(jailer.gid)))
            .map_err(|error| misplaced_error(&root, error))?;
        Ok(Self { id, root, base, jailer: Some(jailer.clone()), disks: Arc::default() })
    }

    pub(super) fn id(&self) -> &SandboxId {
        &self.id
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn open_sockets(&self) -> Result<SocketDir> {
        SocketDir::open(&self.root).map_err(|error| misplaced_error(&self.root, error))
    }

    /// Owner of the files that the process writes.
    pub(super) fn owner(&self) -> FileOwner {
        self.jailer.as_ref().map(|jailer| (jailer.uid, jailer.gid))
    }

    /// Has the jailer start Firecracker there. All its paths are names in that directory.
    pub(super) fn build_jailer_command(&self, jailer: &Jailer, binary: &Path) -> Command {
        let mut command = Command::new(&jailer.binary);
        command.arg("--exec-file").arg(binary);
        command.arg("--chroot-base-dir").arg(&self.base);
        command.args(["--uid", &jailer.uid.to_string(), "--gid", &jailer.gid.to_string()]);
        // The jailer hands that on.
        command.args(["--id", self.id.as_str()]);
        command.args(["--", "--api-sock", api::API_SOCKET]);
        command.current_dir(&self.root);
        command
    }

    /// Shows files there. Copies take their time.
    pub(super) async fn put_files(&self, files: Vec<MachineFile>) -> Result<()> {
        let place = self.clone();
        let all = move || files.iter().try_for_each(|shown| place.put_file(shown));
        let done = tokio::task::spawn_blocking(all).await;
        done.unwrap_or_else(|error| Err(misplaced_error(&self.root, io::Error::other(error))))
    }

    fn put_file(&self, shown: &MachineFile) -> Result<()> {
        let MachineFile { file, name, access } = shown;
        let at = self.root.join(name);
        let put = match self.owner() {
            None => symlink(path_inside(name), &at),
            Some(owner) => {
                if *access == Access::Write {
                    lock(&self.disks).push(file.clone());
                }
                put_in_jail(file, &at, *access, owner)
            }
        };
        put.map_err(|error| misplaced_error(file, error))
    }

    /// Makes the disks this process's own again, once the one they were given to has ended.
    pub(super) fn reclaim_disks(&self) -> io::Result<()> {
        for disk in std::mem::take(&mut *lock(&self.disks)) {
            match copy::take_ownership(&disk) {
                // Most have no name any more.
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

fn private_dir_builder() -> DirBuilder {
    let mut private = DirBuilder::new();
    private.recursive(true).mode(0o700);
    private
}

/// Where native walls show a file of this name.
pub(super) fn path_inside(name: &str) -> String {
    format!("{MOUNT_DIR}/{name}")
}

/// A file behind all symbolic links.
pub(super) fn resolve_symlinks(file: &Path) -> Result<PathBuf> {
    fs::canonicalize(file).map_err(|error| misplaced_error(file, error))
}

/// Whether a process runs this machine, by its arguments.
pub(super) fn is_process_of_machine(pid: i32, id: &SandboxId) -> bool {
    let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    let has = |name: &str, value: &str| {
        words.windows(2).any(|pair| pair == [name.as_bytes(), value.as_bytes()])
    };
    has("--api-sock", api::API_SOCKET) && has("--id", id.as_str())
}

/// A hard link to the same file; where that fails, or the jail's group may not read the file, a copy. A disk
/// that is written must be the same file, or what is written would be lost.
fn put_in_jail(file: &Path, at: &Path, access: Access, (uid, gid): (u32, u32)) -> io::Result<()> {
    match access {
        Access::Write => {
            fs::hard_link(file, at)?;
            return chown(at, Some(uid), Some(gid));
        }
        Access::ReadPrepared => give_to_group(file, gid)?,
        Access::Read => {}
    }
    if is_readable(&fs::metadata(file)?, gid) && fs::hard_link(file, at).is_ok() {
        return Ok(());
    }
    copy::copy_to_new(&File::open(file)?, at, Some((uid, gid)))?;
    fs::set_permissions(at, Permissions::from_mode(0o400))
}

/// Whether a process of this group may read the file.
fn is_readable(found: &fs::Metadata, gid: u32) -> bool {
    let mode = found.permissions().mode();
    mode & 0o004 != 0 || (found.gid() == gid && mode & 0o040 != 0)
}

/// Lets the group of the jail read a file that was prepared here. It lies in a directory of this user's alone,
/// so that no process gets to it but by the name that it has in a jail.
fn give_to_group(file: &Path, gid: u32) -> io::Result<()> {
    let file = File::open(file)?;
    let found = file.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != own || is_readable(&found, gid) {
        return Ok(());
    }
    fchown(&file, None, Some(gid))?;
    file.set_permissions(Permissions::from_mode(0o640))
}

fn misplaced_error(path: &Path, error: io::Error) -> Error {
    let what = format!("`{}` cannot be put where Firecracker sees it", path.display());
    microvm_error(ErrorCode::System, "create", what)
        .remedy("see that it is there, and for the jailer on the same file system as the sandbox")
        .source(error)
}
