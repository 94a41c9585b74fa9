//! Trees: an image's layers, applied in order into one directory that is published whole by a rename.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use stockade_fs::{Sharing, draft_name, remove_tree};

use super::ImageStore;
use super::locks::{lock, try_lock};
use crate::commit::LayerDraft;
use crate::unpack::LayerFile;
use crate::{
    Compression, Digest, ImageError, ImageLimits, PullEvent, PullProgress, StoredLayer, Unpack,
    UnpackLimits,
};

/// The root in the directory of a tree, which itself stays private: a root may be closed to its owner.
pub(super) const ROOT_DIR: &str = "root";
/// The file beside it that says what is in it.
const CONTENTS_FILE: &str = "contents.json";
/// How the names of trees begin that are being removed.
const GONE_PREFIX: &str = ".gone-";

/// What a tree has in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TreeContents {
    pub bytes: u64,
    pub skipped_devices: u64,
}

/// A layer to apply.
#[derive(Debug, Clone)]
pub(crate) struct TreeLayer {
    pub layer: StoredLayer,
    pub compression: Compression,
}

/// The id of a tree: the chain of its layers' uncompressed digests, as the OCI specification has it.
pub(crate) fn chain_id(layers: &[TreeLayer]) -> Digest {
    let mut chain: Option<Digest> = None;
    for layer in layers.iter().map(|layer| &layer.layer.diff_id) {
        chain = Some(match chain {
            None => layer.clone(),
            Some(below) => Digest::of(format!("{below} {layer}").as_bytes()),
        });
    }
    chain.unwrap_or_else(|| Digest::of(b""))
}

pub(super) fn make_lock(tree: &Digest) -> String {
    format!("make-{}", tree.hex())
}

pub(super) fn tree_lock(tree: &Digest) -> String {
    format!("tree-{}", tree.hex())
}

impl ImageStore {
    /// The root of a tree.
    pub(crate) fn tree_root(&self, tree: &Digest) -> PathBuf {
        self.trees.path_of(&tree.hex()).join(ROOT_DIR)
    }

    /// What is in a tree that is there.
    pub(crate) fn tree_contents(&self, tree: &Digest) -> Result<TreeContents, ImageError> {
        let path = self.trees.path_of(&tree.hex()).join(CONTENTS_FILE);
        let text = fs::read(&path).map_err(ImageError::io("read", &path))?;
        serde_json::from_slice(&text)
            .map_err(|error| ImageError::io("understood", &path)(std::io::Error::other(error)))
    }

    pub(crate) fn has_tree(&self, tree: &Digest) -> Result<bool, ImageError> {
        self.trees.exists(&tree.hex()).map_err(ImageError::io("found", self.trees.path()))
    }

    /// Makes the tree of these layers, whose blobs are stored. Others who want the same tree wait. Nothing is
    /// answered where another process made it meanwhile.
    pub(crate) async fn make_tree(
        &self,
        tree: &Digest,
        layers: &[TreeLayer],
        limits: &ImageLimits,
        unpack: &dyn Unpack,
        progress: &dyn PullProgress,
    ) -> Result<Option<TreeContents>, ImageError> {
        let waiting = || progress.report(PullEvent::Waiting { digest: tree });
        let _lock = lock(&self.locks, &make_lock(tree), Sharing::Exclusive, waiting).await?;
        if self.has_tree(tree)? {
            return Ok(None);
        }
        let draft = self.drafts.path_of(&tree.hex());
        let made = self.fill_draft(&draft, layers, limits, unpack, progress).await;
        let published = match made {
            Ok(contents) => self.publish_tree(&draft, tree).await.map(|()| contents),
            Err(error) => Err(error),
        };
        match published {
            Ok(contents) => Ok(Some(contents)),
            Err(error) => {
                // What is left of it is removed by the next pull otherwise.
                let _ = blocking(move || remove_tree(&draft)).await;
                Err(error)
            }
        }
    }

    /// A directory for a layer in the making, which nobody removes while its lock is held.
    pub(crate) fn make_layer_draft(&self) -> Result<LayerDraft, ImageError> {
        loop {
            let id = Digest::of(draft_name("layer").as_bytes());
            if let Some(lock) = try_lock(&self.locks, &make_lock(&id), Sharing::Exclusive)? {
                return LayerDraft::new(self.drafts.path_of(&id.hex()), lock);
            }
        }
    }

    async fn fill_draft(
        &self,
        draft: &Path,
        layers: &[TreeLayer],
        limits: &ImageLimits,
        unpack: &dyn Unpack,
        progress: &dyn PullProgress,
    ) -> Result<TreeContents, ImageError> {
        let (fresh, root) = (draft.to_owned(), draft.join(ROOT_DIR));
        let made = blocking(move || remove_tree(&fresh).and_then(|()| make_draft(&fresh))).await?;
        made.map_err(ImageError::io("made", draft))?;
        let mut left = UnpackLimits { entries: limits.entries, bytes: limits.unpacked_bytes };
        let mut contents = TreeContents::default();
        for (at, TreeLayer { layer, compression }) in layers.iter().enumerate() {
            let (digest, number, count) = (&layer.digest, at + 1, layers.len());
            progress.report(PullEvent::Unpacking { digest, number, count });
            let file = self.blobs.open(&digest.hex(), OFlags::RDONLY);
            let file = file.map_err(ImageError::io("opened", self.blobs.path_of(&digest.hex())))?;
            let layer_file = LayerFile { file, compression: *compression, limits: left };
            let unpacked = unpack.unpack(layer_file, &root).await?;
            let actual = Digest::from_hex(&unpacked.sha256)
                .map_err(|error| ImageError::Unpack(error.to_string()))?;
            if actual != layer.diff_id {
                let what = format!("the layer {digest}, uncompressed,");
                let expected = layer.diff_id.clone();
                return Err(ImageError::DigestMismatch { what, expected, actual });
            }
            left.entries = left.entries.saturating_sub(unpacked.entries);
            left.bytes = left.bytes.saturating_sub(unpacked.bytes);
            contents.bytes += unpacked.bytes;
            contents.skipped_devices += unpacked.skipped_devices;
        }
        write_contents(draft, &contents)?;
        Ok(contents)
    }

    /// Publishes a whole draft, after everything in it is on disk.
    pub(super) async fn publish_tree(&self, draft: &Path, tree: &Digest) -> Result<(), ImageError> {
        let (from, to) = (draft.to_owned(), self.trees.path_of(&tree.hex()));
        let failed = ImageError::io("published", to.clone());
        let published = blocking(move || {
            let opened = fs::File::open(&from)?;
            rustix::fs::syncfs(&opened)?;
            fs::rename(&from, &to)
        });
        published.await?.map_err(failed)?;
        self.trees.sync().map_err(ImageError::io("synced", self.trees.path()))
    }

    /// Removes a tree unless a sandbox uses it. False where one does.
    pub(super) fn remove_tree_unless_used(&self, tree: &Digest) -> Result<bool, ImageError> {
        let Some(_lock) = try_lock(&self.locks, &tree_lock(tree), Sharing::Exclusive)? else {
            return Ok(false);
        };
        if !self.has_tree(tree)? {
            return Ok(true);
        }
        let path = self.trees.path_of(&tree.hex());
        let gone = self.drafts.path_of(&draft_name("gone"));
        fs::rename(&path, &gone).map_err(ImageError::io("removed", &path))?;
        remove_tree(&gone).map_err(ImageError::io("removed", &gone))?;
        Ok(true)
    }

    /// Removes what is left of trees that were not finished, or not removed to the end.
    pub(crate) fn remove_stale_drafts(&self) -> Result<(), ImageError> {
        let failed = || ImageError::io("listed", self.drafts.path());
        for name in self.drafts.names().map_err(failed())? {
            let held = match Digest::from_hex(&name) {
                Ok(tree) => try_lock(&self.locks, &make_lock(&tree), Sharing::Exclusive)?,
                // Nobody fills these any more.
                Err(_) if name.starts_with(GONE_PREFIX) => {
                    let path = self.drafts.path_of(&name);
                    remove_tree(&path).map_err(ImageError::io("removed", &path))?;
                    None
                }
                Err(_) => None,
            };
            if held.is_some() {
                let path = self.drafts.path_of(&name);
                remove_tree(&path).map_err(ImageError::io("removed", &path))?;
            }
        }
        Ok(())
    }
}

/// Writes what is in a tree beside its root.
pub(super) fn write_contents(draft: &Path, contents: &TreeContents) -> Result<(), ImageError> {
    let path = draft.join(CONTENTS_FILE);
    let text = serde_json::to_vec(contents).map_err(std::io::Error::other);
    text.and_then(|text| fs::write(&path, text)).map_err(ImageError::io("written", &path))
}

pub(super) fn make_draft(draft: &Path) -> std::io::Result<()> {
    DirBuilder::new().mode(0o700).create(draft)?;
    let root = draft.join(ROOT_DIR);
    DirBuilder::new().mode(0o700).create(&root)?;
    // As a layer that does not list its root would have it, under any umask.
    fs::set_permissions(&root, Permissions::from_mode(0o755))?;
    // A tree is what its layers say, not when it was made.
    fs::File::open(root)?.set_modified(UNIX_EPOCH)
}

/// Runs what waits for a disk where it keeps nothing else from running.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ImageError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| ImageError::Unpack(error.to_string()))
}
