//! What a commit in a worktree writes to of the repository's git directory, which is read-only otherwise: new objects,
//! branches, the log of the branch, and the worktree's own directory.
//!
//! Never writable is what leads git elsewhere or makes it run code, in the main checkout above all: `config`, `hooks`,
//! `info`, `modules`, `commondir`, alternates, other worktrees, `refs/replace`. Packs and `packed-refs` are not
//! either. A log is writable as one file: git appends to logs through symbolic links, and in a directory a guest
//! could make one that leads to any file of its user.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stockade_core::HostTree;
use stockade_fs::RealPaths;

use super::build_host_tree;
use super::git::{MAX_CONFIG_BYTES, MAX_POINTER_BYTES, small_file};

/// Keeps git inside from making logs for further branches: their directory is read-only. Logs that are there are
/// written all the same.
pub(super) const LOG_VARIABLES: [(&str, &str); 3] = [
    ("GIT_CONFIG_COUNT", "1"),
    ("GIT_CONFIG_KEY_0", "core.logAllRefUpdates"),
    ("GIT_CONFIG_VALUE_0", "false"),
];

/// One part of a git directory that is mounted over it.
struct GitPart {
    path: PathBuf,
    is_dir: bool,
    read_only: bool,
}

/// The trees that are mounted over the repository's git directory `common` for commits in the worktree whose
/// directory in it is `own`, each behind the one that it lies in. Or why nothing may be written to.
pub(super) fn list_commit_trees(
    workspace: &Path,
    common: &Path,
    own: &Path,
) -> Result<Vec<HostTree>, String> {
    let config = small_file(&common.join("config"), MAX_CONFIG_BYTES);
    let config = config.ok_or("its configuration cannot be read")?;
    // A guest could add a `config.worktree`, and git would run what it names.
    if config.to_ascii_lowercase().contains("worktreeconfig") {
        return Err("`extensions.worktreeConfig` is set, so that commits are made outside".into());
    }
    // Another guest in this worktree may have made them, and could put others in their place.
    for added in ["modules", "config.worktree"].map(|name| own.join(name)) {
        if added.symlink_metadata().is_ok() {
            return Err(format!(
                "`{}` is there, so that commits are made outside",
                added.display()
            ));
        }
    }
    let owner = fs::metadata(workspace).map_err(|_| "the workspace cannot be read")?.uid();
    list_git_parts(common, own).iter().map(|part| part.build_tree(owner)).collect()
}

fn list_git_parts(common: &Path, own: &Path) -> Vec<GitPart> {
    let (objects, logs) = (common.join("objects"), own.join("logs"));
    let mut parts = vec![
        GitPart::writable_dir(objects.clone()),
        GitPart::read_only_dir(objects.join("info")),
        GitPart::read_only_dir(objects.join("pack")),
        GitPart::writable_dir(common.join("refs/heads")),
        GitPart::writable_dir(own.to_owned()),
        GitPart::read_only_file(own.join("commondir")),
        GitPart::read_only_file(own.join("gitdir")),
        GitPart::read_only_dir(logs.clone()),
        GitPart::writable_file(logs.join("HEAD")),
    ];
    let log = branch_log(common, own).filter(|log| log.symlink_metadata().is_ok());
    parts.extend(log.map(GitPart::writable_file));
    parts
}

/// The log of the branch that is checked out. `HEAD` is a guest's to write: no name in it leads out of the logs.
fn branch_log(common: &Path, own: &Path) -> Option<PathBuf> {
    let head = small_file(&own.join("HEAD"), MAX_POINTER_BYTES)?;
    let branch = head.strip_prefix("ref: refs/heads/")?.trim_end_matches('\n');
    let is_name = |part: &str| !matches!(part, "" | "." | "..");
    branch.split('/').all(is_name).then(|| common.join("logs/refs/heads").join(branch))
}

impl GitPart {
    fn read_only_dir(path: PathBuf) -> Self {
        Self { path, is_dir: true, read_only: true }
    }

    fn read_only_file(path: PathBuf) -> Self {
        Self { path, is_dir: false, read_only: true }
    }

    fn writable_dir(path: PathBuf) -> Self {
        Self { path, is_dir: true, read_only: false }
    }

    fn writable_file(path: PathBuf) -> Self {
        Self { path, is_dir: false, read_only: false }
    }

    /// Of the owner's own alone, and through no link: the launcher opens it without following one either.
    fn build_tree(&self, owner: u32) -> Result<HostTree, String> {
        let path = self.path.as_path();
        let explain = |problem: &str| format!("`{}` {problem}", path.display());
        let found = path.symlink_metadata().map_err(|_| explain("is not there"))?;
        let is_expected = if self.is_dir { found.is_dir() } else { found.is_file() };
        if !is_expected {
            let kind = if self.is_dir { "directory" } else { "file" };
            return Err(explain(&format!("is not a {kind}")));
        }
        if found.uid() != owner {
            return Err(explain("belongs to another user than the workspace"));
        }
        let tree = build_host_tree(&RealPaths::default(), HostTree::GIT_PART, path, path);
        let mut tree = tree
            .filter(|tree| tree.mount.source.as_path() == path)
            .ok_or_else(|| explain("cannot be mounted at its own path"))?;
        tree.mount.read_only = self.read_only;
        Ok(tree)
    }
}
