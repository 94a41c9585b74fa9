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
use super::stamp::{Kind, Stamp};
use super::{Manifest, Tree, TreeError, beneath};

/// Entry type of a removed file: one of those that archives leave to their makers.
pub(super) const REMOVED_ENTRY_TYPE: u8 = b'R';

/// Writes the archive, or nothing at all if nothing has changed. Answers the path of each entry.
pub(super) fn pack(
    tree: &Tree,
    now: &Manifest,
    out: impl Write,
) -> Result<Vec<OsString>, TreeError> {
    let gone = removed_paths(&tree.base, now);
    let fresh: Vec<_> =
        now.iter().filter(|(path, stamp)| tree.base.get(*path) != Some(*stamp)).collect();
    if gone.is_empty() && fresh.is_empty() {
        return Ok(Vec::new());
    }
    let mut archive = Archive { tree, builder: Builder::new(out), entries: Vec::new() };
    for path in gone {
        let mut header = header(EntryType::new(REMOVED_ENTRY_TYPE), 0, 0);
        archive.append(&mut header, path.as_bytes(), io::empty())?;
    }
    for (path, stamp) in fresh {
        archive.entry(Path::new(path), stamp)?;
    }
    archive.builder.into_inner()?.flush()?;
    Ok(archive.entries)
}

/// What was there and is not, or is something else now; what lies deepest comes first.
fn removed_paths<'a>(base: &'a Manifest, now: &Manifest) -> Vec<&'a OsString> {
    let is_gone = |path: &OsString, was: &Stamp| {
        now.get(path).is_none_or(|is| (is.kind == Kind::Directory) != (was.kind == Kind::Directory))
    };
    base.iter().rev().filter(|(path, was)| is_gone(path, was)).map(|(path, _)| path).collect()
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header
}

struct Archive<'a, W: Write> {
    tree: &'a Tree,
    builder: Builder<W>,
    entries: Vec<OsString>,
}

impl<W: Write> Archive<'_, W> {
    fn entry(&mut self, path: &Path, stamp: &Stamp) -> Result<(), TreeError> {
        let added = match stamp.kind {
            Kind::File => self.file(path, stamp),
            Kind::Directory => {
                let mut header = header(EntryType::Directory, stamp.mode, 0);
                self.append(&mut header, path.as_os_str().as_bytes(), io::empty())
            }
            Kind::Symlink => self.link(path),
        };
        match added {
            // It vanished after it was looked at; the next look will tell.
            Err(TreeError::At { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
            added => added,
        }
    }

    /// The size is taken from the open file and kept to, whatever happens to the file meanwhile: an
    /// archive whose sizes lie cannot be read at all.
    fn file(&mut self, path: &Path, stamp: &Stamp) -> Result<(), TreeError> {
        let fail = |error| TreeError::at(path, error);
        let file = beneath::readable(&self.tree.root, path, OFlags::empty(), self.tree.side);
        let file = File::from(file.map_err(fail)?);
        let stat = fstat(&file).map_err(|errno| fail(errno.into()))?;
        if super::stamp::kind(&stat) != Some(Kind::File) {
            return Ok(());
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let pieces = holes::pieces(&file, size).map_err(fail)?;
        let (kind, length) = match &pieces {
            None => (EntryType::Regular, size),
            Some(pieces) => (EntryType::new(SPARSE_ENTRY_TYPE), holes::length(pieces)),
        };
        let mut header = header(kind, stamp.mode, length);
        header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
        // Owners mean nothing elsewhere; what comes after the second does.
        header.set_uid(stat.st_mtime_nsec);
        (&file).rewind().map_err(fail)?;
        let path = path.as_os_str().as_bytes();
        let Some(pieces) = pieces else {
            let content = file.chain(io::repeat(0)).take(size);
            return self.append(&mut header, path, content);
        };
        self.append(&mut header, path, holes::content(&file, size, &pieces))
    }

    fn link(&mut self, path: &Path) -> Result<(), TreeError> {
        let (dir, name) = beneath::parent(&self.tree.root, path)?;
        let target = readlinkat(&dir, name, Vec::new());
        let target = target.map_err(|errno| TreeError::at(path, errno))?.into_bytes();
        let mut header = header(EntryType::Symlink, 0o777, 0);
        let short = header.as_gnu_mut().and_then(|fields| fields.linkname.get_mut(..target.len()));
        match short {
            Some(field) => field.copy_from_slice(&target),
            None => self.long(EntryType::GNULongLink, &target)?,
        }
        self.append(&mut header, path.as_os_str().as_bytes(), io::empty())
    }

    /// Byte for byte: a name is not for anybody to tidy up.
    fn append(
        &mut self,
        header: &mut Header,
        path: &[u8],
        content: impl Read,
    ) -> Result<(), TreeError> {
        let short = header.as_gnu_mut().and_then(|fields| fields.name.get_mut(..path.len()));
        match short {
            Some(field) => field.copy_from_slice(path),
            None => self.long(EntryType::GNULongName, path)?,
        }
        header.set_cksum();
        self.builder.append(header, content)?;
        self.entries.push(self::path(path.to_vec()));
        Ok(())
    }

    fn long(&mut self, kind: EntryType, text: &[u8]) -> io::Result<()> {
        let mut header = header(kind, 0o644, text.len() as u64);
        header.set_cksum();
        self.builder.append(&header, text)
    }
}

/// A path as it travelled.
pub(super) fn path(bytes: Vec<u8>) -> OsString {
    OsString::from_vec(bytes)
}
