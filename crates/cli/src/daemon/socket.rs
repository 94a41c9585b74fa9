//! Where supervisors listen: one socket per sandbox, in a directory that only this user enters.
//!
//! A socket's path may have 107 bytes, and a state directory may be deeper than that. So sockets are
//! reached through a handle of their directory.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use stockade_core::{Error, ErrorCode, Result, SandboxId};
use stockade_engine::StateDir;
use tokio::net::{UnixListener, UnixStream};

const SOCKET_DIR: &str = "run";
const SOCKET_SUFFIX: &str = ".sock";

/// The sockets of one state directory.
#[derive(Debug)]
pub struct SupervisorSockets {
    dir: OwnedFd,
    path: PathBuf,
}

impl SupervisorSockets {
    /// Opens the directory, making it where it is missing.
    pub fn open(state: &Path) -> Result<Self> {
        let path = StateDir::open(state.join(SOCKET_DIR))?.path().to_owned();
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let opened = rustix::fs::open(&path, flags, Mode::empty());
        let dir = opened.map_err(|errno| socket_error(&path, errno.into()))?;
        Ok(Self { dir, path })
    }

    /// Listens for a sandbox that has just been made. A socket of its name is left from a dead process.
    pub fn bind(&self, id: &SandboxId) -> Result<UnixListener> {
        let bind = || -> io::Result<UnixListener> {
            self.remove(id)?;
            let listener = UnixListener::bind(self.socket_path(id))?;
            rustix::fs::chmodat(
                &self.dir,
                socket_file_name(id),
                Mode::from(0o600),
                AtFlags::empty(),
            )?;
            Ok(listener)
        };
        bind().map_err(|error| socket_error(&self.path, error))
    }

    /// Connects to a sandbox's supervisor; nothing if none listens.
    pub async fn connect(&self, id: &SandboxId) -> Result<Option<UnixStream>> {
        match UnixStream::connect(self.socket_path(id)).await {
            Ok(stream) => Ok(Some(stream)),
            Err(error) if nobody_listens(&error) => Ok(None),
            Err(error) => Err(socket_error(&self.path, error)),
        }
    }

    /// Removes a sandbox's socket. One that is not there is no error.
    pub fn remove(&self, id: &SandboxId) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.dir, socket_file_name(id), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn socket_path(&self, id: &SandboxId) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{}", self.dir.as_raw_fd(), socket_file_name(id)))
    }
}

/// The sandboxes that have a socket, alive or not.
pub fn list_socket_ids(state: &Path) -> Vec<SandboxId> {
    let entries = std::fs::read_dir(state.join(SOCKET_DIR)).into_iter().flatten().flatten();
    let id = |name: &str| name.strip_suffix(SOCKET_SUFFIX)?.parse().ok();
    entries.filter_map(|entry| id(entry.file_name().to_str()?)).collect()
}

fn socket_file_name(id: &SandboxId) -> String {
    format!("{id}{SOCKET_SUFFIX}")
}

fn nobody_listens(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn socket_error(path: &Path, error: io::Error) -> Error {
    let message = format!("the sockets in `{}` cannot be used", path.display());
    Error::new(ErrorCode::StateUnavailable, "reach a supervisor", message)
        .remedy("make the directory writable for this user, with some space left")
        .source(error)
}
