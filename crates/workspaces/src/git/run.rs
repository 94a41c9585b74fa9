//! Runs the host's git: bounded in time and in what it says, without a terminal to ask on, and
//! without the surroundings' own repository.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::{GIT_TIMEOUT, GitFault, GitSource};
use crate::diff::printable;

/// Output of git up to which it is kept.
const MAX_OUTPUT_BYTES: usize = 1 << 20;
/// Error message of git up to which it is reported.
const MAX_MESSAGE_BYTES: usize = 600;

/// Variables of git that are inherited: they say how to reach a repository, not which one.
const INHERITED_GIT_VARS: [&str; 9] = [
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_SSH_VARIANT",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
    "GIT_PROXY_COMMAND",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_EXEC_PATH",
];

/// One run of git.
pub(crate) struct GitRun<'a> {
    command: Command,
    step: &'static str,
    source: &'a GitSource,
    limit: Duration,
}

/// How it ended.
pub(crate) struct GitOutput {
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl<'a> GitRun<'a> {
    /// A run with the user's configuration, for reaching a repository.
    pub(crate) fn with_configuration(step: &'static str, source: &'a GitSource) -> Self {
        let mut run = Self::bare(step, source);
        if let Some((user, password)) = &source.login {
            // Not in the arguments, which everybody on the machine can read.
            run.command
                .env("GIT_CONFIG_COUNT", "1")
                .env("GIT_CONFIG_KEY_0", "credential.helper")
                .env("GIT_CONFIG_VALUE_0", CREDENTIAL_HELPER)
                .env("STOCKADE_GIT_USER", user)
                .env("STOCKADE_GIT_PASSWORD", password);
        }
        if source.by_ssh() && !chooses_ssh(source) {
            run.command.args(["-c", "core.sshCommand=ssh -oBatchMode=yes"]);
        }
        run
    }

    /// A run without any git configuration of the user or the host.
    pub(crate) fn without_configuration(step: &'static str, source: &'a GitSource) -> Self {
        let mut run = Self::bare(step, source);
        run.command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        run.command.env("GIT_ATTR_NOSYSTEM", "1");
        run
    }

    fn bare(step: &'static str, source: &'a GitSource) -> Self {
        let mut command = Command::new("git");
        // Not where the caller stands: a guest may have written that repository's configuration.
        command.current_dir("/");
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            if name_text.starts_with("GIT_") && !INHERITED_GIT_VARS.contains(&&*name_text) {
                command.env_remove(&name);
            }
        }
        command.env("GIT_TERMINAL_PROMPT", "0").env("GIT_ASKPASS", "").env("SSH_ASKPASS", "");
        command.env("GIT_ALLOW_PROTOCOL", "https:http:ssh:git:file").env("GIT_NO_LAZY_FETCH", "1");
        command.env("LC_ALL", "C").env("GIT_OPTIONAL_LOCKS", "0");
        for setting in [
            "core.hooksPath=/dev/null",
            "core.fsmonitor=false",
            "core.logAllRefUpdates=false",
            "gc.auto=0",
            "maintenance.auto=false",
            "fetch.unpackLimit=1",
            "submodule.recurse=false",
            "advice.detachedHead=false",
        ] {
            command.args(["-c", setting]);
        }
        Self { command, step, source, limit: GIT_TIMEOUT }
    }

    pub(crate) fn at(mut self, git_dir: &Path) -> Self {
        self.command.arg("--git-dir").arg(git_dir);
        self
    }

    pub(crate) fn within(mut self, tree: &Path) -> Self {
        self.command.arg("-C").arg(tree);
        self
    }

    pub(crate) fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(args);
        self
    }

    /// Runs it, and takes its failing for an answer.
    pub(crate) fn ask(self) -> Result<GitOutput, GitFault> {
        let Self { mut command, step, source, limit } = self;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.process_group(0).spawn().map_err(|error| {
            let absent = error.kind() == std::io::ErrorKind::NotFound;
            if absent {
                GitFault::NotInstalled
            } else {
                git_failure(step, source, &error.to_string())
            }
        })?;
        let (stdout, stderr) = (drain_pipe(child.stdout.take()), drain_pipe(child.stderr.take()));
        let in_time = wait_for_child(&child, limit);
        if !in_time {
            kill_child(&child);
        }
        let status = child.wait().map_err(|error| git_failure(step, source, &error.to_string()))?;
        let text = |said: JoinHandle<Vec<u8>>| {
            String::from_utf8_lossy(&said.join().unwrap_or_default()).into_owned()
        };
        let (stdout, stderr) = (text(stdout), text(stderr));
        match in_time {
            true => Ok(GitOutput { success: status.success(), stdout, stderr }),
            false => Err(GitFault::TooSlow { step, remote: source.public.clone(), limit }),
        }
    }

    /// Runs it, and takes its failing for an error.
    pub(crate) fn run(self) -> Result<String, GitFault> {
        let (step, source) = (self.step, self.source);
        let ran = self.ask()?;
        if ran.success { Ok(ran.stdout) } else { Err(git_failure(step, source, &ran.stderr)) }
    }
}

/// Whether the user says how ssh is to be run. If not, it is told not to ask questions.
fn chooses_ssh(source: &GitSource) -> bool {
    let named = ["GIT_SSH", "GIT_SSH_COMMAND"].iter().any(|name| std::env::var_os(name).is_some());
    let configured = || {
        let ask =
            GitRun::bare("look at", source).args(["config", "--get", "core.sshCommand"]).ask();
        ask.is_ok_and(|ran| ran.success)
    };
    named || configured()
}

/// Credential helper that answers git from the environment of this one run.
const CREDENTIAL_HELPER: &str = "!f() { test \"$1\" = get && printf 'username=%s\\npassword=%s\\n' \
    \"$STOCKADE_GIT_USER\" \"$STOCKADE_GIT_PASSWORD\"; }; f";

fn git_failure(step: &'static str, source: &GitSource, said: &str) -> GitFault {
    let mut said = said.trim().replace(&source.address, &source.public);
    if let Some((_, password)) = source.login.as_ref().filter(|(_, password)| !password.is_empty())
    {
        said = said.replace(password, "***");
    }
    let said = printable(&said).replace('\n', "; ");
    let said = said[..said.floor_char_boundary(MAX_MESSAGE_BYTES)].to_owned();
    GitFault::Failed { step, remote: source.public.clone(), said }
}

/// Reads all that comes, keeps so much of it.
fn drain_pipe(from: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let (mut kept, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
        let Some(mut from) = from else { return kept };
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            let room = MAX_OUTPUT_BYTES.saturating_sub(kept.len()).min(read);
            kept.extend_from_slice(&buffer[..room]);
        }
        kept
    })
}

/// Whether it ended in time.
fn wait_for_child(child: &Child, limit: Duration) -> bool {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let Some(fd) = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok())
    else {
        return true;
    };
    let deadline = std::time::Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn kill_child(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}
