//! Stored images as they are shown: no path of the store among it.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::Serialize;
use stockade::images::{StoredImage, StoredLayer};
use stockade_core::Bytes;
use stockade_fs::Timestamp;

/// Digits of a digest that tell images apart.
const SHORT_ID_DIGITS: usize = 12;

/// One image of a list.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageView {
    /// Absent for one whose name has moved to another image.
    pub name: Option<String>,
    pub digest: String,
    pub platform: String,
    pub layers: usize,
    pub compressed_bytes: u64,
    pub unpacked_bytes: u64,
    pub created: Option<String>,
    pub stored: Timestamp,
    pub last_used: Option<Timestamp>,
}

/// Everything of one image.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageDetails {
    #[serde(flatten)]
    pub image: ImageView,
    pub config_digest: String,
    pub config: ConfigView,
    pub all_layers: Vec<LayerView>,
    pub skipped_devices: u64,
}

/// What the image says about processes in it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigView {
    pub user: String,
    pub working_dir: String,
    pub env: Vec<String>,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    pub exposed_ports: Vec<String>,
    pub labels: BTreeMap<String, String>,
}

/// One layer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LayerView {
    pub digest: String,
    pub diff_id: String,
    pub media_type: String,
    pub size: u64,
}

impl From<&StoredImage> for ImageView {
    fn from(image: &StoredImage) -> Self {
        Self {
            name: image.reference.as_ref().map(|reference| reference.familiar()),
            digest: image.manifest.to_string(),
            platform: image.platform.to_string(),
            layers: image.layers.len(),
            compressed_bytes: image.compressed_bytes,
            unpacked_bytes: image.unpacked_bytes,
            created: image.created.clone(),
            stored: image.stored,
            last_used: image.last_used,
        }
    }
}

impl From<&StoredImage> for ImageDetails {
    fn from(image: &StoredImage) -> Self {
        let config = &image.config;
        Self {
            image: image.into(),
            config_digest: image.config_digest.to_string(),
            config: ConfigView {
                user: config.user.clone(),
                working_dir: config.working_dir.clone(),
                env: config.env.clone(),
                entrypoint: config.entrypoint.clone(),
                cmd: config.cmd.clone(),
                exposed_ports: config.exposed_ports.clone(),
                labels: config.labels.clone(),
            },
            all_layers: image.layers.iter().map(LayerView::from).collect(),
            skipped_devices: image.skipped_devices,
        }
    }
}

impl From<&StoredLayer> for LayerView {
    fn from(layer: &StoredLayer) -> Self {
        Self {
            digest: layer.digest.to_string(),
            diff_id: layer.diff_id.to_string(),
            media_type: layer.media_type.clone(),
            size: layer.size,
        }
    }
}

impl ImageView {
    /// Its digest, as far as it takes to tell it from others.
    pub fn short_id(&self) -> String {
        let hex = self.digest.rsplit(':').next().unwrap_or_default();
        hex.chars().take(SHORT_ID_DIGITS).collect()
    }

    /// How much its files take, in human units.
    pub fn size(&self) -> String {
        Bytes(self.unpacked_bytes).rounded()
    }

    /// Seconds since a sandbox last began to use it.
    pub fn unused_seconds(&self) -> Option<u64> {
        let used = SystemTime::from(self.last_used?);
        Some(SystemTime::now().duration_since(used).unwrap_or_default().as_secs())
    }
}
