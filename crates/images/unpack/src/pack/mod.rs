//! The changes of a root as one layer: what archives of it have and its image has not, or otherwise; and whiteouts of
//! what is gone.
//!
//! The archives are a guest's: they are read as strictly as layers are, compared with the image's tree without
//! following a link, and nothing of them is unpacked here. Bits that change who a program runs as are not packed.

mod base;
mod writer;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};

use self::base::BaseTree;
pub use self::writer::{EntryState, LayerWriter, PackedLayer, compress_archive};
use crate::archive::{Archive, ArchiveEntry, ArchiveEntryKind};
use crate::decompress::Decompressed;
use crate::name::{EntryName, show};
use crate::{Compression, UnpackError, UnpackLimits};

const WHITEOUT_PREFIX: &[u8] = b".wh.";
/// What stands for bytes of a name that are no text, which an archive of a sandbox cannot have.
const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// An archive of one directory of a root.
#[derive(Debug)]
pub struct RootArchive {
    /// The directory, from the root on; empty for the root itself.
    pub place: String,
    /// The archive, not compressed.
    pub file: File,
}

/// What is packed.
#[derive(Debug)]
pub struct PackRequest {
    /// Archives of the root and of each directory that may be mounted in it, from the top down.
    pub archives: Vec<RootArchive>,
    /// Paths from the root on that belong to the sandbox and not to its root, with all that is in them.
    pub ignored: Vec<String>,
    /// Bounds of the archives.
    pub limits: UnpackLimits,
}

/// One entry of the new layer.
struct LayerChange {
    kind: LayerChangeKind,
    state: EntryState,
}

enum LayerChangeKind {
    Directory,
    Symlink(Vec<u8>),
    File { archive: usize, offset: u64, size: u64 },
    Whiteout,
}

/// Packs what differs from the tree of an image.
pub fn pack_changes(
    mut request: PackRequest,
    base: impl AsFd,
    layer: File,
) -> Result<PackedLayer, UnpackError> {
    let mut changes = RootChanges::new(base.as_fd(), &request.ignored);
    let mut left = request.limits;
    for (index, archive) in request.archives.iter().enumerate() {
        changes.read_archive(index, archive, &mut left)?;
    }
    changes.find_removed()?;
    let found = changes.found;
    write_changes(&found, &mut request.archives, layer)
}

struct RootChanges<'a> {
    base: BaseTree<'a>,
    ignored: &'a [String],
    /// Every path of the archives, and whether it is a directory.
    seen: HashMap<Vec<u8>, bool>,
    /// What is packed, in the order of names.
    found: BTreeMap<Vec<u8>, LayerChange>,
}

impl<'a> RootChanges<'a> {
    fn new(base: BorrowedFd<'a>, ignored: &'a [String]) -> Self {
        let base = BaseTree::new(base);
        Self { base, ignored, seen: HashMap::new(), found: BTreeMap::new() }
    }

    fn read_archive(
        &mut self,
        index: usize,
        archive: &RootArchive,
        left: &mut UnpackLimits,
    ) -> Result<(), UnpackError> {
        // What is mounted in no archive above it. The rest was seen there.
        let place = archive.place.as_bytes();
        if !place.is_empty() && self.seen.insert(place.to_owned(), true).is_some() {
            return Ok(());
        }
        let source = Decompressed::new(&archive.file, Compression::None, left.bytes);
        let mut entries = Archive::new(source, left.entries);
        while let Some(entry) = entries.next_entry()? {
            let name = full_name(&archive.place, &entry)?;
            if name.is_root() || self.is_ignored(name.bytes()) {
                continue;
            }
            let change = self.compare(index, &name, &entry, &mut entries)?;
            let is_directory = entry.kind == ArchiveEntryKind::Directory;
            if self.seen.insert(name.bytes().to_owned(), is_directory).is_some() {
                return Err(refused(&name, "is there twice"));
            }
            self.found.extend(change.map(|change| (name.bytes().to_owned(), change)));
        }
        left.entries = left.entries.saturating_sub(entries.entries());
        left.bytes = left.bytes.saturating_sub(entries.finish()?.1);
        Ok(())
    }

    /// What of an entry is not in the image.
    fn compare(
        &self,
        archive: usize,
        name: &EntryName,
        entry: &ArchiveEntry,
        entries: &mut Archive<'_>,
    ) -> Result<Option<LayerChange>, UnpackError> {
        let state = EntryState { mode: entry.mode & 0o777, mtime: entry.mtime.0 };
        let (kind, same, state) = match &entry.kind {
            ArchiveEntryKind::File => {
                let (offset, size) = (entries.position(), entries.unread_bytes());
                let same = self.base.has_file(name, state, entries)?;
                (LayerChangeKind::File { archive, offset, size }, same, state)
            }
            ArchiveEntryKind::Directory => {
                let (same, state) = self.base.compare_directory(name, state)?;
                // Made for what is mounted there.
                let is_place = self.leads_to_ignored(name.bytes()) && !self.base.has(name)?;
                (LayerChangeKind::Directory, same || is_place, state)
            }
            ArchiveEntryKind::Symlink(target) => {
                let same = self.base.has_symlink(name, target)?;
                (LayerChangeKind::Symlink(target.clone()), same, state)
            }
            ArchiveEntryKind::HardLink(_) | ArchiveEntryKind::Device => {
                return Err(refused(name, "is of a kind that archives of a sandbox do not have"));
            }
        };
        Ok((!same).then_some(LayerChange { kind, state }))
    }

    /// Adds whiteouts for what the image has and the archives have not.
    fn find_removed(&mut self) -> Result<(), UnpackError> {
        let mut due = vec![Vec::new()];
        while let Some(directory) = due.pop() {
            for (base, is_file, is_directory) in self.base.list(&directory)? {
                let path = join(&directory, &base);
                if self.is_ignored(&path) {
                    continue;
                }
                match self.seen.get(&path) {
                    Some(true) if is_directory => due.push(path),
                    Some(_) => {}
                    // Mounted from the image, each for itself, and so left out of the archive.
                    None if directory.is_empty() && is_file => {}
                    None => {
                        let hidden = join(&directory, &[WHITEOUT_PREFIX, &base].concat());
                        let state = EntryState { mode: 0, mtime: 0 };
                        self.found
                            .insert(hidden, LayerChange { kind: LayerChangeKind::Whiteout, state });
                    }
                }
            }
        }
        Ok(())
    }

    fn is_ignored(&self, path: &[u8]) -> bool {
        self.ignored.iter().any(|ignored| is_at_or_below(path, ignored.as_bytes()))
    }

    fn leads_to_ignored(&self, path: &[u8]) -> bool {
        self.ignored.iter().any(|ignored| is_at_or_below(ignored.as_bytes(), path))
    }
}

fn is_at_or_below(path: &[u8], top: &[u8]) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

fn join(directory: &[u8], base: &[u8]) -> Vec<u8> {
    let joint: &[u8] = if directory.is_empty() { b"" } else { b"/" };
    [directory, joint, base].concat()
}

/// The name of an entry from the root on. Names that a layer cannot have are refused.
fn full_name(place: &str, entry: &ArchiveEntry) -> Result<EntryName, UnpackError> {
    let name = EntryName::parse(&join(place.as_bytes(), entry.name.bytes()))?;
    if name.components().any(|part| part.starts_with(WHITEOUT_PREFIX)) {
        return Err(refused(&name, "has the name of a whiteout"));
    }
    match name.bytes().windows(REPLACEMENT.len()).any(|part| part == REPLACEMENT) {
        true => Err(refused(&name, "has a name that is no UTF-8")),
        false => Ok(name),
    }
}

fn refused(name: &EntryName, reason: &str) -> UnpackError {
    UnpackError::refused(format!("{} {reason}", show(name.bytes())))
}

fn write_changes(
    found: &BTreeMap<Vec<u8>, LayerChange>,
    archives: &mut [RootArchive],
    layer: File,
) -> Result<PackedLayer, UnpackError> {
    let failed = |error| UnpackError::io("written", "the layer", error);
    let mut writer = LayerWriter::new(layer);
    for (name, LayerChange { kind, state }) in found {
        let written = match kind {
            LayerChangeKind::Directory => writer.add_directory(name, *state),
            LayerChangeKind::Symlink(target) => writer.add_symlink(name, target, *state),
            LayerChangeKind::Whiteout => writer.add_whiteout(name),
            LayerChangeKind::File { archive, offset, size } => {
                let file = &mut archives[*archive].file;
                file.seek(SeekFrom::Start(*offset))
                    .and_then(|_| writer.add_file(name, *state, *size, file.take(*size)))
            }
        };
        written.map_err(failed)?;
    }
    writer.finish().map_err(failed)
}

#[cfg(test)]
mod tests;
