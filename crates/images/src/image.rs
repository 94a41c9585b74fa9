//! A stored image: what its config says, and where its root is.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use stockade_core::ImageForm;
use stockade_fs::{Locked, Timestamp};

use crate::{Digest, ImageReference, Platform};

/// What an image's config says about processes in it. A guest's words: shown and used only where asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// Environment, `NAME=value` each.
    pub env: Vec<String>,
    /// User, `name[:group]` or numbers. Empty for root.
    pub user: String,
    /// Working directory. Empty for `/`.
    pub working_dir: String,
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// Further arguments, or the whole command where there is no entry point.
    pub cmd: Vec<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Ports, `80/tcp` each.
    pub exposed_ports: Vec<String>,
}

impl ImageConfig {
    /// The whole command that the image runs by itself.
    pub fn command(&self) -> Vec<String> {
        self.entrypoint.iter().chain(&self.cmd).cloned().collect()
    }
}

/// A layer of a stored image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredLayer {
    /// Digest of the compressed layer, as registries name it.
    pub digest: Digest,
    /// Digest of the uncompressed layer.
    pub diff_id: Digest,
    /// Media type.
    pub media_type: String,
    /// Compressed bytes.
    pub size: u64,
}

/// An image in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredImage {
    /// Its name. Nothing for one whose name has moved to another image.
    pub reference: Option<ImageReference>,
    /// Digest of its manifest: its id.
    pub manifest: Digest,
    /// Digest of its config.
    pub config_digest: Digest,
    /// What it is made of.
    pub form: ImageForm,
    /// The machine it is for.
    pub platform: Platform,
    /// What its config says.
    pub config: ImageConfig,
    /// Its layers, the lowest first.
    pub layers: Vec<StoredLayer>,
    /// Compressed bytes of all layers.
    pub compressed_bytes: u64,
    /// Bytes of all layers, uncompressed.
    pub unpacked_bytes: u64,
    /// Devices and pipes beneath `dev/`, which were left out.
    pub skipped_devices: u64,
    /// When it was built, as it says.
    pub created: Option<String>,
    /// When it was stored.
    pub stored: Timestamp,
    /// When a sandbox last began to use it.
    pub last_used: Option<Timestamp>,
    /// Its root, or the directory with its module ([`MODULE_FILE`](crate::MODULE_FILE)): shared by all, to be read only,
    /// and there as long as an [`ImageLease`] is held.
    pub root: PathBuf,
}

/// Keeps an image's root from being removed, in every process, until it is dropped or the process ends.
#[derive(Debug)]
pub struct ImageLease {
    pub(crate) _lock: Locked,
    pub(crate) root: PathBuf,
}

impl ImageLease {
    /// The image's root, or the directory with its module.
    pub fn root(&self) -> &std::path::Path {
        &self.root
    }
}

/// What was removed from the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Names and ids of images that are gone.
    pub images: Vec<String>,
    /// Names that are gone while their image stays under another.
    pub names: Vec<String>,
    /// Images that are in use and stay.
    pub in_use: Vec<String>,
    /// Bytes of compressed layers that are gone.
    pub bytes: u64,
}

/// Which images `prune` removes. What is in use always stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PruneOptions {
    /// Named images too, not only those without a name.
    pub all: bool,
    /// Only images that no sandbox has begun to use for so long.
    pub unused_for: Option<std::time::Duration>,
}
