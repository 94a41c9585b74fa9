//! What the tree beneath held where a workspace has changes: digests, taken when the workspace is released
//! and that tree is known by its change times to be as the workspace began. So a file that was only touched,
//! or changed and brought back, is no conflict later.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Stat;
use serde::{Deserialize, Serialize};
use stockade_fs::Survives;

use super::SettledPaths;
use crate::clock::ClockStamp;
use crate::diff::Diff;
use crate::digest::ContentDigest;
use crate::error::{FaultResult, FaultStep};
use crate::json::write_json;
use crate::path::TreePath;
use crate::tree::{NodeKind, OpenTree};

/// Larger files are judged by their change times alone: a release must not wait long.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// What was beneath each path that has a change.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bases(HashMap<TreePath, NotedBase>);

/// What one file or symbolic link was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NotedBase {
    kind: NodeKind,
    mode: u32,
    digest: String,
}

impl Bases {
    /// Those that were noted. A note that cannot be read is none: change times decide then.
    pub(super) fn load(dir: &Path) -> Self {
        let bytes = std::fs::read(bases_path(dir)).unwrap_or_default();
        let noted: Vec<(TreePath, NotedBase)> = serde_json::from_slice(&bytes).unwrap_or_default();
        Self(noted.into_iter().collect())
    }

    pub(super) fn save(&self, dir: &Path) -> FaultResult<()> {
        if self.0.is_empty() && !bases_path(dir).exists() {
            return Ok(());
        }
        let noted: Vec<_> = self.0.iter().collect();
        write_json(&bases_path(dir), &noted, Survives::Process)
    }

    /// Notes what is beneath the changes, where it is as it was and not noted yet.
    pub(super) fn note(
        &mut self,
        lower: &OpenTree,
        diff: &Diff,
        start: ClockStamp,
        settled: &SettledPaths,
    ) -> FaultResult<()> {
        for path in diff.changes.iter().map(|change| &change.path) {
            if self.0.contains_key(path) {
                continue;
            }
            let Some(stat) = lower.stat(path).step("look at", path)? else { continue };
            let base = NotedBase::read(lower, path, &stat).step("read", path)?;
            // Looked at again: it may have been written to while it was read.
            let now = lower.stat(path).step("look at", path)?;
            let as_it_was = now.is_some_and(|now| !settled.changed_since(start, path, &now));
            if let Some(base) = base.filter(|_| as_it_was) {
                self.0.insert(path.clone(), base);
            }
        }
        Ok(())
    }

    /// Forgets what an `apply` has replaced: the workspace's next changes are made to something else.
    pub(super) fn forget<'p>(&mut self, paths: impl Iterator<Item = &'p TreePath>) {
        paths.for_each(|path| drop(self.0.remove(path)));
    }

    /// Whether what is at a path now is what was noted.
    pub(super) fn is_same(
        &self,
        lower: &OpenTree,
        path: &TreePath,
        now: &Stat,
    ) -> FaultResult<bool> {
        let Some(noted) = self.0.get(path) else { return Ok(false) };
        let now = NotedBase::read(lower, path, now).step("read", path)?;
        Ok(now.as_ref() == Some(noted))
    }
}

impl NotedBase {
    fn read(tree: &OpenTree, path: &TreePath, stat: &Stat) -> io::Result<Option<Self>> {
        let kind = NodeKind::of(stat);
        let digest = match kind {
            NodeKind::File if stat.st_size as u64 <= MAX_FILE_BYTES => {
                ContentDigest::of_file(&tree.file(path)?)?
            }
            NodeKind::Symlink => ContentDigest::of_bytes(&tree.link(path)?),
            NodeKind::File | NodeKind::Directory | NodeKind::Special => return Ok(None),
        };
        Ok(Some(Self { kind, mode: stat.st_mode & 0o7777, digest: digest.to_string() }))
    }
}

fn bases_path(dir: &Path) -> PathBuf {
    dir.join("bases.json")
}
