//! A real agent beside the test, outside any walls, and its client.
#![allow(dead_code)] // Each test program uses its own part of this.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ExitStatus as HostStatus, Stdio};
use std::time::{Duration, Instant};

use stockade_agent::client::AgentClient;
use stockade_core::{Command, Exit, ExitStatus, Process, ProcessEvent, SandboxPath, StreamId};

/// Timeout of a test. It finds what hangs, also beside a load on every core.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs a test that must end in time.
pub fn test<F: Future<Output = ()>>(body: F) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, body).await.expect("too slow") });
}

/// An agent and the workspace it works in.
pub struct Agent {
    child: Child,
    pub workspace: tempfile::TempDir,
}

impl Agent {
    /// Starts one, and returns the other end of its pipe.
    pub fn start() -> (Self, UnixStream) {
        Self::start_by(&mut std::process::Command::new(AGENT_PROGRAM))
    }

    /// Starts one as the first process of a pid namespace.
    pub fn start_as_init() -> (Self, UnixStream) {
        let mut command = std::process::Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--mount-proc", "--fork"]);
        Self::start_by(command.args(["--kill-child", AGENT_PROGRAM]))
    }

    /// Starts one that has a file and a directory of the host mounted at these two paths of its workspace.
    pub fn start_with_mounts(file: &str, directory: &str) -> (Self, UnixStream) {
        let mut command = std::process::Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "--kill-child", "--fork"]);
        let script = r#"cd "$3" && mkdir -p "$DIRECTORY" && touch "$FILE" &&
            mount --bind /etc/hosts "$FILE" && mount --bind /etc "$DIRECTORY" && exec "$@""#;
        command.env("FILE", file).env("DIRECTORY", directory);
        command.args(["sh", "-c", script, "sh", AGENT_PROGRAM]);
        Self::start_by(&mut command)
    }

    /// Starts one that has given up gaining privileges, as behind any walls.
    pub fn start_without_privileges() -> (Self, UnixStream) {
        let mut command = std::process::Command::new("setpriv");
        Self::start_by(command.args(["--no-new-privs", AGENT_PROGRAM]))
    }

    fn start_by(command: &mut std::process::Command) -> (Self, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let workspace = tempfile::tempdir().unwrap();
        let child = command
            .arg("0")
            .arg(workspace.path())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .unwrap();
        (Self { child, workspace }, ours)
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.workspace.path().join(name)
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> HostStatus {
        let end = Instant::now() + TEST_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "the agent does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const AGENT_PROGRAM: &str = env!("CARGO_BIN_EXE_stockade-agent");

/// An agent with a client connected to it.
pub async fn connected() -> (Agent, AgentClient) {
    connect(Agent::start()).await
}

/// The same with what was started some other way.
pub async fn connect((agent, socket): (Agent, UnixStream)) -> (Agent, AgentClient) {
    socket.set_nonblocking(true).unwrap();
    let socket = tokio::net::UnixStream::from_std(socket).unwrap();
    let client = AgentClient::connect(socket, Duration::from_secs(10)).await.unwrap();
    (agent, client)
}

pub fn path(text: &str) -> SandboxPath {
    text.parse().unwrap()
}

pub fn sh(line: &str) -> Command {
    let mut command = Command::shell(line);
    command.env.insert("PATH".parse().unwrap(), std::env::var("PATH").unwrap());
    command
}

/// What a process did, in one piece.
pub struct Done {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub exit: Exit,
}

/// Reads a process to its end, which must be the last thing it says.
pub async fn read_to_end(process: &mut Process) -> Done {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        match process.events.next().await.unwrap() {
            ProcessEvent::Output(StreamId::Stdout, data) => stdout.extend_from_slice(&data),
            ProcessEvent::Output(StreamId::Stderr, data) => stderr.extend_from_slice(&data),
            ProcessEvent::Exit(exit) => {
                assert_eq!(process.events.next().await, None);
                return Done { stdout, stderr, exit };
            }
        }
    }
}

/// Reads output until it contains this text.
pub async fn read_until(process: &mut Process, text: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(text) {
        match process.events.next().await.unwrap() {
            ProcessEvent::Output(_, data) => seen.push_str(&String::from_utf8_lossy(&data)),
            ProcessEvent::Exit(exit) => panic!("{exit:?} before {text:?} in {seen:?}"),
        }
    }
    seen
}

pub async fn run(client: &AgentClient, command: &Command) -> Done {
    read_to_end(&mut client.spawn(command, &[]).await.unwrap()).await
}

pub async fn status(client: &AgentClient, command: &Command) -> ExitStatus {
    run(client, command).await.exit.status
}

/// Whether a process is there and not dead already.
pub fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// Waits until a condition holds.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + TEST_TIMEOUT / 2;
    while !holds() {
        assert!(Instant::now() < end, "it never came to be that {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The process ids that a file lists, once it lists this many.
pub async fn pids(file: &Path, count: usize) -> Vec<i32> {
    let read = || -> Vec<i32> {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.split_inclusive('\n')
            .filter_map(|line| line.strip_suffix('\n')?.parse().ok())
            .collect()
    };
    eventually("the processes wrote their ids", || read().len() >= count).await;
    read()
}
