//! Manifests and indexes: what registries and layouts say an image is made of.
//!
//! All of it is foreign text. Each document is taken for one kind only, the one that it was announced as: a
//! document that could be read as two kinds would be another image for another reader of the same digest.

use std::collections::BTreeMap;

use serde::Deserialize;
use stockade_core::{ImageForm, clean_foreign};

use crate::module::{check_module_layers, is_module_config};
use crate::{Compression, Digest, ImageError, ImageLimits, Platform};

pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const OCI_GZIP_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const OCI_ZSTD_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";

/// What registries are asked for.
pub(crate) const ACCEPTED_TYPES: [&str; 4] =
    [OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_LIST];

/// Upper bound of an index's entries, and of indexes in indexes.
const MAX_INDEX_ENTRIES: usize = 1000;
pub(crate) const MAX_INDEX_DEPTH: usize = 3;

/// The kind of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DocumentKind {
    /// One image.
    Manifest,
    /// A list of images.
    Index,
}

/// The kind that a media type stands for. Nothing for all others.
pub(crate) fn document_kind(media_type: &str) -> Option<DocumentKind> {
    match media_type {
        OCI_MANIFEST | DOCKER_MANIFEST => Some(DocumentKind::Manifest),
        OCI_INDEX | DOCKER_LIST => Some(DocumentKind::Index),
        _ => None,
    }
}

/// A pointer to content.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Descriptor {
    #[serde(rename = "mediaType", default)]
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default)]
    urls: Option<Vec<String>>,
    #[serde(default)]
    pub platform: Option<DescriptorPlatform>,
    #[serde(default)]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// The machine that an entry of an index is for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct DescriptorPlatform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    variant: Option<String>,
}

/// Every field by which one kind differs from the other.
#[derive(Deserialize)]
struct Document {
    #[serde(rename = "schemaVersion")]
    schema_version: u32,
    #[serde(rename = "mediaType", default)]
    media_type: Option<String>,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Option<Vec<Descriptor>>,
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
    #[serde(rename = "fsLayers", default)]
    fs_layers: Option<serde::de::IgnoredAny>,
}

/// One image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub form: ImageForm,
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

fn parse_document(bytes: &[u8], media_type: &str) -> Result<Document, ImageError> {
    let document: Document = serde_json::from_slice(bytes).map_err(|error| {
        ImageError::refused(format!("its manifest cannot be read: {}", show_error(&error)))
    })?;
    if document.schema_version != 2 || document.fs_layers.is_some() {
        return Err(ImageError::refused(
            "its manifest is of a version that is not in use any more",
        ));
    }
    match &document.media_type {
        Some(said) if said != media_type => Err(ImageError::refused(format!(
            "its manifest is announced as `{}` and calls itself `{}`",
            clean_foreign(media_type),
            clean_foreign(said)
        ))),
        Some(_) | None => Ok(document),
    }
}

/// A JSON error without the document's own text.
pub(crate) fn show_error(error: &serde_json::Error) -> String {
    clean_foreign(&error.to_string())
}

/// Reads a manifest that was announced as this media type.
pub(crate) fn parse_manifest(
    bytes: &[u8],
    media_type: &str,
    limits: &ImageLimits,
) -> Result<Manifest, ImageError> {
    let document = parse_document(bytes, media_type)?;
    let (Some(config), Some(layers), None) = (document.config, document.layers, document.manifests)
    else {
        return Err(ImageError::refused("its manifest is not that of one image"));
    };
    let form = form_of_config(&config)?;
    check_size("its config", config.size, limits.config_bytes)?;
    match form {
        ImageForm::Root => check_layers(&layers, limits)?,
        ImageForm::Module => check_module_layers(&layers)?,
    }
    Ok(Manifest { form, config, layers })
}

/// What an image is made of, by the media type of its config.
fn form_of_config(config: &Descriptor) -> Result<ImageForm, ImageError> {
    match config.media_type.as_str() {
        OCI_CONFIG | DOCKER_CONFIG => Ok(ImageForm::Root),
        kind if is_module_config(kind) => Ok(ImageForm::Module),
        kind => {
            let kind = clean_foreign(kind);
            Err(ImageError::refused(format!("it is no image but an artifact with `{kind}`")))
        }
    }
}

fn check_layers(layers: &[Descriptor], limits: &ImageLimits) -> Result<(), ImageError> {
    if layers.len() > limits.layers {
        let (count, limit) = (layers.len(), limits.layers);
        return Err(ImageError::refused(format!("it has {count} layers, more than {limit}")));
    }
    for layer in layers {
        layer_compression(layer)?;
        check_size(&format!("the layer {}", layer.digest), layer.size, limits.layer_bytes)?;
    }
    Ok(())
}

pub(crate) fn check_size(what: &str, size: u64, limit: u64) -> Result<(), ImageError> {
    match size > limit {
        true => Err(ImageError::TooLarge { what: what.to_owned(), limit }),
        false => Ok(()),
    }
}

/// How a layer is compressed. Layers that lie elsewhere, or are no archives, are refused.
pub(crate) fn layer_compression(layer: &Descriptor) -> Result<Compression, ImageError> {
    check_not_foreign(layer)?;
    let media_type = layer.media_type.as_str();
    compression_of(media_type).ok_or_else(|| {
        ImageError::refused(format!(
            "its layer {} is of the unknown type `{}`",
            layer.digest,
            clean_foreign(media_type)
        ))
    })
}

/// Refuses a layer that its registry does not have.
pub(crate) fn check_not_foreign(layer: &Descriptor) -> Result<(), ImageError> {
    let elsewhere = layer.urls.as_ref().is_some_and(|urls| !urls.is_empty());
    let media_type = layer.media_type.as_str();
    if elsewhere || media_type.contains("foreign") || media_type.contains("nondistributable") {
        let digest = &layer.digest;
        return Err(ImageError::refused(format!(
            "its layer {digest} is foreign: it lies elsewhere"
        )));
    }
    Ok(())
}

/// How layers of a media type are compressed. Nothing for types that are none of a layer.
pub(crate) fn compression_of(media_type: &str) -> Option<Compression> {
    match media_type {
        OCI_LAYER | "application/vnd.docker.image.rootfs.diff.tar" => Some(Compression::None),
        OCI_GZIP_LAYER | "application/vnd.docker.image.rootfs.diff.tar.gzip" => {
            Some(Compression::Gzip)
        }
        OCI_ZSTD_LAYER | "application/vnd.docker.image.rootfs.diff.tar.zstd" => {
            Some(Compression::Zstd)
        }
        _ => None,
    }
}

/// The media type of a layer in a manifest of our own.
pub(crate) fn own_layer_type(compression: Compression) -> &'static str {
    match compression {
        Compression::None => OCI_LAYER,
        Compression::Gzip => OCI_GZIP_LAYER,
        Compression::Zstd => OCI_ZSTD_LAYER,
    }
}

/// Reads an index that was announced as this media type.
pub(crate) fn parse_index(bytes: &[u8], media_type: &str) -> Result<Vec<Descriptor>, ImageError> {
    let document = parse_document(bytes, media_type)?;
    match (document.manifests, document.config, document.layers) {
        (Some(manifests), None, None) if manifests.len() <= MAX_INDEX_ENTRIES => Ok(manifests),
        (Some(_), None, None) => {
            Err(ImageError::refused(format!("its index has more than {MAX_INDEX_ENTRIES} entries")))
        }
        (_, _, _) => Err(ImageError::refused("its index is that of one image too, or of none")),
    }
}

/// The entry for a platform: the first that names it, or the only one where none names any.
pub(crate) fn choose_entry<'a>(
    entries: &'a [Descriptor],
    platform: &Platform,
) -> Result<&'a Descriptor, ImageError> {
    let known = |entry: &&Descriptor| document_kind(&entry.media_type).is_some();
    let fits = |entry: &&Descriptor| entry.platform.as_ref().is_some_and(|p| p.fits(platform));
    if let Some(entry) = entries.iter().filter(known).find(fits) {
        return Ok(entry);
    }
    let unnamed = |entry: &&Descriptor| entry.platform.is_none();
    let mut candidates = entries.iter().filter(known).filter(unnamed);
    if let (Some(only), None) = (candidates.next(), candidates.next()) {
        return Ok(only);
    }
    let mut offered: Vec<String> = entries
        .iter()
        .filter_map(|entry| entry.platform.as_ref())
        .filter(|platform| platform.os != "unknown")
        .map(|platform| clean_foreign(&format!("{}/{}", platform.os, platform.architecture)))
        .take(20)
        .collect();
    offered.dedup();
    Err(ImageError::NoPlatform { wanted: platform.to_string(), offered: offered.join(", ") })
}

impl DescriptorPlatform {
    fn fits(&self, wanted: &Platform) -> bool {
        // `arm64` and `arm64/v8` are the same machine.
        let variant = |variant: &Option<String>| match (wanted.architecture.as_str(), variant) {
            ("arm64", None) => Some("v8".to_owned()),
            (_, variant) => variant.clone(),
        };
        self.os == wanted.os
            && self.architecture == wanted.architecture
            && (wanted.variant.is_none() || variant(&wanted.variant) == variant(&self.variant))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn digest(fill: char) -> String {
        format!("sha256:{}", fill.to_string().repeat(64))
    }

    fn manifest() -> Value {
        json!({
            "schemaVersion": 2, "mediaType": OCI_MANIFEST,
            "config": { "mediaType": OCI_CONFIG, "digest": digest('c'), "size": 2 },
            "layers": [{
                "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
                "digest": digest('1'), "size": 5,
            }],
        })
    }

    fn refusal_of(document: &Value) -> String {
        let bytes = document.to_string();
        parse_manifest(bytes.as_bytes(), OCI_MANIFEST, &ImageLimits::default())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn a_plain_manifest_is_read() {
        let bytes = manifest().to_string();
        let read = parse_manifest(bytes.as_bytes(), OCI_MANIFEST, &ImageLimits::default()).unwrap();
        assert_eq!((read.layers.len(), read.layers[0].size), (1, 5));
    }

    #[test]
    fn a_document_that_could_be_two_kinds_is_refused() {
        let mut both = manifest();
        both["manifests"] = json!([]);
        assert!(refusal_of(&both).contains("not that of one image"));
        assert!(parse_index(both.to_string().as_bytes(), OCI_INDEX).is_err());
        let mut confused = manifest();
        confused["mediaType"] = json!(OCI_INDEX);
        assert!(refusal_of(&confused).contains("calls itself"));
        let mut old = manifest();
        old["fsLayers"] = json!([]);
        assert!(refusal_of(&old).contains("version"));
    }

    #[test]
    fn foreign_unknown_and_oversized_layers_are_refused_by_digest() {
        for (field, value, reason) in [
            ("urls", json!(["https://example.org/x"]), "foreign"),
            (
                "mediaType",
                json!("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"),
                "foreign",
            ),
            (
                "mediaType",
                json!("application/vnd.oci.image.layer.nondistributable.v1.tar"),
                "foreign",
            ),
            ("mediaType", json!("text/html"), "unknown type"),
            ("size", json!(u64::MAX), "larger"),
        ] {
            let mut bad = manifest();
            bad["layers"][0][field] = value;
            let refusal = refusal_of(&bad);
            assert!(refusal.contains(reason) && refusal.contains(&digest('1')), "{refusal}");
        }
    }

    #[test]
    fn an_artifact_is_no_image() {
        let mut artifact = manifest();
        artifact["config"]["mediaType"] = json!("application/vnd.cncf.helm.config.v1+json");
        assert!(refusal_of(&artifact).contains("helm"));
    }

    #[test]
    fn a_module_is_exactly_one_layer_of_webassembly() {
        let mut module = manifest();
        module["config"]["mediaType"] = json!("application/vnd.wasm.config.v0+json");
        assert!(refusal_of(&module).contains("tar+gzip"));
        module["layers"][0]["mediaType"] = json!("application/wasm");
        let parse = |document: &Value| {
            let bytes = document.to_string();
            parse_manifest(bytes.as_bytes(), OCI_MANIFEST, &ImageLimits::default())
        };
        assert_eq!(parse(&module).unwrap().form, ImageForm::Module);
        for (field, value, reason) in [
            ("urls", json!(["https://example.org/x"]), "foreign"),
            ("size", json!(200_u64 << 20), "larger"),
        ] {
            let mut bad = module.clone();
            bad["layers"][0][field] = value;
            assert!(refusal_of(&bad).contains(reason), "{bad}");
        }
        let layer = module["layers"][0].clone();
        for layers in [json!([]), json!([layer, layer])] {
            module["layers"] = layers;
            assert!(refusal_of(&module).contains("exactly one"), "{module}");
        }
    }

    #[test]
    fn the_entry_of_an_index_is_the_platforms() {
        let entry = |fill: char, os: &str, architecture: &str| {
            json!({ "mediaType": OCI_MANIFEST, "digest": digest(fill), "size": 1,
                    "platform": { "os": os, "architecture": architecture } })
        };
        let index = json!({ "schemaVersion": 2, "manifests": [
            entry('0', "unknown", "unknown"), entry('1', "linux", "arm64"), entry('2', "linux", "amd64"),
        ]});
        let entries = parse_index(index.to_string().as_bytes(), OCI_INDEX).unwrap();
        let chosen = |platform: &str| choose_entry(&entries, &platform.parse().unwrap());
        assert_eq!(chosen("linux/amd64").unwrap().digest.to_string(), digest('2'));
        assert_eq!(chosen("linux/arm64").unwrap().digest.to_string(), digest('1'));
        let missing = chosen("linux/s390x").unwrap_err().to_string();
        assert!(missing.contains("linux/arm64, linux/amd64") && !missing.contains("unknown"));
    }
}
