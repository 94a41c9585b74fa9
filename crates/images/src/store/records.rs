//! What the store knows about images: one small file for each image and one for each name, each replaced whole.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{OFlags, Timespec, Timestamps, UTIME_NOW, futimens};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use stockade_core::ImageForm;
use stockade_fs::{Directory, Survives, Timestamp, draft_name, write_atomically};

use crate::{Digest, ImageConfig, ImageError, ImageReference, Platform, StoredImage, StoredLayer};

/// Upper bound of a record, which has a config in it.
const MAX_RECORD_BYTES: u64 = 32 << 20;
const RECORD_SUFFIX: &str = ".json";

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageRecord {
    pub manifest: Digest,
    pub manifest_type: String,
    pub config_digest: Digest,
    pub config_type: String,
    #[serde(default)]
    pub form: ImageForm,
    pub platform: Platform,
    pub config: ImageConfig,
    pub layers: Vec<StoredLayer>,
    pub unpacked_bytes: u64,
    pub skipped_devices: u64,
    pub created: Option<String>,
    pub stored: Timestamp,
    /// The tree with all its layers, or with its module.
    pub tree: Digest,
    /// Whether it is an intermediate state of a build, listed nowhere while it has no name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_intermediate: bool,
}

/// A step of a build that was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildRecord {
    /// The layer that it made; nothing where it changed nothing.
    pub layer: Option<StoredLayer>,
    /// When.
    pub created: Timestamp,
}

/// A name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NameRecord {
    pub reference: ImageReference,
    pub manifest: Digest,
}

impl ImageRecord {
    /// Every blob that belongs to the image.
    pub fn blobs(&self) -> impl Iterator<Item = &Digest> {
        let layers = self.layers.iter().map(|layer| &layer.digest);
        [&self.manifest, &self.config_digest].into_iter().chain(layers)
    }

    pub fn into_image(
        self,
        reference: Option<ImageReference>,
        root: std::path::PathBuf,
        last_used: Option<Timestamp>,
    ) -> StoredImage {
        StoredImage {
            reference,
            compressed_bytes: self.layers.iter().map(|layer| layer.size).sum(),
            manifest: self.manifest,
            config_digest: self.config_digest,
            form: self.form,
            platform: self.platform,
            config: self.config,
            layers: self.layers,
            unpacked_bytes: self.unpacked_bytes,
            skipped_devices: self.skipped_devices,
            created: self.created,
            stored: self.stored,
            last_used,
            root,
        }
    }
}

/// The file of an image.
pub(super) fn image_file(manifest: &Digest) -> String {
    format!("{}{RECORD_SUFFIX}", manifest.hex())
}

/// The file of a name: names have letters and lengths that file names may not have.
pub(super) fn name_file(reference: &ImageReference) -> String {
    format!("{}{RECORD_SUFFIX}", Digest::of(reference.to_string().as_bytes()).hex())
}

/// Writes a record that survives a loss of power.
pub(super) fn write_record(
    directory: &Directory,
    file: &str,
    record: &impl Serialize,
) -> Result<(), ImageError> {
    let path = directory.path_of(file);
    let bytes = serde_json::to_vec(record)
        .map_err(|error| ImageError::io("written", &path)(io::Error::other(error)))?;
    write_atomically(&path, &draft_name("record"), &bytes, 0o600, Survives::Power)
        .map_err(ImageError::io("written", &path))
}

/// Reads a record. Nothing where there is none.
pub(super) fn read_record<T: DeserializeOwned>(
    directory: &Directory,
    file: &str,
) -> Result<Option<T>, ImageError> {
    let path = directory.path_of(file);
    match directory.open(file, OFlags::RDONLY) {
        Ok(opened) => parse_record(opened, &path).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ImageError::io("read", path)(error)),
    }
}

fn parse_record<T: DeserializeOwned>(file: File, path: &Path) -> Result<T, ImageError> {
    let mut bytes = Vec::new();
    file.take(MAX_RECORD_BYTES).read_to_end(&mut bytes).map_err(ImageError::io("read", path))?;
    serde_json::from_slice(&bytes)
        .map_err(|error| ImageError::io("understood", path)(io::Error::other(error)))
}

/// Every record of a directory. Drafts are none.
pub(super) fn read_records<T: DeserializeOwned>(
    directory: &Directory,
) -> Result<Vec<T>, ImageError> {
    let mut names = directory.names().map_err(ImageError::io("listed", directory.path()))?;
    names.retain(|name| name.len() == 64 + RECORD_SUFFIX.len() && name.ends_with(RECORD_SUFFIX));
    names.sort_unstable();
    // One that is removed meanwhile is none any more.
    names.iter().filter_map(|name| read_record(directory, name).transpose()).collect()
}

/// Notes that an image is used now.
pub(super) fn note_use(directory: &Directory, manifest: &Digest) -> io::Result<()> {
    let file = directory.open(&manifest.hex(), OFlags::WRONLY | OFlags::CREATE)?;
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    Ok(futimens(&file, &Timestamps { last_access: now, last_modification: now })?)
}

/// When an image was last used.
pub(super) fn last_use(directory: &Directory, manifest: &Digest) -> Option<Timestamp> {
    let file = directory.open(&manifest.hex(), OFlags::RDONLY).ok()?;
    Some(file.metadata().ok()?.modified().ok()?.into())
}
