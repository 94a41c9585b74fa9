//! From an admitted spec to the launcher's plan. Host paths are resolved here, so that what the
//! launcher opens is what the caller meant and no link is followed later.

use std::path::PathBuf;

use stockade_core::{Admitted, HostTree, Result, SandboxId, SandboxSpec, Workspace};
use stockade_launcher::BarePlan;

use super::NAME;
use super::private::LandlockPrivate;
use crate::linux::limits::per_process_raisable;
use crate::linux::paths::resolve_directory;

/// Without its control group. The number of processes is that one's alone: without a user namespace
/// the kernel would count all of this user's.
pub(super) fn build_plan(
    id: &SandboxId,
    admitted: &Admitted,
    workspace: Option<PathBuf>,
    private: &LandlockPrivate,
    memory_is_held: bool,
) -> BarePlan {
    let (readable, written) = list_kept_trees(admitted.spec());
    let own = [private.home(), private.temporary()];
    BarePlan {
        id: id.to_string(),
        workspace: workspace.unwrap_or_else(|| private.workspace()),
        read_only: admitted.spec().read_only,
        readable,
        private: private.path().to_owned(),
        writable: own.into_iter().chain(written).collect(),
        cgroup: None,
        rlimits: per_process_raisable(admitted, memory_is_held),
    }
}

/// The trees that keep their own paths, those that may be read and those that may be written to. No other
/// can be shown without a mount; one that is gone by now is left out like those.
fn list_kept_trees(spec: &SandboxSpec) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let kept = spec.trees.iter().filter(|tree| tree.keeps_its_path());
    let there = kept.filter(|tree| tree.mount.source.as_path().exists());
    let there: Vec<_> = there.collect();
    // Rules add up: a part of a tree cannot be read-only where the tree is not. Trees that are writable over a
    // read-only one belong together, and count on such parts.
    let fixed = |tree: &HostTree| {
        let source = tree.mount.source.as_path();
        let mut others = there.iter().filter(|other| other.mount.read_only);
        others.any(|other| {
            let path = other.mount.source.as_path();
            path.starts_with(source) || other.part_of == tree.part_of && source.starts_with(path)
        })
    };
    let (readable, written): (Vec<_>, Vec<_>) =
        there.iter().copied().partition(|tree| tree.mount.read_only || fixed(tree));
    let path = |tree: &HostTree| tree.mount.source.as_path().to_owned();
    (readable.into_iter().map(path).collect(), written.into_iter().map(path).collect())
}

/// The host directory that is the workspace, if one is.
pub(super) fn resolve_workspace(spec: &SandboxSpec) -> Result<Option<PathBuf>> {
    let Workspace::Local(path) = &spec.workspace else { return Ok(None) };
    resolve_directory(&NAME, "workspace", path).map(Some)
}

#[cfg(test)]
mod tests {
    use stockade_core::Mount;

    use super::*;

    #[test]
    fn what_is_writable_over_a_read_only_tree_is_not_without_its_read_only_parts() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("git/objects/info")).unwrap();
        std::fs::create_dir_all(base.join("git/refs")).unwrap();
        std::fs::create_dir(base.join("cache")).unwrap();
        let tree = |part_of: &str, name: &str, read_only| {
            let path = base.join(name);
            let target = path.to_str().unwrap().parse().unwrap();
            let mount = Mount { source: path.try_into().unwrap(), target, read_only };
            HostTree { part_of: part_of.into(), mount, required: false }
        };
        let git = [("git", true), ("git/objects", false), ("git/objects/info", true)];
        let mut trees: Vec<_> = git.map(|(name, fixed)| tree("git", name, fixed)).into();
        trees.extend([tree("git", "git/refs", false), tree("cache", "cache", false)]);
        let spec = SandboxSpec { trees, ..SandboxSpec::default() };
        let (readable, written) = list_kept_trees(&spec);
        assert_eq!((readable.len(), written), (4, vec![base.join("cache")]));
    }
}
