//! The git directory of a worktree or submodule, which lies outside of the workspace and is named by its `.git`
//! file. That file is input: a guest may have written it. So the directory is shown only if it names this very
//! workspace in turn.
//!
//! All of it is read-only: a guest that can add files to a git directory can make the host's git run code, or
//! write through links to places elsewhere.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use stockade_core::{SandboxSpec, Workspace};

use super::{FoundToolchain, LeftOut, build_host_tree, is_claimed_by_spec};

/// The longest `.git`, `gitdir` or `commondir` file.
const MAX_POINTER_BYTES: u64 = 8 << 10;
/// The longest configuration that is read.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// The most repositories, with submodules and worktrees, that are looked at, and how deep they lie.
const MAX_REPOSITORIES: usize = 1000;
const MAX_DEPTH: usize = 8;

/// The tree for the git directory that the workspace's `.git` file names, if it has one.
pub(super) fn find_git_tree(spec: &SandboxSpec) -> Option<FoundToolchain> {
    let workspace = match &spec.workspace {
        Workspace::Local(dir) => dir.as_path(),
        Workspace::Overlay(layers) => layers.lower.as_path(),
        Workspace::Ephemeral => return None,
    };
    let named = read_pointer_file(&workspace.join(".git"), "gitdir: ")?;
    let named = workspace.join(named);
    let mut found = FoundToolchain::named("git");
    match git_dir(workspace, &named) {
        // What the caller shows there wins.
        Ok(dir) if is_claimed_by_spec(&dir, spec) => return None,
        Ok(dir) if may_hold_credentials(&dir) => {
            let reason = "its configuration may hold credentials, or cannot be read".into();
            found.left_out.push(LeftOut { path: dir, reason });
        }
        Ok(dir) => {
            // Behind a link that was put there meanwhile lies something else.
            let tree = build_host_tree("git", &dir, &dir);
            found.add(tree.into_iter().filter(|tree| tree.mount.source.as_path() == dir).collect());
        }
        Err(reason) => found.left_out.push(LeftOut { path: named, reason: reason.into() }),
    }
    Some(found)
}

/// The path in a file of one line, behind what it begins with. A link is not such a file.
fn read_pointer_file(file: &Path, prefix: &str) -> Option<PathBuf> {
    let text = small_file(file, MAX_POINTER_BYTES)?;
    let line = text.strip_prefix(prefix)?.trim_end_matches(['\n', '\r']);
    (!line.is_empty() && !line.contains(['\n', '\0'])).then(|| PathBuf::from(line))
}

/// A small regular file. It may be replaced meanwhile: neither a link is followed nor a pipe waited for.
fn small_file(file: &Path, most: u64) -> Option<String> {
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
fn git_dir(workspace: &Path, named: &Path) -> Result<PathBuf, &'static str> {
    let dir = named.canonicalize().map_err(|_| "is not there")?;
    let git = find_worktree_dir(workspace, &dir).or_else(|| find_submodule_dir(workspace, &dir));
    let git = git.ok_or("is not this directory's: it does not name it in turn")?;
    if workspace.starts_with(&git) { Err("lies around the workspace") } else { Ok(git) }
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
    dirs.map(|entry| entry.path())
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
            for part in ["objects/x", "refs/x", "logs/x", "hooks/x", "HEAD", "config"] {
                self.write(&format!("{dir}/{part}"), "");
            }
        }

        /// What is shown, and how much is not.
        fn found(&self, workspace: &str) -> (Vec<String>, usize) {
            let workspace = self.base.join(workspace).try_into().unwrap();
            let spec =
                SandboxSpec { workspace: Workspace::Local(workspace), ..SandboxSpec::default() };
            let found = find_git_tree(&spec).unwrap_or(FoundToolchain::named("git"));
            let name = |tree: &stockade_core::HostTree| {
                assert!(tree.mount.read_only);
                let path = tree.mount.source.as_path().strip_prefix(&self.base).unwrap();
                path.display().to_string()
            };
            (found.trees.iter().map(name).collect(), found.left_out.len())
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
}
