//! The store: blobs by digest, one root tree for each image, and names. Shared by all processes of a user.
//!
//! | directory | what it has |
//! | --- | --- |
//! | `blobs` | manifests, configs and compressed layers, by digest |
//! | `partial` | blobs that have not arrived whole |
//! | `trees` | roots, by the chain of their layers' uncompressed digests, and WebAssembly modules |
//! | `drafts` | trees that are being made or removed |
//! | `images` | a record for each image, by the digest of its manifest |
//! | `names` | a record for each name |
//! | `used` | when each image was last used, as the time of an empty file |
//! | `locks` | files to lock |
//!
//! Blobs and trees appear by a rename, after they are on disk; then the image's record, then its name. Killed
//! between any two of these, a process leaves nothing that looks like more than it is.

mod blobs;
mod builds;
mod collect;
mod export;
mod locks;
mod modules;
mod records;
mod trees;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stockade_core::ImageForm;
use stockade_fs::{Directory, Locked, Sharing, StateDir};

pub use self::builds::StoreHold;
pub use self::records::BuildRecord;
pub(crate) use self::records::ImageRecord;
use self::records::{
    NameRecord, image_file, last_use, name_file, note_use, read_record, read_records, write_record,
};
pub(crate) use self::trees::{TreeContents, TreeLayer, blocking, chain_id};
use crate::commit::RootCommit;
use crate::{
    Digest, ImageError, ImageLease, ImageLimits, ImageReference, ImportName, LayerDraft, Platform,
    PruneOptions, PullOptions, PullProgress, Removed, SandboxRoot, StoredImage, Unpack,
};

/// The fewest digits of an id by which an image is found.
const MIN_ID_DIGITS: usize = 6;

/// A store of images in a private directory. Clones are the same store.
#[derive(Debug, Clone)]
pub struct ImageStore {
    directory: PathBuf,
    blobs: Arc<Directory>,
    partial: Arc<Directory>,
    trees: Arc<Directory>,
    drafts: Arc<Directory>,
    images: Arc<Directory>,
    names: Arc<Directory>,
    used: Arc<Directory>,
    builds: Arc<Directory>,
    locks: Arc<Directory>,
}

/// A stored image, and the name by which it was found.
struct Found {
    record: ImageRecord,
    /// Nothing where it was found by its id.
    reference: Option<ImageReference>,
}

impl ImageStore {
    /// Opens the store in a directory, which is made for this user alone if need be.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, ImageError> {
        let state = StateDir::open(directory).map_err(ImageError::Store)?;
        let open = |name| state.subdirectory(name).map(Arc::new).map_err(ImageError::Store);
        Ok(Self {
            blobs: open("blobs")?,
            partial: open("partial")?,
            trees: open("trees")?,
            drafts: open("drafts")?,
            images: open("images")?,
            names: open("names")?,
            used: open("used")?,
            builds: open("builds")?,
            locks: open("locks")?,
            directory: state.path().to_owned(),
        })
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes sure that an image is stored, and answers with it.
    ///
    /// - A tag is resolved once; [`StoredImage::manifest`] is what it meant.
    /// - Every digest is checked: manifest, config, compressed and uncompressed layers (C-60).
    /// - Two pulls of the same image: one works, the other waits and finds it.
    /// - Dropped or killed at any instant, nothing half-made is published; layers that arrived are kept.
    /// - Of an image that is refused, nothing is kept.
    pub async fn pull(
        &self,
        reference: &ImageReference,
        options: &PullOptions,
        unpack: &dyn Unpack,
        progress: &dyn PullProgress,
    ) -> Result<StoredImage, ImageError> {
        crate::pull::pull(self, reference, options, unpack, progress).await
    }

    /// Stores the image of an OCI layout: a directory, or an archive of one or of `docker save`. An image that is stored
    /// already is not read again. `form` is what it has to be made of, if that matters.
    pub async fn import(
        &self,
        (layout, form): (&Path, Option<ImageForm>),
        name: ImportName<'_>,
        platform: &Platform,
        limits: &ImageLimits,
        unpack: &dyn Unpack,
        progress: &dyn PullProgress,
    ) -> Result<StoredImage, ImageError> {
        let options = (platform, limits);
        crate::pull::import(self, (layout, form), name, options, unpack, progress).await
    }

    /// Writes a stored image into a new file: an archive of an OCI layout, which Docker, Podman and `import` read.
    pub fn export(&self, image: &str, archive: &Path) -> Result<(), ImageError> {
        let found = self.find_record(image)?;
        let found = found.ok_or_else(|| ImageError::NotStored(image.to_owned()))?;
        self.write_archive(&found, archive)
    }

    /// Gives a stored image one more name, which no other image has from then on.
    pub fn tag(&self, image: &str, name: &ImageReference) -> Result<StoredImage, ImageError> {
        name.check_assignable()?;
        let found = self.find_record(image)?;
        let found = found.ok_or_else(|| ImageError::NotStored(image.to_owned()))?;
        self.set_name(name, &found.record.manifest)?;
        Ok(self.complete(found.record, Some(name.clone())))
    }

    /// Pushes a stored image to the registry of its name, or of another.
    ///
    /// - The registry gets the very bytes that are stored, so the digest stays the same.
    /// - Blobs that it has are not sent. The manifest goes last: dropped or killed before, it has no new image.
    pub async fn push(
        &self,
        image: &str,
        to: Option<&ImageReference>,
        options: &PullOptions,
        progress: &dyn PullProgress,
    ) -> Result<StoredImage, ImageError> {
        // Blobs stay until they are sent.
        let _lock = self.lock_shared().await?;
        let found = self.find_record(image)?;
        let found = found.ok_or_else(|| ImageError::NotStored(image.to_owned()))?;
        let target = to.or(found.reference.as_ref()).cloned();
        let target = target.ok_or_else(|| ImageError::NoTarget(image.to_owned()))?;
        crate::push::push(self, &found.record, &target, options, progress).await?;
        Ok(self.complete(found.record, Some(target)))
    }

    /// A private directory in which archives for [`Self::commit`] are gathered.
    pub fn draft_layer(&self) -> Result<LayerDraft, ImageError> {
        self.make_layer_draft()
    }

    /// Stores what the root of a sandbox has changed as one more layer on its image.
    ///
    /// - Archives are guest input: compared without following a link, packed without set-id bits, refused by name.
    /// - Dropped or killed at any instant, nothing half-made is published.
    /// - A root without changes is the same image, under one more name.
    pub async fn commit(
        &self,
        base: &StoredImage,
        root: SandboxRoot,
        draft: &LayerDraft,
        name: Option<&ImageReference>,
        limits: &ImageLimits,
        (unpack, progress): (&dyn Unpack, &dyn PullProgress),
    ) -> Result<StoredImage, ImageError> {
        name.map_or(Ok(()), ImageReference::check_assignable)?;
        let _lock = self.lock_shared().await?;
        // The tree stays while it is compared with.
        let _lease = self.lease(base)?;
        let record = self.record_of(base)?;
        let commit = RootCommit { store: self, limits, unpack, progress };
        commit.commit(&record, root, draft, name).await
    }

    /// Every stored image, one entry for each name and one for each image without a name.
    pub fn list(&self) -> Result<Vec<StoredImage>, ImageError> {
        let names: Vec<NameRecord> = read_records(&self.names)?;
        let mut images = Vec::new();
        for record in read_records::<ImageRecord>(&self.images)? {
            let own = names.iter().filter(|name| name.manifest == record.manifest);
            let mut references: Vec<_> = own.map(|name| Some(name.reference.clone())).collect();
            if references.is_empty() && record.is_intermediate {
                continue;
            }
            if references.is_empty() {
                references.push(None);
            }
            images.extend(references.into_iter().map(|name| self.complete(record.clone(), name)));
        }
        images.sort_by(|one, other| {
            (&one.reference, &one.manifest).cmp(&(&other.reference, &other.manifest))
        });
        Ok(images)
    }

    /// A stored image by its name (`python:3.12`), its id (`sha256:…`) or at least six first digits of that.
    pub fn find(&self, image: &str) -> Result<Option<StoredImage>, ImageError> {
        let found = self.find_record(image)?;
        Ok(found.map(|found| self.complete(found.record, found.reference)))
    }

    /// The same, with an error where there is none.
    pub fn inspect(&self, image: &str) -> Result<StoredImage, ImageError> {
        self.find(image)?.ok_or_else(|| ImageError::NotStored(image.to_owned()))
    }

    /// Keeps the image's root until the lease is dropped, and notes that it is used. An image that was removed
    /// meanwhile is [`ImageError::NotStored`].
    pub fn lease(&self, image: &StoredImage) -> Result<ImageLease, ImageError> {
        let missing = || ImageError::NotStored(image.manifest.to_string());
        let record: ImageRecord =
            read_record(&self.images, &image_file(&image.manifest))?.ok_or_else(missing)?;
        // Held exclusively only by whoever removes it.
        let lock = trees::tree_lock(&record.tree);
        let lock = locks::try_lock(&self.locks, &lock, Sharing::Shared)?.ok_or_else(missing)?;
        if !self.has_tree(&record.tree)? {
            return Err(missing());
        }
        note_use(&self.used, &record.manifest)
            .map_err(ImageError::io("written", self.used.path()))?;
        Ok(ImageLease { _lock: lock, root: self.tree_root(&record.tree) })
    }

    /// Removes a name; with the last one, the image and every blob that no other image has. An id removes all its
    /// names. What is in use is refused with [`ImageError::InUse`].
    pub fn remove(&self, image: &str) -> Result<Removed, ImageError> {
        let found = self.find_record(image)?;
        self.remove_found(found.ok_or_else(|| ImageError::NotStored(image.to_owned()))?)
    }

    /// Removes images that are not used, partial downloads that are not going on, and blobs of no image. While a
    /// pull goes on, blobs stay.
    pub fn prune(&self, options: &PruneOptions) -> Result<Removed, ImageError> {
        self.prune_images(options)
    }

    fn complete(&self, record: ImageRecord, reference: Option<ImageReference>) -> StoredImage {
        let root = self.tree_root(&record.tree);
        let last_used = last_use(&self.used, &record.manifest);
        record.into_image(reference, root, last_used)
    }

    fn find_record(&self, image: &str) -> Result<Option<Found>, ImageError> {
        if let Ok(reference) = image.parse::<ImageReference>()
            && let Some(record) = self.find_named(&reference)?
        {
            return Ok(Some(Found { record, reference: Some(reference) }));
        }
        let digits = image.strip_prefix("sha256:").unwrap_or(image);
        let is_id = digits.len() >= MIN_ID_DIGITS && digits.bytes().all(|b| b.is_ascii_hexdigit());
        if !is_id {
            return Ok(None);
        }
        let records: Vec<ImageRecord> = read_records(&self.images)?;
        let mut fitting =
            records.into_iter().filter(|record| record.manifest.hex().starts_with(digits));
        match (fitting.next(), fitting.next()) {
            (Some(_), Some(_)) => Err(ImageError::Ambiguous(digits.to_owned())),
            (found, _) => Ok(found.map(|record| Found { record, reference: None })),
        }
    }

    /// The image of a name, if its tree is there too.
    fn find_named(&self, reference: &ImageReference) -> Result<Option<ImageRecord>, ImageError> {
        let name: Option<NameRecord> = read_record(&self.names, &name_file(reference))?;
        let manifest = match (name, reference.digest()) {
            (Some(name), _) => name.manifest,
            // Pulled by another name: the digest says that it is the same.
            (None, Some(digest)) => digest.clone(),
            (None, None) => return Ok(None),
        };
        let record: Option<ImageRecord> = read_record(&self.images, &image_file(&manifest))?;
        match record {
            Some(record) if self.has_tree(&record.tree)? => Ok(Some(record)),
            Some(_) | None => Ok(None),
        }
    }

    pub(crate) fn find_reference(
        &self,
        reference: &ImageReference,
    ) -> Result<Option<StoredImage>, ImageError> {
        let record = self.find_named(reference)?;
        Ok(record.map(|record| self.complete(record, Some(reference.clone()))))
    }

    /// Whether an image is stored whole.
    pub(crate) fn has_image(&self, manifest: &Digest) -> Result<bool, ImageError> {
        let record: Option<ImageRecord> = read_record(&self.images, &image_file(manifest))?;
        match record {
            Some(record) => self.has_tree(&record.tree),
            None => Ok(false),
        }
    }

    pub(crate) fn image(
        &self,
        manifest: &Digest,
        name: Option<ImageReference>,
    ) -> Result<StoredImage, ImageError> {
        let record = read_record(&self.images, &image_file(manifest))?;
        let record = record.ok_or_else(|| ImageError::NotStored(manifest.to_string()))?;
        Ok(self.complete(record, name))
    }

    pub(crate) fn add_record(&self, record: &ImageRecord) -> Result<(), ImageError> {
        write_record(&self.images, &image_file(&record.manifest), record)
    }

    pub(crate) fn set_name(
        &self,
        reference: &ImageReference,
        manifest: &Digest,
    ) -> Result<(), ImageError> {
        let record = NameRecord { reference: reference.clone(), manifest: manifest.clone() };
        write_record(&self.names, &name_file(reference), &record)
    }

    /// Keeps blobs from being removed while a pull counts on them.
    pub(crate) async fn lock_shared(&self) -> Result<Locked, ImageError> {
        locks::lock(&self.locks, locks::STORE_LOCK, Sharing::Shared, || {}).await
    }
}
