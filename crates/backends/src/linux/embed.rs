//! The launcher and the agent, carried inside this program, as sealed files in memory: nothing is
//! installed, and nobody can change them while they run.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use stockade_launcher::{Launcher, Program};

/// The agent: static, so that it runs in any root.
const AGENT: &[u8] = include_bytes!(env!("STOCKADE_AGENT"));
/// The launcher: static too, so that starting it takes no dynamic linking.
const LAUNCHER: &[u8] = include_bytes!(env!("STOCKADE_LAUNCHER"));

/// A file in memory with these contents that can be executed and never changed again.
fn sealed(name: &str, contents: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels since 6.3 want to hear that the file is for execution; older ones refuse the flag.
    let fd = memfd_create(name, flags | MemfdFlags::EXEC).or_else(|_| memfd_create(name, flags))?;
    let mut file = File::from(fd);
    file.write_all(contents)?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// Starts the launcher that is carried along, in one of its ways.
pub(crate) fn launcher(
    start: impl FnOnce(&Program<'_>, BorrowedFd<'_>) -> io::Result<Launcher>,
) -> io::Result<Launcher> {
    let agent = sealed("stockade-agent", AGENT)?;
    let program = sealed("stockade-launcher", LAUNCHER)?;
    start(&Program::Fd(program.as_fd()), agent.as_fd())
}
