//! What a pull is asked to do, and its bounds.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use stockade_core::{ImageForm, PullPolicy};
use stockade_unpack::UnpackLimits;

use crate::{CredentialFiles, ImageError, Registries, RegistryProxies};

/// The machine that an image is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Platform {
    /// `linux`, for whatever runs in a sandbox.
    pub os: String,
    /// As Go names it: `amd64`, `arm64`.
    pub architecture: String,
    /// A variant of the architecture: `v8`.
    pub variant: Option<String>,
}

impl Default for Platform {
    /// This machine's.
    fn default() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "powerpc64" => "ppc64le",
            other => other,
        };
        Self { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: None }
    }
}

impl FromStr for Platform {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        let plain = |part: &&str| {
            let letter =
                |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
            !part.is_empty() && part.len() <= 32 && part.bytes().all(letter)
        };
        let parts: Vec<&str> = text.split('/').collect();
        let (os, architecture, variant) = match parts.as_slice() {
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant)),
            _ => (&"", &"", None),
        };
        if ![Some(os), Some(architecture), variant].iter().flatten().all(|part| plain(part)) {
            let shown = text.escape_debug();
            return Err(ImageError::Settings(format!(
                "`{shown}` is no platform such as `linux/amd64`"
            )));
        }
        let owned = |part: &&str| (*part).to_owned();
        Ok(Self { os: owned(os), architecture: owned(architecture), variant: variant.map(owned) })
    }
}

impl TryFrom<String> for Platform {
    type Error = ImageError;

    fn try_from(text: String) -> Result<Self, ImageError> {
        text.parse()
    }
}

impl From<Platform> for String {
    fn from(platform: Platform) -> Self {
        platform.to_string()
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.iter().try_for_each(|variant| write!(f, "/{variant}"))
    }
}

/// Bounds of what a registry or an archive can make this host fetch, keep and wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ImageLimits {
    /// Bytes of a manifest or an index.
    pub manifest_bytes: u64,
    /// Bytes of a config.
    pub config_bytes: u64,
    /// Bytes of one compressed layer.
    pub layer_bytes: u64,
    /// Layers of an image.
    pub layers: usize,
    /// Bytes of all layers of an image, uncompressed.
    pub unpacked_bytes: u64,
    /// Entries of all layers of an image.
    pub entries: u64,
    /// Milliseconds that a registry may take to connect, to answer, and between two pieces of an answer.
    pub stall_timeout_ms: u64,
}

impl Default for ImageLimits {
    fn default() -> Self {
        let UnpackLimits { entries, bytes } = UnpackLimits::default();
        Self {
            manifest_bytes: 4 << 20,
            config_bytes: 8 << 20,
            layer_bytes: 32 << 30,
            layers: 256,
            unpacked_bytes: bytes,
            entries,
            stall_timeout_ms: 30_000,
        }
    }
}

impl ImageLimits {
    /// How long a registry may send nothing.
    pub fn stall_timeout(&self) -> Duration {
        Duration::from_millis(self.stall_timeout_ms)
    }
}

/// How an image is pulled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullOptions {
    /// When a registry is asked.
    pub policy: PullPolicy,
    /// For which machine.
    pub platform: Platform,
    /// What it has to be made of. Without it, whatever it is.
    pub form: Option<ImageForm>,
    /// The bounds.
    pub limits: ImageLimits,
    /// How registries are reached.
    pub registries: Registries,
    /// Where credentials are looked for.
    pub credentials: CredentialFiles,
    /// Through which proxies registries are reached.
    pub proxies: RegistryProxies,
}

impl Default for PullOptions {
    /// Those of this process's user, with the proxies of its environment.
    fn default() -> Self {
        Self {
            policy: PullPolicy::default(),
            platform: Platform::default(),
            form: None,
            limits: ImageLimits::default(),
            registries: Registries::default(),
            credentials: CredentialFiles::default(),
            proxies: RegistryProxies::of_environment(|name| std::env::var_os(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_has_two_or_three_plain_parts() {
        for text in ["linux/amd64", "linux/arm64/v8"] {
            assert_eq!(text.parse::<Platform>().unwrap().to_string(), text);
        }
        for bad in ["", "linux", "linux/", "/amd64", "a/b/c/d", "linux/a d"] {
            assert!(bad.parse::<Platform>().is_err(), "{bad}");
        }
    }
}
