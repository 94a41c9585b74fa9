//! Applies one layer of an image beneath a directory, and packs the changes of a root as a layer.
//!
//! A layer is hostile input. It is read once, front to back, without network and without privileges; nothing is
//! resolved but by the kernel beneath the destination, and whatever does not fit is refused by the name of its
//! entry. What was applied before a refusal stays in the destination: the caller throws the whole tree away.
//!
//! Every entry belongs to the user who unpacks: owners that a layer names are recorded nowhere.

mod apply;
mod archive;
mod decompress;
mod error;
mod name;
mod pack;
mod pax;
mod tree;

use serde::{Deserialize, Serialize};

pub use apply::apply_layer;
pub use error::UnpackError;
pub use pack::{
    EntryState, LayerWriter, PackRequest, PackedLayer, RootArchive, compress_archive, pack_changes,
};

/// How a layer is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    None,
    /// RFC 1952, any number of members.
    Gzip,
    /// RFC 8878, any number of frames.
    Zstd,
}

/// Bounds of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnpackLimits {
    /// Entries of the archive, extended headers not counted.
    pub entries: u64,
    /// Bytes of the uncompressed archive.
    pub bytes: u64,
}

impl Default for UnpackLimits {
    fn default() -> Self {
        Self { entries: 1_000_000, bytes: 64 << 30 }
    }
}

/// What the program is asked: its only argument, as JSON. The layer is its standard input, the destination its
/// working directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnpackRequest {
    /// How the layer is compressed.
    pub compression: Compression,
    /// Its bounds.
    pub limits: UnpackLimits,
}

/// What was applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unpacked {
    /// SHA-256 of the uncompressed archive, in hexadecimal: the layer's diff id.
    pub sha256: String,
    /// Entries, whiteouts included.
    pub entries: u64,
    /// Bytes of the uncompressed archive.
    pub bytes: u64,
    /// Devices and pipes beneath `dev/`, which are left out.
    pub skipped_devices: u64,
}

/// The one line that the program prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnpackReply {
    /// The layer was applied.
    Unpacked(Unpacked),
    /// The layer is refused, for this reason.
    Refused(String),
    /// The host did not let it be applied.
    Failed(String),
}
