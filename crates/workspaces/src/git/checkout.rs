//! One checkout for each commit and branch of a store, with a repository of its own inside whose objects
//! are the store's by hard links. It is not written to once it has its name.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use stockade_fs::{ClosedDirs, draft_name, remove_entry};

use super::run::GitRun;
use super::source::short_hex;
use super::{Commit, GitSource};
use crate::error::{FaultResult, FaultStep};

pub(super) const CHECKOUT_DRAFT_PREFIX: &str = "checkout";

/// The checkout of a commit, made if need be.
pub(crate) fn prepare_checkout(
    store: &Path,
    source: &GitSource,
    commit: &Commit,
) -> FaultResult<PathBuf> {
    let mut hash = Sha256::new();
    hash.update(&commit.id);
    hash.update([0]);
    hash.update(commit.branch.as_deref().unwrap_or_default());
    let tree = store.join(short_hex(&hash.finalize()));
    if tree.exists() {
        return Ok(tree);
    }
    let draft = store.join(draft_name(CHECKOUT_DRAFT_PREFIX));
    create_checkout(&store.join("store"), &draft, source, commit)?;
    std::fs::rename(&draft, &tree).step("name", tree.display())?;
    Ok(tree)
}

fn create_checkout(
    bare: &Path,
    draft: &Path,
    source: &GitSource,
    commit: &Commit,
) -> FaultResult<()> {
    let step = "check out";
    GitRun::without_configuration(step, source)
        .args(["clone", "--quiet", "--local", "--no-checkout", "--template="])
        .args(["--no-recurse-submodules", "--"])
        .args([bare, draft])
        .run()?;
    GitRun::without_configuration(step, source)
        .within(draft)
        .args(["remote", "set-url", "--", "origin", &source.public])
        .run()?;
    let run = GitRun::without_configuration(step, source).within(draft);
    match &commit.branch {
        Some(branch) => run
            .args(["checkout", "--quiet", "--force", "--no-track", "-B", branch, &commit.id])
            .run()?,
        None => run.args(["checkout", "--quiet", "--force", "--detach", &commit.id]).run()?,
    };
    Ok(())
}

/// Removes the drafts of processes that were killed while they made a checkout. The caller holds the
/// store's lock, so no other process is making one.
pub(crate) fn clear_drafts(store: &Path) -> FaultResult<()> {
    let dir = crate::store::open_tree(store)?;
    for name in crate::tree::list_names(&dir).step("list", store.display())? {
        if name.starts_with(format!(".{CHECKOUT_DRAFT_PREFIX}-").as_bytes()) {
            remove_entry(&dir, name, ClosedDirs::Open).step("remove", store.display())?;
        }
    }
    Ok(())
}
