//! A pull, from a name to a stored image. An import is the same from another source.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use stockade_core::ImageForm;
use stockade_fs::{Locked, Timestamp};

use crate::config::{ParsedConfig, parse_config};
use crate::error::ImageFault;
use crate::layout::{ImportName, Layout, choose_image};
use crate::manifest::{
    Descriptor, DocumentKind, MAX_INDEX_DEPTH, Manifest, choose_entry, document_kind,
    layer_compression, parse_index, parse_manifest,
};
use crate::module::{
    module_config, module_layer, module_platforms, module_tree_id, parse_module_config,
};
use crate::registry::{FetchedDocument, open_sessions};
use crate::source::Source;
use crate::store::{ImageRecord, ImageStore, TreeContents, TreeLayer, blocking, chain_id};
use crate::{
    Digest, ImageError, ImageLimits, ImageReference, Platform, PullEvent, PullOptions, PullPolicy,
    PullProgress, StoredImage, StoredLayer, Unpack,
};

/// Layers that are fetched at once.
const PARALLEL_LAYERS: usize = 3;

/// What is the same for all steps of a pull or an import.
struct Job<'a> {
    store: &'a ImageStore,
    source: Source,
    platform: &'a Platform,
    form: Option<ImageForm>,
    limits: &'a ImageLimits,
    unpack: &'a dyn Unpack,
    progress: &'a dyn PullProgress,
}

/// The manifest of one image.
struct Resolved {
    document: FetchedDocument,
    manifest: Manifest,
}

/// Pulls an image.
pub(crate) async fn pull(
    store: &ImageStore,
    reference: &ImageReference,
    options: &PullOptions,
    unpack: &dyn Unpack,
    progress: &dyn PullProgress,
) -> Result<StoredImage, ImageError> {
    let stored = store.find_reference(reference)?;
    let fits = |image: &StoredImage| {
        let (has, wants) = (&image.platform, &options.platform);
        let same_machine = has.os == wants.os && has.architecture == wants.architecture;
        same_machine || image.form == ImageForm::Module
    };
    let stored = stored.filter(fits);
    match (options.policy, stored) {
        (PullPolicy::Missing | PullPolicy::Never, Some(image)) => {
            check_form(options.form, image.form)?;
            progress.report(PullEvent::Stored { manifest: &image.manifest, already: true });
            return Ok(image);
        }
        (PullPolicy::Never, None) => return Err(ImageError::NotStored(reference.familiar())),
        (PullPolicy::Always, _) | (PullPolicy::Missing, None) => {}
    }
    let lock = store.lock_shared().await?;
    let source = Source::Registry(open_sessions(reference, options)?);
    let (platform, form, limits) = (&options.platform, options.form, &options.limits);
    let job = Job { store, source, platform, form, limits, unpack, progress };
    let resolved = job.resolve_reference(reference).await?;
    job.store_or_discard(Some(reference), &resolved, lock).await
}

/// Imports the image of an OCI layout.
pub(crate) async fn import(
    store: &ImageStore,
    (layout, form): (&Path, Option<ImageForm>),
    name: ImportName<'_>,
    options: (&Platform, &ImageLimits),
    unpack: &dyn Unpack,
    progress: &dyn PullProgress,
) -> Result<StoredImage, ImageError> {
    let (platform, limits) = options;
    let lock = store.lock_shared().await?;
    let (path, bounds) = (layout.to_owned(), *limits);
    let layout = Arc::new(blocking(move || Layout::open(&path, &bounds)).await??);
    let (entry, name) = choose_image(&layout.read_index(limits.manifest_bytes)?, name)?;
    let source = Source::Layout(layout);
    let job = Job { store, source, platform, form, limits, unpack, progress };
    let document = job.source.fetch_child(&entry, limits.manifest_bytes).await?;
    let resolved = job.descend(document).await?;
    job.store_or_discard(name.as_ref(), &resolved, lock).await
}

/// Refuses an image that is of another form than is wanted.
fn check_form(wanted: Option<ImageForm>, found: ImageForm) -> Result<(), ImageError> {
    match wanted {
        Some(wanted) if wanted != found => Err(ImageError::Form { found }),
        Some(_) | None => Ok(()),
    }
}

impl Job<'_> {
    async fn resolve_reference(&self, reference: &ImageReference) -> Result<Resolved, ImageError> {
        let limit = self.limits.manifest_bytes;
        let fetched = self.source.fetch_document(&reference.version(), limit).await;
        let document = match fetched {
            Err(ImageError::Status { status: 404, .. }) => {
                return Err(ImageError::NotFound(reference.clone()));
            }
            fetched => fetched?,
        };
        if let Some(expected) = reference.digest().filter(|digest| **digest != document.digest) {
            return Err(ImageError::DigestMismatch {
                what: "its manifest".to_owned(),
                expected: expected.clone(),
                actual: document.digest,
            });
        }
        self.descend(document).await
    }

    /// Follows indexes to the manifest for the platform.
    async fn descend(&self, mut document: FetchedDocument) -> Result<Resolved, ImageError> {
        let mut seen = HashSet::new();
        for _ in 0..=MAX_INDEX_DEPTH {
            match document_kind(&document.media_type) {
                Some(DocumentKind::Manifest) => {
                    let manifest =
                        parse_manifest(&document.bytes, &document.media_type, self.limits)?;
                    check_form(self.form, manifest.form)?;
                    return Ok(Resolved { document, manifest });
                }
                Some(DocumentKind::Index) => {
                    let entries = parse_index(&document.bytes, &document.media_type)?;
                    let entry = self.choose_entry(&entries)?;
                    if !seen.insert(document.digest.clone()) {
                        return Err(ImageError::refused("its index leads back to itself"));
                    }
                    let limit = self.limits.manifest_bytes;
                    document = self.source.fetch_child(entry, limit).await?;
                }
                None => {
                    let kind = stockade_core::clean_foreign(&document.media_type);
                    return Err(ImageError::refused(format!(
                        "its manifest is of the type `{kind}`"
                    )));
                }
            }
        }
        Err(ImageError::refused(format!(
            "it has more than {MAX_INDEX_DEPTH} indexes in each other"
        )))
    }

    /// The entry of an index for this platform, or for modules where one is wanted or nothing else fits.
    fn choose_entry<'e>(&self, entries: &'e [Descriptor]) -> Result<&'e Descriptor, ImageError> {
        let root = choose_entry(entries, self.platform);
        let find_module =
            || module_platforms().iter().find_map(|platform| choose_entry(entries, platform).ok());
        match self.form {
            Some(ImageForm::Root) => root,
            Some(ImageForm::Module) => find_module().map_or(root, Ok),
            None => root.or_else(|error| find_module().ok_or(error)),
        }
    }

    /// Stores an image. Of one that is refused, nothing stays.
    async fn store_or_discard(
        &self,
        name: Option<&ImageReference>,
        resolved: &Resolved,
        lock: Locked,
    ) -> Result<StoredImage, ImageError> {
        let stored = self.store_image(name, resolved).await;
        drop(lock);
        if stored.as_ref().is_err_and(|error| error.fault() == ImageFault::Image) {
            self.store.discard_blobs(&resolved.blobs());
        }
        stored
    }

    async fn store_image(
        &self,
        name: Option<&ImageReference>,
        resolved: &Resolved,
    ) -> Result<StoredImage, ImageError> {
        let manifest = resolved.document.digest.clone();
        if let Some(name) = name {
            let sizes = resolved.manifest.layers.iter();
            let layers: Vec<_> = sizes.map(|layer| (layer.digest.clone(), layer.size)).collect();
            let (reference, manifest) = (name, &manifest);
            self.progress.report(PullEvent::Resolved { reference, manifest, layers: &layers });
        }
        let already = self.store.has_image(&manifest)?;
        if !already {
            self.add_image(resolved).await?;
        }
        if let Some(name) = name {
            self.store.set_name(name, &manifest)?;
        }
        self.progress.report(PullEvent::Stored { manifest: &manifest, already });
        self.store.image(&manifest, name.cloned())
    }

    async fn add_image(&self, resolved: &Resolved) -> Result<(), ImageError> {
        let store = self.store;
        let drafts = store.clone();
        blocking(move || drafts.remove_stale_drafts()).await??;
        let manifest = &resolved.manifest;
        let config = self.source.fetch_small(&manifest.config, self.limits.config_bytes).await?;
        let record = match manifest.form {
            ImageForm::Root => self.add_root(resolved, &config).await?,
            ImageForm::Module => self.add_module(resolved, &config).await?,
        };
        store.add_record(&record)
    }

    /// Stores the layers of an image, and makes its root.
    async fn add_root(
        &self,
        resolved: &Resolved,
        config_bytes: &[u8],
    ) -> Result<ImageRecord, ImageError> {
        let Resolved { document, manifest } = resolved;
        let config = parse_config(config_bytes, manifest.layers.len(), self.platform)?;
        let layers = tree_layers(manifest, &config)?;
        self.fetch_blobs(resolved, config_bytes).await?;
        let tree = chain_id(&layers);
        let contents = self.make_tree(&tree, &layers).await?;
        Ok(ImageRecord {
            manifest: document.digest.clone(),
            manifest_type: document.media_type.clone(),
            config_digest: manifest.config.digest.clone(),
            config_type: manifest.config.media_type.clone(),
            form: ImageForm::Root,
            platform: config.platform,
            config: config.config,
            layers: layers.into_iter().map(|layer| layer.layer).collect(),
            unpacked_bytes: contents.bytes,
            skipped_devices: contents.skipped_devices,
            created: config.created,
            stored: Timestamp::now(),
            tree,
            is_intermediate: false,
        })
    }

    /// Stores a WebAssembly module, in a tree of its own.
    async fn add_module(
        &self,
        resolved: &Resolved,
        config_bytes: &[u8],
    ) -> Result<ImageRecord, ImageError> {
        let Resolved { document, manifest } = resolved;
        let layer = module_layer(manifest)?;
        let config_type = manifest.config.media_type.clone();
        let created = parse_module_config(config_bytes, &config_type, &layer.digest)?;
        self.fetch_blobs(resolved, config_bytes).await?;
        let tree = module_tree_id(&layer.digest);
        self.store.make_module_tree(&tree, &layer.digest, self.progress).await?;
        let [platform, _] = module_platforms();
        Ok(ImageRecord {
            manifest: document.digest.clone(),
            manifest_type: document.media_type.clone(),
            config_digest: manifest.config.digest.clone(),
            config_type,
            form: ImageForm::Module,
            platform,
            config: module_config(),
            unpacked_bytes: layer.size,
            layers: vec![layer],
            skipped_devices: 0,
            created,
            stored: Timestamp::now(),
            tree,
            is_intermediate: false,
        })
    }

    /// Fetches the layers, and stores them with the manifest and the config.
    async fn fetch_blobs(
        &self,
        resolved: &Resolved,
        config_bytes: &[u8],
    ) -> Result<(), ImageError> {
        let Resolved { document, manifest } = resolved;
        self.fetch_layers(&manifest.layers).await?;
        self.store.write_blob(&document.digest, &document.bytes)?;
        self.store.write_blob(&manifest.config.digest, config_bytes)
    }

    async fn make_tree(
        &self,
        tree: &Digest,
        layers: &[TreeLayer],
    ) -> Result<TreeContents, ImageError> {
        if !self.store.has_tree(tree)? {
            let (limits, unpack) = (self.limits, self.unpack);
            let made = self.store.make_tree(tree, layers, limits, unpack, self.progress).await?;
            if let Some(contents) = made {
                return Ok(contents);
            }
        }
        // Another image has the same layers.
        self.store.tree_contents(tree)
    }

    async fn fetch_layers(&self, layers: &[Descriptor]) -> Result<(), ImageError> {
        let mut seen = HashSet::new();
        let mut fetches = Vec::new();
        for layer in layers {
            if seen.insert(&layer.digest) {
                fetches.push(self.store.fetch_blob(&self.source, layer, self.progress).boxed());
            }
        }
        stream::iter(fetches).buffer_unordered(PARALLEL_LAYERS).try_collect::<()>().await
    }
}

impl Resolved {
    fn blobs(&self) -> Vec<Digest> {
        let layers = self.manifest.layers.iter().map(|layer| layer.digest.clone());
        [self.document.digest.clone(), self.manifest.config.digest.clone()]
            .into_iter()
            .chain(layers)
            .collect()
    }
}

fn tree_layers(manifest: &Manifest, config: &ParsedConfig) -> Result<Vec<TreeLayer>, ImageError> {
    let pairs = manifest.layers.iter().zip(&config.diff_ids);
    pairs
        .map(|(layer, diff_id)| {
            Ok(TreeLayer {
                compression: layer_compression(layer)?,
                layer: StoredLayer {
                    digest: layer.digest.clone(),
                    diff_id: diff_id.clone(),
                    media_type: layer.media_type.clone(),
                    size: layer.size,
                },
            })
        })
        .collect()
}
