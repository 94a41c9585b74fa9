//! The store as a provider of images for an engine.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use stockade_core::{
    Error, ErrorCode, HostPath, Image, ImageDefaults, ImageForm, ImageName, ImageProvider,
    NameError, ResolvedImage, Result,
};
use stockade_images::{
    Digest, ImageConfig, ImageError, ImageLease, ImageReference, MODULE_FILE, PullPolicy,
    PullProgress, StoredImage,
};

use super::Images;

const RESOLVE_OPERATION: &str = "use an image";
/// An image may be removed between its pull and its lease: it is pulled again, once.
const MAX_ATTEMPTS: usize = 2;

/// What a record calls an image that was imported for a sandbox, before its digest.
const IMPORTED_NAME: &str = "localhost/imported";

/// Pulls images into a store, tells of it, and hands out their roots.
pub(super) struct StoredImageProvider {
    images: Images,
    progress: Arc<dyn PullProgress>,
}

impl StoredImageProvider {
    pub(super) fn new(images: Images, progress: Arc<dyn PullProgress>) -> Self {
        Self { images, progress }
    }

    /// The image that `store` stores, held; stored again if it was removed before that.
    async fn hold<F>(&self, store: impl Fn() -> F) -> Result<ResolvedImage>
    where
        F: Future<Output = Result<(StoredImage, ImageName)>>,
    {
        let mut attempt = 1;
        loop {
            let (stored, name) = store().await?;
            match self.lease(&stored, name) {
                Err(error) if error.code() == ErrorCode::NotFound && attempt < MAX_ATTEMPTS => {
                    attempt += 1;
                }
                resolved => return resolved,
            }
        }
    }

    fn lease(&self, stored: &StoredImage, name: ImageName) -> Result<ResolvedImage> {
        let lease = self.images.store()?.lease(stored)?;
        let contents = leased_contents(&lease, stored.form)?;
        let defaults = image_defaults(&stored.config);
        Ok(ResolvedImage { name, contents, defaults, lease: Box::new(lease) })
    }
}

/// Where a leased image lies, as a backend takes it.
fn leased_contents(lease: &ImageLease, form: ImageForm) -> Result<Image> {
    let path = match form {
        ImageForm::Root => lease.root().to_owned(),
        ImageForm::Module => lease.root().join(MODULE_FILE),
    };
    let path = HostPath::try_from(path).map_err(|error| {
        Error::new(ErrorCode::StateUnavailable, RESOLVE_OPERATION, error.to_string())
    })?;
    Ok(match form {
        ImageForm::Root => Image::Directory(path),
        ImageForm::Module => Image::Wasm(path),
    })
}

impl fmt::Debug for StoredImageProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredImageProvider").field("images", &self.images).finish_non_exhaustive()
    }
}

#[async_trait]
impl ImageProvider for StoredImageProvider {
    fn mechanism(&self, form: ImageForm) -> Option<String> {
        let mechanism = match form {
            ImageForm::Root => "pulled and unpacked by stockade; every file belongs to one owner",
            ImageForm::Module => "WebAssembly modules that are artifacts, pulled by stockade",
        };
        Some(mechanism.to_owned())
    }

    async fn resolve(&self, name: &ImageName, form: ImageForm) -> Result<ResolvedImage> {
        let reference: ImageReference = name.as_str().parse().map_err(ImageError::from)?;
        let policy = policy_for(&reference, self.images.policy());
        let pull = || async {
            let stored = self.images.pull_form(&reference, policy, form, &*self.progress).await?;
            let pinned = pinned_name(&reference, &stored.manifest)?;
            Ok((stored, pinned))
        };
        self.hold(pull).await
    }

    fn import_mechanism(&self) -> Option<String> {
        Some("imported and unpacked by stockade; every file belongs to one owner".to_owned())
    }

    async fn import(&self, layout: &HostPath) -> Result<ResolvedImage> {
        let import = || async {
            let stored = self.images.import_root(layout.as_path(), &*self.progress).await?;
            let name = format!("{IMPORTED_NAME}@{}", stored.manifest);
            let name = name.parse().map_err(|error: NameError| {
                Error::new(ErrorCode::Invalid, RESOLVE_OPERATION, error.to_string())
            })?;
            Ok((stored, name))
        };
        self.hold(import).await
    }

    async fn close(&self) -> Result<()> {
        self.images.close().await
    }
}

/// A digest means the same for ever: no registry is asked what it means.
fn policy_for(reference: &ImageReference, policy: PullPolicy) -> PullPolicy {
    match policy {
        PullPolicy::Always if reference.digest().is_some() => PullPolicy::Missing,
        PullPolicy::Always | PullPolicy::Missing | PullPolicy::Never => policy,
    }
}

/// The name with the digest that it was found to mean.
pub(super) fn pinned_name(reference: &ImageReference, manifest: &Digest) -> Result<ImageName> {
    let pinned = reference.with_digest(manifest.clone()).familiar();
    pinned.parse().map_err(|error: NameError| {
        Error::new(ErrorCode::Invalid, RESOLVE_OPERATION, error.to_string())
            .remedy("give the image a shorter name, without an IPv6 address")
    })
}

fn image_defaults(config: &ImageConfig) -> ImageDefaults {
    ImageDefaults {
        env: config.env.clone(),
        user: config.user.clone(),
        workdir: config.working_dir.clone(),
        entrypoint: config.entrypoint.clone(),
        cmd: config.cmd.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_pinned_by_its_digest_and_keeps_its_tag() {
        let digest: Digest = format!("sha256:{}", "0f".repeat(32)).parse().unwrap();
        for (name, pinned) in [
            ("python:3.12", format!("python:3.12@{digest}")),
            ("localhost:5000/a/b", format!("localhost:5000/a/b:latest@{digest}")),
        ] {
            let reference: ImageReference = name.parse().unwrap();
            assert_eq!(pinned_name(&reference, &digest).unwrap().as_str(), pinned);
        }
    }

    #[test]
    fn no_registry_is_asked_what_a_digest_means() {
        let digest = format!("a@sha256:{}", "0f".repeat(32)).parse().unwrap();
        let tag = "a:1".parse().unwrap();
        assert_eq!(policy_for(&digest, PullPolicy::Always), PullPolicy::Missing);
        assert_eq!(policy_for(&digest, PullPolicy::Never), PullPolicy::Never);
        assert_eq!(policy_for(&tag, PullPolicy::Always), PullPolicy::Always);
    }
}
