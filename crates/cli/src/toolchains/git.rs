//! The git directory of a worktree or submodule, which lies outside of the workspace and is named by its `.git`
//! file. That file is input: a guest may have written it. So the directory is shown only if it names this very
//! workspace in turn.
//!
//! It is read-only: a guest that can add files to a git directory can make the host's git run code, or write through
//! links to places elsewhere. Only what a commit in a worktree writes to is not (`git_commits.rs`).

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use stockade_core::{HostTree, RootMode, SandboxSpec, Workspace};
use stockade_fs::RealPaths;

use super::git_commits::{LOG_VARIABLES, list_commit_trees};
use super::{FoundToolchain, LeftOut, build_host_tree, is_claimed_by_spec};

/// The longest `.git`, `gitdir`, `commondir` or `HEAD` file.
pub(super) const MAX_POINTER_BYTES: u64 = 8 << 10;
/// The longest configuration that is read.
pub(super) const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// The most repositories, with submodules and worktrees, that are looked at, and how deep they lie.
const MAX_REPOSITORIES: usize = 1000;
const MAX_DEPTH: usize = 8;

/// The git directory that a workspace's `.git` file names.
struct NamedGitDir {
    /// What is shown: of a worktree the directory of the whole repository.
    shown: PathBuf,
    /// The worktree's own directory in it. None of a submodule.
    worktree: Option<PathBuf>,
}

/// The trees of the git directory that the workspace's `.git` file names, if it has one.
pub(super) fn find_git_tree(spec: &SandboxSpec) -> Option<FoundToolchain> {
    let workspace = match &spec.workspace {
        Workspace::Local(dir) => dir.as_path(),
        Workspace::Overlay(layers) => layers.lower.as_path(),
        Workspace::Ephemeral => return None,
    };
    let named = read_pointer_file(&workspace.join(".git"), "gitdir: ")?;
    let named = workspace.join(named);
    let mut found = FoundToolchain::named(HostTree::GIT_PART);
    match find_git_dir(workspace, &named) {
        // What the caller shows there wins.
        Ok(dir) if is_claimed_by_spec(&dir.shown, spec) => return None,
        Ok(dir) if may_hold_credentials(&dir.shown) => {
            let reason = "its configuration may hold credentials, or cannot be read".into();
            found.left_out.push(LeftOut { path: dir.shown, reason });
        }
        Ok(dir) => add_git_trees(&mut found, spec, dir),
        Err(reason) => found.left_out.push(LeftOut { path: named, reason: reason.into() }),
    }
    Some(found)
}

/// Adds the directory, and over it what a commit writes to where the workspace itself is changed in place.
fn add_git_trees(found: &mut FoundToolchain, spec: &SandboxSpec, dir: NamedGitDir) {
    let tree = build_host_tree(&RealPaths::default(), HostTree::GIT_PART, &dir.shown, &dir.shown);
    // Behind a link that was put there meanwhile lies something else.
    let Some(tree) = tree.filter(|tree| tree.mount.source.as_path() == dir.shown) else { return };
    found.add(vec![tree]);
    let (Workspace::Local(workspace), false, Some(own)) =
        (&spec.workspace, spec.read_only, &dir.worktree)
    else {
        return;
    };
    let listed = match spec.root {
        RootMode::ReadOnly => list_commit_trees(workspace.as_path(), &dir.shown, own),
        // Where all of the root may be written to, links can be made in every part of it.
        RootMode::CopyOnWrite => {
            Err("the root is writable, so that commits are made outside".into())
        }
    };
    match listed {
        Ok(trees) => found.add_over(trees, &LOG_VARIABLES),
        Err(reason) => {
            let reason = format!("is read-only: {reason}");
            found.left_out.push(LeftOut { path: dir.shown, reason });
        }
    }
}

/// The path in a file of one line, behind what it begins with. A link is not such a file.
fn read_pointer_file(file: &Path, prefix: &str) -> Option<PathBuf> {
    let text = small_file(file, MAX_POINTER_BYTES)?;
    let line = text.strip_prefix(prefix)?.trim_end_matches(['\n', '\r']);
    (!line.is_empty() && !line.contains(['\n', '\0'])).then(|| PathBuf::from(line))
}

/// A small regular file. It may be replaced meanwhile: neither a link is followed nor a pipe waited for.
pub(super) fn small_file(file: &Path, most: u64) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = open(file, flags, Mode::empty()).ok()?;
    let found = fstat(&opened).ok()?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut text = String::new();
    fs::File::from(opened).take(most + 1).read_to_string(&mut text).ok()?;
    (text.len() as u64 <= most).then_some(text)
}

/// The directory that is shown, if it is really this workspace's.
fn find_git_dir(workspace: &Path, named: &Path) -> Result<NamedGitDir, &'static str> {
    let dir = named.canonicalize().map_err(|_| "is not there")?;
    let found = match find_worktree_dir(workspace, &dir) {
        Some(shown) => Some(NamedGitDir { shown, worktree: Some(dir) }),
        None => {
            find_submodule_dir(workspace, &dir).map(|shown| NamedGitDir { shown, worktree: None })
        }
    };
    let found = found.ok_or("is not this directory's: it does not name it in turn")?;
    match workspace.starts_with(&found.shown) {
        true => Err("lies around the workspace"),
        false => Ok(found),
    }
}

/// `COMMON/worktrees/NAME`, whose `gitdir` is the workspace's `.git`.
fn find_worktree_dir(workspace: &Path, dir: &Path) -> Option<PathBuf> {
    let worktrees = dir.parent().filter(|parent| parent.ends_with("worktrees"))?;
    let common = worktrees.parent()?;
    let named = dir.join(read_pointer_file(&dir.join("commondir"), "")?).canonicalize().ok()?;
    let back = dir.join(read_pointer_file(&dir.join("gitdir"), "")?).canonicalize().ok()?;
    let own = back == workspace.canonicalize().ok()?.join(".git");
    (own && named == common && is_repository(common)).then(|| common.to_owned())
}

/// A git directory whose `core.worktree` is the workspace.
fn find_submodule_dir(workspace: &Path, dir: &Path) -> Option<PathBuf> {
    let config = small_file(&dir.join("config"), MAX_CONFIG_BYTES)?;
    let back = dir.join(core_worktree(&config)?).canonicalize().ok()?;
    let own = back == workspace.canonicalize().ok()?;
    (own && is_repository(dir)).then(|| dir.to_owned())
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

/// Whether a configuration of this repository, of its submodules or of its worktrees has addresses with
/// passwords, headers or helpers. One that cannot be read may.
fn may_hold_credentials(dir: &Path) -> bool {
    if dir.join("credentials").exists() {
        return true;
    }
    let mut dirs = vec![(dir.to_owned(), 0)];
    let mut seen = 0;
    while let Some((dir, depth)) = dirs.pop() {
        seen += 1;
        let files = ["config", "config.worktree"].map(|name| dir.join(name));
        let there = files.iter().filter(|file| file.symlink_metadata().is_ok());
        let secret = |file: &PathBuf| {
            small_file(file, MAX_CONFIG_BYTES).is_none_or(|text| has_secrets(&text))
        };
        if seen > MAX_REPOSITORIES || depth > MAX_DEPTH || there.into_iter().any(secret) {
            return true;
        }
        for below in ["modules", "worktrees"].map(|name| dir.join(name)) {
            dirs.extend(list_subdirectories(&below).map(|dir| (dir, depth + 1)));
        }
        // The name of a submodule may have slashes in it.
        if depth > 0 && !is_repository(&dir) {
            dirs.extend(list_subdirectories(&dir).map(|dir| (dir, depth + 1)));
        }
    }
    false
}

fn list_subdirectories(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    // More are too many already.
    dirs.map(|entry| entry.path()).take(MAX_REPOSITORIES + 1)
}

fn has_secrets(config: &str) -> bool {
    let config = config.to_ascii_lowercase();
    let password = |line: &str| line.split_once("://").is_some_and(|(_, rest)| rest.contains('@'));
    let mut lines = config.lines().map(str::trim);
    lines.any(|line| {
        line.contains("extraheader") || line.starts_with("[credential") || password(line)
    })
}

fn is_repository(dir: &Path) -> bool {
    dir.join("HEAD").is_file() && dir.join("objects").is_dir() && dir.join("refs").is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct GitFixture {
        _dir: tempfile::TempDir,
        base: PathBuf,
    }

    impl GitFixture {
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
            let dirs = ["objects/info", "objects/pack", "refs/heads", "logs/refs/heads", "hooks"];
            for part in dirs.map(|part| format!("{part}/x")) {
                self.write(&format!("{dir}/{part}"), "");
            }
            for part in ["HEAD", "config"] {
                self.write(&format!("{dir}/{part}"), "");
            }
        }

        fn find(&self, workspace: &str, read_only: bool) -> FoundToolchain {
            let workspace = Workspace::Local(self.base.join(workspace).try_into().unwrap());
            let spec = SandboxSpec { workspace, read_only, ..SandboxSpec::default() };
            find_git_tree(&spec).unwrap_or(FoundToolchain::named(HostTree::GIT_PART))
        }

        fn name(&self, tree: &HostTree) -> String {
            let path = tree.mount.source.as_path().strip_prefix(&self.base).unwrap();
            path.display().to_string()
        }

        /// What is shown of a workspace that may not be written to, and how much is not.
        fn found(&self, workspace: &str) -> (Vec<String>, usize) {
            let found = self.find(workspace, true);
            assert!(found.trees.iter().all(|tree| tree.mount.read_only), "{found:?}");
            (found.trees.iter().map(|tree| self.name(tree)).collect(), found.left_out.len())
        }

        /// What may be written to, below the git directory of the worktree; or why nothing.
        fn writable(&self) -> Result<Vec<String>, String> {
            let found = self.find("wt", false);
            if let Some(out) = found.left_out.first() {
                assert!(found.trees.iter().all(|tree| tree.mount.read_only), "{found:?}");
                return Err(out.reason.clone());
            }
            let written = found.trees.iter().filter(|tree| !tree.mount.read_only);
            let names = written.map(|tree| self.name(tree));
            Ok(names.map(|name| name.trim_start_matches("main/.git/").to_owned()).collect())
        }

        fn worktree(&self, back: &str) {
            self.repository("main/.git");
            let git = self.base.join("main/.git/worktrees/wt");
            self.write("wt/.git", &format!("gitdir: {}\n", git.display()));
            self.write("main/.git/worktrees/wt/commondir", "../..\n");
            let back = self.base.join(back);
            self.write("main/.git/worktrees/wt/gitdir", &format!("{}\n", back.display()));
            self.write("main/.git/worktrees/wt/HEAD", "ref: refs/heads/x\n");
            self.write("main/.git/worktrees/wt/logs/HEAD", "");
        }
    }

    #[test]
    fn a_worktrees_repository_is_shown_read_only() {
        let place = GitFixture::new();
        place.worktree("wt/.git");
        assert_eq!(place.found("wt"), (vec!["main/.git".to_owned()], 0));
    }

    #[test]
    fn a_git_directory_that_does_not_name_the_workspace_is_not_shown() {
        let place = GitFixture::new();
        place.worktree("other/.git");
        place.write("other/.git", "");
        assert_eq!(place.found("wt"), (vec![], 1));
        place.write("wt/.git", "gitdir: /etc\n");
        assert_eq!(place.found("wt"), (vec![], 1));
        place.write("wt/.git", "something else\n");
        assert_eq!(place.found("wt"), (vec![], 0));
    }

    #[test]
    fn a_worktree_that_names_another_common_directory_is_not_shown() {
        let place = GitFixture::new();
        place.worktree("wt/.git");
        place.repository("secret");
        let secret = place.base.join("secret");
        place.write("main/.git/worktrees/wt/commondir", &format!("{}\n", secret.display()));
        assert_eq!(place.found("wt"), (vec![], 1));
    }

    #[test]
    fn a_submodules_git_directory_is_shown_read_only() {
        let place = GitFixture::new();
        let own = "main/.git/modules/lib";
        place.repository(own);
        place.write(&format!("{own}/config"), "[core]\n\tworktree = ../../../lib\n");
        place.write("main/lib/.git", "gitdir: ../.git/modules/lib\n");
        assert_eq!(place.found("main/lib"), (vec![own.to_owned()], 0));
    }

    #[test]
    fn what_a_commit_in_a_worktree_writes_to_is_writable_and_no_more() {
        let place = GitFixture::new();
        place.worktree("wt/.git");
        let own = ["objects", "refs/heads", "worktrees/wt", "worktrees/wt/logs/HEAD"];
        let with_log = own.into_iter().chain(["logs/refs/heads/x"]);
        assert_eq!(place.writable(), Ok(with_log.map(str::to_owned).collect()));
        // A guest may have written it.
        for head in ["ref: refs/heads/../../../config\n", "ref: refs/heads/none\n", "0123\n"] {
            place.write("main/.git/worktrees/wt/HEAD", head);
            assert_eq!(place.writable(), Ok(own.map(str::to_owned).to_vec()), "{head}");
        }
    }

    #[test]
    fn what_leads_git_elsewhere_lies_read_only_over_what_is_writable() {
        let place = GitFixture::new();
        place.worktree("wt/.git");
        let found = place.find("wt", false);
        let at = |path: &str| {
            let named = |tree: &HostTree| place.name(tree) == format!("main/.git/{path}");
            let at = found.trees.iter().position(named).unwrap();
            (at, found.trees[at].mount.read_only)
        };
        let own = "worktrees/wt";
        for (part, around) in [
            ("objects/info", "objects"),
            ("objects/pack", "objects"),
            ("worktrees/wt/commondir", own),
            ("worktrees/wt/gitdir", own),
            ("worktrees/wt/logs", own),
        ] {
            assert!(at(part).1 && at(part).0 > at(around).0, "{part}: {found:?}");
        }
    }

    #[test]
    fn a_worktree_whose_configuration_a_guest_could_add_is_read_only() {
        let place = GitFixture::new();
        place.worktree("wt/.git");
        place.write("main/.git/config", "[extensions]\n\tworktreeConfig = true\n");
        assert!(place.writable().unwrap_err().contains("extensions.worktreeConfig"));
    }

    #[test]
    fn a_worktree_that_holds_repositories_or_a_configuration_is_read_only() {
        for file in ["modules/lib/HEAD", "config.worktree"] {
            let place = GitFixture::new();
            place.worktree("wt/.git");
            place.write(&format!("main/.git/worktrees/wt/{file}"), "");
            let reason = place.writable().unwrap_err();
            assert!(reason.contains("worktrees/wt/"), "{file}: {reason}");
        }
    }

    #[test]
    fn a_git_directory_with_links_or_without_its_parts_is_read_only() {
        for (part, link) in [
            ("objects/info", false),
            ("refs/heads", false),
            ("refs/heads", true),
            ("objects", true),
            ("worktrees/wt/logs", true),
            ("logs/refs", true),
        ] {
            let place = GitFixture::new();
            place.worktree("wt/.git");
            let (path, elsewhere) = (place.base.join("main/.git").join(part), place.base.join("e"));
            fs::rename(&path, &elsewhere).unwrap();
            if link {
                std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
            }
            let reason = place.writable().unwrap_err();
            assert!(reason.starts_with("is read-only: "), "{part}: {reason}");
        }
    }
}
