//! What the backends have in common that build walls on this host's own kernel: control groups, the
//! programs they carry, finding and ending sandboxes, and holding them to their limits.
//!
//! Decides nothing about walls.

pub(crate) mod archives;
pub(crate) mod cgroup;
pub(crate) mod control_layer;
mod counters;
pub(crate) mod dir_lock;
mod disk;
mod disk_watch;
pub(crate) mod embed;
pub(crate) mod ended;
pub(crate) mod executions;
pub(crate) mod find;
pub(crate) mod fingerprint;
pub(crate) mod freezer;
pub(crate) mod host;
pub(crate) mod limit_monitor;
pub(crate) mod limits;
pub(crate) mod paths;
pub(crate) mod private_dirs;
mod process_usage;
pub(crate) mod ready;
pub(crate) mod running;
mod unreachable;

use std::sync::{Mutex, MutexGuard, PoisonError};

use stockade_core::{
    Admitted, BackendName, Boundary, Capabilities, Command, EnvName, Error, ErrorCode, Feature,
    SandboxId, SandboxSpec, Support, User, admit,
};
use stockade_launcher::{LaunchError, Launched, Pending, SANDBOX_HOME};

/// The user of commands when neither the caller nor the workspace says.
pub(crate) const DEFAULT_USER: User = User { uid: 1000, gid: 1000 };
/// The share of a sandbox's disk that may lie in memory at once: places such as `/tmp`.
pub(crate) const MAX_SCRATCH_BYTES: u64 = 1 << 30;
/// The agent and the keeper of an execution: not the guest's.
pub(crate) const OWN_PROCESSES: u64 = 2;
/// Directories that an image's own root must not decide about: these are the sandbox's.
pub(crate) const RESERVED_DIRECTORIES: [&str; 6] = ["dev", "proc", "sys", "tmp", "run", "home"];

/// Locks a mutex, poisoned or not: a thread that panicked while holding it left nothing half-done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the answer to a launch.
pub(crate) async fn finish_launch(
    backend: BackendName,
    pending: Pending,
) -> Result<Launched, Error> {
    ready::wait_until_readable(&pending).await.map_err(|error| no_pipe(backend.clone(), error))?;
    pending.finish().map_err(|error| not_launched(backend, error))
}

/// The pipe to the sandbox failed.
pub(crate) fn no_pipe(backend: BackendName, error: std::io::Error) -> Error {
    Error::new(ErrorCode::System, "create", "the pipe to the sandbox failed")
        .backend(backend)
        .source(error)
}

/// A wall could not be built; the error names it.
pub(crate) fn not_launched(backend: BackendName, error: LaunchError) -> Error {
    let failed =
        |message: String| Error::new(ErrorCode::WallMissing, "create", message).backend(backend);
    let LaunchError::Failed(failure) = error else {
        return failed(error.to_string()).source(error);
    };
    let told = failed(failure.to_string());
    match failure.remedy {
        Some(remedy) => told.remedy(remedy),
        None => told,
    }
}

/// The launcher could not be started.
pub(crate) fn no_launcher(backend: BackendName, error: std::io::Error) -> Error {
    let message = "the launcher cannot be started";
    Error::new(ErrorCode::Unavailable, "create", message).backend(backend).source(error)
}

/// The control group of a sandbox could not be made.
pub(crate) fn no_group(backend: BackendName, error: std::io::Error) -> Error {
    let message = "its control group cannot be made as it must be";
    Error::new(ErrorCode::WallMissing, "create", message).backend(backend).source(error)
}

/// What an error says, with what it came from.
pub(crate) fn describe_error(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{}: {source}", error.message()),
        None => error.message().to_owned(),
    }
}

/// An id for a sandbox that is built only to be looked at.
pub(crate) fn trial_id() -> SandboxId {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = cgroup::throwaway::throwaway_name("probe", number);
    name.parse().unwrap_or_else(|_| unreachable!("a number makes a valid id"))
}

/// Admission by what is about to be found out.
pub(crate) fn admit_provisionally(
    backend: BackendName,
    spec: &SandboxSpec,
) -> Result<Admitted, Error> {
    provisional_at(Boundary::SharedKernel, backend, spec)
}

/// The same with this between the guest and the host's kernel.
pub(crate) fn provisional_at(
    boundary: Boundary,
    backend: BackendName,
    spec: &SandboxSpec,
) -> Result<Admitted, Error> {
    let none = Capabilities::none(backend.clone(), boundary);
    let hope =
        Feature::ALL.iter().fold(none, |hope, feature| hope.with(*feature, Support::full("hope")));
    admit(spec, &hope).map_err(|refusals| Error::refused("probe", Some(backend), refusals))
}

/// A home that can be written to, and no change of user where it is the sandbox's own.
pub(crate) fn settle_command(command: &Command, own: User) -> Command {
    let mut command = command.clone();
    if let Ok(name) = "HOME".parse::<EnvName>() {
        command.env.entry(name).or_insert_with(|| SANDBOX_HOME.into());
    }
    command.user = command.user.filter(|user| *user != own);
    command
}

/// The running kernel, who asks, from which control group, how many namespaces they may make, and
/// the programs that build and judge.
pub(crate) fn host_fingerprint() -> Option<String> {
    let read = |path: &str| stockade_fs::read_kernel_file(path).ok();
    let facts = [
        read("/proc/sys/kernel/random/boot_id")?,
        read("/proc/self/cgroup")?,
        read("/proc/sys/user/max_user_namespaces").unwrap_or_default(),
        read("/proc/self/attr/current").unwrap_or_default(),
        format!("{:?}", rustix::process::geteuid()),
        cgroup::describe_manager(),
        env!("CARGO_PKG_VERSION").into(),
        embed::programs_version(),
    ];
    Some(facts.join("\n"))
}
