//! Starts real launchers with a stand-in agent, as root and as an ordinary user, and talks to what
//! runs inside. Everything waits with a bound.
#![allow(dead_code)] // each test file uses its part
#![allow(clippy::unwrap_used)] // a helper that fails is a test that fails

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde_json::{Value, json};
use stockade_launcher::{LaunchError, LaunchPlan, Launched, Launcher, PlanWorkspace, Program};

/// A user that need not have an account.
pub const UNPRIVILEGED_UID: u32 = 54321;
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Whose launcher it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Root,
    Ordinary,
}

/// Runs a test for every owner this process can be: root can be both.
pub fn for_each_owner(test: impl Fn(Owner, &Launcher)) {
    for owner in owners() {
        test(owner, &launcher(owner));
    }
}

pub fn owners() -> Vec<Owner> {
    match rustix::process::geteuid().is_root() {
        true => vec![Owner::Root, Owner::Ordinary],
        false => vec![Owner::Ordinary],
    }
}

fn sealed(path: &Path) -> OwnedFd {
    stockade_launcher::copy_to_sealed_memfd("program", &mut File::open(path).unwrap()).unwrap()
}

pub fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().join("examples").join(name)
}

pub fn launcher(owner: Owner) -> Launcher {
    launcher_with(owner, &example("inside"))
}

pub fn launcher_with(owner: Owner, agent: &Path) -> Launcher {
    let program = sealed(Path::new(env!("CARGO_BIN_EXE_stockade-launcher")));
    let agent = sealed(agent);
    let start = || Launcher::start(&Program::Fd(program.as_fd()), agent.as_fd()).unwrap();
    match owner {
        Owner::Ordinary if rustix::process::geteuid().is_root() => as_ordinary(start),
        Owner::Root | Owner::Ordinary => start(),
    }
}

/// In a thread of its own, whose identity alone changes.
fn as_ordinary<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (uid, gid) = (Uid::from_raw(UNPRIVILEGED_UID), Gid::from_raw(UNPRIVILEGED_UID));
            set_thread_groups(&[]).unwrap();
            set_thread_res_gid(gid, gid, gid).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
            work()
        });
        thread.join().unwrap()
    })
}

/// A directory that belongs to the launcher's owner.
pub fn directory(owner: Owner) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    give(owner, directory.path());
    directory
}

pub fn give(owner: Owner, path: &Path) {
    if owner == Owner::Ordinary && rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(path, Some(UNPRIVILEGED_UID), Some(UNPRIVILEGED_UID)).unwrap();
    }
}

pub fn local(path: &Path) -> PlanWorkspace {
    PlanWorkspace::Local { path: path.canonicalize().unwrap() }
}

/// A sandbox with the stand-in agent behind its pipe.
pub struct Inside {
    pub launched: Launched,
    pipe: BufReader<UnixStream>,
}

pub fn launch(launcher: &Launcher, plan: &LaunchPlan) -> Inside {
    try_launch(launcher, plan).unwrap_or_else(|error| panic!("{error:?}"))
}

pub fn try_launch(launcher: &Launcher, plan: &LaunchPlan) -> Result<Inside, LaunchError> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let launched = launcher.launch(plan, theirs.into())?;
    Ok(Inside { launched, pipe: BufReader::new(ours) })
}

impl Inside {
    pub fn ask(&mut self, request: Value) -> Value {
        writeln!(self.pipe.get_mut(), "{request}").unwrap();
        let mut line = String::new();
        self.pipe.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    pub fn read(&mut self, path: &str) -> Option<String> {
        self.ask(json!({ "read": path })).as_str().map(str::to_owned)
    }

    /// The errno of writing a file, or 0.
    pub fn write(&mut self, path: &str) -> i64 {
        self.ask(json!({ "write": path })).as_i64().unwrap()
    }

    pub fn list(&mut self, path: &str) -> Option<Vec<String>> {
        let names = self.ask(json!({ "list": path }));
        let names = names.as_array()?;
        Some(names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect())
    }

    /// The errno of a system call, or 0.
    pub fn call(&mut self, words: &[i64]) -> i64 {
        self.ask(json!({ "call": words })).as_i64().unwrap()
    }

    /// Runs a program that must succeed, and gives its output.
    pub fn run(&mut self, words: &[&str]) -> String {
        let result = self.ask(json!({ "run": words }));
        assert_eq!(result["code"], 0, "{words:?}: {result}");
        result["out"].as_str().unwrap().to_owned()
    }

    /// Waits for the end of the sandbox.
    pub fn ended(&self) {
        readable(&self.launched.pidfd);
    }
}

pub fn readable(fd: impl AsFd) {
    let mut watched = [PollFd::new(&fd, PollFlags::IN)];
    let bound = Timespec::try_from(TEST_TIMEOUT).unwrap();
    assert_eq!(poll(&mut watched, Some(&bound)), Ok(1), "did not end in time");
}

/// Polls, with a deadline, until a condition holds that no event announces.
pub fn until(what: &str, so: impl Fn() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !so() {
        assert!(Instant::now() < deadline, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn failure(result: Result<Inside, LaunchError>) -> stockade_launcher::Failure {
    match result {
        Err(LaunchError::Failed(failure)) => failure,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("launched"),
    }
}

impl Inside {
    /// Closes the pipe, which ends the stand-in, and waits for the end.
    pub fn ended_by_drop(self) {
        let Inside { launched, pipe } = self;
        drop(pipe);
        readable(&launched.pidfd);
    }
}
