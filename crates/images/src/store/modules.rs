//! Trees of WebAssembly modules: one file, published as the root of an image is.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use stockade_fs::{Sharing, remove_tree};

use super::locks::lock;
use super::trees::{ROOT_DIR, blocking, make_draft, make_lock, write_contents};
use super::{ImageStore, TreeContents};
use crate::module::MODULE_FILE;
use crate::{Digest, ImageError, PullEvent, PullProgress};

/// How a module begins. Text is compiled too, but no registry has it under these media types.
const MODULE_MAGIC: [u8; 4] = *b"\0asm";
const MODULE_MODE: u32 = 0o444;

impl ImageStore {
    /// Makes the tree of a module, whose blob is stored. Others who want the same tree wait.
    pub(crate) async fn make_module_tree(
        &self,
        tree: &Digest,
        module: &Digest,
        progress: &dyn PullProgress,
    ) -> Result<(), ImageError> {
        let waiting = || progress.report(PullEvent::Waiting { digest: tree });
        let _lock = lock(&self.locks, &make_lock(tree), Sharing::Exclusive, waiting).await?;
        if self.has_tree(tree)? {
            return Ok(());
        }
        let (draft, (blob, size)) = (self.drafts.path_of(&tree.hex()), self.open_blob(module)?);
        let fresh = draft.clone();
        let published = match blocking(move || fill_draft(&fresh, blob, size)).await? {
            Ok(()) => self.publish_tree(&draft, tree).await,
            Err(error) => Err(error),
        };
        if published.is_err() {
            // What is left of it is removed by the next pull otherwise.
            let _ = blocking(move || remove_tree(&draft)).await;
        }
        published
    }
}

fn fill_draft(draft: &Path, mut blob: File, size: u64) -> Result<(), ImageError> {
    let made = remove_tree(draft).and_then(|()| make_draft(draft));
    made.map_err(ImageError::io("made", draft))?;
    let mut magic = [0; MODULE_MAGIC.len()];
    if blob.read_exact(&mut magic).is_err() || magic != MODULE_MAGIC {
        return Err(ImageError::refused("its layer is no WebAssembly module"));
    }
    let path = draft.join(ROOT_DIR).join(MODULE_FILE);
    copy_module(blob, &path).map_err(ImageError::io("written", &path))?;
    write_contents(draft, &TreeContents { bytes: size, skipped_devices: 0 })
}

fn copy_module(mut blob: File, path: &Path) -> io::Result<()> {
    blob.seek(SeekFrom::Start(0))?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODULE_MODE).open(path)?;
    io::copy(&mut blob, &mut file).map(drop)
}
