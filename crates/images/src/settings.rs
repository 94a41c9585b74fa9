//! How registries are reached: mirrors, plain HTTP, certificates and credentials. Part of the configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::ImageError;
use crate::reference::is_registry;

/// Settings of all registries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Registries {
    /// Settings by registry (`docker.io`, `registry.example.org:5000`).
    pub by_name: BTreeMap<String, RegistrySettings>,
}

/// Settings of one registry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegistrySettings {
    /// Hosts (`host[:port][/path]`) that are asked first, in this order. What they do not have or cannot deliver
    /// is asked of the registry itself. Contents are checked by digest, but a mirror decides what a tag means.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// Plain HTTP instead of TLS. A registry on loopback (`localhost:5000`, `127.0.0.1:5000`) may be plain anyway.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
    /// A file with certificates (PEM) that vouch for this registry, besides the host's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// A credentials file of this registry, in the form of `~/.docker/config.json`, read before all others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<PathBuf>,
}

impl Registries {
    /// The settings of a registry or mirror.
    pub fn of(&self, registry: &str) -> RegistrySettings {
        self.by_name.get(registry).cloned().unwrap_or_default()
    }

    /// Refuses names that are none.
    pub fn check(&self) -> Result<(), ImageError> {
        let mirrors = self.by_name.values().flat_map(|settings| &settings.mirrors);
        let hosts = mirrors.map(|mirror| mirror.split('/').next().unwrap_or_default());
        match self.by_name.keys().map(String::as_str).chain(hosts).find(|name| !is_registry(name)) {
            Some(name) => Err(ImageError::Settings(format!("`{name}` is no registry"))),
            None => Ok(()),
        }
    }
}
