//! Where this program keeps things on its host: itself, by version, and one directory per sandbox, which
//! the process that serves it holds a lock on. A directory without one is a dead process's.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use stockade_backends::native::Native;
use stockade_core::{Error, ErrorCode, Result, SandboxId};
use stockade_fs::remove_tree;

/// Age at which another, unused version of this program is removed.
const STALE_VERSION_AGE: Duration = Duration::from_secs(24 * 3600);
/// Timeout for the upload of a version to this host; a draft that is older was abandoned.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(600);
/// Timeout for a server that was killed to release its lock.
const SERVER_KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// The base directory in a guest.
pub const GUEST_ROOT_DIR: &str = "/run/stockade";
/// The directory of a guest at which the image of its sandboxes is mounted.
pub const GUEST_IMAGE_DIR: &str = "/image";

/// Where everything lies.
pub struct FarBase {
    root: PathBuf,
    /// This version's own directory.
    own: PathBuf,
    image: Option<&'static str>,
}

/// One sandbox's directory, held.
pub struct SandboxDir {
    dir: PathBuf,
    _held: File,
}

fn unusable_error(what: &str, error: io::Error) -> Error {
    let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded].contains(&error.kind());
    let code = if full { ErrorCode::TooLarge } else { ErrorCode::System };
    Error::new(code, "create", format!("{what} cannot be used")).source(error)
}

impl FarBase {
    /// Told by where this program lies: `BASE/far/VERSION/stockade-far`.
    pub fn from_current_exe() -> Result<Self> {
        let program =
            std::env::current_exe().map_err(|error| unusable_error("this program", error))?;
        let mut above = program.ancestors().skip(1).map(Path::to_owned);
        let (Some(own), Some(far), Some(root)) = (above.next(), above.next(), above.next()) else {
            return Err(Error::new(
                ErrorCode::Invalid,
                "start",
                "this program was not installed by stockade",
            ));
        };
        for dir in [&own, &far] {
            check_private(dir)?;
        }
        // Failing to is no harm: at the worst it is carried here once more.
        let _ = File::open(&own).and_then(|dir| dir.set_modified(SystemTime::now()));
        Ok(Self { root, own, image: None })
    }

    /// In a machine of this program's own.
    pub fn for_guest() -> Self {
        Self {
            root: GUEST_ROOT_DIR.into(),
            own: GUEST_ROOT_DIR.into(),
            image: Some(GUEST_IMAGE_DIR),
        }
    }

    /// The image that sandboxes are shown, if that is not this host's own.
    pub fn image(&self) -> Option<&'static str> {
        self.image
    }

    /// Where this version keeps what it has measured.
    pub fn own_dir(&self) -> &Path {
        &self.own
    }

    fn sandboxes_dir(&self) -> PathBuf {
        self.root.join("sandboxes")
    }

    fn sandbox_dir(&self, id: &SandboxId) -> PathBuf {
        self.sandboxes_dir().join(id.as_str())
    }

    /// The lock for making a directory or looking for dead ones, so that one that is being made is not
    /// taken for one.
    fn acquire_lock(&self) -> io::Result<File> {
        match DirBuilder::new().mode(0o700).create(self.sandboxes_dir()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let lock = File::options().create(true).append(true).open(self.root.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(lock)
    }

    /// The sandboxes that have a directory.
    pub fn list_ids(&self) -> Vec<SandboxId> {
        let entries = fs::read_dir(self.sandboxes_dir()).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// Makes the directory of a new sandbox.
    pub fn create_sandbox_dir(&self, id: &SandboxId, capacity: Option<u32>) -> Result<SandboxDir> {
        let _lock = self
            .acquire_lock()
            .map_err(|error| unusable_error("the directory for sandboxes", error))?;
        if capacity.is_some_and(|most| self.list_ids().len() >= most as usize) {
            let message = "it has as many sandboxes as it may";
            return Err(Error::new(ErrorCode::QuotaExceeded, "create", message)
                .remedy("end some of them, or raise its capacity in the configuration"));
        }
        let dir = self.sandbox_dir(id);
        let fail = |error| unusable_error("the sandbox's directory", error);
        DirBuilder::new().mode(0o700).create(&dir).map_err(fail)?;
        let made = SandboxDir::make(&dir);
        if made.is_err() {
            let _ = remove_tree(&dir);
        }
        made.map_err(fail)
    }

    /// Removes the sandboxes of dead processes. What cannot be removed stays for the next reap, and
    /// fails no request: destroying it says why.
    pub async fn reap_dead_sandboxes(&self, native: &Native) -> Result<()> {
        let dead: Vec<_> = {
            let _lock = self
                .acquire_lock()
                .map_err(|error| unusable_error("the directory for sandboxes", error))?;
            let held = |id: SandboxId| Some((lock_if_dead(&self.sandbox_dir(&id))?, id));
            self.list_ids().into_iter().filter_map(held).collect()
        };
        for (_held, id) in &dead {
            if crate::destroy_sandbox(native, id).await.is_ok() {
                let _ = remove_sandbox_dir(&self.sandbox_dir(id));
            }
        }
        Ok(())
    }

    /// Removes every trace of a sandbox, ending the process that serves it. Says whether there was any.
    pub async fn destroy_sandbox(&self, id: &SandboxId, native: &Native) -> Result<bool> {
        let dir = self.sandbox_dir(id);
        let found = dir.exists();
        if found {
            end_server(&dir).await;
        }
        crate::destroy_sandbox(native, id).await?;
        remove_sandbox_dir(&dir)?;
        Ok(found)
    }

    /// Removes versions that were not used for long, and drafts of uploads that were abandoned.
    pub fn remove_stale_versions(&self) {
        let versions = fs::read_dir(self.root.join("far")).into_iter().flatten().flatten();
        let old = |path: &PathBuf| {
            let half_way =
                path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"new-"));
            let age = fs::metadata(path).and_then(|found| found.modified()).ok();
            let age = age.and_then(|time| SystemTime::now().duration_since(time).ok());
            age > Some(if half_way { UPLOAD_TIMEOUT } else { STALE_VERSION_AGE })
        };
        for version in versions.map(|entry| entry.path()).filter(|path| *path != self.own) {
            if old(&version) {
                let _ = remove_tree(&version);
            }
        }
    }
}

/// Checks that no other user can have put something here.
fn check_private(dir: &Path) -> Result<()> {
    let found =
        fs::symlink_metadata(dir).map_err(|error| unusable_error("its own directory", error))?;
    let own = rustix::process::geteuid().as_raw();
    if found.is_dir() && found.uid() == own && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let message = format!("`{}` can be written to by others", dir.display());
    Err(Error::new(ErrorCode::Denied, "start", message)
        .remedy("remove it there, or give it to this user alone with mode 0700"))
}

/// The lock of a directory whose process is dead, taken; nothing if it lives.
fn lock_if_dead(dir: &Path) -> Option<Option<File>> {
    let lock = match File::open(dir.join("lock")) {
        Ok(lock) => lock,
        // Killed before it had a lock: the lock of all sandboxes keeps makers out meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(None),
        Err(_) => return None,
    };
    flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(Some(lock))
}

/// Ends the process that serves a sandbox, and with it everything that it has built.
async fn end_server(dir: &Path) {
    let until = tokio::time::Instant::now() + SERVER_KILL_TIMEOUT;
    while dir.exists() && lock_if_dead(dir).is_none() && tokio::time::Instant::now() < until {
        if let Some(server) = find_server(dir) {
            // It may have ended by itself.
            let _ = pidfd_send_signal(&server, Signal::KILL);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The process that holds a directory, if it is one of this program's.
fn find_server(dir: &Path) -> Option<rustix::fd::OwnedFd> {
    let mut text = String::new();
    File::open(dir.join("lock")).ok()?.take(16).read_to_string(&mut text).ok()?;
    let pid = text.trim().parse().ok()?;
    let server = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let ours = program.file_name()?.to_str()?.starts_with("stockade-far");
    // Asked after the descriptor was taken: it still holds the lock, so it is the one.
    (ours && lock_if_dead(dir).is_none()).then_some(server)
}

/// Removes a sandbox's directory and checks that it is gone (C-30).
fn remove_sandbox_dir(dir: &Path) -> Result<()> {
    let left = |what: String| Error::new(ErrorCode::LeftBehind, "destroy", what);
    let message = format!("`{}` cannot be removed", dir.display());
    remove_tree(dir).map_err(|error| left(message.clone()).source(error))?;
    if dir.exists() { Err(left(message)) } else { Ok(()) }
}

impl SandboxDir {
    fn make(dir: &Path) -> io::Result<Self> {
        let mut held = File::options().create_new(true).append(true).open(dir.join("lock"))?;
        flock(&held, FlockOperation::NonBlockingLockExclusive)?;
        write!(held, "{}", std::process::id())?;
        let workspace = dir.join("workspace");
        DirBuilder::new().create(&workspace)?;
        fs::set_permissions(&workspace, Permissions::from_mode(0o755))?;
        Ok(Self { dir: dir.to_owned(), _held: held })
    }

    /// The directory that is the workspace there.
    pub fn workspace(&self) -> PathBuf {
        self.dir.join("workspace")
    }

    /// Removes it.
    pub fn remove_dir(self) -> Result<()> {
        remove_sandbox_dir(&self.dir)
    }
}
