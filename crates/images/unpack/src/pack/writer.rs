//! A layer in the making: entries in the order in which they are added, compressed by gzip and digested on the way.
//! The same entries make the same bytes: no owners, no names of users, no time of the packing.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::decompress::to_hex;

/// The longest target that a plain header can have.
const MAX_PLAIN_LINK_BYTES: usize = 100;

/// A layer that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedLayer {
    /// SHA-256 of the compressed layer, in hexadecimal.
    pub sha256: String,
    /// SHA-256 of the uncompressed layer, in hexadecimal: its diff id.
    pub diff_sha256: String,
    /// Compressed bytes.
    pub size: u64,
    /// Entries, whiteouts included.
    pub entries: u64,
}

/// Mode and time of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryState {
    /// Permission bits.
    pub mode: u32,
    /// Seconds since 1970.
    pub mtime: i64,
}

/// Writes a layer.
pub struct LayerWriter {
    builder: Builder<DigestedLayer>,
    entries: u64,
}

/// Digests an archive, compresses it, and digests that.
type DigestedLayer = Digested<GzEncoder<Digested<File>>>;

/// Digests and counts what is written.
struct Digested<W> {
    inner: W,
    hasher: Sha256,
    bytes: u64,
}

impl<W> Digested<W> {
    fn new(inner: W) -> Self {
        Self { inner, hasher: Sha256::new(), bytes: 0 }
    }
}

impl<W: Write> Write for Digested<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl LayerWriter {
    /// Writes to an empty file.
    pub fn new(file: File) -> Self {
        Self { builder: Builder::new(compress_to(file)), entries: 0 }
    }

    /// How many entries there are so far.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Adds a directory.
    pub fn add_directory(&mut self, name: &[u8], state: EntryState) -> io::Result<()> {
        self.add(name, build_header(EntryType::Directory, state, 0), io::empty())
    }

    /// Adds a file of this size.
    pub fn add_file(
        &mut self,
        name: &[u8],
        state: EntryState,
        size: u64,
        contents: impl Read,
    ) -> io::Result<()> {
        self.add(name, build_header(EntryType::Regular, state, size), contents)
    }

    /// An empty file, by whose name something of a lower layer is hidden.
    pub(super) fn add_whiteout(&mut self, name: &[u8]) -> io::Result<()> {
        self.add_file(name, EntryState { mode: 0o644, mtime: 0 }, 0, io::empty())
    }

    /// Adds a symbolic link.
    pub fn add_symlink(&mut self, name: &[u8], target: &[u8], state: EntryState) -> io::Result<()> {
        let mut header = build_header(EntryType::Symlink, state, 0);
        if target.len() <= MAX_PLAIN_LINK_BYTES {
            header.set_link_name_literal(target)?;
            return self.add(name, header, io::empty());
        }
        self.entries += 1;
        self.builder.append_link(&mut header, as_path(name), as_path(target))
    }

    fn add(&mut self, name: &[u8], mut header: Header, contents: impl Read) -> io::Result<()> {
        self.entries += 1;
        self.builder.append_data(&mut header, as_path(name), contents)
    }

    /// Ends the layer, which is on disk then.
    pub fn finish(self) -> io::Result<PackedLayer> {
        finish_layer(self.builder.into_inner()?, self.entries)
    }
}

/// Compresses a whole archive as a layer, which is on disk then. Entries are counted and not judged: that is done where
/// the layer is unpacked.
pub fn compress_archive(mut archive: File, file: File) -> io::Result<PackedLayer> {
    archive.rewind()?;
    let entries = count_entries(&archive)?;
    archive.rewind()?;
    let mut layer = compress_to(file);
    io::copy(&mut archive, &mut layer)?;
    finish_layer(layer, entries)
}

fn count_entries(archive: &File) -> io::Result<u64> {
    let mut entries = 0;
    for entry in tar::Archive::new(archive).entries_with_seek()? {
        entry?;
        entries += 1;
    }
    Ok(entries)
}

fn compress_to(file: File) -> DigestedLayer {
    Digested::new(GzEncoder::new(Digested::new(file), Compression::default()))
}

fn finish_layer(archive: DigestedLayer, entries: u64) -> io::Result<PackedLayer> {
    let compressed = archive.inner.finish()?;
    compressed.inner.sync_data()?;
    Ok(PackedLayer {
        sha256: to_hex(compressed.hasher),
        diff_sha256: to_hex(archive.hasher),
        size: compressed.bytes,
        entries,
    })
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn build_header(kind: EntryType, state: EntryState, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(state.mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(u64::try_from(state.mtime).unwrap_or(0));
    header.set_size(size);
    header
}
