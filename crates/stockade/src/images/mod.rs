//! Images of registries: pulled into a store below the state directory, unpacked in native walls, and provided to every
//! backend that takes a directory as its root. WebAssembly modules are provided to those that take modules.
//!
//! The store belongs to one user and is shared by all processes of that user. Nothing is opened or fetched before an
//! image is asked for.

mod build;
mod commit;
mod lines;
mod provider;
mod settings;
mod starter;
mod unpack;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use stockade_core::{ImageForm, ImageProvider, Result};
use stockade_images::ImportName;
use tokio::sync::RwLock;

use crate::Settings;
use provider::StoredImageProvider;
use unpack::ConfinedUnpack;

pub use build::{BuildReport, BuildRequest};
pub use commit::RootArchiver;
pub use settings::ImageSettings;
pub use starter::StarterKind;
pub use stockade_images::{
    Digest, ImageConfig, ImageReference, ImageStore, Platform, PruneOptions, PullEvent,
    PullOptions, PullPolicy, PullProgress, Removed, StoredImage, StoredLayer,
};

/// The images of this user. Clones are the same.
#[derive(Debug, Clone)]
pub struct Images {
    inner: Arc<ImagesInner>,
}

#[derive(Debug)]
struct ImagesInner {
    dir: PathBuf,
    store: OnceLock<ImageStore>,
    unpack: ConfinedUnpack,
    options: PullOptions,
    /// Held for reading by each program of the host that makes a root.
    running: Arc<RwLock<()>>,
}

impl Images {
    /// The images of these settings. Nothing is touched yet.
    pub fn new(settings: &Settings) -> Result<Self> {
        let config = settings.engine()?;
        let dir = settings.images().directory(&config.state_dir);
        let inner = ImagesInner {
            unpack: ConfinedUnpack::new(config, dir.clone()),
            dir,
            store: OnceLock::new(),
            options: settings.images().pull_options(),
            running: Arc::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The store, made for this user alone if it is not there.
    pub fn store(&self) -> Result<&ImageStore> {
        if let Some(store) = self.inner.store.get() {
            return Ok(store);
        }
        let opened = ImageStore::open(&self.inner.dir)?;
        Ok(self.inner.store.get_or_init(|| opened))
    }

    /// When a registry is asked, as configured.
    pub fn policy(&self) -> PullPolicy {
        self.inner.options.policy
    }

    /// Makes sure that an image is stored, for this machine unless another platform is named.
    pub async fn pull(
        &self,
        reference: &ImageReference,
        policy: PullPolicy,
        platform: Option<&Platform>,
        progress: &dyn PullProgress,
    ) -> Result<StoredImage> {
        let platform = platform.unwrap_or(&self.inner.options.platform).clone();
        let options = PullOptions { policy, platform, ..self.inner.options.clone() };
        Ok(self.store()?.pull(reference, &options, &self.inner.unpack, progress).await?)
    }

    /// The same of an image for this machine that has to be of one form.
    pub(crate) async fn pull_form(
        &self,
        reference: &ImageReference,
        policy: PullPolicy,
        form: ImageForm,
        progress: &dyn PullProgress,
    ) -> Result<StoredImage> {
        let options = PullOptions { policy, form: Some(form), ..self.inner.options.clone() };
        Ok(self.store()?.pull(reference, &options, &self.inner.unpack, progress).await?)
    }

    /// Pushes a stored image to the registry of its name, or of another.
    pub async fn push(
        &self,
        image: &str,
        to: Option<&ImageReference>,
        progress: &dyn PullProgress,
    ) -> Result<StoredImage> {
        Ok(self.store()?.push(image, to, &self.inner.options, progress).await?)
    }

    /// Stores the image of an OCI layout, a directory or an archive, under this name or the layout's own.
    pub async fn import(
        &self,
        layout: &Path,
        name: Option<&ImageReference>,
        platform: Option<&Platform>,
        progress: &dyn PullProgress,
    ) -> Result<StoredImage> {
        let platform = platform.unwrap_or(&self.inner.options.platform);
        let name = name.map_or(ImportName::Own, ImportName::Given);
        self.import_as((layout, None), name, platform, progress).await
    }

    /// The same of an image for this machine that serves as a root. It gets no name, whatever the layout says.
    pub(crate) async fn import_root(
        &self,
        layout: &Path,
        progress: &dyn PullProgress,
    ) -> Result<StoredImage> {
        let (layout, platform) = ((layout, Some(ImageForm::Root)), &self.inner.options.platform);
        self.import_as(layout, ImportName::Unnamed, platform, progress).await
    }

    async fn import_as(
        &self,
        layout: (&Path, Option<ImageForm>),
        name: ImportName<'_>,
        platform: &Platform,
        progress: &dyn PullProgress,
    ) -> Result<StoredImage> {
        let (limits, unpack) = (&self.inner.options.limits, &self.inner.unpack);
        Ok(self.store()?.import(layout, name, platform, limits, unpack, progress).await?)
    }

    /// The provider of an engine, which tells `progress` of what it pulls.
    pub fn provider(&self, progress: Arc<dyn PullProgress>) -> Arc<dyn ImageProvider> {
        Arc::new(StoredImageProvider::new(self.clone(), progress))
    }

    /// Ends what is being unpacked, and returns when nothing of it and of abandoned starters is left. Idempotent.
    pub async fn close(&self) -> Result<()> {
        drop(self.inner.running.write().await);
        self.inner.unpack.close().await
    }
}
