//! `--cache`: package and build caches that outlive a sandbox, a directory of Stockade's own for each project, tenant
//! and name. Guests fill it, so it is hostile: nothing of it is run, parsed or followed on the host. It is measured,
//! mounted into sandboxes of the same project, and removed.

mod choice;
mod size;
mod variables;

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, Mode, OFlags, openat};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use stockade::config::cache_dir;
use stockade_core::{
    Bytes, Error, ErrorCode, HostPath, HostTree, Image, Mount, Result, SandboxPath, SandboxSpec,
    Workspace,
};
use stockade_engine::real_path;
use stockade_fs::{
    CacheDir, ClosedDirs, Locked, Sharing, StateDir, chmod_descriptor, remove_entry,
};

use crate::config::Settings;
use crate::registry;
use crate::terminal::printer::Printer;
use crate::workspace::WantedWorkspace;
pub use choice::CacheChoice;

const CACHE_FLAG: &str = "--cache";
/// Where the caches of projects lie, below Stockade's own.
const PROJECTS_DIR: &str = "projects";
/// The part of an entry that guests see. The entry itself, which is what locks are on, is beyond their reach.
const FILES_DIR: &str = "files";
/// Open to the user that commands run as. Others cannot reach it: the entry around it is its owner's alone.
const FILES_MODE: u32 = 0o777;
/// The name that `auto` stands for.
const AUTO_NAME: &str = "auto";
const DEFAULT_LIMIT: Bytes = Bytes::mib(5 << 10);
/// How much of a digest tells projects apart.
const KEY_BYTES: usize = 16;
/// How long another command may take to measure or clear a cache.
const CACHE_LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// How often an entry is made again that others clean away at the same instant.
const MAX_OPEN_ATTEMPTS: usize = 16;

/// A cache that a spec shows. It need not exist yet.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedCache {
    name: String,
    /// Where it lies, and appears.
    path: PathBuf,
    limit: Bytes,
}

/// A cache in use: it is not cleaned away while this is held.
#[derive(Debug)]
pub struct HeldCache(#[allow(dead_code, reason = "held for its lock")] Locked);

/// Adds the chosen cache to a spec that is otherwise complete. Nothing is made.
pub fn plan_cache(
    choice: &CacheChoice,
    (wanted, origin): (&WantedWorkspace, &Workspace),
    spec: &mut SandboxSpec,
    settings: &Settings,
) -> Result<Option<PlannedCache>> {
    let key = project_key(wanted, origin, spec);
    let (name, key) = match (choice, key) {
        (CacheChoice::None, _) | (CacheChoice::Auto, None) => return Ok(None),
        (CacheChoice::Auto, Some(_)) if !may_show_cache(spec) => return Ok(None),
        (CacheChoice::Auto, Some(key)) => (AUTO_NAME, key),
        (CacheChoice::Named(name), Some(key)) => (name.as_str(), key),
        (CacheChoice::Named(_), None) => {
            let message = "a cache is kept for a project, and there is no workspace";
            return Err(cache_error(ErrorCode::Invalid, message)
                .remedy("name the project with --workspace DIR, or leave --cache out"));
        }
    };
    let planned = PlannedCache {
        name: name.to_owned(),
        path: projects_dir()?.join(format!("{key}-{name}")).join(FILES_DIR),
        limit: settings.cache_limit.unwrap_or(DEFAULT_LIMIT),
    };
    planned.show_in(spec)?;
    Ok(Some(planned))
}

/// Whether the programs of a sandbox are such that use caches, on a backend that can show one.
fn may_show_cache(spec: &SandboxSpec) -> bool {
    registry::shows_trees(&spec.backend) && !matches!(spec.image, Image::Wasm(_))
}

/// What tells the project of a tenant from others; none where files belong to no project.
fn project_key(wanted: &WantedWorkspace, origin: &Workspace, spec: &SandboxSpec) -> Option<String> {
    let (kind, place) = match (wanted, origin) {
        (WantedWorkspace::Checkout(git), _) => {
            let source = Path::new(git.source());
            ("git", source.canonicalize().unwrap_or_else(|_| source.to_owned()))
        }
        (_, Workspace::Local(dir)) => ("directory", real_path(dir.as_path())),
        (_, Workspace::Overlay(layers)) => ("directory", real_path(layers.lower.as_path())),
        (_, Workspace::Ephemeral) => return None,
    };
    let mut hash = Sha256::new();
    for part in [kind.as_bytes(), spec.tenant.as_str().as_bytes(), place.as_os_str().as_bytes()] {
        hash.update(part);
        hash.update([0]);
    }
    let digest = hash.finalize();
    Some(digest.iter().take(KEY_BYTES).map(|byte| format!("{byte:02x}")).collect())
}

/// Where the caches of projects lie, behind all links: only so they appear where they lie.
fn projects_dir() -> Result<PathBuf> {
    let dir = cache_dir().ok_or_else(|| {
        let message = "neither XDG_CACHE_HOME nor HOME holds an absolute path";
        cache_error(ErrorCode::StateUnavailable, message).remedy("set one of them")
    })?;
    Ok(real_path(&dir).join(PROJECTS_DIR))
}

impl PlannedCache {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it lies on the host, and appears inside.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes above which it is cleared when it is next used.
    pub fn limit(&self) -> Bytes {
        self.limit
    }

    fn show_in(&self, spec: &mut SandboxSpec) -> Result<()> {
        let target: Option<SandboxPath> = self.path.to_str().and_then(|path| path.parse().ok());
        let source = HostPath::try_from(self.path.clone()).ok();
        let (Some(source), Some(target)) = (source, target) else {
            let message = format!("`{}` cannot be shown in a sandbox", self.path.display());
            return Err(cache_error(ErrorCode::Invalid, message)
                .remedy("set XDG_CACHE_HOME to a path without unusual characters"));
        };
        variables::set_variables(target.as_str(), spec)?;
        let mount = Mount { source, target, read_only: false };
        spec.trees.push(HostTree { part_of: HostTree::CACHE_PART.into(), mount, required: true });
        Ok(())
    }

    /// Makes it if it is missing, clears it if it has grown too large, and holds it.
    pub fn open(&self, printer: &Printer) -> Result<HeldCache> {
        let entry = entry_of(&self.path);
        for _ in 0..MAX_OPEN_ATTEMPTS {
            StateDir::open(entry)?;
            let alone = lock_alone(entry).map_err(|error| self.fault("locked", error))?;
            let is_shared = alone.is_none();
            let mut size = self.measure()?;
            if !self.fits(size) && is_shared {
                // Another command may be clearing it just now.
                let _settled = hold_entry(entry)?;
                size = self.measure()?;
                if !self.fits(size) {
                    return Err(self.full_error(size));
                }
            }
            if !self.fits(size) {
                self.clear(size, printer)?;
            }
            self.make_files()?;
            drop(alone);
            if let Some(held) = hold_entry(entry)? {
                return Ok(held);
            }
        }
        let message = format!("the cache `{}` is cleaned away again and again", self.name);
        Err(cache_error(ErrorCode::System, message).remedy("end what cleans it, and try again"))
    }

    fn fits(&self, size: Option<u64>) -> bool {
        size.is_some_and(|size| size <= self.limit.0)
    }

    fn measure(&self) -> Result<Option<u64>> {
        size::measure_files(&self.path, self.limit).map_err(|error| self.fault("measured", error))
    }

    fn clear(&self, size: Option<u64>, printer: &Printer) -> Result<()> {
        remove_entry(CWD, self.path.as_path(), ClosedDirs::Open)
            .map_err(|errno| self.fault("cleared", errno.into()))?;
        if !printer.is_json() {
            printer.note(&format!("{} and is cleared", self.describe_excess(size)));
        }
        Ok(())
    }

    fn make_files(&self) -> Result<()> {
        let made = DirBuilder::new().mode(0o700).create(&self.path);
        let made = match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            // Cleaned away just now: the lock is on what is gone, and all begins anew.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            made => made,
        };
        let open = || -> io::Result<()> {
            let dir = open_dir(&self.path)?;
            // A guest may have closed it to itself.
            Ok(chmod_descriptor(&dir, Mode::from(FILES_MODE))?)
        };
        made.and_then(|()| open()).map_err(|error| self.fault("made", error))
    }

    fn describe_excess(&self, size: Option<u64>) -> String {
        let (name, limit) = (&self.name, self.limit);
        match size {
            Some(_) => format!("the cache `{name}` holds more than {limit}"),
            None => format!("the cache `{name}` holds more than can be counted"),
        }
    }

    fn full_error(&self, size: Option<u64>) -> Error {
        let message = format!("{}, and another sandbox uses it", self.describe_excess(size));
        cache_error(ErrorCode::TooLarge, message)
            .remedy("end that one (`stockade ps`), take another --cache NAME, or raise cacheLimit")
    }

    fn fault(&self, step: &str, error: io::Error) -> Error {
        let message = format!("`{}` cannot be {step}", self.path.display());
        cache_error(ErrorCode::System, message)
            .remedy("`stockade clean` removes what is not in use")
            .source(error)
    }
}

/// Holds the caches that a spec shows, in the process that builds its sandbox, and names them to the settings of that
/// process alone. The spec comes from a command of the same user; what is no cache stays refused.
pub fn hold_caches(spec: &SandboxSpec, settings: &mut Settings) -> Result<Vec<HeldCache>> {
    let mut held = Vec::new();
    for tree in spec.trees.iter().filter(|tree| tree.part_of == HostTree::CACHE_PART) {
        let path = tree.mount.source.as_path();
        let is_cache = path.file_name().is_some_and(|name| name == FILES_DIR)
            && entry_of(path).parent() == Some(projects_dir()?.as_path());
        if !is_cache {
            continue;
        }
        held.extend(hold_entry(entry_of(path))?);
        settings.show_cache(path);
    }
    Ok(held)
}

/// The caches, for `stockade clean`. None where there is no place for any.
pub fn list_project_caches() -> Option<CacheDir> {
    Some(CacheDir {
        kind: "package caches of projects",
        path: projects_dir().ok()?,
        is_entry: is_entry_name,
        used: std::collections::BTreeSet::new(),
        min_age: Duration::ZERO,
        maker_lock: None,
    })
}

fn is_entry_name(name: &str) -> bool {
    let key = name.split_once('-').map_or("", |(key, _)| key);
    key.len() == 2 * KEY_BYTES && key.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The entry around the files that guests see.
fn entry_of(files: &Path) -> &Path {
    files.parent().unwrap_or(files)
}

/// The right to change an entry, if it is not in use.
fn lock_alone(entry: &Path) -> io::Result<Option<Locked>> {
    match open_dir(entry) {
        Ok(dir) => Ok(Locked::attempt(dir, Sharing::Exclusive)?.ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Keeps an entry from being cleaned away; nothing if it is gone.
fn hold_entry(entry: &Path) -> Result<Option<HeldCache>> {
    let hold = || -> io::Result<Option<Locked>> {
        let locked = Locked::within(open_dir(entry)?, Sharing::Shared, CACHE_LOCK_TIMEOUT)?
            .ok_or(io::ErrorKind::TimedOut)?;
        if locked.file().metadata()?.nlink() == 0 {
            return Ok(None);
        }
        locked.file().set_modified(SystemTime::now())?;
        Ok(Some(locked))
    };
    match hold() {
        Ok(held) => Ok(held.map(HeldCache)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let message = format!("`{}` cannot be locked", entry.display());
            Err(cache_error(ErrorCode::System, message)
                .remedy("wait until no other command clears it, or take another --cache NAME")
                .source(error))
        }
    }
}

fn open_dir(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(CWD, path, flags, Mode::empty()) {
        // Closed to its owner, by a guest: for its mode alone it can still be opened.
        Err(rustix::io::Errno::ACCESS) => {
            Ok(openat(CWD, path, flags | OFlags::PATH, Mode::empty())?.into())
        }
        opened => Ok(opened?.into()),
    }
}

fn cache_error(code: ErrorCode, message: impl Into<String>) -> Error {
    Error::new(code, CACHE_FLAG, message.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(dir: &str, tenant: &str) -> Option<String> {
        let place = Workspace::Local(dir.parse().unwrap());
        let spec = SandboxSpec { tenant: tenant.parse().unwrap(), ..SandboxSpec::default() };
        project_key(&WantedWorkspace::Plain(place.clone()), &place, &spec)
    }

    #[test]
    fn projects_and_tenants_have_caches_of_their_own() {
        let one = key("/srv/a", "default").unwrap();
        assert_eq!(key("/srv/a", "default").unwrap(), one);
        assert_ne!(key("/srv/b", "default").unwrap(), one);
        assert_ne!(key("/srv/a", "other").unwrap(), one);
        assert!(is_entry_name(&format!("{one}-auto")));
        let nothing = WantedWorkspace::Plain(Workspace::Ephemeral);
        assert_eq!(project_key(&nothing, &Workspace::Ephemeral, &SandboxSpec::default()), None);
    }

    #[test]
    fn what_is_no_cache_of_a_project_is_not_cleaned() {
        for name in ["", "auto", "0123-auto", "microvm", &"x".repeat(32), &"0".repeat(33)] {
            assert!(!is_entry_name(name), "{name}");
        }
    }
}
