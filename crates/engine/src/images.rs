//! Images by name for backends that take a directory or a WebAssembly module, and archives of images for those that take
//! a directory. The engine's provider resolves a name, or imports an archive, once, before anything is built; the backend
//! is handed the path, and everybody else sees the name with its digest. A name of a backend with a store of its own is
//! resolved by that store, once as well.
//!
//! The path lies among Stockade's own and passes no check of host views: it comes from the provider alone, so that no
//! spec can name it or anything beside it (C-06).

use std::borrow::Cow;
use std::sync::Arc;

use stockade_core::{
    Admitted, Backend, BackendName, Capabilities, Feature, Image, ImageForm, ImageName,
    ResolvedImage, Result, SandboxSpec, Support,
};

use crate::engine::{Engine, EngineInner};
use crate::lifecycle::SandboxOrder;
use crate::select::select;

impl Engine {
    /// The image of this spec as this engine's provider, or the store of the backend, resolves it now. Nothing where the
    /// spec has an image of another kind, or no backend can be chosen.
    pub async fn resolve_image(&self, spec: &SandboxSpec) -> Result<Option<ResolvedImage>> {
        let Some(name) = self.inner.choose_backend(spec).await else { return Ok(None) };
        match self.inner.registry.get(&name) {
            Some(backend) => self.inner.resolve_backend_image(backend.as_ref(), &spec.image).await,
            None => Ok(None),
        }
    }

    /// Whether an image by name would come from this engine's provider, and not from a store of the backend's own.
    /// Nothing where no backend can be chosen.
    pub async fn provides_images(&self, spec: &SandboxSpec) -> Option<bool> {
        let backend = self.inner.choose_backend(spec).await?;
        Some(self.inner.registry.provided_form(&backend).await.is_some())
    }
}

impl EngineInner {
    async fn choose_backend(&self, spec: &SandboxSpec) -> Option<BackendName> {
        select(spec, &self.registry.measured(spec).await).chosen
    }

    /// The image of a sandbox, where it is the engine's or a store's to resolve.
    async fn resolve_backend_image(
        &self,
        backend: &dyn Backend,
        image: &Image,
    ) -> Result<Option<ResolvedImage>> {
        match image {
            Image::Named(name) => self.resolve_named_image(backend, name).await,
            Image::Oci(layout) => match &self.config.images {
                Some(provider) if self.registry.imports_archives(&backend.name()).await => {
                    provider.import(layout).await.map(Some)
                }
                Some(_) | None => Ok(None),
            },
            Image::Host | Image::Directory(_) | Image::Wasm(_) => Ok(None),
        }
    }

    async fn resolve_named_image(
        &self,
        backend: &dyn Backend,
        name: &ImageName,
    ) -> Result<Option<ResolvedImage>> {
        match (&self.config.images, self.registry.provided_form(&backend.name()).await) {
            (Some(provider), Some(form)) => provider.resolve(name, form).await.map(Some),
            (Some(_) | None, _) => backend.resolve_image(name).await,
        }
    }

    /// The order with its image resolved.
    pub(crate) async fn resolve_order_image(&self, order: SandboxOrder) -> Result<SandboxOrder> {
        let admitted = &order.admitted;
        let image = &admitted.spec().image;
        let resolved = self.resolve_backend_image(order.backend.as_ref(), image).await?;
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
    /// What the backend is handed: a provided image is its path there.
    pub(crate) fn admitted_for_backend(&self) -> Cow<'_, Admitted> {
        match &self.image {
            None => Cow::Borrowed(&self.admitted),
            Some(image) => Cow::Owned(self.admitted.with_resolved_image(image.contents.clone())),
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

/// The form of images by name that a backend has only with a provider: it has no store of its own.
pub(crate) fn find_provided_form(measured: &Capabilities) -> Option<ImageForm> {
    if measured.unavailable.is_some() || measured.has(Feature::NamedImage) {
        return None;
    }
    match (measured.has(Feature::DirectoryImage), measured.has(Feature::WasmImage)) {
        (true, _) => Some(ImageForm::Root),
        (false, true) => Some(ImageForm::Module),
        (false, false) => None,
    }
}

/// What such a backend has with a provider that works by this mechanism.
pub(crate) fn with_provided_images(measured: Capabilities, mechanism: &str) -> Capabilities {
    measured.with(Feature::NamedImage, Support::full(mechanism))
}

/// Whether a backend takes directories and no archives of images.
pub(crate) fn lacks_archives(measured: &Capabilities) -> bool {
    measured.unavailable.is_none()
        && measured.has(Feature::DirectoryImage)
        && !measured.has(Feature::OciImage)
}

/// What such a backend has with a provider that imports them by this mechanism.
pub(crate) fn with_imported_archives(measured: Capabilities, mechanism: &str) -> Capabilities {
    measured.with(Feature::OciImage, Support::full(mechanism))
}

/// What a backend of modules has for a spec that does not name it.
pub(crate) fn without_provided_modules(measured: Capabilities) -> Capabilities {
    let reason = "a name does not say that its image is a module";
    let remedy = "name this backend if it is one, with --backend";
    measured.with(Feature::NamedImage, Support::missing(reason, remedy))
}
