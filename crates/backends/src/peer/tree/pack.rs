//! What has changed in a tree as a tar archive: files, directories and links as they are now, and an
//! entry of a kind of its own for each path that is gone.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek as _, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{OFlags, fstat, readlinkat};
use tar::{Builder, EntryType, Header};

use super::holes::{self, SPARSE_ENTRY_TYPE};
use super::stamp::{FileStamp, StampKind};
use super::{Tree, TreeError, TreeManifest, beneath};

/// Entry type of a removed file: one of those that archives leave to their makers.
pub(super) const REMOVED_ENTRY_TYPE: u8 = b'R';

/// Writes the archive, or nothing at all if nothing has changed. Answers the path of each entry.
pub(super) fn pack_changes(
    tree: &Tree,
    now: &TreeManifest,
    out: impl Write,
) -> Result<Vec<OsString>, TreeError> {
    let gone = removed_paths(&tree.base, now);
    let fresh: Vec<_> =
        now.iter().filter(|(path, stamp)| tree.base.get(*path) != Some(*stamp)).collect();
    if gone.is_empty() && fresh.is_empty() {
        return Ok(Vec::new());
    }
    let mut archive = ArchiveWriter { tree, builder: Builder::new(out), entries: Vec::new() };
    for path in gone {
        let mut header = new_header(EntryType::new(REMOVED_ENTRY_TYPE), 0, 0);
        archive.append_member(&mut header, path.as_bytes(), io::empty())?;
    }
    for (path, stamp) in fresh {
        archive.append_entry(Path::new(path), stamp)?;
    }
    archive.builder.into_inner()?.flush()?;
    Ok(archive.entries)
}

/// What was there and is not, or is something else now; what lies deepest comes first.
fn removed_paths<'a>(base: &'a TreeManifest, now: &TreeManifest) -> Vec<&'a OsString> {
    let is_gone = |path: &OsString, was: &FileStamp| {
        now.get(path).is_none_or(|is| {
            (is.kind == StampKind::Directory) != (was.kind == StampKind::Directory)
        })
    };
    base.iter().rev().filter(|(path, was)| is_gone(path, was)).map(|(path, _)| path).collect()
}

fn new_header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header
}

struct ArchiveWriter<'a, W: Write> {
    tree: &'a Tree,
    builder: Builder<W>,
    entries: Vec<OsString>,
}

impl<W: Write> ArchiveWriter<'_, W> {
    fn append_entry(&mut self, path: &Path, stamp: &FileStamp) -> Result<(), TreeError> {
        let added = match stamp.kind {
            StampKind::File => self.append_file(path, stamp),
            StampKind::Directory => {
                let mut header = new_header(EntryType::Directory, stamp.mode, 0);
                self.append_member(&mut header, path.as_os_str().as_bytes(), io::empty())
            }
            StampKind::Symlink => self.append_symlink(path),
        };
        match added {
            // It vanished after it was looked at; the next look will tell.
            Err(TreeError::At { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            added => added,
        }
    }

    /// The size is taken from the open file and kept to, even if the file changes meanwhile: an archive whose
    /// sizes lie cannot be read at all.
    fn append_file(&mut self, path: &Path, stamp: &FileStamp) -> Result<(), TreeError> {
        let fail = |error| TreeError::at(path, error);
        let file = beneath::open_readable(&self.tree.root, path, OFlags::empty(), self.tree.side);
        let file = File::from(file.map_err(fail)?);
        let stat = fstat(&file).map_err(|errno| fail(errno.into()))?;
        if super::stamp::stamp_kind(&stat) != Some(StampKind::File) {
            return Ok(());
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let pieces = holes::find_segments(&file, size).map_err(fail)?;
        let (kind, length) = match &pieces {
            None => (EntryType::Regular, size),
            Some(pieces) => (EntryType::new(SPARSE_ENTRY_TYPE), holes::encoded_length(pieces)),
        };
        let mut header = new_header(kind, stamp.mode, length);
        header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
        // Owners mean nothing elsewhere; what comes after the second does.
        header.set_uid(stat.st_mtime_nsec);
        (&file).rewind().map_err(fail)?;
        let path = path.as_os_str().as_bytes();
        let Some(pieces) = pieces else {
            let content = file.chain(io::repeat(0)).take(size);
            return self.append_member(&mut header, path, content);
        };
        self.append_member(&mut header, path, holes::segment_reader(&file, size, &pieces))
    }

    fn append_symlink(&mut self, path: &Path) -> Result<(), TreeError> {
        let (dir, name) = beneath::open_parent(&self.tree.root, path)?;
        let target = readlinkat(&dir, name, Vec::new());
        let target = target.map_err(|errno| TreeError::at(path, errno))?.into_bytes();
        let mut header = new_header(EntryType::Symlink, 0o777, 0);
        let short = header.as_gnu_mut().and_then(|fields| fields.linkname.get_mut(..target.len()));
        match short {
            Some(field) => field.copy_from_slice(&target),
            None => self.append_long_name(EntryType::GNULongLink, &target)?,
        }
        self.append_member(&mut header, path.as_os_str().as_bytes(), io::empty())
    }

    /// Byte for byte: names are not normalised.
    fn append_member(
        &mut self,
        header: &mut Header,
        path: &[u8],
        content: impl Read,
    ) -> Result<(), TreeError> {
        let short = header.as_gnu_mut().and_then(|fields| fields.name.get_mut(..path.len()));
        match short {
            Some(field) => field.copy_from_slice(path),
            None => self.append_long_name(EntryType::GNULongName, path)?,
        }
        header.set_cksum();
        self.builder.append(header, content)?;
        self.entries.push(bytes_to_path(path.to_vec()));
        Ok(())
    }

    fn append_long_name(&mut self, kind: EntryType, text: &[u8]) -> io::Result<()> {
        let mut header = new_header(kind, 0o644, text.len() as u64);
        header.set_cksum();
        self.builder.append(&header, text)
    }
}

/// A path as it travelled.
pub(super) fn bytes_to_path(bytes: Vec<u8>) -> OsString {
    OsString::from_vec(bytes)
}
