//! The umask of this process, and the caller's. What Stockade makes for itself is its user's alone from the
//! first instant (C-07); what it makes for the caller, such as a copied file, has the mode that any other
//! program of the caller's would have given it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::Mode;

const PRIVATE_UMASK: Mode = Mode::RWXG.union(Mode::RWXO);

static CALLER_UMASK: OnceLock<Mode> = OnceLock::new();

/// Takes every right of others away from what is made from now on.
pub fn make_private() {
    let _ = CALLER_UMASK.set(rustix::process::umask(PRIVATE_UMASK));
}

/// Writes a file that the caller asked for, whole and over what was there.
#[cfg_attr(
    not(feature = "tck"),
    allow(dead_code, reason = "only the kit's report is written like this")
)]
pub fn write_for_caller(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = File::options().write(true).create_new(true).open(path);
    let mut file = match new {
        Ok(new) => {
            give_to_caller(&new, Mode::from_raw_mode(0o666))?;
            new
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            File::options().write(true).truncate(true).open(path)?
        }
        Err(error) => return Err(error),
    };
    file.write_all(bytes)
}

/// Gives something new that is the caller's the mode it would have had by the caller's own umask.
pub fn give_to_caller(made: impl AsFd, mode: Mode) -> io::Result<()> {
    let callers = CALLER_UMASK.get().copied().unwrap_or(PRIVATE_UMASK);
    Ok(rustix::fs::fchmod(made, mode.difference(callers))?)
}
