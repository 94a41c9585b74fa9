//! A host as the operator names it, and the one way in which its `ssh` is called: with the user's own
//! configuration, keys and known hosts, and never with less than a checked host key.

use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use stockade_core::{Error, ErrorCode, Result};
use tokio::process::Command;
use tokio::sync::Semaphore;

use super::NAME;
use crate::linux::private_dirs;
use crate::peer::client::Peer;

/// Lifetime of an unused connection, in seconds: less than what a killed engine may leave behind for a while.
const CONTROL_PERSIST_SECS: u32 = 3;
/// Longest path of a control socket, without the suffix that `ssh` adds while it creates one.
const MAX_SOCKET_PATH_BYTES: usize = 80;

/// Permits to connect at the same time: a server rejects clients above about ten pending connections.
pub(super) static CONNECT_PERMITS: Semaphore = Semaphore::const_new(6);

/// Options of every call. They precede the configuration's, and `ssh` uses the first value of each.
const SSH_OPTIONS: [&str; 15] = [
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "ControlMaster=auto",
    "ConnectTimeout=10",
    "ConnectionAttempts=1",
    "ServerAliveInterval=3",
    "ServerAliveCountMax=3",
    "ForwardAgent=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "PermitLocalCommand=no",
    "RequestTTY=no",
    "RemoteCommand=none",
    "EscapeChar=none",
    "LogLevel=ERROR",
];

/// A host that sandboxes may be built on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Host {
    /// Its name, as `ssh` takes it.
    pub name: String,
    /// The configuration file of `ssh` to use instead of the user's own.
    #[serde(default)]
    pub config: Option<PathBuf>,
    /// Further options of `ssh`, such as `Port=2222`. They cannot weaken what always holds.
    #[serde(default)]
    pub options: Vec<String>,
    /// How many sandboxes may live there at once. Absent: as many as are asked for.
    #[serde(default)]
    pub capacity: Option<u32>,
}

impl Host {
    /// What is wrong with it, if anything.
    pub fn problem(&self) -> Option<&'static str> {
        let plain = |text: &str| !text.chars().any(|c| c.is_control() || c.is_whitespace());
        if self.name.is_empty() || self.name.starts_with('-') || !plain(&self.name) {
            return Some("is not a host's name");
        }
        if self.capacity == Some(0) {
            return Some("has no capacity");
        }
        None
    }

    /// How its error messages start.
    pub(super) fn unavailable_error(
        &self,
        operation: &'static str,
        what: impl std::fmt::Display,
    ) -> Error {
        let message = format!("host `{}`: {what}", self.name);
        Error::new(ErrorCode::Unavailable, operation, message).backend(NAME)
    }

    /// This host as the near end of a sandbox calls it.
    pub(super) fn peer(&self) -> Peer {
        let called = format!("host `{}`", self.name);
        Peer { backend: NAME, called, capacity: self.capacity }
    }

    /// An `ssh` command that runs this script there, with any login shell.
    pub(super) fn ssh_command(&self, script: &str) -> Result<Command> {
        // Single quotes are the one quoting that all shells agree on.
        debug_assert!(!script.contains(['\'', '\n', '!']));
        let mut command = Command::new("ssh");
        if let Some(file) = &self.config {
            command.arg("-F").arg(file);
        }
        command.arg("-T");
        for option in SSH_OPTIONS {
            command.args(["-o", option]);
        }
        let socket = self.control_socket_path().map_err(|error| {
            self.unavailable_error(
                "connect",
                "there is no private directory for its control socket",
            )
            .source(error)
        })?;
        command.arg("-o").arg(format!("ControlPath={}", socket.display()));
        command.args(["-o", &format!("ControlPersist={CONTROL_PERSIST_SECS}")]);
        for option in &self.options {
            command.args(["-o", option]);
        }
        command.args(["--", &self.name, &format!("exec sh -c '{script}'")]);
        // What steers this engine is none of the connection's business, which outlives it for a moment.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("STOCKADE_")) {
                command.env_remove(name);
            }
        }
        command.kill_on_drop(true);
        Ok(command)
    }

    /// Where the shared connection is reached: one for each way of calling.
    fn control_socket_path(&self) -> io::Result<PathBuf> {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        // Another user's choice of configuration is another connection.
        std::env::var_os("HOME").hash(&mut hasher);
        Ok(private_dir()?.join(format!("{:016x}", hasher.finish())))
    }
}

/// A directory of this user's alone: below the user's runtime directory, or else where private directories
/// of sandboxes lie, whose name another user cannot take away.
fn private_dir() -> io::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let short =
        |path: &PathBuf| path.is_absolute() && path.as_os_str().len() + 30 < MAX_SOCKET_PATH_BYTES;
    let dir = match given.filter(short).filter(|dir| is_private(dir, user)) {
        Some(dir) => dir.join("stockade-ssh"),
        None => private_dirs::ensure_base_dir()?.join("ssh"),
    };
    private_below(dir, user)
}

fn private_below(dir: PathBuf, user: u32) -> io::Result<PathBuf> {
    match DirBuilder::new().mode(0o700).create(&dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    match is_private(&dir, user) {
        true => Ok(dir),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("`{}` is not this user's alone", dir.display()),
        )),
    }
}

fn is_private(dir: &Path, user: u32) -> bool {
    let found = fs::symlink_metadata(dir);
    found.is_ok_and(|found| found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_host(name: &str) -> Host {
        Host { name: name.into(), config: None, options: Vec::new(), capacity: None }
    }

    #[test]
    fn a_name_that_ssh_would_take_for_an_option_is_refused() {
        for name in ["", "-oProxyCommand=x", "a b", "a\nb"] {
            assert!(test_host(name).problem().is_some(), "{name:?}");
        }
        assert_eq!(test_host("user@build-7.example").problem(), None);
    }

    #[test]
    fn further_options_come_after_those_that_always_hold() {
        let mut weak = test_host("h");
        weak.options = vec!["StrictHostKeyChecking=no".into()];
        let call = weak.ssh_command("true").unwrap();
        let args: Vec<_> = call.as_std().get_args().map(|arg| arg.to_str().unwrap()).collect();
        let at = |wanted| args.iter().position(|arg| *arg == wanted).unwrap();
        assert!(at("StrictHostKeyChecking=yes") < at("StrictHostKeyChecking=no"), "{args:?}");
    }

    #[test]
    fn a_directory_that_another_user_could_take_is_not_used() {
        let shared = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let open = shared.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert!(private_below(open, user).is_err());
        std::os::unix::fs::symlink("/", shared.path().join("link")).unwrap();
        assert!(private_below(shared.path().join("link"), user).is_err());
        let own = private_below(shared.path().join("own"), user).unwrap();
        assert!(is_private(&own, user));
        let dir = private_dir().unwrap();
        assert!(!dir.starts_with("/tmp/stockade-ssh"), "{}", dir.display());
    }
}
