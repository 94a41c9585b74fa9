//! Images by name for backends that take a directory. The engine's provider resolves a name once, before anything is
//! built; the backend is handed the directory, and everybody else sees the name with its digest.
//!
//! The directory lies among Stockade's own and passes no check of host views: it comes from the provider alone, so
//! that no spec can name it or anything beside it (C-06).

use std::borrow::Cow;
use std::sync::Arc;

use stockade_core::{
    Admitted, BackendName, Capabilities, Feature, Image, ImageName, ResolvedImage, Result,
    SandboxSpec, Support,
};

use crate::engine::{Engine, EngineInner};
use crate::lifecycle::SandboxOrder;
use crate::select::select;

impl Engine {
    /// The image that this spec names, as this engine's provider resolves it now. Nothing where the spec names none,
    /// no backend can be chosen, or the one that is chosen has a store of its own.
    pub async fn resolve_image(&self, spec: &SandboxSpec) -> Result<Option<ResolvedImage>> {
        match self.inner.choose_backend(spec).await {
            Some(backend) => self.inner.provided_image(&backend, &spec.image).await,
            None => Ok(None),
        }
    }

    /// Whether an image by name would come from this engine's provider, and not from a store of the backend's own.
    /// Nothing where no backend can be chosen.
    pub async fn provides_images(&self, spec: &SandboxSpec) -> Option<bool> {
        let backend = self.inner.choose_backend(spec).await?;
        Some(self.inner.registry.takes_provided_images(&backend).await)
    }
}

impl EngineInner {
    async fn choose_backend(&self, spec: &SandboxSpec) -> Option<BackendName> {
        select(spec, &self.registry.measured(spec).await).chosen
    }

    async fn provided_image(
        &self,
        backend: &BackendName,
        image: &Image,
    ) -> Result<Option<ResolvedImage>> {
        let (Some(provider), Image::Named(name)) = (&self.config.images, image) else {
            return Ok(None);
        };
        if !self.registry.takes_provided_images(backend).await {
            return Ok(None);
        }
        provider.resolve(name).await.map(Some)
    }

    /// The order with its image resolved, where that is this engine's to do.
    pub(crate) async fn resolve_order_image(&self, order: SandboxOrder) -> Result<SandboxOrder> {
        let admitted = &order.admitted;
        let resolved = self.provided_image(admitted.backend(), &admitted.spec().image).await?;
        Ok(match resolved {
            None => order,
            Some(image) => {
                let admitted = admitted.with_resolved_image(Image::Named(image.name.clone()));
                SandboxOrder { admitted, image: Some(Arc::new(image)), ..order }
            }
        })
    }
}

impl SandboxOrder {
    /// What the backend is handed: a provided image is its directory there.
    pub(crate) fn admitted_for_backend(&self) -> Cow<'_, Admitted> {
        match &self.image {
            None => Cow::Borrowed(&self.admitted),
            Some(image) => {
                Cow::Owned(self.admitted.with_resolved_image(Image::Directory(image.root.clone())))
            }
        }
    }

    /// The image as records name it: with its digest, where that is known.
    pub(crate) fn image_name(&self) -> Option<ImageName> {
        match &self.admitted.spec().image {
            Image::Named(name) => Some(name.clone()),
            Image::Host | Image::Directory(_) | Image::Oci(_) | Image::Wasm(_) => None,
        }
    }
}

/// Whether a backend has images by name only with a provider: it takes directories and has no store.
pub(crate) fn takes_provided_images(measured: &Capabilities) -> bool {
    measured.unavailable.is_none()
        && measured.has(Feature::DirectoryImage)
        && !measured.has(Feature::NamedImage)
}

/// What such a backend has with a provider that works by this mechanism.
pub(crate) fn with_provided_images(measured: Capabilities, mechanism: &str) -> Capabilities {
    measured.with(Feature::NamedImage, Support::full(mechanism))
}
