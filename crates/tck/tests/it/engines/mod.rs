//! Container engines of the tests' own: in private directories, on sockets of their own, and gone
//! with the value.

#![allow(clippy::unwrap_used, reason = "a test fails where a value is missing")]
#![allow(dead_code, reason = "each test uses what it needs of it")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Which engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    Docker,
    Podman,
}

/// An engine that runs.
pub struct ContainerEngine {
    pub socket: PathBuf,
    kind: EngineKind,
    child: Child,
    home: TempDir,
}

impl ContainerEngine {
    pub fn start(kind: EngineKind) -> Self {
        Self::start_in(kind, create_home())
    }

    /// One whose images and containers have no more room than this.
    pub fn start_with_room(kind: EngineKind, bytes: u64) -> Self {
        let home = create_home();
        let data = home.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let size = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("none", &data, "tmpfs", flags, size.as_c_str()).unwrap();
        Self::start_in(kind, home)
    }

    fn start_in(kind: EngineKind, home: TempDir) -> Self {
        let socket = home.path().join("socket");
        let child = spawn_engine(kind, home.path(), &socket);
        let engine = Self { socket, kind, child, home };
        engine.wait_until_it_answers();
        engine
    }

    /// Starts it again where it was.
    pub fn restart(&mut self) {
        let home = self.home.path();
        // The engine takes a process of a stale pid file that was not reaped for alive.
        for stale in ["pid", "exec/containerd/containerd.pid"] {
            let _ = std::fs::remove_file(home.join(stale));
        }
        self.child = spawn_engine(self.kind, home, &self.socket);
        self.wait_until_it_answers();
    }

    fn wait_until_it_answers(&self) {
        let patience = Instant::now() + Duration::from_secs(60);
        while !self.run_client(&["version"]).success() {
            assert!(Instant::now() < patience, "{:?} does not answer: {}", self.kind, self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    /// Runs the engine's own client, which sees what a person would see.
    pub fn client(&self, args: &[&str]) -> Command {
        let url = format!("unix://{}", self.socket.display());
        let mut command = match self.kind {
            EngineKind::Docker => Command::new("docker"),
            EngineKind::Podman => Command::new("podman"),
        };
        match self.kind {
            EngineKind::Docker => command.args(["--host", &url]),
            EngineKind::Podman => command.args(["--remote", "--url", &url]),
        };
        command.args(args).current_dir(self.home.path());
        command
    }

    /// The engine's own helpers for containers: one each, and none without.
    pub fn list_helpers(&self) -> Vec<String> {
        let named = self.home.path().to_string_lossy().into_owned();
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
        let helps = |line: &String| {
            let program = line.split(' ').next().unwrap_or_default();
            let name = program.rsplit('/').next().unwrap_or_default();
            line.contains(&named) && (name == "conmon" || name.starts_with("containerd-shim"))
        };
        lines.filter(helps).collect()
    }

    fn run_client(&self, args: &[&str]) -> std::process::ExitStatus {
        let mut client = self.client(args);
        client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap()
    }

    /// What the client prints.
    pub fn read_client_output(&self, args: &[&str]) -> String {
        let output = self.client(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Makes an image of a directory.
    pub fn import_image(&self, root: &Path, name: &str) {
        let tar = self.home.path().join("root.tar");
        // Owned by root: a rootless engine has no other user.
        let packed = Command::new("tar")
            .args(["--owner=0", "--group=0", "-C"])
            .arg(root)
            .arg("-cf")
            .arg(&tar)
            .arg(".")
            .status();
        assert!(packed.unwrap().success());
        self.read_client_output(&["import", tar.to_str().unwrap(), name]);
        std::fs::remove_file(tar).unwrap();
    }

    /// Every container there is, running or not.
    pub fn list_containers(&self) -> Vec<String> {
        let listed = self.read_client_output(&["ps", "--all", "--format", "{{.Names}}"]);
        listed.lines().map(str::to_owned).collect()
    }

    /// Ends the engine as a crash would; its containers stay where they are.
    pub fn crash(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn create_home() -> TempDir {
    // Short: a socket's path has a hundred characters at the most.
    tempfile::Builder::new().prefix("engine").tempdir_in("/tmp").unwrap()
}

/// Starts it in its own directory, where all files that it drops lie.
fn spawn_engine(kind: EngineKind, home: &Path, socket: &Path) -> Child {
    let log = std::fs::File::create(home.join("log")).unwrap();
    let mut command = match kind {
        EngineKind::Docker => dockerd_command(home, socket),
        EngineKind::Podman => podman_command(home, socket),
    };
    command.current_dir(home).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command.spawn().unwrap_or_else(|error| panic!("{kind:?}: {error}"))
}

/// Configuration of dockerd with runsc, whose own network is off: it takes some kernels' for the host's.
const DOCKERD_CONFIG_JSON: &str =
    r#"{"runtimes": {"runsc": {"path": "/usr/bin/runsc", "runtimeArgs": ["--network=none"]}}}"#;

fn dockerd_command(home: &Path, socket: &Path) -> Command {
    let mut command = Command::new("dockerd");
    command.arg("--data-root").arg(home.join("data")).arg("--exec-root").arg(home.join("exec"));
    command.arg("--pidfile").arg(home.join("pid"));
    command.arg("--host").arg(format!("unix://{}", socket.display()));
    let config = home.join("daemon.json");
    std::fs::write(&config, DOCKERD_CONFIG_JSON).unwrap();
    command.arg("--config-file").arg(config).args(["--bridge", "none", "--iptables=false"]);
    command
}

fn podman_command(home: &Path, socket: &Path) -> Command {
    let mut command = Command::new("podman");
    command.arg("--root").arg(home.join("root")).arg("--runroot").arg(home.join("run"));
    command.arg("--tmpdir").arg(home.join("tmp")).args(["--cgroup-manager", "cgroupfs"]);
    // It never removes the archives that it was sent.
    command.env("TMPDIR", home);
    if !rustix::process::geteuid().is_root() {
        command.env("XDG_RUNTIME_DIR", home.join("xdg")).args(["--storage-driver", "vfs"]);
        std::fs::create_dir_all(home.join("xdg")).unwrap();
    }
    command.args(["system", "service", "--time", "0"]).arg(format!("unix://{}", socket.display()));
    command
}

impl Drop for ContainerEngine {
    fn drop(&mut self) {
        // Asked to, it ends what it started and unmounts what it mounted.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let patience = Instant::now() + Duration::from_secs(20);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        end_helpers(self.home.path());
        unmount_below(self.home.path());
        // Images hold directories that not even their owner may empty.
        let _ = Command::new("chmod").args(["-R", "u+rwX"]).arg(self.home.path()).status();
    }
}

/// Ends what an engine has left: its helpers name its directory, or were started with its name.
fn end_helpers(home: &Path) {
    let named = home.to_string_lossy().into_owned();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) else { continue };
        let told = |file| std::fs::read(entry.path().join(file)).unwrap_or_default();
        // One that holds a namespace open has no arguments left that say whose it is.
        let names = |told: Vec<u8>| String::from_utf8_lossy(&told).contains(&named);
        let is_helper = names(told("cmdline")) || names(told("environ"));
        if pid != rustix::process::getpid() && is_helper {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// Podman leaves its storage mounted onto itself.
fn unmount_below(home: &Path) {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
    let mut below: Vec<_> = points.filter(|point| point.starts_with(home)).collect();
    below.reverse();
    for point in below {
        let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
    }
}
