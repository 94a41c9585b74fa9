//! A tree as a tar archive: regular files, directories and symbolic links. Sockets, fifos and
//! devices are left out, as they mean nothing elsewhere; so is what is mounted inside the tree.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;
use stockade_fs::is_mount_point;
use tar::{Builder, EntryType, Header};

use super::{OperationFailure, Result, Roots, resolve};
use crate::protocol::FileErrorKind;

/// The deepest tree that is archived: each level holds a descriptor.
const MAX_TREE_DEPTH: usize = 256;

/// Writes the archive. The entries of a directory are named from inside it; a file by its own name.
pub fn write_archive(roots: &Roots, path: &str, output: File) -> Result<()> {
    let mut builder = Builder::new(BufWriter::with_capacity(128 * 1024, output));
    let mut archive = TreeArchiver { builder: &mut builder };
    match resolve::split_last(path).and_then(|_| roots.open_parent(path)) {
        Ok((parent, name)) if !is_dir(&parent, name) => {
            archive.append_entry(&parent, name, name, 0)?
        }
        // A directory, a link to one, or a path such as `.` that has no last part.
        Ok(_) | Err(_) => {
            let dir = roots.open_file(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
            archive.append_tree(&dir, "", 0)?;
        }
    }
    let finished = builder.into_inner().and_then(|mut output| output.flush());
    finished.map_err(|error| OperationFailure::from_io(path, &error))
}

fn is_dir(parent: &OwnedFd, name: &str) -> bool {
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

struct TreeArchiver<'a, W: Write> {
    builder: &'a mut Builder<W>,
}

impl<W: Write> TreeArchiver<'_, W> {
    fn append_tree(&mut self, dir: &OwnedFd, inside: &str, depth: usize) -> Result<()> {
        if depth > MAX_TREE_DEPTH {
            return Err(OperationFailure::with_kind(
                inside,
                FileErrorKind::TooLarge,
                "lies too deep",
            ));
        }
        for item in Dir::read_from(dir).map_err(|errno| OperationFailure::new(inside, errno))? {
            let item = item.map_err(|errno| OperationFailure::new(inside, errno))?;
            let name = item.file_name().to_string_lossy();
            if name != "." && name != ".." && !is_mount_point(dir, item.file_name()) {
                let path =
                    if inside.is_empty() { name.to_string() } else { format!("{inside}/{name}") };
                self.append_entry(dir, item.file_name(), &path, depth)?;
            }
        }
        Ok(())
    }

    fn append_entry(
        &mut self,
        dir: &OwnedFd,
        name: impl rustix::path::Arg + Copy,
        path: &str,
        depth: usize,
    ) -> Result<()> {
        let fail = |errno| OperationFailure::new(path, errno);
        let stat = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            // It vanished between being listed and being looked at.
            Err(Errno::NOENT) if depth > 0 => return Ok(()),
            stat => stat.map_err(fail)?,
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::RegularFile {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
            let file = openat(dir, name, flags | OFlags::CLOEXEC, Mode::empty()).map_err(fail)?;
            self.append_file(file, path)
        } else if kind == FileType::Directory {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let inner = openat(dir, name, flags, Mode::empty()).map_err(fail)?;
            self.append_data(&stat, EntryType::Directory, path, io::empty())?;
            self.append_tree(&inner, path, depth + 1)
        } else if kind == FileType::Symlink {
            let target = readlinkat(dir, name, Vec::new()).map_err(fail)?;
            let mut header = build_header(&stat, EntryType::Symlink);
            let added = self.builder.append_link(&mut header, path, &*target.to_string_lossy());
            added.map_err(|error| OperationFailure::from_io(path, &error))
        } else {
            Ok(())
        }
    }

    /// The size is taken from the open file, and kept to even if the file changes meanwhile: an archive whose
    /// sizes lie cannot be read at all.
    fn append_file(&mut self, file: OwnedFd, path: &str) -> Result<()> {
        let stat = fstat(&file).map_err(|errno| OperationFailure::new(path, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let content = File::from(file).chain(io::repeat(0)).take(size);
        self.append_data(&stat, EntryType::Regular, path, content)
    }

    fn append_data(
        &mut self,
        stat: &Stat,
        kind: EntryType,
        path: &str,
        content: impl Read,
    ) -> Result<()> {
        let mut header = build_header(stat, kind);
        let added = self.builder.append_data(&mut header, path, content);
        added.map_err(|error| OperationFailure::from_io(path, &error))
    }
}

fn build_header(stat: &Stat, kind: EntryType) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o777);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    let size = if kind == EntryType::Regular { stat.st_size } else { 0 };
    header.set_size(u64::try_from(size).unwrap_or(0));
    header
}
