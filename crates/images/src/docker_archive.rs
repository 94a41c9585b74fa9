//! Archives with Docker's list of images, as `podman save` and older `docker save` write them: read as the OCI layout that
//! they stand for.
//!
//! The list says where the config and the layers lie; the config says their digests, which are checked when they are
//! read (C-60). The same archive always stands for the same manifest, and so for the same image.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::layout::{BLOB_DIR, INDEX_FILE, LayoutArchive, NAME_ANNOTATION};
use crate::manifest::{OCI_CONFIG, OCI_INDEX, OCI_LAYER, OCI_MANIFEST, show_error};
use crate::{Digest, ImageError, ImageLimits};

/// The list of images.
pub(crate) const DOCKER_LIST_FILE: &str = "manifest.json";

/// One image of the list.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListedImage {
    config: String,
    layers: Vec<String>,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct ListedConfig {
    rootfs: ListedRoot,
}

#[derive(Deserialize)]
struct ListedRoot {
    #[serde(default)]
    diff_ids: Vec<Digest>,
}

/// Adds an index, a manifest and the names of blobs to an archive that has Docker's list instead.
pub(crate) fn convert_docker_list(
    archive: &mut LayoutArchive,
    path: &Path,
    limits: &ImageLimits,
) -> Result<(), ImageError> {
    let list = archive.read_entry(DOCKER_LIST_FILE, path, limits.manifest_bytes)?;
    let image = single_image(&list)?;
    let config = archive.read_entry(&image.config, path, limits.config_bytes)?;
    let diff_ids = read_diff_ids(&config)?;
    let (layers, ids) = (image.layers.len(), diff_ids.len());
    if layers != ids || layers > limits.layers {
        let most = limits.layers;
        let reason = format!("it has {layers} layers and {ids} diff ids, of at most {most}");
        return Err(ImageError::refused(reason));
    }
    let mut listed = Vec::new();
    for (name, digest) in image.layers.iter().zip(&diff_ids) {
        let place = *archive.entries.get(name).ok_or_else(|| {
            let name = stockade_core::clean_foreign(name);
            ImageError::refused(format!("the archive lacks `{name}`"))
        })?;
        listed.push(describe(OCI_LAYER, digest, place.1));
        archive.entries.insert(blob_name(digest), place);
    }
    let config_digest = Digest::of(&config);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": describe(OCI_CONFIG, &config_digest, config.len() as u64),
        "layers": listed,
    });
    let manifest = manifest.to_string().into_bytes();
    let manifest_digest = Digest::of(&manifest);
    let mut entry = describe(OCI_MANIFEST, &manifest_digest, manifest.len() as u64);
    if let Some([name]) = image.repo_tags.as_deref() {
        entry["annotations"] = json!({ NAME_ANNOTATION: name });
    }
    let index = json!({ "schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry] });
    archive.made.insert(INDEX_FILE.to_owned(), index.to_string().into_bytes());
    archive.made.insert(blob_name(&manifest_digest), manifest);
    archive.made.insert(blob_name(&config_digest), config);
    Ok(())
}

fn single_image(list: &[u8]) -> Result<ListedImage, ImageError> {
    let images: Vec<ListedImage> = serde_json::from_slice(list).map_err(|error| {
        ImageError::refused(format!("its list cannot be read: {}", show_error(&error)))
    })?;
    let count = images.len();
    match <[ListedImage; 1]>::try_from(images) {
        Ok([image]) => Ok(image),
        Err(_) => Err(ImageError::refused(format!("the archive has {count} images, not one"))),
    }
}

fn read_diff_ids(config: &[u8]) -> Result<Vec<Digest>, ImageError> {
    let config: ListedConfig = serde_json::from_slice(config).map_err(|error| {
        ImageError::refused(format!("its config cannot be read: {}", show_error(&error)))
    })?;
    Ok(config.rootfs.diff_ids)
}

fn blob_name(digest: &Digest) -> String {
    format!("{BLOB_DIR}{}", digest.hex())
}

fn describe(media_type: &str, digest: &Digest, size: u64) -> Value {
    json!({ "mediaType": media_type, "digest": digest, "size": size })
}
