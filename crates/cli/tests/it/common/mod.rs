//! The built `stockade`, run as people run it: a real process with a state directory of its own, and
//! a deadline. Never touches the state of the user who runs the tests.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses a part; a test fails where a value is missing"
)]

pub mod api;
pub mod changes;
pub mod image_commands;
pub mod lasting;
pub mod registry;
pub mod screen;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tempfile::TempDir;

/// Timeout of a command: longer than any takes here on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// A user that no system has.
const NOBODY_IN_PARTICULAR: u32 = 61234;

/// A place of its own for one test.
pub struct CliPlace {
    dir: TempDir,
    user: Option<u32>,
}

/// What a command left.
#[derive(Debug)]
pub struct CliDone {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl CliPlace {
    pub fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap(), user: None };
        fs::create_dir(place.workspace()).unwrap();
        place
    }

    /// A place whose commands run as an ordinary user: another one if this is root, else this one.
    pub fn of_an_ordinary_user() -> Self {
        match rustix::process::geteuid().is_root() {
            true => Self::of_user(NOBODY_IN_PARTICULAR),
            false => Self::new(),
        }
    }

    /// A place whose commands run as this user. Needs root.
    pub fn of_user(user: u32) -> Self {
        let mut place = Self::new();
        place.user = Some(user);
        for dir in [place.path(""), place.workspace()] {
            std::os::unix::fs::chown(dir, place.user, place.user).unwrap();
        }
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn workspace(&self) -> PathBuf {
        self.path("work")
    }

    pub fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// A file in the workspace.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.workspace().join(name), text).unwrap();
    }

    /// Has its commands find no container engine, whatever this host has.
    pub fn without_engine(self) -> Self {
        let dir = self.path("home/.config/stockade");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("config.toml"), "[docker]\nsocket = \"/nowhere/docker.sock\"\n")
            .unwrap();
        for dir in ["home", "home/.config", "home/.config/stockade"] {
            std::os::unix::fs::chown(self.path(dir), self.user, self.user).unwrap();
        }
        self
    }

    /// Gives everything in the workspace to whom the commands run as.
    pub fn give_files(&self) {
        for entry in fs::read_dir(self.workspace()).unwrap() {
            let path = entry.unwrap().path();
            std::os::unix::fs::chown(path, self.user, self.user).unwrap();
        }
    }

    /// The command, standing in the workspace, in a bare environment.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stockade"));
        command.args(args).current_dir(self.workspace()).stdin(Stdio::null());
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", self.path("home"));
        // The native backend, even if others are installed: the command does the same on each, and that
        // is the kit's to show.
        command.env("STOCKADE_STATE_DIR", self.state()).env("STOCKADE_BACKEND", "native");
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    /// A shell that stops at the first failure, with `stockade` in its PATH and all else as for `command`.
    pub fn script(&self, text: &str) -> Command {
        let bin = self.path("bin");
        fs::create_dir_all(&bin).unwrap();
        let linked =
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_stockade"), bin.join("stockade"));
        assert!(linked.is_ok() || bin.join("stockade").exists(), "{linked:?}");
        let stockade = self.command(&[]);
        let mut shell = Command::new("/bin/sh");
        shell.args(["-e", "-c", text]).current_dir(self.workspace()).stdin(Stdio::null());
        shell.env_clear();
        shell.envs(stockade.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
        if let Some(user) = self.user {
            shell.uid(user).gid(user);
        }
        shell
    }

    /// Runs it to its end.
    pub fn stockade(&self, args: &[&str]) -> CliDone {
        finish(self.command(args))
    }

    /// Fails unless every sandbox of this place is gone, with its lease.
    pub fn assert_nothing_is_left(&self) {
        let leases = fs::read_dir(self.state().join("leases")).unwrap();
        let leases: Vec<_> = leases.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(leases, ["lock"], "a lease is left");
        let ours = self.sandboxes();
        for line in command_lines() {
            assert!(!ours.iter().any(|id| line.contains(id.as_str())), "{line} is left");
        }
    }

    /// The leases of sandboxes, also of those whose owner is dead.
    pub fn leases(&self) -> Vec<String> {
        let Ok(leases) = fs::read_dir(self.state().join("leases")) else { return Vec::new() };
        let names = leases.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".json")).collect()
    }

    fn sandboxes(&self) -> BTreeSet<String> {
        let listed = self.stockade(&["audit", "list", "--json"]);
        let jobs: serde_json::Value = serde_json::from_str(&listed.stdout).unwrap();
        let id = |job: &serde_json::Value| {
            job["started"]["event"]["sandbox"].as_str().map(str::to_owned)
        };
        jobs.as_array().unwrap().iter().filter_map(id).collect()
    }
}

/// The agents of a sandbox.
pub fn pids_of(id: &str) -> Vec<i32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let agent = |entry: fs::DirEntry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let ours = line.starts_with("stockade-agent") && line.contains(id);
        ours.then(|| entry.file_name().to_str()?.parse().ok()).flatten()
    };
    processes.filter_map(agent).collect()
}

pub fn command_lines() -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).collect()
}

/// Runs a command to its end, reading both streams.
pub fn finish(mut command: Command) -> CliDone {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait(child)
}

/// Waits for a process that was started, reading what it says; kills it if it takes too long.
pub fn wait(mut child: Child) -> CliDone {
    let stdout = child.stdout.take().map(reader);
    let stderr = child.stderr.take().map(reader);
    let text = |reader: Option<std::thread::JoinHandle<Vec<u8>>>| {
        let bytes = reader.map(|reader| reader.join().unwrap()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let pid = Pid::from_child(&child);
    let ended = ends_within(pid, COMMAND_TIMEOUT);
    if !ended {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    let (stdout, stderr) = (text(stdout), text(stderr));
    assert!(ended, "it did not end in time: {stdout}{stderr}");
    let code = status.code().unwrap_or_else(|| -status.signal().unwrap_or(0));
    CliDone { code, stdout, stderr }
}

fn ends_within(pid: Pid, limit: Duration) -> bool {
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let limit = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: 0 };
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit)).unwrap() > 0
}

fn reader(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// Sends a signal to a process that was started here.
pub fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Starts a command and waits for the first line of its output.
pub fn start(mut command: Command) -> (Child, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = Vec::new();
    let mut byte = [0];
    let stdout = child.stdout.as_mut().unwrap();
    while stdout.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        line.extend_from_slice(&byte);
    }
    (child, String::from_utf8(line).unwrap())
}

impl CliDone {
    /// Fails unless this is how it ended, on both streams.
    #[track_caller]
    pub fn is(&self, code: i32, stdout: &str, stderr: &str) {
        let got = (self.code, self.stdout.as_str(), self.stderr.as_str());
        assert_eq!(got, (code, stdout, stderr));
    }

    /// Fails unless it ended with this code.
    #[track_caller]
    pub fn code_is(&self, code: i32) {
        assert_eq!(self.code, code, "{self:?}");
    }

    /// Fails unless stockade refused with one line that holds all of these.
    #[track_caller]
    pub fn is_refused(&self, parts: &[&str]) {
        assert_eq!((self.code, self.stdout.as_str()), (125, ""), "{}", self.stderr);
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        assert!(self.stderr.starts_with("stockade: "), "{}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is not in {:?}", self.stderr);
        }
    }
}

/// The same command under another umask.
pub fn under(umask: &str, command: &Command) -> Command {
    let mut masked = Command::new("sh");
    masked.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"]);
    masked.arg(command.get_program()).args(command.get_args());
    masked.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    masked.current_dir(command.get_current_dir().unwrap()).stdin(Stdio::null());
    masked
}

/// A directory of mode 0: at most root can look into it.
pub fn make_unreadable(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::create_dir(dir).unwrap();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o000)).unwrap();
}
