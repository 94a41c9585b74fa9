//! WebAssembly modules as artifacts of a registry: a manifest with one layer, which is the module itself, neither packed nor
//! compressed. Tools of the field write the types of three layouts; all others are refused.

use serde::Deserialize;
use stockade_core::clean_foreign;

use crate::manifest::{Descriptor, Manifest, check_not_foreign, check_size, show_error};
use crate::{Digest, ImageConfig, ImageError, Platform, StoredLayer};

/// The config of the layout that the CNCF describes, the only one whose contents mean anything.
const CNCF_CONFIG: &str = "application/vnd.wasm.config.v0+json";
const CONFIG_TYPES: [&str; 3] = [
    CNCF_CONFIG,
    "application/vnd.wasm.config.v1+json",
    "application/vnd.module.wasm.config.v1+json",
];
const LAYER_TYPES: [&str; 3] = [
    "application/wasm",
    "application/vnd.wasm.content.layer.v1+wasm",
    "application/vnd.module.wasm.content.layer.v1+wasm",
];
/// As much as the wasm backend takes.
const MAX_MODULE_BYTES: u64 = 128 << 20;
/// The architecture of modules, and the systems that indexes and configs name: modules of preview 1, and components.
const MODULE_ARCHITECTURE: &str = "wasm";
const MODULE_SYSTEMS: [&str; 2] = ["wasip1", "wasip2"];

/// The file in the tree of a module, and its name as a command.
pub const MODULE_FILE: &str = "module.wasm";

#[derive(Deserialize)]
struct ModuleConfig {
    #[serde(default)]
    architecture: Option<String>,
    #[serde(default)]
    created: Option<String>,
    #[serde(rename = "layerDigests", default)]
    layer_digests: Option<Vec<Digest>>,
}

/// Whether a config of this media type is that of a module.
pub(crate) fn is_module_config(media_type: &str) -> bool {
    CONFIG_TYPES.contains(&media_type)
}

/// Refuses what is not exactly one module.
pub(crate) fn check_module_layers(layers: &[Descriptor]) -> Result<(), ImageError> {
    let [layer] = layers else {
        let count = layers.len();
        return Err(ImageError::refused(format!(
            "it is a WebAssembly module with {count} layers, where exactly one is taken"
        )));
    };
    check_not_foreign(layer)?;
    if !LAYER_TYPES.contains(&layer.media_type.as_str()) {
        let (digest, kind) = (&layer.digest, clean_foreign(&layer.media_type));
        return Err(ImageError::refused(format!(
            "its layer {digest} is of the type `{kind}`, and not a WebAssembly module"
        )));
    }
    check_size(&format!("the module {}", layer.digest), layer.size, MAX_MODULE_BYTES)
}

/// The platforms under which an index lists modules.
pub(crate) fn module_platforms() -> [Platform; 2] {
    MODULE_SYSTEMS.map(|os| Platform {
        os: os.to_owned(),
        architecture: MODULE_ARCHITECTURE.to_owned(),
        variant: None,
    })
}

/// What a stored module says about itself: that it is run.
pub(crate) fn module_config() -> ImageConfig {
    ImageConfig { entrypoint: vec![MODULE_FILE.to_owned()], ..ImageConfig::default() }
}

/// The id of a module's tree, which is that of no chain of layers.
pub(crate) fn module_tree_id(module: &Digest) -> Digest {
    Digest::of(format!("module {module}").as_bytes())
}

/// The only layer of a module, as it is stored. Uncompressed it is the same.
pub(crate) fn module_layer(manifest: &Manifest) -> Result<StoredLayer, ImageError> {
    let [layer] = manifest.layers.as_slice() else {
        return Err(ImageError::refused("it is a module without exactly one layer"));
    };
    Ok(StoredLayer {
        digest: layer.digest.clone(),
        diff_id: layer.digest.clone(),
        media_type: layer.media_type.clone(),
        size: layer.size,
    })
}

/// Reads when a module was made, and refuses a config that speaks of something else.
pub(crate) fn parse_module_config(
    bytes: &[u8],
    media_type: &str,
    module: &Digest,
) -> Result<Option<String>, ImageError> {
    if media_type != CNCF_CONFIG {
        return Ok(None);
    }
    let config: ModuleConfig = serde_json::from_slice(bytes).map_err(|error| {
        ImageError::refused(format!("its config cannot be read: {}", show_error(&error)))
    })?;
    if let Some(other) = config.architecture.filter(|named| named != MODULE_ARCHITECTURE) {
        let offered = clean_foreign(&other);
        return Err(ImageError::NoPlatform { wanted: MODULE_ARCHITECTURE.to_owned(), offered });
    }
    if config.layer_digests.is_some_and(|digests| digests != [module.clone()]) {
        return Err(ImageError::refused("its config names other layers than its manifest"));
    }
    Ok(config.created.map(|created| clean_foreign(&created)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_config_speaks_of_this_module_or_is_refused() {
        let (module, other) = (Digest::of(b"module"), Digest::of(b"other"));
        let parse = |config: serde_json::Value| {
            parse_module_config(config.to_string().as_bytes(), CNCF_CONFIG, &module)
        };
        let config = json!({ "architecture": "wasm", "os": "wasip1", "created": "2024-01-01T00:00:00Z",
            "layerDigests": [module], "component": null });
        assert_eq!(parse(config).unwrap().as_deref(), Some("2024-01-01T00:00:00Z"));
        assert_eq!(parse(json!({})).unwrap(), None);
        assert!(parse(json!({ "layerDigests": [other] })).is_err());
        assert!(parse(json!({ "layerDigests": [module, module] })).is_err());
        assert!(parse(json!({ "architecture": "amd64" })).is_err());
        assert!(parse(json!("wasm")).is_err());
        assert_eq!(parse_module_config(b"", CONFIG_TYPES[1], &module).unwrap(), None);
    }
}
