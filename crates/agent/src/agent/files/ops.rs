//! The operations that take no time. Only regular files are read and written: a fifo or device is
//! refused by name and never waited for.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags, Stat, fchmod, fstat, ftruncate, mkdirat, renameat};
use rustix::io::{Errno, pread};

use super::{OperationFailure, Result, Roots};
use crate::protocol::{FileEntry, FileKind, MAX_DATA};

/// What is at a path, and its name.
pub fn stat_path(roots: &Roots, path: &str) -> Result<(Stat, String)> {
    let stat =
        fstat(roots.open_to_stat(path)?).map_err(|errno| OperationFailure::new(path, errno))?;
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    Ok((stat, if name.is_empty() { "/".into() } else { name.to_owned() }))
}

/// The protocol's form of it.
pub fn to_file_entry<'a>(stat: &Stat, name: &'a str) -> FileEntry<'a> {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => FileKind::Other,
    };
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    FileEntry { kind, mode: stat.st_mode & 0o7777, size, name }
}

/// At most `most` bytes from `offset`; fewer only at the end.
pub fn read_range(roots: &Roots, path: &str, offset: u64, most: u32) -> Result<Vec<u8>> {
    let file = open_regular(roots, path, OFlags::RDONLY)?;
    let mut data = vec![0; (most as usize).min(MAX_DATA)];
    let mut filled = 0;
    while filled < data.len() {
        match pread(&file, &mut data[filled..], offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(OperationFailure::new(path, errno)),
        }
    }
    data.truncate(filled);
    Ok(data)
}

/// Writes from the start, replacing what was there, or at the end.
pub fn write_file(roots: &Roots, path: &str, append: bool, data: &[u8]) -> Result<()> {
    let place = if append { OFlags::APPEND } else { OFlags::empty() };
    let file = open_regular(roots, path, OFlags::WRONLY | OFlags::CREATE | place)?;
    if !append {
        ftruncate(&file, 0).map_err(|errno| OperationFailure::new(path, errno))?;
    }
    write_all(&file, data).map_err(|errno| OperationFailure::new(path, errno))
}

fn write_all(file: &OwnedFd, mut data: &[u8]) -> rustix::io::Result<()> {
    while !data.is_empty() {
        match rustix::io::write(file, data) {
            Ok(count) => data = &data[count..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Sets a regular file's permission bits, without those that change who a program runs as.
pub fn set_mode(roots: &Roots, path: &str, mode: u32) -> Result<()> {
    let file = open_regular(roots, path, OFlags::RDONLY)?;
    let mode = Mode::from_raw_mode(mode & 0o777);
    fchmod(&file, mode).map_err(|errno| OperationFailure::new(path, errno))
}

/// Opens a regular file. Looked at before, because opening a device can have effects of its own, and
/// after, because it may have been swapped in between.
fn open_regular(roots: &Roots, path: &str, flags: OFlags) -> Result<OwnedFd> {
    let looked = roots.open_file(path, OFlags::PATH, Mode::empty());
    match looked {
        Ok(seen) => demand_regular(&seen, path)?,
        Err(failure) if !flags.contains(OFlags::CREATE) => return Err(failure),
        Err(_) => {}
    }
    let mode =
        if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o644) } else { Mode::empty() };
    let file = roots.open_file(path, flags | OFlags::NONBLOCK | OFlags::NOCTTY, mode)?;
    demand_regular(&file, path)?;
    Ok(file)
}

fn demand_regular(file: &OwnedFd, path: &str) -> Result<()> {
    let stat = fstat(file).map_err(|errno| OperationFailure::new(path, errno))?;
    let what = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => "is a directory, not a regular file",
        FileType::Fifo => "is a fifo, not a regular file",
        FileType::Socket => "is a socket, not a regular file",
        FileType::CharacterDevice | FileType::BlockDevice => "is a device, not a regular file",
        FileType::Symlink | FileType::Unknown => "is not a regular file",
    };
    Err(OperationFailure::unsuitable(path, what))
}

/// Makes a directory and those above it.
pub fn make_dir(roots: &Roots, path: &str) -> Result<()> {
    match roots.open_dir(path) {
        Ok(_) => return Ok(()),
        Err(failure) if !failure.is_missing() => return Err(failure),
        Err(_) => {}
    }
    for prefix in path_prefixes(path) {
        let Ok((parent, name)) = roots.open_parent(prefix) else { continue };
        match mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(OperationFailure::new(prefix, errno)),
        }
    }
    // What was there may be something else, and what was made may have been swapped.
    roots.open_dir(path).map(drop)
}

/// `a`, `a/b`, `a/b/c` of `a/b/c`.
pub fn path_prefixes(path: &str) -> impl Iterator<Item = &str> {
    let inner = path.char_indices().filter(|(at, c)| *c == '/' && *at > 0).map(|(at, _)| at);
    inner.chain(std::iter::once(path.len())).map(move |at| &path[..at])
}

/// Moves within the sandbox.
pub fn rename_path(roots: &Roots, from: &str, to: &str) -> Result<()> {
    let (from_dir, from_name) = roots.open_parent(from)?;
    let (to_dir, to_name) = roots.open_parent(to)?;
    renameat(&from_dir, from_name, &to_dir, to_name)
        .map_err(|errno| OperationFailure::new(from, errno))
}
