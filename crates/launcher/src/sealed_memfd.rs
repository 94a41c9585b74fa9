//! Sealed copies of programs: in memory, executable, and never to be changed again by any holder of a
//! descriptor.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use rustix::io::Errno;

use crate::error::{Failure, Wall};

fn all_seals() -> SealFlags {
    SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL
}

/// A sealed copy of a program, fit for [`crate::Launcher::start`].
pub fn copy_to_sealed_memfd(name: &str, program: &mut impl Read) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut copy = match memfd_create(name, flags | MemfdFlags::EXEC) {
        // Kernels before 6.3 know no such flag, and make every memory file executable.
        Err(Errno::INVAL) => File::from(memfd_create(name, flags)?),
        made => File::from(made?),
    };
    io::copy(program, &mut copy)?;
    add_seals(&copy)?;
    // What is open for writing cannot be executed, sealed or not.
    Ok(File::open(format!("/proc/self/fd/{}", copy.as_raw_fd()))?.into())
}

/// How often sealing is tried again. The kernel itself waits for a tenth of a second each time.
const MAX_SEAL_RETRIES: usize = 50;

/// Seals a memory file for good. Sealing against writes fails with `EBUSY` not only while it is mapped, but
/// also while the kernel holds a page of it for a moment, as when it moves pages or finds idle ones.
pub fn add_seals(file: impl AsFd) -> rustix::io::Result<()> {
    for _ in 0..MAX_SEAL_RETRIES {
        match fcntl_add_seals(&file, all_seals()) {
            Err(Errno::BUSY) => {}
            other => return other,
        }
    }
    fcntl_add_seals(file, all_seals())
}

/// Refuses an agent that is not sealed against every change.
pub(crate) fn check_seals(agent: impl AsFd) -> Result<(), Failure> {
    match fcntl_get_seals(agent) {
        Ok(seals) if seals.contains(all_seals()) => Ok(()),
        Ok(_) | Err(_) => {
            Err(Failure::without_errno(Wall::Agent, "it is not a sealed memory file"))
        }
    }
}
