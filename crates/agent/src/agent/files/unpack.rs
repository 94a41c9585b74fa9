//! A tar archive into a directory: regular files, directories and symbolic links, each resolved
//! beneath the target by the kernel. Anything else is refused by name, and so is a path that leaves.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::Component;

use rustix::fs::{
    AtFlags, Mode, OFlags, Timespec, Timestamps, futimens, mkdirat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};

use super::ops::{make_dir, path_prefixes};
use super::resolve::{open_within, split_last};
use super::{OperationFailure, Result, Roots};

/// Unpacks what is read. The target is made where it is missing.
pub fn unpack_archive(roots: &Roots, path: &str, input: File) -> Result<()> {
    make_dir(roots, path)?;
    let target = roots.open_dir(path)?;
    let mut archive = Archive::new(BufReader::with_capacity(128 * 1024, input));
    let fail = |error: io::Error| OperationFailure::from_io(path, &error);
    for entry in archive.entries().map_err(fail)? {
        place_entry(&target, entry.map_err(fail)?)?;
    }
    // What follows the end of the archive is read too, so that the sender is not cut off.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(fail)?;
    Ok(())
}

fn place_entry<R: Read>(target: &OwnedFd, entry: Entry<'_, R>) -> Result<()> {
    let Some(path) = inner_path(&entry)? else {
        return Ok(());
    };
    let kind = entry.header().entry_type();
    if kind == EntryType::Directory {
        return make_dirs(target, &path, entry_mode(&entry, 0o755));
    }
    let (parent, name) = split_last(&path)?;
    if parent != "." {
        make_dirs(target, parent, Mode::from_raw_mode(0o755))?;
    }
    let parent = open_within(target, parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
    if kind == EntryType::Symlink {
        place_link(&parent, name, &path, &entry)
    } else if matches!(kind, EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse) {
        place_file(&parent, name, &path, entry)
    } else {
        Err(OperationFailure::unsuitable(
            &path,
            "is neither a file, a directory nor a symbolic link",
        ))
    }
}

/// The entry's path, made of plain parts only. Nothing for the directory itself.
fn inner_path<R: Read>(entry: &Entry<'_, R>) -> Result<Option<String>> {
    let given = entry.path().map_err(|error| OperationFailure::from_io("", &error))?;
    let mut parts = Vec::new();
    for part in given.components() {
        match part {
            Component::Normal(part) => parts.push(part.to_string_lossy()),
            Component::CurDir => {}
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => {
                return Err(OperationFailure::escapes(&given.to_string_lossy()));
            }
        }
    }
    Ok((!parts.is_empty()).then(|| parts.join("/")))
}

fn entry_mode<R: Read>(entry: &Entry<'_, R>, fallback: u32) -> Mode {
    Mode::from_raw_mode(entry.header().mode().unwrap_or(fallback) & 0o777)
}

fn make_dirs(target: &OwnedFd, path: &str, last_mode: Mode) -> Result<()> {
    for prefix in path_prefixes(path) {
        let (parent, name) = split_last(prefix)?;
        let parent = open_within(target, parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        let mode = if prefix == path { last_mode } else { Mode::from_raw_mode(0o755) };
        match mkdirat(&parent, name, mode | Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(OperationFailure::new(prefix, errno)),
        }
    }
    open_within(target, path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).map(drop)
}

/// What is in the way of a file or link is replaced, never written through.
fn clear_target(parent: &OwnedFd, name: &str, path: &str) -> Result<()> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(OperationFailure::new(path, errno)),
    }
}

fn place_link<R: Read>(
    parent: &OwnedFd,
    name: &str,
    path: &str,
    entry: &Entry<'_, R>,
) -> Result<()> {
    let target = entry.link_name().map_err(|error| OperationFailure::from_io(path, &error))?;
    let Some(target) = target else {
        return Err(OperationFailure::unsuitable(path, "is a link to nowhere"));
    };
    clear_target(parent, name, path)?;
    symlinkat(&*target, parent, name).map_err(|errno| OperationFailure::new(path, errno))
}

fn place_file<R: Read>(
    parent: &OwnedFd,
    name: &str,
    path: &str,
    mut entry: Entry<'_, R>,
) -> Result<()> {
    clear_target(parent, name, path)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let made = open_within(parent, name, flags, entry_mode(&entry, 0o644))?;
    let mut file = File::from(made);
    io::copy(&mut entry, &mut file).map_err(|error| OperationFailure::from_io(path, &error))?;
    let time = entry.header().mtime().ok().and_then(|time| i64::try_from(time).ok()).unwrap_or(0);
    let time = Timespec { tv_sec: time, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    futimens(&file, &times).map_err(|errno| OperationFailure::new(path, errno))
}
