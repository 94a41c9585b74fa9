//! What a sandbox's files are: a few directories of the host, each at a path of its own, and nothing
//! between them. Private ones lie in a directory named after the sandbox, so that whoever comes later
//! finds and removes it.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use stockade_core::{
    Error, ErrorCode, Result, SandboxId, SandboxPath, SandboxSpec, WORKSPACE_ROOT, Workspace,
};

use super::NAME;
use crate::linux::paths::{self, resolve};
use crate::linux::private;

/// What the names of private directories begin with.
pub(super) const PREFIX: &str = "stockade-wasm-";
/// How many places are not mounts.
const OWN: usize = 2;
/// Where temporary files lie.
pub(super) const TEMPORARY: &str = "/tmp";

/// One directory of the host, where the sandbox sees it.
pub(super) struct Place {
    pub at: String,
    pub host: PathBuf,
    pub dir: OwnedFd,
    pub read_only: bool,
}

/// A sandbox's files.
pub(super) struct Tree {
    pub private: PathBuf,
    /// The workspace first.
    pub places: Vec<Place>,
}

impl Tree {
    /// Makes what is private and opens what is not. What was made is removed by [`remove`].
    pub(super) fn make(id: &SandboxId, spec: &SandboxSpec) -> Result<Self> {
        let base = private::base().map_err(unusable)?;
        exposed(spec, &base)?;
        let private = private::path(&base, PREFIX, id);
        for part in ["", "workspace", "tmp"] {
            let made = DirBuilder::new().mode(0o700).create(private.join(part));
            made.map_err(unusable)?;
        }
        let workspace = workspace(spec, &private)?;
        let mut places = vec![
            Place::open("workspace", WORKSPACE_ROOT, workspace, spec.read_only)?,
            Place::open("tmp", TEMPORARY, private.join("tmp"), false)?,
        ];
        for mount in &spec.mounts {
            let source = resolve(&NAME, "mounts", &mount.source)?;
            places.push(Place::open("mounts", mount.target.as_str(), source, mount.read_only)?);
        }
        Ok(Self { private, places })
    }

    /// Those that are the sandbox's own: the workspace and what is temporary.
    pub(super) fn own(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().take(OWN)
    }

    pub(super) fn workspace(&self) -> &Place {
        &self.places[0]
    }

    /// The directory a path lies in, and the way from there; nothing if it lies between them.
    pub(super) fn locate(&self, path: &SandboxPath) -> Option<(&Place, String)> {
        if !path.is_absolute() {
            return Some((self.workspace(), path.to_string()));
        }
        let whole = normal(path.as_str());
        let below = |place: &Place| {
            let rest = whole.strip_prefix(place.at.as_str())?;
            (rest.is_empty() || rest.starts_with('/')).then_some(place.at.len())
        };
        let places = self.places.iter().filter_map(|place| Some((below(place)?, place)));
        let (length, place) = places.max_by_key(|(length, _)| *length)?;
        let rest = whole[length..].trim_start_matches('/');
        Some((place, if rest.is_empty() { ".".into() } else { rest.to_owned() }))
    }
}

impl Place {
    fn open(field: &'static str, at: &str, host: PathBuf, read_only: bool) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, &host, flags, Mode::empty()).map_err(|errno| {
            paths::unusable(&NAME, field, &host, "is not a directory").source(errno)
        })?;
        Ok(Self { at: normal(at), host, dir, read_only })
    }
}

/// An absolute path without `.`, `..` and doubled separators. What it leads through is resolved by the
/// kernel later; this only says in which directory to begin.
fn normal(path: &str) -> String {
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

fn workspace(spec: &SandboxSpec, private: &Path) -> Result<PathBuf> {
    match &spec.workspace {
        Workspace::Local(path) => resolve(&NAME, "workspace", path),
        // Views are not admitted on this backend.
        Workspace::Ephemeral | Workspace::Overlay(_) => Ok(private.join("workspace")),
    }
}

/// Private files must not lie where the guest of another sandbox could reach them.
fn exposed(spec: &SandboxSpec, base: &Path) -> Result<()> {
    let workspace = match &spec.workspace {
        Workspace::Local(path) => resolve(&NAME, "workspace", path)?,
        Workspace::Ephemeral | Workspace::Overlay(_) => return Ok(()),
    };
    if !base.starts_with(&workspace) {
        return Ok(());
    }
    let what = format!("holds `{}`, where private files lie", base.display());
    Err(paths::unusable(&NAME, "workspace", &workspace, &what)
        .remedy("choose a smaller workspace, or point TMPDIR elsewhere"))
}

fn unusable(error: io::Error) -> Error {
    let message = "the directory for temporary files cannot be written to";
    Error::new(ErrorCode::System, "create", message)
        .backend(NAME)
        .remedy("point TMPDIR to a directory that you may write to")
        .source(error)
}
