//! The git directory of a worktree or submodule, which lies outside of the workspace and is named by its `.git`
//! file. That file is input: a guest may have written it. So the directory is shown only if it names this very
//! workspace in turn, which only whoever made the worktree could have it do.
//!
//! Hooks and configuration stay read-only, since they make the host run code. What a commit writes is writable if
//! the workspace is, and belongs to the same user.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stockade_core::{HostTree, SandboxSpec, Workspace};

use super::{Found, LeftOut, tree};

/// The longest `.git`, `gitdir` or `commondir` file.
const MAX_POINTER_BYTES: u64 = 8 << 10;
/// The longest configuration that is read.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// What a commit in a worktree writes to in the directory that all worktrees share.
const COMMITTED_TO: [&str; 3] = ["objects", "refs", "logs"];
/// What leads from a worktree's directory elsewhere, or configures it.
const WORKTREE_POINTERS: [&str; 3] = ["commondir", "gitdir", WORKTREE_CONFIG];
/// What git reads beside the configuration where that says so.
const WORKTREE_CONFIG: &str = "config.worktree";

/// A git directory, and what of it may be written to.
#[derive(Debug, PartialEq, Eq)]
struct GitDir {
    /// What is shown.
    shown: PathBuf,
    /// What in it is writable.
    written: Vec<PathBuf>,
    /// What in that stays read-only.
    fixed: Vec<PathBuf>,
}

/// The trees for the git directory that the workspace's `.git` file names, if it has one.
pub(super) fn look(spec: &SandboxSpec) -> Option<Found> {
    let (workspace, writable) = match &spec.workspace {
        Workspace::Local(dir) => (dir.as_path(), !spec.read_only),
        // What is changed there is kept apart, and a commit would not be.
        Workspace::Overlay(layers) => (layers.lower.as_path(), false),
        Workspace::Ephemeral => return None,
    };
    let named = pointer(&workspace.join(".git"), "gitdir: ")?;
    let named = workspace.join(named);
    let mut found = Found::named("git");
    match git_dir(workspace, &named) {
        Ok(git) if git.shown.starts_with(workspace) => return None,
        Ok(git) => found.add(git.trees(writable && same_owner(workspace, &git.shown))),
        Err(reason) => found.left_out.push(LeftOut { path: named, reason: reason.into() }),
    }
    Some(found)
}

/// The path in a file of one line, behind what it begins with. A link is not such a file.
fn pointer(file: &Path, prefix: &str) -> Option<PathBuf> {
    let text = small_file(file, MAX_POINTER_BYTES)?;
    let line = text.strip_prefix(prefix)?.trim_end_matches(['\n', '\r']);
    (!line.is_empty() && !line.contains(['\n', '\0'])).then(|| PathBuf::from(line))
}

fn small_file(file: &Path, most: u64) -> Option<String> {
    let found = fs::symlink_metadata(file).ok()?;
    let small = found.is_file() && found.len() <= most;
    small.then(|| fs::read_to_string(file).ok()).flatten()
}

/// The git directory, if it is really this workspace's.
fn git_dir(workspace: &Path, named: &Path) -> Result<GitDir, &'static str> {
    let dir = named.canonicalize().map_err(|_| "is not there")?;
    let git = worktree(workspace, &dir).or_else(|| submodule(workspace, &dir));
    let git = git.ok_or("is not this directory's: it does not name it in turn")?;
    let real = |path: &PathBuf| path.canonicalize().is_ok_and(|real| real == *path);
    match git.written.iter().all(real) && !workspace.starts_with(&git.shown) {
        true => Ok(git),
        false => Err("leads elsewhere by links, or around the workspace"),
    }
}

/// `COMMON/worktrees/NAME`, whose `gitdir` is the workspace's `.git`.
fn worktree(workspace: &Path, dir: &Path) -> Option<GitDir> {
    let worktrees = dir.parent().filter(|parent| parent.ends_with("worktrees"))?;
    let common = worktrees.parent()?;
    let named = dir.join(pointer(&dir.join("commondir"), "")?).canonicalize().ok()?;
    let back = dir.join(pointer(&dir.join("gitdir"), "")?).canonicalize().ok()?;
    if named != common
        || back != workspace.canonicalize().ok()?.join(".git")
        || !is_repository(common)
    {
        return None;
    }
    let there = |path: &PathBuf| fs::symlink_metadata(path).is_ok();
    let written = COMMITTED_TO.iter().map(|name| common.join(name)).filter(there);
    let written = written.chain([dir.to_owned()]).filter(|_| !is_configurable(common, dir));
    let fixed = WORKTREE_POINTERS.iter().map(|name| dir.join(name)).filter(there);
    Some(GitDir { shown: common.to_owned(), written: written.collect(), fixed: fixed.collect() })
}

/// A git directory whose `core.worktree` is the workspace.
fn submodule(workspace: &Path, dir: &Path) -> Option<GitDir> {
    let config = small_file(&dir.join("config"), MAX_CONFIG_BYTES)?;
    let back = dir.join(core_worktree(&config)?).canonicalize().ok()?;
    if back != workspace.canonicalize().ok()? || !is_repository(dir) {
        return None;
    }
    // Nothing of it: whoever can add a file there can add a `commondir`, and git would take its configuration
    // from wherever that leads.
    Some(GitDir { shown: dir.to_owned(), written: Vec::new(), fixed: Vec::new() })
}

/// Whether a guest that may add files to a worktree's directory could add a configuration that git heeds.
fn is_configurable(common: &Path, dir: &Path) -> bool {
    let heeded = small_file(&common.join("config"), MAX_CONFIG_BYTES)
        .is_none_or(|config| config.to_ascii_lowercase().contains("worktreeconfig"));
    heeded && fs::symlink_metadata(dir.join(WORKTREE_CONFIG)).is_err()
}

/// `worktree` of the section `core`.
fn core_worktree(config: &str) -> Option<&str> {
    let mut section = "";
    let mut found = None;
    for line in config.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if let Some((key, value)) = line.split_once('=')
            && section.eq_ignore_ascii_case("[core]")
            && key.trim().eq_ignore_ascii_case("worktree")
        {
            found = Some(value.trim().trim_matches('"'));
        }
    }
    found
}

fn is_repository(dir: &Path) -> bool {
    dir.join("HEAD").is_file() && dir.join("objects").is_dir() && dir.join("refs").is_dir()
}

fn same_owner(one: &Path, other: &Path) -> bool {
    let owner = |path: &Path| fs::metadata(path).ok().map(|found| found.uid());
    owner(one).is_some() && owner(one) == owner(other)
}

impl GitDir {
    fn trees(&self, writable: bool) -> Vec<HostTree> {
        let own = |path: &PathBuf, read_only| {
            let mut tree = tree("git", path, path)?;
            tree.mount.read_only = read_only;
            Some(tree)
        };
        let (written, fixed): (&[PathBuf], &[PathBuf]) =
            if writable { (&self.written, &self.fixed) } else { (&[], &[]) };
        let whole = (!written.contains(&self.shown)).then(|| own(&self.shown, true)).flatten();
        let written = written.iter().filter_map(|path| own(path, false));
        whole
            .into_iter()
            .chain(written)
            .chain(fixed.iter().filter_map(|path| own(path, true)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place {
        _dir: tempfile::TempDir,
        base: PathBuf,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let base = dir.path().canonicalize().unwrap();
            Self { _dir: dir, base }
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.base.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn repository(&self, dir: &str) {
            for part in ["objects/x", "refs/x", "logs/x", "hooks/x", "HEAD", "config"] {
                self.write(&format!("{dir}/{part}"), "");
            }
        }

        /// What is shown and what may be written to, or why nothing is.
        fn found(&self, workspace: &str) -> (Vec<String>, Vec<String>, usize) {
            let workspace = self.base.join(workspace).try_into().unwrap();
            let spec =
                SandboxSpec { workspace: Workspace::Local(workspace), ..SandboxSpec::default() };
            let found = look(&spec).unwrap_or(Found::named("git"));
            let name = |tree: &HostTree| {
                let path = tree.mount.source.as_path().strip_prefix(&self.base).unwrap();
                path.display().to_string()
            };
            let (read, written): (Vec<_>, Vec<_>) =
                found.trees.iter().partition(|tree| tree.mount.read_only);
            let names = |trees: Vec<&HostTree>| trees.into_iter().map(name).collect();
            (names(read), names(written), found.left_out.len())
        }

        fn worktree(&self, back: &str) {
            self.repository("main/.git");
            let git = self.base.join("main/.git/worktrees/wt");
            self.write("wt/.git", &format!("gitdir: {}\n", git.display()));
            self.write("main/.git/worktrees/wt/commondir", "../..\n");
            let back = self.base.join(back);
            self.write("main/.git/worktrees/wt/gitdir", &format!("{}\n", back.display()));
        }
    }

    #[test]
    fn a_worktrees_repository_is_shown_and_what_a_commit_writes_is_writable() {
        let place = Place::new();
        place.worktree("wt/.git");
        let (read, written, left_out) = place.found("wt");
        let own = "main/.git/worktrees/wt";
        let fixed = [format!("{own}/commondir"), format!("{own}/gitdir")];
        assert_eq!(read, [vec!["main/.git".to_owned()], fixed.to_vec()].concat());
        assert_eq!(written, ["main/.git/objects", "main/.git/refs", "main/.git/logs", own]);
        assert_eq!(left_out, 0);
    }

    #[test]
    fn a_git_directory_that_does_not_name_the_workspace_is_not_shown() {
        let place = Place::new();
        place.worktree("other/.git");
        place.write("other/.git", "");
        assert_eq!(place.found("wt"), (vec![], vec![], 1));
        place.write("wt/.git", "gitdir: /etc\n");
        assert_eq!(place.found("wt"), (vec![], vec![], 1));
        place.write("wt/.git", "something else\n");
        assert_eq!(place.found("wt"), (vec![], vec![], 0));
    }

    #[test]
    fn a_worktree_that_names_another_common_directory_is_not_shown() {
        let place = Place::new();
        place.worktree("wt/.git");
        place.repository("secret");
        let secret = place.base.join("secret");
        place.write("main/.git/worktrees/wt/commondir", &format!("{}\n", secret.display()));
        assert_eq!(place.found("wt"), (vec![], vec![], 1));
    }

    #[test]
    fn nothing_of_a_submodules_git_directory_is_writable() {
        let place = Place::new();
        let own = "main/.git/modules/lib";
        place.repository(own);
        place.write(&format!("{own}/config"), "[core]\n\tworktree = ../../../lib\n");
        place.write("main/lib/.git", "gitdir: ../.git/modules/lib\n");
        let (read, written, _) = place.found("main/lib");
        assert_eq!((read, written), (vec![own.to_owned()], vec![]));
    }

    #[test]
    fn a_worktree_that_could_be_given_a_configuration_is_read_only() {
        let place = Place::new();
        place.worktree("wt/.git");
        place.write("main/.git/config", "[extensions]\n\tworktreeConfig = true\n");
        assert_eq!(place.found("wt").1, Vec::<String>::new());
        // One that is there stays as it is.
        place.write("main/.git/worktrees/wt/config.worktree", "");
        let (read, written, _) = place.found("wt");
        assert_eq!(written.len(), 4);
        assert!(read.contains(&"main/.git/worktrees/wt/config.worktree".to_owned()), "{read:?}");
    }
}
