//! Which file a command means, and where it starts: resolved by the kernel, opened once, and used by
//! descriptor from then on.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat};
use rustix::io::Errno;
use stockade_core::{Command, SandboxPath, StartFailure};

use super::check::{MAX_PROGRAM_BYTES, UnfitProgram};
use super::tree::{GuestPlace, GuestTree};

/// The current directory: a place itself, seen from there.
const CURRENT_DIR: &str = ".";

/// Where a command starts, by name.
pub(super) struct StartDir<'t> {
    pub place: &'t GuestPlace,
    pub rest: String,
}

/// The directory a command names to start in.
pub(super) fn resolve_start_dir<'t>(
    tree: &'t GuestTree,
    command: &Command,
) -> Result<StartDir<'t>, StartFailure> {
    let Some(given) = &command.dir else {
        return Ok(StartDir { place: tree.workspace(), rest: CURRENT_DIR.into() });
    };
    let (place, rest) = tree.locate_path(given).ok_or_else(|| bad_directory(given.as_str()))?;
    Ok(StartDir { place, rest })
}

fn bad_directory(directory: &str) -> StartFailure {
    StartFailure::BadDirectory(format!("`{directory}` is not a directory"))
}

impl StartDir<'_> {
    /// Whether it is the root of the workspace, where most start.
    pub(super) fn is_usual(&self, tree: &GuestTree) -> bool {
        std::ptr::eq(self.place, tree.workspace()) && self.rest == CURRENT_DIR
    }

    /// The directory itself.
    pub(super) fn open_dir(&self, command: &Command) -> Result<OwnedFd, StartFailure> {
        let named = || bad_directory(command.dir.as_ref().map_or(CURRENT_DIR, SandboxPath::as_str));
        open_in_place(self.place, &self.rest, OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(|_| named())
    }
}

/// The bytes of a program that is named by a path.
pub(super) fn read_program_file(
    tree: &GuestTree,
    start: &StartDir<'_>,
    name: &str,
) -> Result<Vec<u8>, StartFailure> {
    let missing = || StartFailure::NotFound(format!("there is no `{name}`"));
    let located = match name.starts_with('/') {
        true => name.parse().ok().and_then(|path: SandboxPath| tree.locate_path(&path)),
        false => Some((start.place, format!("{}/{name}", start.rest))),
    };
    let (place, rest) = located.ok_or_else(missing)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = open_in_place(place, &rest, flags).map_err(|errno| match errno {
        Errno::NOENT | Errno::NOTDIR => missing(),
        errno => StartFailure::NotExecutable(format!("`{name}`: {}", std::io::Error::from(errno))),
    })?;
    read_program_bytes(file, name)
}

/// The bytes of a program of the host.
pub(super) fn read_host_program(path: &Path, name: &str) -> Result<Vec<u8>, StartFailure> {
    // A path that is no regular file is refused after the open; the open itself must not block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(CWD, path, flags, Mode::empty())
        .map_err(|error| StartFailure::NotFound(format!("`{name}` cannot be read: {error}")))?;
    read_program_bytes(file, name)
}

fn read_program_bytes(file: OwnedFd, name: &str) -> Result<Vec<u8>, StartFailure> {
    let unreadable = |why: String| StartFailure::NotExecutable(format!("`{name}` {why}"));
    let found = fstat(&file).map_err(|errno| unreadable(errno.to_string()))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(unreadable("is not a regular file".into()));
    }
    let size = u64::try_from(found.st_size).unwrap_or(0);
    let mut bytes = Vec::with_capacity(usize::try_from(size.min(MAX_PROGRAM_BYTES)).unwrap_or(0));
    let read = File::from(file).take(MAX_PROGRAM_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| unreadable(error.to_string()))?;
    if bytes.len() as u64 > MAX_PROGRAM_BYTES {
        return Err(StartFailure::NoResources(format!(
            "`{name}` has more than {MAX_PROGRAM_BYTES} bytes"
        )));
    }
    Ok(bytes)
}

fn open_in_place(place: &GuestPlace, rest: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    stockade_fs::open_beneath(&place.dir, rest, flags, Mode::empty(), ResolveFlags::BENEATH)
}

/// Why a program that was found cannot be run.
pub(super) fn to_start_failure(name: &str, unfit: &UnfitProgram) -> StartFailure {
    match unfit {
        UnfitProgram::Malformed(why) => StartFailure::NotExecutable(format!("`{name}` {why}")),
        UnfitProgram::TooMuch(why) => StartFailure::NoResources(format!("`{name}` {why}")),
    }
}
