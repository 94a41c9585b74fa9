//! Collects what a prepared root is made of, while the host's paths can still be seen. Takes
//! programs and libraries; never homes, state or secrets.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, fstat};

use super::etc;
use super::piece::{Made, Piece, piece};
use crate::error::{At, Failure, Wall};
use crate::fs;
use crate::open::{name, resolved};
use crate::plan::Root;

/// One thing to lay into the root.
#[derive(Debug)]
pub(super) struct Item {
    pub target: PathBuf,
    pub what: What,
}

/// What kind of thing it is.
#[derive(Debug)]
pub(super) enum What {
    Link(PathBuf),
    File(Vec<u8>),
    Tree { tree: OwnedFd, directory: bool, layer: bool },
}

/// The host's directories that hold programs, with why. What is not listed is absent inside:
/// `/home`, `/root`, `/var`, `/run`, `/srv`, `/mnt`, `/media`, `/boot`, `/opt`.
const SYSTEM_DIRECTORIES: &[(&str, &str)] = &[
    ("usr", "programs, libraries and their data"),
    ("bin", "a link into /usr, or programs on hosts that keep them apart"),
    ("sbin", "likewise"),
    ("lib", "likewise, libraries"),
    ("lib32", "libraries of the 32-bit ABI, where they are a link"),
    ("lib64", "the dynamic loader's fixed path"),
    ("libx32", "likewise"),
    ("nix/store", "programs of hosts that keep them in a store"),
    ("gnu/store", "likewise"),
];

/// Device nodes that are safe to share: they hold no state and reach no hardware.
const SHARED_DEVICES: &[(&str, &str)] = &[
    ("null", "discards"),
    ("zero", "zeros"),
    ("full", "a full disk, for tests"),
    ("random", "random bytes"),
    ("urandom", "random bytes"),
    ("tty", "the caller's own controlling terminal, if it has one"),
];

const DEVICE_LINKS: &[(&str, &str)] = &[
    ("/dev/ptmx", "pts/ptmx"),
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
];

/// Directories that an image's own root must not decide about: these are the sandbox's.
const RESERVED_DIRECTORIES: &[&str] = &["dev", "proc", "sys", "tmp", "run", "home"];

/// Everything for one kind of root.
pub(super) fn gather(
    root: &Root,
    (uid, gid): (u32, u32),
    further: &[String],
) -> Result<Vec<Item>, Failure> {
    let mut names: Vec<&str> = device_names().collect();
    names.extend(further.iter().map(String::as_str));
    let mut items = devices(&names)?;
    match root {
        Root::Host => {
            for directory in system() {
                items.extend(item(Path::new("/"), directory, true)?);
            }
            for piece in etc::generated(uid, gid).into_iter().chain(etc::kept()) {
                items.push(opened(piece, false)?);
            }
        }
        Root::Directory(path) => items.extend(image(path)?),
    }
    Ok(items)
}

/// The host's directories that hold programs, from the host's root.
pub(super) fn system() -> impl Iterator<Item = &'static str> {
    SYSTEM_DIRECTORIES.iter().map(|(directory, _)| *directory)
}

/// What of the host any guest may read, from the host's root; not all of it need be there.
pub(super) fn readable() -> Vec<String> {
    system().map(str::to_owned).chain(etc::paths()).collect()
}

/// The device nodes any guest may use, by their names in `/dev`.
pub(super) fn device_names() -> impl Iterator<Item = &'static str> {
    SHARED_DEVICES.iter().map(|(device, _)| *device)
}

/// Tells an image apart from another that has taken its place.
pub(super) fn version(path: &Path) -> Result<(u64, u64, i64, u64), Failure> {
    let place = resolved(path).at(Wall::Source, &name(path))?;
    let stat = fstat(place).at(Wall::Source, &name(path))?;
    let nanoseconds = stat.st_mtime_nsec as u64;
    Ok((stat.st_dev, stat.st_ino, stat.st_mtime, nanoseconds))
}

fn image(path: &Path) -> Result<Vec<Item>, Failure> {
    resolved(path).at(Wall::Source, &name(path))?;
    let mut entries = entry_names(path)?;
    entries.retain(|entry| !RESERVED_DIRECTORIES.contains(&entry.as_str()));
    if lacks_var_tmp(path) {
        // Laid entry by entry, so that the mount point can be made beside them.
        entries.retain(|entry| entry != "var");
        let var = entry_names(&path.join("var"))?.into_iter().filter(|entry| entry != "tmp");
        entries.extend(var.map(|entry| format!("var/{entry}")));
    }
    let items: Result<Vec<_>, _> = entries.iter().map(|entry| image_item(path, entry)).collect();
    Ok(items?.into_iter().flatten().collect())
}

fn entry_names(directory: &Path) -> Result<Vec<String>, Failure> {
    let unreadable = |error: std::io::Error| {
        let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO);
        Failure::new(Wall::Source, errno, name(directory))
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unreadable)? {
        names.extend(entry.map_err(unreadable)?.file_name().into_string());
    }
    Ok(names)
}

/// Whether an image has a `/var` in which there is no mount point for the private `/var/tmp`.
fn lacks_var_tmp(image: &Path) -> bool {
    let is_directory = |inside: &str| {
        rustix::fs::lstat(image.join(inside))
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    };
    is_directory("var") && !is_directory("var/tmp")
}

/// Like [`item`], but a file is mounted: an image's own programs keep their size and their mode.
fn image_item(path: &Path, entry: &str) -> Result<Option<Item>, Failure> {
    let source = path.join(entry);
    let regular = rustix::fs::lstat(&source)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    if !regular {
        return item(path, entry, true);
    }
    let tree = fs::clone_with(CWD, &name(&source), fs::READ_ONLY_MOUNT)
        .at(Wall::Source, &name(&source))?;
    let what = What::Tree { tree, directory: false, layer: false };
    Ok(Some(Item { target: Path::new("/").join(entry), what }))
}

fn devices(names: &[&str]) -> Result<Vec<Item>, Failure> {
    let mut items = Vec::new();
    for device in names {
        let target = Path::new("/dev").join(device);
        let tree =
            fs::clone_with(CWD, &name(&target), fs::DEVICE_MOUNT).at(Wall::Source, device)?;
        let what = What::Tree { tree, directory: false, layer: false };
        items.push(Item { target, what });
    }
    for (link, target) in DEVICE_LINKS {
        items.push(Item { target: PathBuf::from(link), what: What::Link(PathBuf::from(target)) });
    }
    Ok(items)
}

/// One entry of a root, if there is something that can be part of one.
fn item(base: &Path, inside: &str, layer: bool) -> Result<Option<Item>, Failure> {
    piece(base, inside).map(|piece| opened(piece, layer)).transpose()
}

fn opened(Piece { target, made }: Piece, layer: bool) -> Result<Item, Failure> {
    let what = match made {
        Made::Link(to) => What::Link(to),
        Made::File(bytes) => What::File(bytes),
        Made::Mount(source) => mounted(&source, layer)?,
    };
    Ok(Item { target, what })
}

fn mounted(source: &Path, layer: bool) -> Result<What, Failure> {
    let tree =
        fs::clone_with(CWD, &name(source), fs::READ_ONLY_MOUNT).at(Wall::Source, &name(source))?;
    Ok(What::Tree { tree, directory: true, layer })
}
