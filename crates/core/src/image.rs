//! Images by name for backends that take a directory or a WebAssembly module: a provider brings the image to this host,
//! and the engine hands its path on. A spec, a record and a snapshot have the name with its digest, never the path.

use std::any::Any;
use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{Error, Feature, HostPath, Image, ImageName, Result};

/// When a registry is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PullPolicy {
    /// Each time. What is stored already is not fetched again.
    Always,
    /// Where the store has no such image.
    #[default]
    Missing,
    /// Never: an image that is not stored is an error.
    Never,
}

impl FromStr for PullPolicy {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, &'static str> {
        match text {
            "always" => Ok(Self::Always),
            "missing" => Ok(Self::Missing),
            "never" => Ok(Self::Never),
            _ => Err("is none of `always`, `missing` and `never`"),
        }
    }
}

/// What an image is made of, and so which backends can take it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageForm {
    /// Layers of files: the root of a sandbox.
    #[default]
    Root,
    /// One WebAssembly module: the program.
    Module,
}

/// What an image's config says about processes in it. A guest's words: shown, and used only where asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ImageDefaults {
    /// Environment, `NAME=value` each.
    pub env: Vec<String>,
    /// User, `name[:group]` or numbers. Empty for root.
    pub user: String,
    /// Working directory. Empty for `/`.
    pub workdir: String,
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// Further arguments, or the whole command where there is no entry point.
    pub cmd: Vec<String>,
}

impl ImageDefaults {
    /// The command that the image runs with these arguments; without any, with its own.
    pub fn command(&self, arguments: &[String]) -> Vec<String> {
        let rest = if arguments.is_empty() { &self.cmd } else { arguments };
        self.entrypoint.iter().chain(rest).cloned().collect()
    }
}

/// An image that lies on this host.
pub struct ResolvedImage {
    /// Its name with its digest: `python:3.12@sha256:…`.
    pub name: ImageName,
    /// Where it lies, as a backend takes it: a directory or a module, shared and to be read only; or its name, where
    /// the backend has a store of its own.
    pub contents: Image,
    /// What it says about processes in it.
    pub defaults: ImageDefaults,
    /// Keeps the contents from being removed until it is dropped.
    pub lease: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for ResolvedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, contents, defaults, lease: _ } = self;
        let mut shown = f.debug_struct("ResolvedImage");
        shown.field("name", name).field("contents", contents).field("defaults", defaults);
        shown.finish_non_exhaustive()
    }
}

/// Brings images by name to this host.
#[async_trait]
pub trait ImageProvider: fmt::Debug + Send + Sync {
    /// How a backend that takes images of this form has them by name, as `detect` says it. Nothing where this provides
    /// none of them.
    fn mechanism(&self, form: ImageForm) -> Option<String>;

    /// The image of that name, fetched first if need be and if that is allowed.
    ///
    /// - One of another form is an error that names the backends for it.
    /// - A tag is resolved once: [`ResolvedImage::name`] is what it meant.
    /// - Its contents have the digests that were promised (C-60).
    /// - Dropped half-way, nothing half-made can be resolved later.
    async fn resolve(&self, name: &ImageName, form: ImageForm) -> Result<ResolvedImage>;

    /// How a backend that takes directories has archives and layouts of images, as `detect` says it. Nothing where this
    /// imports none.
    fn import_mechanism(&self) -> Option<String> {
        None
    }

    /// The image of an OCI layout, a directory or an archive, imported first where it is not stored yet.
    ///
    /// - Its contents have the digests that it promises (C-60). Names that it gives itself are not taken.
    /// - What is imported once is found by its digest: [`ResolvedImage::name`] can be resolved while it is stored.
    async fn import(&self, _layout: &HostPath) -> Result<ResolvedImage> {
        Err(Error::unsupported("use an image", Feature::OciImage))
    }

    /// Ends the work that is under way. Idempotent.
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_take_the_place_of_the_images_own_and_not_of_its_entry_point() {
        let words =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        let image = ImageDefaults {
            entrypoint: words("serve --quiet"),
            cmd: words("all"),
            ..ImageDefaults::default()
        };
        assert_eq!(image.command(&[]), words("serve --quiet all"));
        assert_eq!(image.command(&words("one two")), words("serve --quiet one two"));
        assert_eq!(ImageDefaults::default().command(&[]), Vec::<String>::new());
    }
}
