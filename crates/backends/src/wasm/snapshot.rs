//! Snapshots of a sandbox's writable files: copies in its private directory, and back. Follows no link.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, SeekFrom, fchmod, fstat, ftruncate, mkdirat, openat,
    readlinkat, renameat, seek, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use stockade_core::{Error, ErrorCode, Result, SandboxId, SnapshotId};

use super::NAME;
use super::tree::{Place, Tree};

/// Deeper than anybody works, and far from the end of a stack.
const DEPTH: usize = 256;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Captures every directory that can be written to.
pub(super) async fn take(id: &SandboxId, tree: &Arc<Tree>) -> Result<SnapshotId> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name: SnapshotId = format!("{id}s{number}").parse().map_err(|error| {
        Error::new(ErrorCode::Invalid, "snapshot", "its name").backend(NAME).source(error)
    })?;
    let (tree, at) = (Arc::clone(tree), directory(tree, &name));
    let captured = aside(move || capture(&tree, &at)).await;
    captured.map_err(|errno| fault("snapshot", "the files cannot be captured", errno))?;
    Ok(name)
}

/// Brings a snapshot back: what was made since is gone, what was removed is there.
pub(super) async fn bring_back(tree: &Arc<Tree>, snapshot: &SnapshotId) -> Result<()> {
    let at = directory(tree, snapshot);
    if !at.is_dir() {
        let message = format!("there is no snapshot `{snapshot}`");
        return Err(Error::new(ErrorCode::NotFound, "restore", message).backend(NAME));
    }
    let tree = Arc::clone(tree);
    let restored = aside(move || put_back(&tree, &at)).await;
    restored.map_err(|errno| fault("restore", "the files cannot be brought back", errno))
}

/// Work on files, where it holds up nobody else.
async fn aside(work: impl FnOnce() -> Result<(), Errno> + Send + 'static) -> Result<(), Errno> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(Errno::INTR))
}

/// What has its name is whole: it is put together under another.
fn capture(tree: &Tree, at: &Path) -> Result<(), Errno> {
    let draft = at.with_extension("draft");
    let captured = copy_out(tree, &draft).and_then(|()| renameat(CWD, &draft, CWD, at));
    if captured.is_err() {
        let _ = stockade_launcher::clear(&draft);
    }
    captured
}

fn copy_out(tree: &Tree, draft: &Path) -> Result<(), Errno> {
    make(draft)?;
    for (number, place) in writable(tree) {
        let copy = draft.join(number.to_string());
        make(&copy)?;
        copy_all(&open(&place.dir, ".")?, &open(CWD, &copy)?, 0)?;
    }
    Ok(())
}

/// Everything is opened before anything is removed.
fn put_back(tree: &Tree, at: &Path) -> Result<(), Errno> {
    let mut pairs = Vec::new();
    for (number, place) in writable(tree) {
        pairs.push((open(CWD, at.join(number.to_string()))?, open(&place.dir, ".")?));
    }
    for (from, to) in pairs {
        empty(&to)?;
        copy_all(&from, &to, 0)?;
    }
    Ok(())
}

fn directory(tree: &Tree, snapshot: &SnapshotId) -> PathBuf {
    tree.private.join("snapshots").join(snapshot.as_str())
}

fn writable(tree: &Tree) -> impl Iterator<Item = (usize, &Place)> {
    tree.places.iter().enumerate().filter(|(_, place)| !place.read_only)
}

fn fault(operation: &'static str, what: &str, errno: Errno) -> Error {
    Error::new(ErrorCode::System, operation, what).backend(NAME).source(errno)
}

fn make(path: &Path) -> Result<(), Errno> {
    mkdirat(CWD, path, Mode::RWXU)
}

fn open(at: impl std::os::fd::AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    openat(at, name, DIRECTORY, Mode::empty())
}

fn names(dir: &OwnedFd) -> Result<Vec<std::ffi::CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

fn copy_all(from: &OwnedFd, to: &OwnedFd, depth: usize) -> Result<(), Errno> {
    if depth > DEPTH {
        return Err(Errno::NAMETOOLONG);
    }
    for name in names(from)? {
        let found = statat(from, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        let mode = Mode::from_raw_mode(found.st_mode & 0o777);
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => copy_file(from, to, &name, mode)?,
            FileType::Directory => {
                mkdirat(to, &name, Mode::RWXU)?;
                let below = open(to, &name)?;
                copy_all(&open(from, &name)?, &below, depth + 1)?;
                fchmod(&below, mode)?;
            }
            FileType::Symlink => symlinkat(readlinkat(from, &name, Vec::new())?, to, &name)?,
            // Nothing inside can make these; they hold nothing that could be captured.
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {}
        }
    }
    Ok(())
}

fn copy_file(from: &OwnedFd, to: &OwnedFd, name: &std::ffi::CStr, mode: Mode) -> Result<(), Errno> {
    let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let write = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut source = File::from(openat(from, name, read, Mode::empty())?);
    let mut target = File::from(openat(to, name, write, Mode::RWXU)?);
    let size = u64::try_from(fstat(&source)?.st_size).unwrap_or(0);
    let mut at = 0;
    // Holes stay holes: a guest can make one as large as it likes.
    while let Some((begin, end)) = data(&source, at, size)? {
        seek(&source, SeekFrom::Start(begin))?;
        seek(&target, SeekFrom::Start(begin))?;
        io::copy(&mut (&mut source).take(end - begin), &mut target)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        at = end;
    }
    ftruncate(&target, size)?;
    fchmod(&target, mode)
}

/// The next stretch of a file that is not a hole; the whole rest where the file system knows none.
fn data(file: &File, at: u64, size: u64) -> Result<Option<(u64, u64)>, Errno> {
    if at >= size {
        return Ok(None);
    }
    let begin = match seek(file, SeekFrom::Data(at)) {
        Ok(begin) => begin,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(errno) => return Err(errno),
    };
    Ok(Some((begin, seek(file, SeekFrom::Hole(begin))?.min(size).max(begin + 1))))
}

fn empty(dir: &OwnedFd) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    for name in names(dir)? {
        match unlinkat(dir, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR | Errno::PERM) => {
                let name = name.to_string_lossy().into_owned();
                let path = format!("/proc/self/fd/{}/{name}", dir.as_raw_fd());
                stockade_launcher::clear(Path::new(&path))
                    .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
