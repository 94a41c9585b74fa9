//! The socket of the daemon: one for each state directory, in a directory that only its user enters. A lock
//! says that a daemon runs; the kernel frees it when the daemon dies, so that a socket that is left means nothing. A
//! socket that a service manager has opened is used instead, and left to it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener as PassedSocket;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags};
use stockade_core::{Error, ErrorCode, Result};
use stockade_fs::{Directory, Locked, Sharing, StateDir, read_kernel_bytes};
use tokio::net::UnixListener;

use super::activation::take_passed_socket;

const SOCKET_DIR: &str = "api";
const SOCKET_FILE: &str = "stockade.sock";
const LOCK_FILE: &str = "lock";
const SERVE_OPERATION: &str = "serve";
/// Where the kernel lists Unix sockets, and the flags there of one that listens.
const SOCKET_LIST_PATH: &str = "/proc/net/unix";
const LISTENING_FLAGS: &[u8] = b"00010000";
/// The longest process id.
const MAX_PID_CHARS: u64 = 20;

/// The right to listen for this state directory. The socket is removed when this is dropped.
#[derive(Debug)]
pub struct ApiSocket {
    dir: Directory,
    lock: Locked,
    /// The one that a service manager has opened.
    passed: Option<PassedSocket>,
    /// Whether a socket was made here.
    is_bound: AtomicBool,
}

impl ApiSocket {
    /// Takes the right, unless another daemon has it.
    pub fn claim(state: &StateDir) -> Result<Self> {
        let dir = state.subdirectory(SOCKET_DIR)?;
        let passed = take_passed_socket().map_err(unusable_passed)?;
        let attempt = || {
            let file = dir.open(LOCK_FILE, OFlags::RDWR | OFlags::CREATE)?;
            Locked::attempt(file, Sharing::Exclusive)
        };
        match attempt().map_err(|error| unusable(&dir, error))? {
            Ok(lock) => Ok(Self { dir, lock, passed, is_bound: AtomicBool::new(false) }),
            Err(file) => Err(already_running(&dir, file)),
        }
    }

    /// Where clients connect.
    pub fn path(&self) -> PathBuf {
        let passed = self.passed.as_ref().and_then(|passed| passed.local_addr().ok());
        let named = passed.as_ref().and_then(|address| address.as_pathname());
        named.map_or_else(|| self.dir.path_of(SOCKET_FILE), Path::to_owned)
    }

    /// Listens. What a daemon left that was killed is replaced.
    pub fn bind(&self) -> Result<UnixListener> {
        if self.passed.is_none() && is_listened_on(&self.path()) {
            return Err(held_by_manager(&self.path()));
        }
        let bind = || -> io::Result<UnixListener> {
            self.lock.file().set_len(0)?;
            write!(self.lock.file(), "{}", std::process::id())?;
            if let Some(passed) = &self.passed {
                passed.set_nonblocking(true)?;
                return UnixListener::from_std(passed.try_clone()?);
            }
            self.dir.remove(SOCKET_FILE)?;
            // By the handle of its directory: a path to a socket has 107 bytes, and this one may have more.
            let dir = self.dir.as_fd().as_raw_fd();
            let listener = UnixListener::bind(format!("/proc/self/fd/{dir}/{SOCKET_FILE}"))?;
            self.is_bound.store(true, Ordering::Relaxed);
            rustix::fs::chmodat(&self.dir, SOCKET_FILE, Mode::from(0o600), AtFlags::empty())?;
            Ok(listener)
        };
        bind().map_err(|error| unusable(&self.dir, error))
    }
}

impl Drop for ApiSocket {
    fn drop(&mut self) {
        if self.is_bound.load(Ordering::Relaxed) {
            let _ = self.dir.remove(SOCKET_FILE);
        }
    }
}

fn already_running(dir: &Directory, lock: std::fs::File) -> Error {
    let mut pid = String::new();
    let _ = lock.take(MAX_PID_CHARS).read_to_string(&mut pid);
    let process = if pid.is_empty() { String::new() } else { format!(" (process {pid})") };
    let socket = dir.path_of(SOCKET_FILE);
    let message = format!("a daemon runs already{process} and listens at `{}`", socket.display());
    Error::new(ErrorCode::Unavailable, SERVE_OPERATION, message)
        .remedy("use that one, end it first, or set STOCKADE_STATE_DIR to another directory")
}

/// Whether a process listens on a socket of this name. No connection is made: that would start what it is for.
fn is_listened_on(path: &Path) -> bool {
    // Where it cannot be read, there is no service manager either.
    let sockets = read_kernel_bytes(SOCKET_LIST_PATH).unwrap_or_default();
    let mut lines = sockets.split(|byte| *byte == b'\n');
    lines.any(|line| {
        // Number, references, protocol, flags, type, state, inode, name.
        let mut fields = line.splitn(8, |byte| *byte == b' ').map(<[u8]>::trim_ascii);
        let is_listening = fields.nth(3) == Some(LISTENING_FLAGS);
        is_listening
            && line
                .strip_suffix(path.as_os_str().as_bytes())
                .is_some_and(|rest| rest.ends_with(b" "))
    })
}

fn held_by_manager(path: &Path) -> Error {
    let message = format!("a service manager listens at `{}` for a daemon", path.display());
    Error::new(ErrorCode::Unavailable, SERVE_OPERATION, message)
        .remedy("start the service instead, or end its socket unit first: systemctl --user stop stockade.socket")
}

fn unusable_passed(why: &str) -> Error {
    let message = format!("the socket that the service manager has passed cannot be used: {why}");
    Error::new(ErrorCode::Invalid, SERVE_OPERATION, message)
        .remedy("give the socket unit one `ListenStream=` with a path, and no `Accept=yes`")
}

fn unusable(dir: &Directory, error: io::Error) -> Error {
    let message = format!("the daemon's socket in `{}` cannot be made", dir.path().display());
    Error::new(ErrorCode::StateUnavailable, SERVE_OPERATION, message)
        .remedy("make the directory writable for this user, with some space left")
        .source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_daemon_listens_and_another_is_told_where() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let socket = ApiSocket::claim(&state).unwrap();
        let _listener = socket.bind().unwrap();
        let refused = ApiSocket::claim(&state).unwrap_err().to_string();
        assert!(refused.contains(&std::process::id().to_string()), "{refused}");
        assert!(refused.contains(&socket.path().display().to_string()), "{refused}");
        // A socket that is left does not count.
        std::fs::hard_link(socket.path(), dir.path().join("kept")).unwrap();
        let path = socket.path();
        drop(socket);
        assert!(!path.exists());
        std::fs::rename(dir.path().join("kept"), &path).unwrap();
        ApiSocket::claim(&state).unwrap().bind().unwrap();
    }
}
