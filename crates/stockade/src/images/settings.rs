//! `[images]` of the configuration: where images are kept, when registries are asked, how they are reached, and how
//! much they may make this host fetch and keep.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use stockade_core::{Bytes, Span};
use stockade_images::{ImageLimits, PullOptions, PullPolicy, Registries, RegistrySettings};

/// What is configured about images. Absent: not set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ImageSettings {
    /// Where images are kept; absent: below the state directory.
    dir: Option<PathBuf>,
    /// When a registry is asked.
    pub pull: Option<PullPolicy>,
    /// What an image may cost this host.
    limits: ImageLimitSettings,
    /// How each registry is reached, by its name.
    registries: BTreeMap<String, RegistrySetting>,
}

/// What an image may cost this host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ImageLimitSettings {
    /// One compressed layer.
    layer: Option<Bytes>,
    /// All layers, uncompressed.
    unpacked: Option<Bytes>,
    /// How many layers.
    layers: Option<usize>,
    /// How many entries all layers have.
    entries: Option<u64>,
    /// How long a registry may send nothing.
    stall_timeout: Option<Span>,
}

/// How one registry is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RegistrySetting {
    /// Hosts that are asked first.
    mirrors: Vec<String>,
    /// Plain HTTP instead of TLS.
    insecure: bool,
    /// Certificates that vouch for it, besides the host's own.
    ca_file: Option<PathBuf>,
    /// Its credentials, in the form of `~/.docker/config.json`.
    credentials_file: Option<PathBuf>,
}

impl ImageSettings {
    /// Where images are kept.
    pub(crate) fn directory(&self, state_dir: &Path) -> PathBuf {
        self.dir.clone().unwrap_or_else(|| state_dir.join("images"))
    }

    /// How images are pulled.
    pub(crate) fn pull_options(&self) -> PullOptions {
        PullOptions {
            policy: self.pull.unwrap_or_default(),
            limits: self.limits.limits(),
            registries: self.registries(),
            ..PullOptions::default()
        }
    }

    fn registries(&self) -> Registries {
        let settings = |setting: &RegistrySetting| RegistrySettings {
            mirrors: setting.mirrors.clone(),
            insecure: setting.insecure,
            ca_file: setting.ca_file.clone(),
            credentials_file: setting.credentials_file.clone(),
        };
        let by_name = self.registries.iter();
        Registries { by_name: by_name.map(|(name, set)| (name.clone(), settings(set))).collect() }
    }

    /// What of the host is named here that no guest may see, and what that is.
    pub(crate) fn own_paths(&self) -> Vec<(PathBuf, &'static str)> {
        let credentials = self.registries.values().filter_map(|set| set.credentials_file.clone());
        let store = self.dir.iter().map(|dir| (dir.clone(), "the image store"));
        store.chain(credentials.map(|file| (file, "the credentials of a registry"))).collect()
    }

    /// What is wrong here, if anything.
    pub(crate) fn problem(&self) -> Option<String> {
        let files = self.registries.values().flat_map(|set| [&set.ca_file, &set.credentials_file]);
        let mut paths = std::iter::once(&self.dir).chain(files).flatten();
        if let Some(path) = paths.find(|path| !path.is_absolute()) {
            return Some(format!("images: `{}` is not an absolute path", path.display()));
        }
        self.registries().check().err().map(|error| format!("images: {error}"))
    }

    /// These settings, with the ones left out taken from `earlier`.
    pub(crate) fn merge_over(self, earlier: Self) -> Self {
        let mut registries = earlier.registries;
        registries.extend(self.registries);
        Self {
            dir: self.dir.or(earlier.dir),
            pull: self.pull.or(earlier.pull),
            limits: self.limits.merge_over(earlier.limits),
            registries,
        }
    }
}

impl ImageLimitSettings {
    fn limits(self) -> ImageLimits {
        let standard = ImageLimits::default();
        ImageLimits {
            layer_bytes: self.layer.map_or(standard.layer_bytes, |size| size.0),
            unpacked_bytes: self.unpacked.map_or(standard.unpacked_bytes, |size| size.0),
            layers: self.layers.unwrap_or(standard.layers),
            entries: self.entries.unwrap_or(standard.entries),
            stall_timeout_ms: self.stall_timeout.map_or(standard.stall_timeout_ms, Span::as_millis),
            ..standard
        }
    }

    fn merge_over(self, earlier: Self) -> Self {
        Self {
            layer: self.layer.or(earlier.layer),
            unpacked: self.unpacked.or(earlier.unpacked),
            layers: self.layers.or(earlier.layers),
            entries: self.entries.or(earlier.entries),
            stall_timeout: self.stall_timeout.or(earlier.stall_timeout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_toml(text: &str) -> ImageSettings {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn registries_are_merged_by_name_and_limits_one_by_one() {
        let early = from_toml(
            "pull = \"never\"\n[limits]\nlayers = 3\nlayer = \"1m\"\n\
             [registries.\"a.example\"]\ninsecure = true\n[registries.\"b.example\"]\n",
        );
        let late = from_toml(
            "[limits]\nlayers = 4\n[registries.\"a.example\"]\nmirrors = [\"m.example/x\"]\n",
        );
        let options = late.merge_over(early).pull_options();
        assert_eq!(options.policy, PullPolicy::Never);
        assert_eq!((options.limits.layers, options.limits.layer_bytes), (4, 1 << 20));
        assert_eq!(options.limits.entries, ImageLimits::default().entries);
        assert_eq!(options.registries.by_name.len(), 2);
        let first = options.registries.of("a.example");
        assert_eq!(
            (first.insecure, first.mirrors.len()),
            (false, 1),
            "a later file's takes its place"
        );
    }

    #[test]
    fn what_names_no_registry_and_what_depends_on_where_one_stands_is_refused() {
        for text in [
            "dir = \"images\"",
            "[registries.\"a b\"]",
            "[registries.\"a.example\"]\nmirrors = [\"-x\"]",
            "[registries.\"a.example\"]\ncaFile = \"ca.pem\"",
        ] {
            assert!(from_toml(text).problem().is_some(), "{text}");
        }
        let fine = from_toml("dir = \"/srv/i\"\n[registries.\"a.example:5000\"]\ncaFile = \"/c\"");
        assert_eq!(fine.problem(), None);
        assert_eq!(fine.own_paths(), [(PathBuf::from("/srv/i"), "the image store")]);
    }
}
