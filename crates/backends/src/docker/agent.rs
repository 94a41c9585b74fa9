//! The agent as a file that an engine can mount: written once, in a directory that is this user's
//! alone, and checked before each use.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use stockade_core::{Error, ErrorCode, Result};

use super::NAME;
use crate::linux::embed;

/// Where it appears in a container.
pub(super) const INSIDE: &str = "/.stockade-agent";

/// Where it lies on the host.
pub(super) fn outside() -> Result<PathBuf> {
    laid().map_err(|error| {
        Error::new(ErrorCode::System, "create", "the agent cannot be laid out for the engine")
            .backend(NAME)
            .remedy("see that XDG_CACHE_HOME, or ~/.cache, can be written to and is yours alone")
            .source(error)
    })
}

fn laid() -> io::Result<PathBuf> {
    let bytes = embed::agent_bytes();
    let directory = own_directory()?;
    let hash: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let file = directory.join(format!("agent-{}", &hash[..16]));
    if !holds(&file, bytes) {
        write(&directory, &file, bytes)?;
    }
    Ok(file)
}

/// Whether that very program lies there, and nobody else could have put it there.
fn holds(file: &Path, bytes: &[u8]) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let fits = fs::symlink_metadata(file).is_ok_and(|found| {
        found.is_file() && found.uid() == own && found.len() == bytes.len() as u64
    });
    fits && fs::read(file).is_ok_and(|found| found == bytes)
}

/// Whole or not at all, whoever else writes the same.
fn write(directory: &Path, file: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = directory.join(format!("draft-{}", std::process::id()));
    let _ = fs::remove_file(&draft);
    let mut out = fs::OpenOptions::new().write(true).create_new(true).mode(0o555).open(&draft)?;
    let written = out.write_all(bytes).and_then(|()| out.sync_all());
    drop(out);
    written.and_then(|()| fs::rename(&draft, file)).inspect_err(|_| drop(fs::remove_file(&draft)))
}

/// A directory of this user's, which others may at most look into.
fn own_directory() -> io::Result<PathBuf> {
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let base = base.ok_or_else(|| io::Error::other("neither XDG_CACHE_HOME nor HOME is set"))?;
    let directory = base.join("stockade");
    DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    let found = fs::symlink_metadata(&directory)?;
    let own = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
    match found.is_dir() && own {
        true => fs::canonicalize(directory),
        false => Err(io::Error::other(format!("`{}` is open to others", directory.display()))),
    }
}
