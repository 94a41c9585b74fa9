//! A server of one's own on loopback, with its own keys and its own place for what is carried there, in a
//! directory that goes with it.

#![allow(dead_code, reason = "each test uses what it needs of it")]

pub mod bench;
pub mod proxy;

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use stockade_backends::ssh::Host;

/// Timeout for the server to listen.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(60);
const SSHD_PROGRAM: &str = "/usr/sbin/sshd";

/// A server. It ends when this is dropped, and with it its sessions.
pub struct Sshd {
    dir: tempfile::TempDir,
    child: Child,
    /// The sessions that were under way when it was stopped.
    left: Vec<i32>,
    pub port: u16,
}

impl Sshd {
    /// A server that keeps what is carried to it in its own directory.
    pub fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("stockade-sshd-").tempdir().unwrap();
        fs::create_dir(dir.path().join("cache")).unwrap();
        Self::start_in(dir, None, "")
    }

    /// A server whose sessions have these variables too, as `NAME=VALUE NAME=VALUE`.
    pub fn with_env(env: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("stockade-sshd-").tempdir().unwrap();
        fs::create_dir(dir.path().join("cache")).unwrap();
        Self::start_in(dir, None, env)
    }

    /// A server that has a disk of this size for it, which no other process sees. Only for root.
    pub fn with_disk(size: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("stockade-sshd-").tempdir().unwrap();
        fs::create_dir(dir.path().join("cache")).unwrap();
        Self::start_in(dir, Some(size), "")
    }

    fn start_in(dir: tempfile::TempDir, disk: Option<&str>, env: &str) -> Self {
        assert!(
            Path::new(SSHD_PROGRAM).exists(),
            "no {SSHD_PROGRAM} (remedy: install openssh-server)"
        );
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        generate_key(&dir.path().join("host_key"));
        generate_key(&dir.path().join("user_key"));
        fs::copy(dir.path().join("user_key.pub"), dir.path().join("authorized_keys")).unwrap();
        if rustix::process::geteuid().is_root() {
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let (child, port) = spawn_listening_sshd(dir.path(), disk, env);
        let sshd = Self { dir, child, left: Vec::new(), port };
        sshd.write_known_host("known_hosts", &sshd.dir.path().join("host_key.pub"));
        sshd.write_client_config("config", port, "known_hosts");
        sshd
    }

    /// The configuration with which a client finds it as `far`.
    pub fn config(&self) -> PathBuf {
        self.dir.path().join("config")
    }

    /// Where it keeps what is carried to it.
    pub fn cache(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    /// A path as the server sees it.
    pub fn seen_there(&self, path: &Path) -> PathBuf {
        let root = format!("/proc/{}/root", self.child.id());
        Path::new(&root).join(path.strip_prefix("/").unwrap())
    }

    /// It, as the backend takes it.
    pub fn host(&self) -> Host {
        self.host_by(&self.config())
    }

    /// It, by another configuration.
    pub fn host_by(&self, config: &Path) -> Host {
        Host { name: "far".into(), config: Some(config.into()), options: vec![], capacity: None }
    }

    /// Writes down a host key as the one that is known for it.
    pub fn write_known_host(&self, file: &str, public: &Path) {
        let key = fs::read_to_string(public).unwrap();
        let line = format!("stockade-far-test {key}");
        fs::write(self.dir.path().join(file), line).unwrap();
    }

    /// Writes a client's configuration with this port and these known hosts.
    pub fn write_client_config(&self, file: &str, port: u16, known: &str) -> PathBuf {
        let (path, dir) = (self.dir.path().join(file), self.dir.path().display());
        let text = format!(
            "Host far\nHostName 127.0.0.1\nPort {port}\nHostKeyAlias stockade-far-test\n\
             IdentityFile {dir}/user_key\nIdentitiesOnly yes\nIdentityAgent none\n\
             UserKnownHostsFile {dir}/{known}\nGlobalKnownHostsFile /dev/null\n"
        );
        fs::write(&path, text).unwrap();
        path
    }

    /// Ends it; sessions that are under way go on.
    pub fn stop(&mut self) {
        self.left = descendants_of(self.child.id());
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The processes of its sessions: those whose program was carried to it, and no others.
    pub fn list_carried(&self) -> Vec<i32> {
        let pids = fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let ours = |pid: &i32| {
            let program = fs::read_link(format!("/proc/{pid}/exe"));
            program.is_ok_and(|program| program.starts_with(self.cache()))
        };
        pids.filter(ours).collect()
    }

    /// Kills those, and returns when they are gone: until then they hold what they had locked.
    pub fn kill_carried(&self) {
        loop {
            let open = |pid| pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok();
            let processes: Vec<_> = self.list_carried().into_iter().filter_map(open).collect();
            if processes.is_empty() {
                return;
            }
            for process in &processes {
                // It may have ended by itself.
                let _ = pidfd_send_signal(process, Signal::KILL);
            }
            for process in &processes {
                poll(&mut [PollFd::new(process, PollFlags::IN)], None).unwrap();
            }
        }
    }
}

impl Drop for Sshd {
    /// Clients whose sessions are gone end by themselves, those that only keep a connection for others
    /// included.
    fn drop(&mut self) {
        let sessions = [descendants_of(self.child.id()), std::mem::take(&mut self.left)].concat();
        let _ = self.child.kill();
        let _ = self.child.wait();
        for session in sessions.into_iter().filter(|pid| is_session(*pid)) {
            let pid = Pid::from_raw(session).unwrap();
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

/// The processes that a process has started, and theirs.
fn descendants_of(pid: u32) -> Vec<i32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let children = all.filter(|other| read_parent_pid(*other) == Some(pid));
    children.flat_map(|pid| [descendants_of(pid), vec![pid.cast_signed()]].concat()).collect()
}

fn read_parent_pid(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Whether a process is still one of a server's.
fn is_session(pid: i32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.starts_with("sshd")
}

/// Makes a pair of keys.
pub fn generate_key(path: &Path) {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "stockade-test", "-f"])
        .arg(path)
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(made.success(), "ssh-keygen: {made}");
}

/// A port may be taken between being found and being used; then another one is.
fn spawn_listening_sshd(dir: &Path, disk: Option<&str>, env: &str) -> (Child, u16) {
    let until = Instant::now() + LISTEN_TIMEOUT;
    loop {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let mut child = spawn_sshd(dir, disk, env, port);
        while child.try_wait().unwrap().is_none() {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return (child, port);
            }
            assert!(Instant::now() < until, "the server does not listen");
            sleep(Duration::from_millis(5));
        }
        let said = fs::read_to_string(dir.join("log")).unwrap_or_default();
        assert!(Instant::now() < until, "the server ended: {said}");
    }
}

/// Where the distribution's programs are: one of this name that somebody has installed here is none of this host's.
const SYSTEM_PATH: &str = "/usr/bin:/bin:/usr/sbin:/sbin";

fn spawn_sshd(dir: &Path, disk: Option<&str>, env: &str, port: u16) -> Child {
    let here = dir.display();
    let text = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {here}/host_key\nPidFile none\n\
         AuthorizedKeysFile {here}/authorized_keys\nPasswordAuthentication no\n\
         KbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\nPrintMotd no\n\
         PermitRootLogin prohibit-password\nLogLevel INFO\n\
         SetEnv PATH={SYSTEM_PATH} XDG_CACHE_HOME={here}/cache XDG_STATE_HOME={here}/cache/state {env}\n"
    );
    fs::write(dir.join("sshd_config"), text).unwrap();
    let mut command = match disk {
        None => Command::new(SSHD_PROGRAM),
        Some(size) => {
            let mount =
                format!("mount -t tmpfs -o mode=700,size={size} tmpfs {here}/cache && exec \"$@\"");
            let mut apart = Command::new("unshare");
            apart.args(["--mount", "sh", "-c", &mount, "sh", SSHD_PROGRAM]);
            apart
        }
    };
    let server = command.args(["-D", "-f"]).arg(dir.join("sshd_config"));
    server
        .arg("-E")
        .arg(dir.join("log"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
