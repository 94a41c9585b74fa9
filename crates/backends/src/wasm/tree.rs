//! What a sandbox's files are: a few directories of the host, each at a path of its own, and nothing between
//! them. Private ones lie in a directory named after the sandbox, so that a later process finds and removes
//! it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, openat};
use stockade_core::{
    Error, ErrorCode, Result, SandboxId, SandboxPath, SandboxSpec, WORKSPACE_ROOT, Workspace,
};

use super::NAME;
use crate::linux::paths::{self, resolve_path};
use crate::linux::running::left_behind;

/// Name prefix of private directories.
const PRIVATE_DIR_PREFIX: &str = "stockade-wasm-";
/// Parents of private directories; the first writable one is used. The same for every process, in any
/// environment, so that each finds what another has left. World-writable, so that the owner tells whose is
/// whose.
const PRIVATE_DIR_BASES: [&str; 2] = ["/tmp", "/var/tmp"];
/// Number of places that are not mounts: the workspace and the temporary directory.
const OWN_PLACES: usize = 2;
/// Temporary directory inside the sandbox.
pub(super) const TEMP_DIR: &str = "/tmp";

/// One directory of the host, where the sandbox sees it.
pub(super) struct GuestPlace {
    pub at: String,
    pub host: PathBuf,
    pub dir: Arc<OwnedFd>,
    pub read_only: bool,
}

/// A sandbox's files.
pub(super) struct GuestTree {
    pub private: PathBuf,
    /// The workspace first.
    pub places: Vec<GuestPlace>,
}

impl GuestTree {
    /// Makes what is private and opens what is not. What was made is removed by [`remove_private_dir`].
    ///
    /// `cache` is where compiled code lies, if anywhere: with its key, and so not for any guest to see.
    pub(super) fn make(id: &SandboxId, spec: &SandboxSpec, cache: Option<&Path>) -> Result<Self> {
        let bases: Vec<PathBuf> = private_dir_bases().collect();
        let cache = cache.and_then(|cache| cache.canonicalize().ok());
        bases.iter().chain(&cache).try_for_each(|kept| check_not_exposed(spec, kept))?;
        let private = create_private_dir(&bases, id).map_err(private_dir_error)?;
        for part in ["workspace", "tmp"] {
            let made = DirBuilder::new().mode(0o700).create(private.join(part));
            made.map_err(private_dir_error)?;
        }
        let workspace = resolve_workspace(spec, &private)?;
        let mut places = vec![
            GuestPlace::open("workspace", WORKSPACE_ROOT, workspace, spec.read_only)?,
            GuestPlace::open("tmp", TEMP_DIR, private.join("tmp"), false)?,
        ];
        for mount in &spec.mounts {
            let source = resolve_path(&NAME, "mounts", &mount.source)?;
            places.push(GuestPlace::open(
                "mounts",
                mount.target.as_str(),
                source,
                mount.read_only,
            )?);
        }
        Ok(Self { private, places })
    }

    /// Those that are the sandbox's own: the workspace and what is temporary.
    pub(super) fn own_places(&self) -> impl Iterator<Item = &GuestPlace> {
        self.places.iter().take(OWN_PLACES)
    }

    pub(super) fn workspace(&self) -> &GuestPlace {
        &self.places[0]
    }

    /// The directory a path lies in, and the way from there; nothing if it lies between them.
    pub(super) fn locate_path(&self, path: &SandboxPath) -> Option<(&GuestPlace, String)> {
        if !path.is_absolute() {
            return Some((self.workspace(), path.to_string()));
        }
        let whole = normalize_path(path.as_str());
        let below = |place: &GuestPlace| {
            let rest = whole.strip_prefix(place.at.as_str())?;
            (rest.is_empty() || rest.starts_with('/')).then_some(place.at.len())
        };
        let places = self.places.iter().filter_map(|place| Some((below(place)?, place)));
        let (length, place) = places.max_by_key(|(length, _)| *length)?;
        let rest = whole[length..].trim_start_matches('/');
        Some((place, if rest.is_empty() { ".".into() } else { rest.to_owned() }))
    }
}

impl GuestPlace {
    fn open(field: &'static str, at: &str, host: PathBuf, read_only: bool) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, &host, flags, Mode::empty()).map_err(|errno| {
            paths::unusable_path(&NAME, field, &host, "is not a directory").source(errno)
        })?;
        Ok(Self { at: normalize_path(at), host, dir: Arc::new(dir), read_only })
    }
}

/// An absolute path without `.`, `..` and doubled separators. What it leads through is resolved by the
/// kernel later; this only says in which directory to begin.
fn normalize_path(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.iter().fold(String::new(), |path, part| path + "/" + part)
}

fn resolve_workspace(spec: &SandboxSpec, private: &Path) -> Result<PathBuf> {
    match &spec.workspace {
        Workspace::Local(path) => resolve_path(&NAME, "workspace", path),
        // Views are not admitted on this backend.
        Workspace::Ephemeral | Workspace::Overlay(_) => Ok(private.join("workspace")),
    }
}

/// The bases there are, without any symbolic link in the way.
fn private_dir_bases() -> impl Iterator<Item = PathBuf> {
    PRIVATE_DIR_BASES.into_iter().filter_map(|base| fs::canonicalize(base).ok())
}

/// Makes the private directory of a sandbox.
fn create_private_dir(bases: &[PathBuf], id: &SandboxId) -> io::Result<PathBuf> {
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    for base in bases {
        let path = base.join(format!("{PRIVATE_DIR_PREFIX}{id}"));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// The sandboxes of this user that have one.
pub(super) fn list_sandbox_ids() -> Vec<SandboxId> {
    let entries =
        private_dir_bases().flat_map(|base| fs::read_dir(base).into_iter().flatten().flatten());
    let ours = entries.filter(|entry| is_own(entry.metadata()));
    ours.filter_map(|entry| {
        entry.file_name().to_str()?.strip_prefix(PRIVATE_DIR_PREFIX)?.parse().ok()
    })
    .collect()
}

fn is_own(found: io::Result<fs::Metadata>) -> bool {
    let own = rustix::process::geteuid().as_raw();
    found.is_ok_and(|found| found.is_dir() && found.uid() == own)
}

/// Removes what is there of one. What another user has put there under its name is no part of it.
pub(super) fn remove_private_dir(id: &SandboxId) -> Result<()> {
    let paths = private_dir_bases().map(|base| base.join(format!("{PRIVATE_DIR_PREFIX}{id}")));
    let mut paths = paths.filter(|path| is_own(fs::symlink_metadata(path)));
    let removed = paths.try_for_each(|path| stockade_fs::remove_tree(&path));
    removed.map_err(|error| {
        left_behind(&NAME, id, "its private directory cannot be removed").source(error)
    })
}

/// Private files must not lie where the guest of any sandbox could reach them.
fn check_not_exposed(spec: &SandboxSpec, kept: &Path) -> Result<()> {
    let workspace = match &spec.workspace {
        Workspace::Local(path) => Some(("workspace", path)),
        Workspace::Ephemeral | Workspace::Overlay(_) => None,
    };
    let mounts = spec.mounts.iter().map(|mount| ("mounts", &mount.source));
    for (field, path) in workspace.into_iter().chain(mounts) {
        let path = resolve_path(&NAME, field, path)?;
        if kept.starts_with(&path) {
            let what = format!("holds `{}`, where private files lie", kept.display());
            return Err(paths::unusable_path(&NAME, field, &path, &what)
                .remedy("choose a smaller directory, such as one below it"));
        }
    }
    Ok(())
}

fn private_dir_error(error: io::Error) -> Error {
    let message = "its private directory cannot be made";
    Error::new(ErrorCode::System, "create", message)
        .backend(NAME)
        .remedy("make /tmp or /var/tmp a directory that you may write to")
        .source(error)
}
