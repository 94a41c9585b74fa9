//! Steps of builds that were done, by a digest of everything that they depend on. Only a cache: a step whose record or
//! layer is gone is done again.

use stockade_fs::{Locked, Timestamp};

use super::records::{image_file, read_record, read_records, write_record};
use super::{BuildRecord, ImageRecord, ImageStore};
use crate::commit::{AssembledConfig, RootCommit};
use crate::{
    Digest, ImageError, ImageLimits, ImageReference, LayerDraft, PullProgress, SandboxRoot,
    StoredImage, StoredLayer, Unpack,
};

/// Keeps everything in the store while a build counts on it.
#[derive(Debug)]
pub struct StoreHold {
    _lock: Locked,
}

impl ImageStore {
    /// Keeps blobs and trees from being removed until this is dropped.
    pub async fn hold(&self) -> Result<StoreHold, ImageError> {
        Ok(StoreHold { _lock: self.lock_shared().await? })
    }

    /// A step that was done, if its layer is still there.
    pub fn find_build(&self, key: &Digest) -> Result<Option<BuildRecord>, ImageError> {
        let record: Option<BuildRecord> = read_record(&self.builds, &image_file(key))?;
        match record.as_ref().and_then(|record| record.layer.as_ref()) {
            Some(layer) if !self.has_blob(&layer.digest)? => Ok(None),
            Some(_) | None => Ok(record),
        }
    }

    /// Notes a step that was done.
    pub fn add_build(
        &self,
        key: &Digest,
        layer: Option<StoredLayer>,
    ) -> Result<BuildRecord, ImageError> {
        let record = BuildRecord { layer, created: Timestamp::now() };
        write_record(&self.builds, &image_file(key), &record)?;
        Ok(record)
    }

    /// Stores the layer that lies in a draft.
    pub fn add_draft_layer(
        &self,
        draft: &LayerDraft,
        packed: &stockade_unpack::PackedLayer,
    ) -> Result<StoredLayer, ImageError> {
        let layer = crate::commit::describe_layer(packed)?;
        self.adopt_blob(&layer.digest, &draft.layer_path())?;
        Ok(layer)
    }

    /// Stores what the root of a sandbox has changed as a layer; nothing where it has changed nothing.
    pub async fn add_root_layer(
        &self,
        base: &StoredImage,
        root: SandboxRoot,
        limits: &ImageLimits,
        (unpack, progress): (&dyn Unpack, &dyn PullProgress),
    ) -> Result<Option<StoredLayer>, ImageError> {
        let draft = self.draft_layer()?;
        let record = self.record_of(base)?;
        let commit = RootCommit { store: self, limits, unpack, progress };
        let packed = commit.pack(&record, root, &draft).await?;
        match packed.entries {
            0 => Ok(None),
            _ => self.add_draft_layer(&draft, &packed).map(Some),
        }
    }

    /// Stores an image of a base, if there is one, and stored layers on it.
    pub async fn assemble(
        &self,
        base: Option<&StoredImage>,
        layers: &[StoredLayer],
        config: &AssembledConfig,
        name: Option<&ImageReference>,
        limits: &ImageLimits,
        (unpack, progress): (&dyn Unpack, &dyn PullProgress),
    ) -> Result<StoredImage, ImageError> {
        let base = base.map(|base| self.record_of(base)).transpose()?;
        let commit = RootCommit { store: self, limits, unpack, progress };
        let manifest = commit.assemble(base.as_ref(), layers, config, name.is_none()).await?;
        if let Some(name) = name {
            self.set_name(name, &manifest)?;
        }
        self.image(&manifest, name.cloned())
    }

    pub(super) fn record_of(&self, image: &StoredImage) -> Result<ImageRecord, ImageError> {
        let record = read_record(&self.images, &image_file(&image.manifest))?;
        record.ok_or_else(|| ImageError::NotStored(image.manifest.to_string()))
    }

    /// The layers of steps that were done.
    pub(super) fn build_blobs(&self) -> Result<Vec<String>, ImageError> {
        let records: Vec<BuildRecord> = read_records(&self.builds)?;
        let layers = records.into_iter().filter_map(|record| record.layer);
        Ok(layers.map(|layer| layer.digest.hex()).collect())
    }

    /// Forgets every step.
    pub(super) fn forget_builds(&self) -> Result<(), ImageError> {
        let failed = || ImageError::io("removed", self.builds.path());
        for name in self.builds.names().map_err(failed())? {
            if !matches!(name.as_str(), "." | "..") {
                self.builds.remove(&name).map_err(failed())?;
            }
        }
        Ok(())
    }
}
