//! Verification of a snapshot, handed from one process of a user to others that use it at once: a fork reads
//! its snapshot in one process and not again in each of a thousand.
//!
//! What is handed on names files as they were when every byte of them was read. A file that was changed or
//! replaced since then is read again.

use serde::{Deserialize, Serialize};
use stockade_core::Result;

use super::{PartFileStamp, Snapshot, Snapshots, open_plain};
use crate::journal::ContentHash;

/// Files of a snapshot whose every byte was found right.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VerifiedParts(Vec<(PartFileStamp, ContentHash)>);

impl Snapshots {
    /// Reads every byte of a snapshot; an error if one is wrong.
    pub fn verify(&self, snapshot: &Snapshot) -> Result<VerifiedParts> {
        let mut verified = Vec::new();
        for (name, part) in &snapshot.parts {
            // Looked at before it is read: a change after this look shows.
            let file = open_plain(&self.object_path(&part.digest));
            let stamp = file.and_then(|file| PartFileStamp::of(&file));
            self.check(name, part)?;
            verified.extend(stamp.ok().map(|stamp| (stamp, part.digest)));
        }
        Ok(VerifiedParts(verified))
    }

    /// Takes over what another process of this user has verified just now. Although a file that is as new as
    /// that could be changed without its time telling: the files are read-only, in a directory that nobody
    /// else enters.
    pub fn trust(&self, verified: &VerifiedParts) {
        verified.0.iter().for_each(|(stamp, digest)| self.remember_digest(*stamp, *digest));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;
    use stockade_fs::StateDir;

    #[test]
    fn a_file_that_was_verified_elsewhere_is_read_again_only_when_it_was_changed() {
        let state = tempfile::tempdir().unwrap();
        let snapshots =
            Snapshots::open(&StateDir::open(state.path().join("state")).unwrap()).unwrap();
        let path = state.path().join("part");
        fs::write(&path, "before").unwrap();
        let open = || File::open(&path).unwrap();
        let real = snapshots.digest(&open()).unwrap();
        let told = ContentHash::from([7; 32]);
        let over_a_wire = serde_json::to_string(&VerifiedParts(vec![(
            PartFileStamp::of(&open()).unwrap(),
            told,
        )]));
        snapshots.trust(&serde_json::from_str(&over_a_wire.unwrap()).unwrap());
        assert_eq!(snapshots.digest(&open()).unwrap(), told);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "before, and more").unwrap();
        let again = snapshots.digest(&open()).unwrap();
        assert!(again != told && again != real);
    }
}
