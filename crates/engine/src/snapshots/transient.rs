//! Snapshots that are only passing through: taken to be copied or carried elsewhere at once, or carried
//! here to become a sandbox. No caller has to remove them: each goes with its holder, even if that is
//! killed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use stockade_core::{Bytes, Result, SnapshotId};

use super::{Snapshot, SnapshotDraft, Snapshots, absent_is_fine, build_unusable_error};

/// File in a draft with the id of the snapshot that is removed together with the draft.
const TRANSIENT_ID_FILE: &str = "passing";
/// The longest id.
const MAX_ID: u64 = 64;

/// A snapshot that goes when this is dropped, or by the next to collect if its holder was killed.
pub struct TransientSnapshot {
    store: Arc<Snapshots>,
    snapshot: Snapshot,
    /// Absent: it was there before, and stays.
    draft: Option<SnapshotDraft>,
}

impl TransientSnapshot {
    /// What it says about itself.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Removes it now, and says whether that was possible.
    pub fn end(mut self) -> Result<()> {
        match self.draft.take() {
            Some(_draft) => self.store.remove(&self.snapshot.id),
            None => Ok(()),
        }
    }
}

impl Drop for TransientSnapshot {
    fn drop(&mut self) {
        if self.draft.is_some() {
            // An error is ignored: the next collection tries again.
            let _ = self.store.remove(&self.snapshot.id);
        }
    }
}

impl SnapshotDraft {
    /// From now on the snapshot of that name goes with this draft.
    fn goes_with(&self, id: &SnapshotId) -> Result<()> {
        let path = self.directory.join(TRANSIENT_ID_FILE);
        let write = |mut file: File| file.write_all(id.as_str().as_bytes());
        File::create_new(&path)
            .and_then(write)
            .map_err(|error| build_unusable_error("begin a snapshot", &path, error))
    }
}

impl Snapshots {
    /// Holds a stored snapshot that must not outlive its holder.
    pub fn hold_transient(self: &Arc<Self>, snapshot: Snapshot) -> Result<TransientSnapshot> {
        let draft = self.draft()?;
        draft.goes_with(&snapshot.id)?;
        Ok(TransientSnapshot { store: Arc::clone(self), snapshot, draft: Some(draft) })
    }

    /// Reads a snapshot from a stream as [`Self::import`] does, to be held only.
    pub fn import_transient(
        self: &Arc<Self>,
        from: &mut dyn Read,
        most: Bytes,
    ) -> Result<TransientSnapshot> {
        let (snapshot, draft) = self.take_in(from, most, |draft, id| draft.goes_with(id))?;
        Ok(TransientSnapshot { store: Arc::clone(self), snapshot, draft })
    }

    /// Removes the snapshot that goes with the draft of a dead holder.
    pub(super) fn remove_passed(&self, draft: &Path) -> io::Result<()> {
        let mut id = String::new();
        match File::open(draft.join(TRANSIENT_ID_FILE)) {
            Ok(file) => file.take(MAX_ID).read_to_string(&mut id)?,
            Err(error) => return absent_is_fine(error),
        };
        // What is cut off names nothing: its writer was killed before there was a snapshot.
        match id.parse::<SnapshotId>() {
            Ok(id) => self.named.remove(id.as_str()),
            Err(_) => Ok(()),
        }
    }
}
