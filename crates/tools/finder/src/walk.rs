//! One walk for both searches: no link is followed, and ignore files count from the base on.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;

use ignore::gitignore::Gitignore;
use ignore::{DirEntry, WalkBuilder, WalkParallel};
use rustix::fd::OwnedFd;
use stockade_finder::{FinderFailure, FinderRequest, shown};

use crate::Refused;
use crate::root::SearchRoot;

/// How many problems are told.
const MAX_PROBLEMS: usize = 20;
/// Depth of a walk, in directories.
const MAX_WALK_DEPTH: usize = 256;
/// More threads than this do not help.
const MAX_THREADS: usize = 8;

/// What could not be looked into.
#[derive(Default)]
pub struct Problems(Mutex<Vec<String>>);

impl Problems {
    pub fn add(&self, problem: String) {
        let mut problems = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if problems.len() < MAX_PROBLEMS {
            problems.push(problem);
        }
    }

    pub fn told(self) -> Vec<String> {
        let mut problems = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        problems.sort();
        problems
    }
}

/// A walk over everything below a directory, which becomes the current one.
pub fn over(
    request: &FinderRequest,
    root: &SearchRoot,
    start: &OwnedFd,
) -> Result<WalkParallel, Refused> {
    let above = load_parent_ignores(request, root)?;
    let entered = rustix::process::fchdir(start);
    entered.map_err(|errno| {
        Refused(FinderFailure::Unusable, std::io::Error::from(errno).to_string())
    })?;
    let all = request.no_ignore;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let mut builder = WalkBuilder::new(".");
    builder.follow_links(false).max_depth(Some(MAX_WALK_DEPTH)).threads(threads);
    builder.hidden(!request.hidden).parents(false).require_git(false).git_global(false);
    builder.ignore(!all).git_ignore(!all).git_exclude(!all);
    let prefix: PathBuf = root.above.iter().collect();
    builder.filter_entry(move |entry| {
        entry.depth() == 0 || (all || !is_git(entry)) && !is_ignored(&above, &prefix, entry)
    });
    Ok(builder.build_parallel())
}

/// The ignore files of the directories above the start, which the walk itself does not see.
fn load_parent_ignores(
    request: &FinderRequest,
    root: &SearchRoot,
) -> Result<Vec<(PathBuf, Gitignore)>, Refused> {
    if request.no_ignore || root.above.is_empty() {
        return Ok(Vec::new());
    }
    let entered = rustix::process::fchdir(&root.base);
    entered.map_err(|errno| {
        Refused(FinderFailure::Unusable, std::io::Error::from(errno).to_string())
    })?;
    let mut dir = PathBuf::new();
    let mut found = Vec::new();
    for part in &root.above {
        let file = dir.join(".gitignore");
        if file.symlink_metadata().is_ok_and(|seen| seen.is_file()) {
            found.push((dir.clone(), Gitignore::new(file).0));
        }
        dir.push(part);
    }
    Ok(found)
}

fn is_git(entry: &DirEntry) -> bool {
    entry.file_name() == ".git"
}

fn is_ignored(above: &[(PathBuf, Gitignore)], prefix: &Path, entry: &DirEntry) -> bool {
    if above.is_empty() {
        return false;
    }
    let dir = entry.file_type().is_some_and(|kind| kind.is_dir());
    let whole = prefix.join(inner(entry.path()));
    let verdicts = above.iter().rev().filter_map(|(base, rules)| {
        let matched = rules.matched(whole.strip_prefix(base).ok()?, dir);
        (!matched.is_none()).then(|| matched.is_ignore())
    });
    // The nearest file that says anything decides.
    verdicts.into_iter().next().unwrap_or(false)
}

/// A path from the start on.
pub fn inner(path: &Path) -> &Path {
    path.strip_prefix(".").unwrap_or(path)
}

/// The same as text.
pub fn name(path: &Path) -> String {
    shown(inner(path).as_os_str().as_bytes())
}
