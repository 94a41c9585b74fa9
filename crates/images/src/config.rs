//! Configs: what an image says about processes in it, and the digests of its uncompressed layers.

use std::collections::BTreeMap;

use serde::Deserialize;
use stockade_core::clean_foreign;

use crate::manifest::show_error;
use crate::{Digest, ImageConfig, ImageError, Platform};

#[derive(Deserialize)]
struct ConfigDocument {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default)]
    variant: Option<String>,
    #[serde(default)]
    created: Option<String>,
    #[serde(default)]
    config: Option<ProcessConfig>,
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Option<Vec<Digest>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ProcessConfig {
    env: Option<Vec<String>>,
    user: Option<String>,
    working_dir: Option<String>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    labels: Option<BTreeMap<String, Option<String>>>,
    exposed_ports: Option<BTreeMap<String, serde::de::IgnoredAny>>,
}

/// What a config says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParsedConfig {
    pub platform: Platform,
    pub created: Option<String>,
    pub config: ImageConfig,
    pub diff_ids: Vec<Digest>,
}

/// Reads the config of an image with this many layers for this platform.
pub(crate) fn parse_config(
    bytes: &[u8],
    layers: usize,
    wanted: &Platform,
) -> Result<ParsedConfig, ImageError> {
    let document: ConfigDocument = serde_json::from_slice(bytes).map_err(|error| {
        ImageError::refused(format!("its config cannot be read: {}", show_error(&error)))
    })?;
    let diff_ids = document.rootfs.diff_ids.unwrap_or_default();
    if diff_ids.len() != layers {
        let count = diff_ids.len();
        return Err(ImageError::refused(format!("it has {layers} layers and {count} diff ids")));
    }
    let named = clean_foreign(&format!("{}/{}", document.os, document.architecture));
    if document.os != wanted.os || document.architecture != wanted.architecture {
        return Err(ImageError::NoPlatform { wanted: wanted.to_string(), offered: named });
    }
    Ok(ParsedConfig {
        platform: Platform { variant: document.variant, ..wanted.clone() },
        created: document.created.map(|created| clean_foreign(&created)),
        config: document.config.unwrap_or_default().into(),
        diff_ids,
    })
}

impl From<ProcessConfig> for ImageConfig {
    fn from(config: ProcessConfig) -> Self {
        let labels = config.labels.unwrap_or_default().into_iter();
        Self {
            env: config.env.unwrap_or_default(),
            user: config.user.unwrap_or_default(),
            working_dir: config.working_dir.unwrap_or_default(),
            entrypoint: config.entrypoint.unwrap_or_default(),
            cmd: config.cmd.unwrap_or_default(),
            labels: labels.map(|(name, value)| (name, value.unwrap_or_default())).collect(),
            exposed_ports: config.exposed_ports.unwrap_or_default().into_keys().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_config_has_as_many_diff_ids_as_there_are_layers() {
        let digest = Digest::of(b"layer").to_string();
        let config = json!({ "os": "linux", "architecture": "amd64",
            "config": { "Env": ["A=b"], "Cmd": null, "ExposedPorts": { "80/tcp": {} } },
            "rootfs": { "type": "layers", "diff_ids": [digest] } });
        let platform = "linux/amd64".parse().unwrap();
        let parse = |count| parse_config(config.to_string().as_bytes(), count, &platform);
        let parsed = parse(1).unwrap();
        assert_eq!(parsed.config.env, ["A=b"]);
        assert_eq!(parsed.config.exposed_ports, ["80/tcp"]);
        assert!(parse(2).unwrap_err().to_string().contains("2 layers and 1 diff ids"));
    }
}
