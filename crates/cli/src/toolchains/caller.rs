//! What the caller's environment says: PATH, the home, and where the roots of toolchains are.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use stockade_fs::RealPaths;

use super::inside;
use super::table::ToolchainRoot;

/// What the caller's environment says.
pub(super) struct CallerEnvironment {
    pub(super) variables: BTreeMap<String, String>,
    pub(super) path: Vec<PathBuf>,
    pub(super) home: Option<PathBuf>,
    /// Where a guest may write.
    written: Vec<PathBuf>,
    /// PATH behind links, without what every sandbox sees; resolved once, since every root is compared with it.
    real_path: OnceLock<Vec<PathBuf>>,
    /// What is looked at for one sandbox is looked at together.
    paths: RealPaths,
}

impl CallerEnvironment {
    /// This process's own.
    pub(super) fn here() -> Self {
        Self::from_variables(std::env::vars_os())
    }

    fn from_variables(all: impl Iterator<Item = (OsString, OsString)>) -> Self {
        let text = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let variables: BTreeMap<_, _> = all.filter_map(text).collect();
        let path = variables.get("PATH").map(String::as_str).unwrap_or_default();
        let path = path.split(':').map(PathBuf::from).filter(|dir| dir.is_absolute()).collect();
        let home = variables.get("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        Self {
            variables,
            path,
            home,
            written: Vec::new(),
            real_path: OnceLock::new(),
            paths: RealPaths::default(),
        }
    }

    /// Without what lies where a guest may write: it could make a link to anything there.
    pub(super) fn outside(mut self, written: Vec<PathBuf>) -> Self {
        self.path.retain(|entry| !written.iter().any(|place| entry.starts_with(place)));
        self.written = written;
        self.real_path = OnceLock::new();
        self
    }

    /// Whether a guest may write there, or where it leads, or beside it.
    pub(super) fn is_written(&self, path: &Path) -> bool {
        if self.written.is_empty() {
            return false;
        }
        let real = self.paths.canonicalize(path).ok();
        let beside = match path.parent() {
            // Without a link in it, its parent has none either.
            Some(parent) if real.as_deref() == Some(path) => Some(parent.to_owned()),
            parent => parent.and_then(|parent| self.paths.canonicalize(parent).ok()),
        };
        let mut all = [Some(path.to_owned()), real, beside].into_iter().flatten();
        all.any(|path| self.written.iter().any(|place| path.starts_with(place)))
    }

    /// Resolves paths of the host.
    pub(super) fn paths(&self) -> &RealPaths {
        &self.paths
    }

    fn real_path(&self) -> &[PathBuf] {
        self.real_path.get_or_init(|| {
            let beyond = self.path.iter().filter(|entry| !inside::is_in_host_image(entry));
            beyond.filter_map(|entry| self.paths.canonicalize(entry).ok()).collect()
        })
    }

    pub(super) fn absolute(&self, variable: &str) -> Option<PathBuf> {
        self.variables.get(variable).map(PathBuf::from).filter(|path| is_plain(path))
    }
}

/// Absolute, and spelled without detours.
fn is_plain(path: &Path) -> bool {
    path.is_absolute() && !path.iter().any(|part| part == "..")
}

/// Where a root is: by its variable, or the first of its usual places that is there. Not where a guest may
/// write, and not something else under that name.
pub(super) fn root_paths(row: &ToolchainRoot, caller: &CallerEnvironment) -> Vec<PathBuf> {
    let marked = |root: &PathBuf| row.marks.iter().all(|mark| root.join(mark).exists());
    let mut roots = named_paths(row, caller);
    roots.retain(|root| marked(root) && !caller.is_written(root));
    roots
}

fn named_paths(row: &ToolchainRoot, caller: &CallerEnvironment) -> Vec<PathBuf> {
    if let Some(named) = row.variable.and_then(|name| caller.absolute(name)) {
        return if named.is_dir() { vec![named] } else { Vec::new() };
    }
    let usual = row.defaults.iter().filter_map(|default| match default.strip_prefix("~/") {
        Some(rest) => Some(caller.home.as_ref()?.join(rest)),
        None => Some(PathBuf::from(default)),
    });
    // A usual place that is a link leads out of the list; its variable can name where it leads.
    let own = |path: &PathBuf| std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    for path in usual {
        let found: Vec<_> = match (path.ends_with("*"), path.parent()) {
            (true, Some(dir)) => all_in_path(dir, caller).into_iter().filter(own).collect(),
            (true, None) | (false, _) => Some(path).into_iter().filter(own).collect(),
        };
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

/// The directories in this one that PATH leads to.
fn all_in_path(dir: &Path, caller: &CallerEnvironment) -> BTreeSet<PathBuf> {
    let inside = |entry: &PathBuf| {
        let first = entry.strip_prefix(dir).ok()?.components().next()?;
        Some(dir.join(first))
    };
    caller.path.iter().filter_map(inside).collect()
}

/// Whether PATH leads here or below, by name or behind links.
pub(super) fn in_path(root: &Path, caller: &CallerEnvironment) -> bool {
    let by_name = caller.path.iter().any(|entry| entry.starts_with(root));
    by_name || {
        let leads_to =
            |root: PathBuf| caller.real_path().iter().any(|real| real.starts_with(&root));
        caller.paths.canonicalize(root).is_ok_and(leads_to)
    }
}
