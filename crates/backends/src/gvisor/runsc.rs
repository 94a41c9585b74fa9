//! The runtime as a program: where it is, how it is asked. Its answers are taken from exit codes and
//! from the agent, never from what it prints; that is only repeated to people.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stockade_core::SandboxId;

use super::private::GvisorPrivate;

/// Where the runtime is, and how it runs here.
#[derive(Debug, Clone)]
pub(super) struct Runsc {
    pub path: PathBuf,
    /// Without root, by a user namespace of its own making.
    pub rootless: bool,
}

/// How the runtime catches what a guest does, as it names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunscPlatform {
    Kvm,
    Systrap,
    Ptrace,
}

impl RunscPlatform {
    /// All, the fastest on most machines first.
    pub(super) const ALL: [Self; 3] = [Self::Kvm, Self::Systrap, Self::Ptrace];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Systrap => "systrap",
            Self::Ptrace => "ptrace",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|platform| platform.name() == name)
    }
}

impl Runsc {
    /// The first one in `PATH`, or the one that is meant.
    pub(super) fn find(meant: Option<&Path>) -> Option<Self> {
        let path = match meant {
            Some(path) => check_executable(path.to_owned())?,
            None => {
                let paths = std::env::var_os("PATH")?;
                std::env::split_paths(&paths)
                    .find_map(|place| check_executable(place.join("runsc")))?
            }
        };
        Some(Self { path, rootless: !rustix::process::geteuid().is_root() })
    }

    /// Tells this one from another that takes its place.
    pub(super) fn version(&self) -> Option<String> {
        let found = fs::metadata(&self.path).ok()?;
        let path = self.path.display();
        Some(format!("{path} {} {}.{}", found.size(), found.mtime(), found.mtime_nsec()))
    }

    /// Runs a sandbox until its agent ends. The pipe is its standard input and output.
    pub(super) fn run(
        &self,
        platform: RunscPlatform,
        private: &GvisorPrivate,
        id: &SandboxId,
    ) -> Command {
        let mut command = self.base_command(private);
        command
            .arg(format!("--platform={}", platform.name()))
            .args(["--network=none", "--overlay2=none", "--host-uds=none"])
            .arg("run")
            .arg(format!("--bundle={}", private.path().display()))
            .arg(id.as_str())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Asks about a sandbox that runs: `pause`, `resume`, `state`.
    pub(super) fn ask(&self, verb: &str, private: &GvisorPrivate, id: &SandboxId) -> Command {
        let mut command = self.base_command(private);
        command.args([verb, id.as_str()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Groups are ours to make and to limit; so that the runtime is in them from the start.
    fn base_command(&self, private: &GvisorPrivate) -> Command {
        let mut command = Command::new(&self.path);
        command.env_clear().current_dir("/").arg(root_argument(private));
        command.arg("--ignore-cgroups");
        if self.rootless {
            command.arg("--rootless");
        }
        command
    }
}

/// By which every process of a sandbox can be told.
pub(super) fn root_argument(private: &GvisorPrivate) -> String {
    format!("--root={}", private.state().display())
}

fn check_executable(path: PathBuf) -> Option<PathBuf> {
    let found = fs::metadata(&path).ok()?;
    (found.is_file() && found.permissions().mode() & 0o111 != 0).then_some(path)
}
