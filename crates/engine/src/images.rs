//! Images by name for backends that take a directory or a WebAssembly module. The engine's provider resolves a name once,
//! before anything is built; the backend is handed the path, and everybody else sees the name with its digest.
//!
//! The path lies among Stockade's own and passes no check of host views: it comes from the provider alone, so that no
//! spec can name it or anything beside it (C-06).

use std::borrow::Cow;
use std::sync::Arc;

use stockade_core::{
    Admitted, BackendName, Capabilities, Feature, Image, ImageForm, ImageName, ResolvedImage,
    Result, SandboxSpec, Support,
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
        Some(self.inner.registry.provided_form(&backend).await.is_some())
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
        match self.registry.provided_form(backend).await {
            Some(form) => provider.resolve(name, form).await.map(Some),
            None => Ok(None),
        }
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

/// What a backend of modules has for a spec that does not name it.
pub(crate) fn without_provided_modules(measured: Capabilities) -> Capabilities {
    let reason = "a name does not say that its image is a module";
    let remedy = "name this backend if it is one, with --backend";
    measured.with(Feature::NamedImage, Support::missing(reason, remedy))
}
