//! A commit: the changes of a sandbox's root as one more layer on its image.
//!
//! Archives of the root are a guest's. They lie in a private draft, are compared with the image's tree and packed; the
//! new layer is unpacked behind walls like any other before there is an image of it.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stockade_core::{ImageForm, clean_foreign};
use stockade_fs::{Locked, Timestamp, remove_tree};
use stockade_unpack::{PackRequest, PackedLayer, RootArchive, UnpackError, pack_changes};

use crate::config::parse_config;
use crate::manifest::{OCI_CONFIG, OCI_MANIFEST, compression_of, own_layer_type};
use crate::store::{ImageRecord, ImageStore, TreeLayer, blocking, chain_id};
use crate::{
    Compression, Digest, ImageConfig, ImageError, ImageLimits, ImageReference, Platform,
    PullProgress, StoredImage, StoredLayer, Unpack, UnpackLimits,
};

const LAYER_FILE: &str = "layer";
const COMMIT_COMMAND: &str = "stockade image commit";

/// A private directory in the store in which a layer is put together. It is removed with this, or by the next pull
/// where the process was killed.
#[derive(Debug)]
pub struct LayerDraft {
    path: PathBuf,
    _lock: Locked,
}

/// The root of a sandbox, as archives.
#[derive(Debug)]
pub struct SandboxRoot {
    /// Directories from the root on (empty for the root itself) with the archives of each, from the top down.
    /// Those of directories that an archive above has too are not read.
    pub archives: Vec<(String, PathBuf)>,
    /// Paths from the root on that belong to the sandbox and not to its root, with all that is in them.
    pub ignored: Vec<String>,
}

impl LayerDraft {
    pub(crate) fn new(path: PathBuf, lock: Locked) -> Result<Self, ImageError> {
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(ImageError::io("made", &path))?;
        Ok(Self { path, _lock: lock })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the layer is written.
    pub fn layer_path(&self) -> PathBuf {
        self.path.join(LAYER_FILE)
    }
}

impl Drop for LayerDraft {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next pull.
        let _ = remove_tree(&self.path);
    }
}

/// What an image that is built says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssembledConfig {
    /// What it says about processes in it.
    pub config: ImageConfig,
    /// The machine it is for.
    pub platform: Platform,
    /// When it was built.
    pub created: Option<String>,
}

/// What is the same for all steps of a commit.
pub(crate) struct RootCommit<'a> {
    pub store: &'a ImageStore,
    pub limits: &'a ImageLimits,
    pub unpack: &'a dyn Unpack,
    pub progress: &'a dyn PullProgress,
}

/// The documents of a new image.
struct NewImage {
    config: Vec<u8>,
    manifest: Vec<u8>,
    layers: Vec<TreeLayer>,
}

impl RootCommit<'_> {
    /// Stores an image with what a root has changed. Without changes it is the same image.
    pub async fn commit(
        &self,
        base: &ImageRecord,
        root: SandboxRoot,
        draft: &LayerDraft,
        name: Option<&ImageReference>,
    ) -> Result<StoredImage, ImageError> {
        let packed = self.pack(base, root, draft).await?;
        let manifest = match packed.entries {
            0 => base.manifest.clone(),
            _ => self.add_layer(base, packed, draft).await?,
        };
        if let Some(name) = name {
            self.store.set_name(name, &manifest)?;
        }
        self.store.image(&manifest, name.cloned())
    }

    pub async fn pack(
        &self,
        base: &ImageRecord,
        root: SandboxRoot,
        draft: &LayerDraft,
    ) -> Result<PackedLayer, ImageError> {
        let mut archives = Vec::new();
        for (place, path) in root.archives {
            let file = File::open(&path).map_err(ImageError::io("opened", &path))?;
            archives.push(RootArchive { place, file });
        }
        let ImageLimits { entries, unpacked_bytes: bytes, .. } = *self.limits;
        let limits = UnpackLimits { entries, bytes };
        let request = PackRequest { archives, ignored: root.ignored, limits };
        let tree = self.store.tree_root(&base.tree);
        let tree = File::open(&tree).map_err(ImageError::io("opened", &tree))?;
        let path = draft.layer_path();
        let layer = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let layer = layer.map_err(ImageError::io("made", &path))?;
        let packed = blocking(move || pack_changes(request, tree, layer)).await?;
        packed.map_err(|error| match error {
            UnpackError::Refused(reason) => ImageError::refused(clean_foreign(&reason)),
            error @ UnpackError::Io { .. } => ImageError::Unpack(error.to_string()),
        })
    }

    /// Publishes the layer, and the image with it.
    async fn add_layer(
        &self,
        base: &ImageRecord,
        packed: PackedLayer,
        draft: &LayerDraft,
    ) -> Result<Digest, ImageError> {
        let layer = describe_layer(&packed)?;
        let image = self.compose(base, layer.clone())?;
        self.store.adopt_blob(&layer.digest, &draft.layer_path())?;
        self.publish(&base.platform, &image, false).await
    }

    fn compose(&self, base: &ImageRecord, layer: StoredLayer) -> Result<NewImage, ImageError> {
        let mut layers = tree_layers(base)?;
        layers.push(TreeLayer { layer, compression: Compression::Gzip });
        if layers.len() > self.limits.layers {
            let limit = self.limits.layers;
            return Err(ImageError::refused(format!("it would have more than {limit} layers")));
        }
        let config = self.store.read_blob(&base.config_digest, self.limits.config_bytes)?;
        let config = build_config(&config, &layers, &Timestamp::now().to_string())?;
        let manifest = build_manifest(&config, &layers);
        Ok(NewImage { config, manifest, layers })
    }

    /// An image of a base and further layers, with a config of its own. The same input makes the same image.
    pub async fn assemble(
        &self,
        base: Option<&ImageRecord>,
        new: &[StoredLayer],
        config: &AssembledConfig,
        is_intermediate: bool,
    ) -> Result<Digest, ImageError> {
        let mut layers = base.map_or(Ok(Vec::new()), tree_layers)?;
        let compression = Compression::Gzip;
        layers.extend(new.iter().map(|layer| TreeLayer { layer: layer.clone(), compression }));
        if layers.len() > self.limits.layers {
            let limit = self.limits.layers;
            return Err(ImageError::refused(format!("it would have more than {limit} layers")));
        }
        let below = match base {
            Some(base) => self.store.read_blob(&base.config_digest, self.limits.config_bytes)?,
            None => b"{}".to_vec(),
        };
        let config_bytes = build_own_config(&below, &layers, config)?;
        let manifest = build_manifest(&config_bytes, &layers);
        let digest = Digest::of(&manifest);
        if self.store.has_image(&digest)? {
            return Ok(digest);
        }
        let image = NewImage { config: config_bytes, manifest, layers };
        self.publish(&config.platform, &image, is_intermediate).await
    }

    async fn publish(
        &self,
        platform: &Platform,
        image: &NewImage,
        is_intermediate: bool,
    ) -> Result<Digest, ImageError> {
        let NewImage { config, manifest, layers } = image;
        let parsed = parse_config(config, layers.len(), platform)?;
        let (config_digest, manifest_digest) = (Digest::of(config), Digest::of(manifest));
        self.store.write_blob(&config_digest, config)?;
        self.store.write_blob(&manifest_digest, manifest)?;
        let tree = chain_id(layers);
        let (limits, unpack) = (self.limits, self.unpack);
        let made = self.store.make_tree(&tree, layers, limits, unpack, self.progress).await?;
        let contents = match made {
            Some(contents) => contents,
            None => self.store.tree_contents(&tree)?,
        };
        self.store.add_record(&ImageRecord {
            manifest: manifest_digest.clone(),
            manifest_type: OCI_MANIFEST.to_owned(),
            config_digest,
            config_type: OCI_CONFIG.to_owned(),
            form: ImageForm::Root,
            platform: parsed.platform,
            config: parsed.config,
            layers: layers.iter().map(|layer| layer.layer.clone()).collect(),
            unpacked_bytes: contents.bytes,
            skipped_devices: contents.skipped_devices,
            created: parsed.created,
            stored: Timestamp::now(),
            tree,
            is_intermediate,
        })?;
        Ok(manifest_digest)
    }
}

/// A layer that was packed, as images have it.
pub(crate) fn describe_layer(packed: &PackedLayer) -> Result<StoredLayer, ImageError> {
    let wrong = |error: crate::DigestError| ImageError::Unpack(error.to_string());
    Ok(StoredLayer {
        digest: Digest::from_hex(&packed.sha256).map_err(wrong)?,
        diff_id: Digest::from_hex(&packed.diff_sha256).map_err(wrong)?,
        media_type: own_layer_type(Compression::Gzip).to_owned(),
        size: packed.size,
    })
}

/// The config of an image that was built: that of the image below, with what the build says instead.
fn build_own_config(
    base: &[u8],
    layers: &[TreeLayer],
    own: &AssembledConfig,
) -> Result<Vec<u8>, ImageError> {
    let unreadable = || ImageError::refused("the config of its image cannot be read");
    let mut config: Value = serde_json::from_slice(base).map_err(|_| unreadable())?;
    let fields = config.as_object_mut().ok_or_else(unreadable)?;
    // It is about the layers below, and optional.
    fields.remove("history");
    let diff_ids: Vec<_> = layers.iter().map(|layer| &layer.layer.diff_id).collect();
    fields.insert("rootfs".to_owned(), json!({ "type": "layers", "diff_ids": diff_ids }));
    fields.insert("os".to_owned(), json!(own.platform.os));
    fields.insert("architecture".to_owned(), json!(own.platform.architecture));
    if let Some(created) = &own.created {
        fields.insert("created".to_owned(), json!(created));
    }
    let process = fields.entry("config").or_insert_with(|| json!({}));
    if process.is_null() {
        *process = json!({});
    }
    let process = process.as_object_mut().ok_or_else(unreadable)?;
    let ImageConfig { env, user, working_dir, entrypoint, cmd, labels, exposed_ports } =
        &own.config;
    let ports: BTreeMap<_, _> = exposed_ports.iter().map(|port| (port, json!({}))).collect();
    for (name, value) in [
        ("Env", json!(env)),
        ("User", json!(user)),
        ("WorkingDir", json!(working_dir)),
        ("Entrypoint", json!(entrypoint)),
        ("Cmd", json!(cmd)),
        ("Labels", json!(labels)),
        ("ExposedPorts", json!(ports)),
    ] {
        process.insert(name.to_owned(), value);
    }
    Ok(config.to_string().into_bytes())
}

fn tree_layers(base: &ImageRecord) -> Result<Vec<TreeLayer>, ImageError> {
    let with_compression = |layer: &StoredLayer| {
        let compression = compression_of(&layer.media_type);
        let unknown = || ImageError::refused("a layer of its image is of an unknown type");
        Ok(TreeLayer { layer: layer.clone(), compression: compression.ok_or_else(unknown)? })
    };
    base.layers.iter().map(with_compression).collect()
}

/// The config of the image below, with one more layer. What it says otherwise stays, known or not.
fn build_config(base: &[u8], layers: &[TreeLayer], now: &str) -> Result<Vec<u8>, ImageError> {
    let unreadable = || ImageError::refused("the config of its image cannot be read");
    let mut config: Value = serde_json::from_slice(base).map_err(|_| unreadable())?;
    let fields = config.as_object_mut().ok_or_else(unreadable)?;
    let diff_ids: Vec<_> = layers.iter().map(|layer| &layer.layer.diff_id).collect();
    fields.insert("created".to_owned(), json!(now));
    fields.insert("rootfs".to_owned(), json!({ "type": "layers", "diff_ids": diff_ids }));
    if let Some(Value::Array(history)) = fields.get_mut("history") {
        history.push(json!({ "created": now, "created_by": COMMIT_COMMAND }));
    }
    Ok(config.to_string().into_bytes())
}

fn build_manifest(config: &[u8], layers: &[TreeLayer]) -> Vec<u8> {
    let describe = |layer: &TreeLayer| {
        let media_type = own_layer_type(layer.compression);
        json!({ "mediaType": media_type, "digest": layer.layer.digest, "size": layer.layer.size })
    };
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": { "mediaType": OCI_CONFIG, "digest": Digest::of(config), "size": config.len() },
        "layers": layers.iter().map(describe).collect::<Vec<_>>(),
    });
    manifest.to_string().into_bytes()
}
