//! Lasting sandboxes of one test: none of them outlives it, even if it fails.

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::FileTypeExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use super::{CliDone, CliPlace};

/// Timeout for a condition that should hold soon.
const CONDITION_TIMEOUT: Duration = Duration::from_secs(30);

/// A place whose lasting sandboxes end with it.
pub struct Lasting(pub CliPlace);

impl Deref for Lasting {
    type Target = CliPlace;

    fn deref(&self) -> &CliPlace {
        &self.0
    }
}

impl Drop for Lasting {
    fn drop(&mut self) {
        let mut end = self.command(&["kill", "--all"]);
        let _ = end.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

impl Lasting {
    pub fn new() -> Self {
        Self(CliPlace::new())
    }

    /// Makes a sandbox; answers its id.
    #[track_caller]
    pub fn create(&self, flags: &[&str]) -> String {
        let done = self.stockade(&[&["create"], flags].concat());
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
        let id = done.stdout.trim_end().to_owned();
        assert_eq!(done.stdout, format!("{id}\n"));
        id
    }

    /// Runs a line of shell in it.
    pub fn shell(&self, id: &str, line: &str) -> CliDone {
        self.stockade(&["exec", id, "--shell", line])
    }

    /// What a command says with `--json`.
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let done = self.stockade(&[&["--json"], args].concat());
        assert_eq!(done.stderr, "", "{done:?}");
        serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"))
    }

    /// What is listed about a sandbox.
    pub fn listed(&self, id: &str) -> Option<Value> {
        let all = self.json(&["ps"])["sandboxes"].take();
        all.as_array().unwrap().iter().find(|one| one["sandbox"] == id).cloned()
    }

    /// The ids of what runs in a sandbox.
    pub fn running(&self, id: &str) -> Vec<String> {
        let jobs = self.listed(id).map(|one| one["jobs"].clone()).unwrap_or_default();
        let jobs = jobs.as_array().cloned().unwrap_or_default();
        let running = jobs.iter().filter(|job| job["running"] == true);
        running.map(|job| job["job"].as_str().unwrap().to_owned()).collect()
    }

    /// The process that owns a sandbox.
    pub fn owner(&self, id: &str) -> i32 {
        self.listed(id).unwrap()["pid"].as_i64().unwrap().try_into().unwrap()
    }

    /// Kills the process that owns a sandbox, and returns when it is dead.
    pub fn slay_owner(&self, id: &str) {
        let owner = Pid::from_raw(self.owner(id)).unwrap();
        let watched = pidfd_open(owner, PidfdFlags::empty()).unwrap();
        pidfd_send_signal(&watched, Signal::KILL).unwrap();
        let soon = Timespec { tv_sec: 30, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&watched, PollFlags::IN)], Some(&soon)).unwrap(), 1);
    }

    /// Kills what is left of a client, without waiting for its own opinion.
    pub fn slay(mut client: Child) {
        client.kill().unwrap();
        client.wait().unwrap();
    }

    /// Fails unless everything is gone: leases, processes and sockets.
    pub fn assert_all_is_gone(&self) {
        self.assert_nothing_is_left();
        let left = fs::read_dir(self.state().join("run")).unwrap().flatten();
        let left: Vec<_> = left.filter(|one| one.file_type().unwrap().is_socket()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Waits until something is so.
#[track_caller]
pub fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < CONDITION_TIMEOUT, "it never came about that {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
