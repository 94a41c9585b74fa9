//! One layer, entry by entry.

use std::io::Read;
use std::os::fd::AsFd;

use crate::archive::{Archive, ArchiveEntry, ArchiveEntryKind};
use crate::decompress::Decompressed;
use crate::name::{EntryName, show};
use crate::tree::Tree;
use crate::{UnpackError, UnpackRequest, Unpacked};

/// How the names of whiteouts begin, and those of what only a file system of long ago needs.
const WHITEOUT_PREFIX: &[u8] = b".wh.";
const WHITEOUT_META_PREFIX: &[u8] = b".wh..wh.";
const OPAQUE_NAME: &[u8] = b".wh..wh..opq";
/// The one directory in which images of the past have devices: a sandbox brings its own.
const DEVICE_DIR: &[u8] = b"dev";

/// Applies a layer beneath a directory that has the layers below it.
pub fn apply_layer(
    layer: impl Read,
    request: &UnpackRequest,
    root: impl AsFd,
) -> Result<Unpacked, UnpackError> {
    let UnpackRequest { compression, limits } = *request;
    let source = Decompressed::new(layer, compression, limits.bytes);
    let mut archive = Archive::new(source, limits.entries);
    let mut tree = Tree::new(root.as_fd(), limits.entries);
    let mut skipped_devices = 0;
    while let Some(entry) = archive.next_entry()? {
        match classify_entry(&entry)? {
            Step::Add => tree.add(&entry, &mut archive)?,
            Step::WhiteOut(hidden) => tree.white_out(&hidden)?,
            Step::MakeOpaque(directory) => tree.make_opaque(&directory)?,
            Step::SkipDevice => skipped_devices += 1,
            Step::Skip => {}
        }
    }
    tree.finish()?;
    let entries = archive.entries();
    let (sha256, bytes) = archive.finish()?;
    Ok(Unpacked { sha256, entries, bytes, skipped_devices })
}

/// What an entry does to the tree.
enum Step {
    Add,
    WhiteOut(EntryName),
    MakeOpaque(EntryName),
    SkipDevice,
    Skip,
}

fn classify_entry(entry: &ArchiveEntry) -> Result<Step, UnpackError> {
    let refused =
        |reason: &str| UnpackError::refused(format!("{} {reason}", show(entry.name.bytes())));
    let (parent, base) = entry.name.split();
    if base == OPAQUE_NAME {
        return Ok(Step::MakeOpaque(EntryName::parse(parent)?));
    }
    if entry.name.components().any(|part| part.starts_with(WHITEOUT_META_PREFIX)) {
        return Ok(Step::Skip);
    }
    if let Some(hidden) = base.strip_prefix(WHITEOUT_PREFIX) {
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(refused("is a whiteout of a whole directory, or of nothing"));
        }
        let hidden = [parent, if parent.is_empty() { b"" } else { b"/" }, hidden].concat();
        return Ok(Step::WhiteOut(EntryName::parse(&hidden)?));
    }
    if entry.name.components().any(|part| part.starts_with(WHITEOUT_PREFIX)) {
        return Err(refused("is in a whiteout"));
    }
    match entry.kind {
        ArchiveEntryKind::Device if entry.name.components().next() == Some(DEVICE_DIR) => {
            Ok(Step::SkipDevice)
        }
        ArchiveEntryKind::Device => Err(refused("is a device or a pipe")),
        ArchiveEntryKind::File
        | ArchiveEntryKind::Directory
        | ArchiveEntryKind::Symlink(_)
        | ArchiveEntryKind::HardLink(_) => Ok(Step::Add),
    }
}
