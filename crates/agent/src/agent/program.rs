//! A program made ready before the fork, and its way from the fork to `exec`.
//!
//! Everything that allocates or can be refused happens before the fork, in [`ProgramImage::new`].

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::{Resource, Rlimit, setrlimit};

use super::guard::Guard;
use super::landlock_scope::SignalScope;
use super::pid_namespace::KeeperNamespace;
use super::sys::{self, Pointers};
use crate::protocol::{Limit, Spawn, StartKind};

/// Where programs are looked for when the environment does not say.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What every program has in common.
pub struct Surroundings {
    /// The workspace's directory.
    pub root: CString,
    /// The limit of open files as the agent found it, before it raised its own.
    pub open_files: Rlimit,
    /// How far signals reach, where a Landlock domain bounds it.
    pub scope: Option<SignalScope>,
    /// What every program is kept from, where there are walls.
    pub guard: Option<Guard>,
    /// How an execution is kept together where orphans fall to the first process alone.
    pub apart: Option<KeeperNamespace>,
}

/// A program made ready.
pub struct ProgramImage {
    /// The paths to try, in order.
    paths: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
    dir: CString,
    user: Option<(u32, u32)>,
    limits: Vec<(Limit, u64)>,
    terminal: bool,
}

/// The program's standard input, output and error.
pub struct Stdio(pub [OwnedFd; 3]);

/// The step at which a program failed to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartStep {
    Fork,
    Session,
    Directory,
    Limits,
    User,
    Exec,
    Interpreter,
}

impl StartStep {
    pub const ALL: [Self; 7] = [
        Self::Fork,
        Self::Session,
        Self::Directory,
        Self::Limits,
        Self::User,
        Self::Exec,
        Self::Interpreter,
    ];

    /// What a failure of this step means to the caller (C-10).
    pub fn failure_kind(self, errno: i32) -> StartKind {
        match self {
            Self::Fork | Self::Session | Self::Limits => StartKind::NoResources,
            Self::Directory => StartKind::BadDirectory,
            Self::User | Self::Interpreter => StartKind::NotExecutable,
            Self::Exec => exec_kind(errno),
        }
    }

    /// The sentence that says so.
    pub fn describe_failure(self, program: &str, dir: &str, errno: i32) -> String {
        let error = io::Error::from_raw_os_error(errno);
        match self {
            Self::Fork => format!("no process for `{program}` could be made: {error}"),
            Self::Session => format!("`{program}` could not be given a session: {error}"),
            Self::Limits => format!("the limits of `{program}` could not be set: {error}"),
            Self::Directory => format!("cannot enter `{dir}`: {error}"),
            Self::User => format!("`{program}` cannot be run as another user here: {error}"),
            Self::Interpreter => {
                format!("`{program}` is there, but the interpreter it names is not")
            }
            Self::Exec => format!("`{program}`: {error}"),
        }
    }
}

fn exec_kind(errno: i32) -> StartKind {
    match errno {
        libc::ENOENT | libc::ENOTDIR => StartKind::NotFound,
        libc::E2BIG | libc::ENOMEM | libc::EAGAIN | libc::EMFILE | libc::ENFILE => {
            StartKind::NoResources
        }
        _ => StartKind::NotExecutable,
    }
}

impl ProgramImage {
    /// Nothing without a program name, or with a text no program can be given.
    pub fn new(spawn: &Spawn<'_>) -> Option<Self> {
        let program = *spawn.argv.first().filter(|name| !name.is_empty())?;
        let pair = |(name, value): &(&str, &str)| format!("{name}={value}");
        Some(Self {
            paths: to_c_strings(list_candidates(program, &spawn.env))?,
            argv: to_c_strings(spawn.argv.iter().copied())?,
            env: to_c_strings(spawn.env.iter().map(pair))?,
            dir: CString::new(if spawn.dir.is_empty() { "." } else { spawn.dir }).ok()?,
            user: spawn.user,
            limits: spawn.limits.clone(),
            terminal: spawn.terminal.is_some(),
        })
    }

    /// Becomes the program, in a process made for it. Returns only with the step that failed.
    pub fn become_it(&self, stdio: &Stdio, surroundings: &Surroundings) -> (StartStep, i32) {
        let (step, error) = match self.prepare_process(stdio, surroundings) {
            Ok(()) => self.exec_program(),
            Err(failed) => failed,
        };
        (step, error.raw_os_error().unwrap_or(libc::EIO))
    }

    fn prepare_process(
        &self,
        stdio: &Stdio,
        around: &Surroundings,
    ) -> Result<(), (StartStep, io::Error)> {
        let at = |step| move |error: io::Error| (step, error);
        let or = |step| move |error: rustix::io::Errno| (step, error.into());
        sys::begin_session().map_err(at(StartStep::Session))?;
        if self.terminal {
            rustix::process::ioctl_tiocsctty(&stdio.0[0]).map_err(or(StartStep::Session))?;
        }
        sys::set_stdio(stdio.0.each_ref().map(AsRawFd::as_raw_fd))
            .map_err(at(StartStep::Session))?;
        sys::close_on_exec_above_stdio();
        rustix::process::chdir(&around.root).map_err(or(StartStep::Directory))?;
        rustix::process::chdir(&self.dir).map_err(or(StartStep::Directory))?;
        self.set_limits(around).map_err(or(StartStep::Limits))?;
        if let Some((uid, gid)) = self.user.filter(|(uid, gid)| !sys::is_user(*uid, *gid)) {
            sys::become_user(uid, gid).map_err(at(StartStep::User))?;
        }
        if let Some(scope) = around.scope {
            // Below its keeper's, so that it cannot end that.
            scope.enter(rustix::process::getppid()).map_err(or(StartStep::Session))?;
        }
        sys::signals_for_program();
        if let Some(guard) = &around.guard {
            // Last: it is for the program alone.
            sys::seccomp_filter(guard.filter()).map_err(at(StartStep::Limits))?;
        }
        Ok(())
    }

    fn set_limits(&self, surroundings: &Surroundings) -> rustix::io::Result<()> {
        setrlimit(Resource::Nofile, surroundings.open_files)?;
        for (limit, value) in &self.limits {
            let both = Rlimit { current: Some(*value), maximum: Some(*value) };
            setrlimit(to_resource(*limit), both)?;
        }
        Ok(())
    }

    /// Tries each path as a shell does: one that is not there gives way to the next, one that may
    /// not be executed is remembered.
    fn exec_program(&self) -> (StartStep, io::Error) {
        let (argv, env) = (Pointers::from_strings(&self.argv), Pointers::from_strings(&self.env));
        let mut result = (StartStep::Exec, io::Error::from_raw_os_error(libc::ENOENT));
        for path in &self.paths {
            // Looking takes less than trying, by far on kernels such as gVisor's.
            if self.paths.len() > 1 && is_missing(path) {
                continue;
            }
            let error = sys::exec(path, &argv, &env);
            match error.raw_os_error() {
                // The kernel says the same for a missing interpreter as for a missing file.
                Some(libc::ENOENT) if is_there(path) => return (StartStep::Interpreter, error),
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                Some(libc::EACCES) => result = (StartStep::Exec, error),
                _ => return (StartStep::Exec, error),
            }
        }
        result
    }
}

fn to_c_strings<T: Into<Vec<u8>>>(texts: impl IntoIterator<Item = T>) -> Option<Vec<CString>> {
    texts.into_iter().map(|text| CString::new(text).ok()).collect()
}

fn is_there(path: &CString) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXISTS).is_ok()
}

/// Whether nothing is there. What cannot be looked at may be there all the same.
fn is_missing(path: &CString) -> bool {
    use rustix::io::Errno;
    let found = rustix::fs::access(path, rustix::fs::Access::EXISTS);
    matches!(found, Err(Errno::NOENT | Errno::NOTDIR))
}

fn list_candidates(program: &str, env: &[(&str, &str)]) -> Vec<String> {
    if program.contains('/') {
        return vec![program.to_owned()];
    }
    let path = env.iter().rev().find(|(name, _)| *name == "PATH");
    let path = path.map_or(DEFAULT_PATH, |(_, value)| value);
    // An empty part of PATH is the working directory, by old custom.
    let dirs = path.split(':').map(|dir| if dir.is_empty() { "." } else { dir });
    dirs.map(|dir| format!("{dir}/{program}")).collect()
}

fn to_resource(limit: Limit) -> Resource {
    match limit {
        Limit::CpuSeconds => Resource::Cpu,
        Limit::OpenFiles => Resource::Nofile,
        Limit::FileSize => Resource::Fsize,
        Limit::Processes => Resource::Nproc,
        Limit::AddressSpace => Resource::As,
        Limit::CoreSize => Resource::Core,
        Limit::Stack => Resource::Stack,
    }
}
