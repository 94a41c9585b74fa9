//! The root of a machine as a read-only file system: made once, inside native walls, of a directory or of
//! what the native backend itself shows of this host.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stockade_core::{
    Backend, Bytes, Command, EffectiveLimits, Error, ErrorCode, ExitStatus, HostPath, Limits,
    Mount, Network, Process, ProcessEvent, Result, Sandbox, SandboxId, SandboxSpec, Workspace,
};
use tokio::time::timeout;

use super::store::{HeldEntry, MachineStore, Maker, StoreKind};
use super::{NAME, oci, system_error};
use crate::linux::{self, fingerprint};
use crate::native::Native;

/// The program that makes the file system.
const MKFS_PROGRAM: &str = "/usr/bin/mkfs.erofs";
/// Timeout for packing a root.
const PACK_TIMEOUT: Duration = Duration::from_secs(600);
/// Memory and disk limits of the sandbox that packs a root.
const PACK_MEMORY_LIMIT: Bytes = Bytes(2 << 30);
const PACK_DISK_LIMIT: Bytes = Bytes(64 << 30);
/// The mount point of a directory that is packed, and the file that is written.
const SOURCE_DIR: &str = "/stockade/root";
const IMAGE_FILE: &str = "image";
/// An empty directory: its path inside, and its name in the draft.
const EMPTY_DIR: (&str, &str) = ("/workspace/nothing", "nothing");
/// Paths of this host that are not part of its image: private directories, which stay empty for the
/// sandbox's own to be mounted at.
const EXCLUDE_REGEX: &str = "^(dev|home|proc|run|stockade|sys|tmp|var/tmp|workspace)/.";
/// List of the host's unreadable paths, each ended by a zero byte, and the script that writes it.
const UNREADABLE_LIST_FILE: &str = "unreadable";
const FIND_UNREADABLE: &str = r"cd / && find * \( -path dev -o -path home -o -path proc -o -path run \
    -o -path stockade -o -path sys -o -path tmp -o -path var/tmp -o -path workspace \) -prune \
    -o ! -type l \( ! -readable -o -type d ! -executable \) -print0 -prune > /workspace/unreadable";
/// Length limit of the program's messages in an error.
const MAX_MESSAGE_CHARS: usize = 400;

/// The paths of this host that change whenever its programs do.
const HOST_FINGERPRINT_PATHS: [&str; 10] = [
    "/usr",
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/share",
    "/usr/local/bin",
    "/usr/local/lib",
    "/etc/alternatives",
    "/var/lib/dpkg/status",
];

/// Version of how an image of this host is made; a change makes it anew.
const HOST_IMAGE_VERSION: u32 = 2;

/// Where a root comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RootSource {
    /// What the native backend shows of this host.
    Host,
    /// A directory.
    Directory(PathBuf),
    /// An archive of an image.
    Archive(PathBuf),
    /// Nothing: enough to measure what a machine can enforce.
    Empty,
}

/// Whether roots can be made here.
pub(super) fn check_mkfs_installed() -> Result<()> {
    match Path::new(MKFS_PROGRAM).is_file() {
        true => Ok(()),
        false => Err(Error::new(ErrorCode::Unavailable, "create", "mkfs.erofs is not installed")
            .backend(NAME)
            .remedy("install the package erofs-utils")),
    }
}

impl RootSource {
    /// Tells one state of it from another.
    pub(super) fn fingerprint(&self) -> Result<String> {
        match self {
            Self::Host => {
                let state =
                    |path: &&str| fingerprint::hash_file_state(Path::new(path)).unwrap_or_default();
                let all: Vec<_> = HOST_FINGERPRINT_PATHS.iter().map(state).collect();
                Ok(fingerprint::hash_bytes(
                    format!("host {HOST_IMAGE_VERSION} {}", all.join(" ")).as_bytes(),
                ))
            }
            Self::Empty => Ok(fingerprint::hash_bytes(b"empty")),
            Self::Archive(path) => {
                let version = fingerprint::hash_file_state(path).map_err(|error| {
                    system_error("create", "image: the archive cannot be read").source(error)
                })?;
                Ok(fingerprint::hash_bytes(format!("archive {version}").as_bytes()))
            }
            Self::Directory(path) => fingerprint::of_tree(path).map_err(|error| {
                let message = format!("image: `{}` cannot be read", path.display());
                Error::new(ErrorCode::Invalid, "create", message)
                    .backend(NAME)
                    .remedy("name a directory that exists, and all of which you may read")
                    .source(error)
            }),
        }
    }

    /// What is said before it is packed.
    pub(super) fn progress_message(&self) -> &'static str {
        match self {
            Self::Host => {
                "preparing a machine: packing this host's system directories, which takes about a minute \
                 whenever its packages have changed …"
            }
            Self::Directory(_) => "preparing a machine: packing its root …",
            Self::Archive(_) => "preparing a machine: unpacking and packing its image …",
            Self::Empty => "preparing a machine: packing an empty root …",
        }
    }

    /// The file system, if it was made before.
    pub(super) fn find_image(store: &MachineStore, key: &str) -> Option<HeldEntry> {
        store.find_entry(StoreKind::Image, key)
    }

    /// Makes the file system.
    pub(super) async fn make_image(
        &self,
        native: &Arc<Native>,
        maker: &Maker,
        key: &str,
    ) -> Result<PathBuf> {
        check_mkfs_installed()?;
        let draft = maker.create_draft("image")?;
        let id = linux::trial_id();
        let made = timeout(PACK_TIMEOUT, self.pack_image(native, &id, draft.path())).await;
        let ended = native.destroy(&id).await;
        let slow = || system_error("create", "packing the root into a file system took too long");
        made.unwrap_or_else(|_| Err(slow())).and(ended)?;
        let image = draft.path().join(IMAGE_FILE);
        let closed = fs::set_permissions(&image, Permissions::from_mode(0o600));
        closed.map_err(|error| system_error("create", "no file system was made").source(error))?;
        maker.publish_entry(StoreKind::Image, key, &image)
    }

    /// Where it is inside the walls in which it is packed.
    fn source_dir(&self) -> &'static str {
        match self {
            Self::Host => "/",
            Self::Directory(_) => SOURCE_DIR,
            Self::Archive(_) => oci::UNPACKED_DIR,
            Self::Empty => EMPTY_DIR.0,
        }
    }

    async fn pack_image(&self, native: &Arc<Native>, id: &SandboxId, draft: &Path) -> Result<()> {
        let spec = self.build_spec(draft)?;
        let admitted = linux::admit_provisionally(NAME, &spec)?;
        let sandbox = native.create(id, &admitted).await?;
        let limits = Limits { cpu_time: None, wall_time: None, ..*admitted.limits() };
        match self {
            Self::Archive(_) => oci::unpack_archive(&*sandbox, &limits).await?,
            Self::Empty => fs::create_dir(draft.join(EMPTY_DIR.1)).map_err(|error| {
                system_error("create", "the cache cannot be written to").source(error)
            })?,
            Self::Host | Self::Directory(_) => {}
        }
        let left_out = format!("--exclude-regex={EXCLUDE_REGEX}");
        let unreadable = match self {
            Self::Host => list_unreadable(&*sandbox, &limits, draft).await?,
            Self::Directory(_) | Self::Archive(_) | Self::Empty => Vec::new(),
        };
        let mut argv = vec![MKFS_PROGRAM, "--all-root", "--quiet", "-x-1", "-T0", &left_out];
        argv.extend(unreadable.iter().map(String::as_str));
        argv.extend([IMAGE_FILE, self.source_dir()]);
        run_to_success(&*sandbox, &limits, &argv).await
    }

    pub(super) fn build_spec(&self, draft: &Path) -> Result<SandboxSpec> {
        let wrong = |error: String| Error::new(ErrorCode::Invalid, "create", error).backend(NAME);
        let host = |path: &Path| {
            HostPath::try_from(path.to_owned()).map_err(|error| wrong(error.to_string()))
        };
        let shown = match self {
            Self::Host | Self::Empty => None,
            Self::Directory(path) => Some((path, SOURCE_DIR)),
            Self::Archive(path) => Some((path, oci::ARCHIVE_PATH)),
        };
        let mut mounts = Vec::new();
        if let Some((path, target)) = shown {
            let target = target.parse().map_err(|error| wrong(format!("{error}")))?;
            mounts.push(Mount { source: host(path)?, target, read_only: true });
        }
        Ok(SandboxSpec {
            workspace: Workspace::Local(host(draft)?),
            mounts,
            limits: Limits {
                memory: Some(PACK_MEMORY_LIMIT),
                disk: Some(PACK_DISK_LIMIT),
                ..Limits::default()
            },
            network: Network::None,
            ..SandboxSpec::default()
        })
    }
}

/// What to leave out of this host's own view: paths that its walls show and do not let be read. In native
/// walls no guest could read them either.
async fn list_unreadable(
    sandbox: &dyn Sandbox,
    limits: &EffectiveLimits,
    draft: &Path,
) -> Result<Vec<String>> {
    run_to_success(sandbox, limits, &["/bin/sh", "-c", FIND_UNREADABLE]).await?;
    let found = fs::read(draft.join(UNREADABLE_LIST_FILE)).map_err(|error| {
        system_error("create", "files of this host that cannot be read could not be listed")
            .source(error)
    })?;
    let names = found.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let left_out = |name: &[u8]| format!("--exclude-path={}", String::from_utf8_lossy(name));
    Ok(names.map(left_out).collect())
}

/// Runs a program that has to end well.
pub(super) async fn run_to_success(
    sandbox: &dyn Sandbox,
    limits: &EffectiveLimits,
    argv: &[&str],
) -> Result<()> {
    wait_for_success(sandbox.spawn(&Command::program(argv.iter().copied()), limits).await?).await
}

async fn wait_for_success(mut process: Process) -> Result<()> {
    let mut said = String::new();
    while let Some(event) = process.events.next().await {
        match event {
            ProcessEvent::Output(_, data) if said.len() < MAX_MESSAGE_CHARS => {
                said.push_str(&String::from_utf8_lossy(&data));
            }
            ProcessEvent::Output(..) => {}
            ProcessEvent::Exit(exit) if exit.status == ExitStatus::Exited(0) => return Ok(()),
            ProcessEvent::Exit(exit) => {
                let said: String = said.escape_debug().take(MAX_MESSAGE_CHARS).collect();
                let message = format!("the root cannot be packed: {said}");
                return Err(system_error("create", message)
                    .remedy("see that all of it may be read, or name another root")
                    .source(io::Error::other(format!("{:?}", exit.status))));
            }
        }
    }
    Err(system_error("create", "the process that packs the root ended without a result"))
}
