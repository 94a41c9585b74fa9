//! The launcher and the agent, carried inside this program: one file installs.

use std::io;
use std::os::fd::OwnedFd;
use std::os::fd::{AsFd, BorrowedFd};

use stockade_launcher::{Launcher, Program, copy_to_sealed_memfd};

/// The agent's program: static, so that it runs in any root.
static AGENT_BYTES: &[u8] = include_bytes!(env!("STOCKADE_AGENT"));
/// The launcher's program: static too, so that starting it takes no dynamic linking.
static LAUNCHER_BYTES: &[u8] = include_bytes!(env!("STOCKADE_LAUNCHER"));

/// Starts the launcher that is carried along, in one of its ways.
pub(crate) fn start_launcher(
    start: impl FnOnce(&Program<'_>, BorrowedFd<'_>) -> io::Result<Launcher>,
) -> io::Result<Launcher> {
    // Sealed copies in memory: no process can change them while they run.
    let agent = copy_to_sealed_memfd("stockade-agent", &mut &*AGENT_BYTES)?;
    let program = copy_to_sealed_memfd("stockade-launcher", &mut &*LAUNCHER_BYTES)?;
    start(&Program::Fd(program.as_fd()), agent.as_fd())
}

/// The agent alone, in a sealed copy, for those who start it themselves.
pub(crate) fn seal_agent() -> io::Result<OwnedFd> {
    copy_to_sealed_memfd("stockade-agent", &mut &*AGENT_BYTES)
}

/// The agent's bytes, for those whose engine wants it as a file.
pub(crate) fn agent_bytes() -> &'static [u8] {
    AGENT_BYTES
}

/// Starts one as a copy of this process.
pub(crate) fn copy_as_launcher() -> io::Result<Launcher> {
    Launcher::fork(AGENT_BYTES)
}

/// Tells one build of the two from another.
pub(crate) fn programs_version() -> String {
    format!("{}+{}", AGENT_BYTES.len(), LAUNCHER_BYTES.len())
}
