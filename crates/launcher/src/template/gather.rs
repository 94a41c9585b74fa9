//! Collects what a prepared root is made of, while the host's paths can still be seen. Takes
//! programs and libraries; never homes, state or secrets.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, fstat};

use super::etc;
use super::piece::{Made, Piece, find_piece};
use crate::error::{At, Failure, Wall};
use crate::fs;
use crate::open::{format_path, open_without_symlinks};
use crate::plan::Root;

/// One thing to lay into the root.
#[derive(Debug)]
pub(super) struct TemplateItem {
    pub target: PathBuf,
    pub what: TemplateContent,
}

/// What kind of thing it is.
#[derive(Debug)]
pub(super) enum TemplateContent {
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

/// What every root of one kind has in common.
pub(super) fn gather_shared_items(root: &Root) -> Result<Vec<TemplateItem>, Failure> {
    let names: Vec<&str> = device_names().collect();
    let mut items = gather_devices(&names)?;
    items.extend(list_device_links());
    match root {
        Root::Host => {
            for directory in list_system_directories() {
                items.extend(find_item(Path::new("/"), directory, true)?);
            }
            for piece in etc::list_kept_files() {
                items.push(open_piece(piece, false)?);
            }
        }
        Root::Directory(path) => items.extend(gather_image(path)?),
    }
    Ok(items)
}

/// The files by which the guest's user and group have names.
pub(super) fn gather_identity(uid: u32, gid: u32) -> Result<Vec<TemplateItem>, Failure> {
    etc::generate_files(uid, gid).into_iter().map(|piece| open_piece(piece, false)).collect()
}

/// The host's directories that hold programs, from the host's root.
pub(super) fn list_system_directories() -> impl Iterator<Item = &'static str> {
    SYSTEM_DIRECTORIES.iter().map(|(directory, _)| *directory)
}

/// What of the host any guest may read, from the host's root; not all of it need be there.
pub(super) fn list_readable_paths() -> Vec<String> {
    list_system_directories().map(str::to_owned).chain(etc::list_paths()).collect()
}

/// The device nodes any guest may use, by their names in `/dev`.
pub(super) fn device_names() -> impl Iterator<Item = &'static str> {
    SHARED_DEVICES.iter().map(|(device, _)| *device)
}

/// Tells an image apart from another that has taken its place.
pub(super) fn read_image_version(path: &Path) -> Result<(u64, u64, i64, u64), Failure> {
    let place = open_without_symlinks(path).at(Wall::Source, &format_path(path))?;
    let stat = fstat(place).at(Wall::Source, &format_path(path))?;
    let nanoseconds = stat.st_mtime_nsec as u64;
    Ok((stat.st_dev, stat.st_ino, stat.st_mtime, nanoseconds))
}

fn gather_image(path: &Path) -> Result<Vec<TemplateItem>, Failure> {
    open_without_symlinks(path).at(Wall::Source, &format_path(path))?;
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
        Failure::new(Wall::Source, errno, format_path(directory))
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

/// Like [`find_item`], but a file is mounted: an image's own programs keep their size and their mode.
fn image_item(path: &Path, entry: &str) -> Result<Option<TemplateItem>, Failure> {
    let source = path.join(entry);
    let regular = rustix::fs::lstat(&source)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    if !regular {
        return find_item(path, entry, true);
    }
    let tree = fs::clone_with(CWD, &format_path(&source), fs::READ_ONLY_MOUNT)
        .at(Wall::Source, &format_path(&source))?;
    let what = TemplateContent::Tree { tree, directory: false, layer: false };
    Ok(Some(TemplateItem { target: Path::new("/").join(entry), what }))
}

/// Device nodes of the host, by their names in `/dev`.
pub(super) fn gather_devices(names: &[impl AsRef<str>]) -> Result<Vec<TemplateItem>, Failure> {
    let mut items = Vec::new();
    for device in names {
        let device = device.as_ref();
        let target = Path::new("/dev").join(device);
        let tree = fs::clone_with(CWD, &format_path(&target), fs::DEVICE_MOUNT)
            .at(Wall::Source, device)?;
        let what = TemplateContent::Tree { tree, directory: false, layer: false };
        items.push(TemplateItem { target, what });
    }
    Ok(items)
}

fn list_device_links() -> impl Iterator<Item = TemplateItem> {
    DEVICE_LINKS.iter().map(|(link, target)| TemplateItem {
        target: PathBuf::from(link),
        what: TemplateContent::Link(PathBuf::from(target)),
    })
}

/// One entry of a root, if there is something that can be part of one.
fn find_item(base: &Path, inside: &str, layer: bool) -> Result<Option<TemplateItem>, Failure> {
    find_piece(base, inside).map(|piece| open_piece(piece, layer)).transpose()
}

fn open_piece(Piece { target, made }: Piece, layer: bool) -> Result<TemplateItem, Failure> {
    let what = match made {
        Made::Link(to) => TemplateContent::Link(to),
        Made::File(bytes) => TemplateContent::File(bytes),
        Made::Mount(source) => clone_mount(&source, layer)?,
    };
    Ok(TemplateItem { target, what })
}

fn clone_mount(source: &Path, layer: bool) -> Result<TemplateContent, Failure> {
    let tree = fs::clone_with(CWD, &format_path(source), fs::READ_ONLY_MOUNT)
        .at(Wall::Source, &format_path(source))?;
    Ok(TemplateContent::Tree { tree, directory: true, layer })
}
