//! From an admitted spec to what the guest will see, as plain data. Host paths are resolved here, so
//! that what is mounted is what the caller meant.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stockade_core::{
    Admitted, HostPath, Image, Result, SandboxSpec, User, WORKSPACE_ROOT, Workspace,
};
use stockade_launcher::{Made, PRIVATE_DIRECTORIES, Piece, host_root};

use super::NAME;
use crate::linux::paths::{resolve_directory, resolve_path, unusable_path};
use crate::linux::{DEFAULT_USER, MAX_SCRATCH_BYTES, RESERVED_DIRECTORIES};

/// The user and group without privileges on any host.
const NOBODY_ID: u32 = 65534;

/// What the guest will see.
pub(super) struct BundlePlan {
    /// Links, files and read-only directories of the root.
    pub pieces: Vec<Piece>,
    /// Directories and files of the host.
    pub binds: Vec<Bind>,
    /// Places in memory.
    pub places: Vec<TmpfsMount>,
    /// Where the agent finds the workspace.
    pub workspace_dir: String,
    /// The user that everything inside runs as.
    pub user: User,
    /// The host's users that this user and the root of the runtime's helpers are mapped to; absent where
    /// the runtime runs without root and decides that itself.
    pub hosts: Option<Vec<(User, User)>>,
}

impl BundlePlan {
    /// Whether the runtime runs without root.
    pub(super) fn is_rootless(&self) -> bool {
        self.hosts.is_none()
    }
}

pub(super) struct Bind {
    pub source: PathBuf,
    pub target: PathBuf,
    pub read_only: bool,
}

pub(super) struct TmpfsMount {
    pub target: PathBuf,
    pub mode: u32,
    pub bytes: u64,
    pub read_only: bool,
}

pub(super) fn build_plan(admitted: &Admitted, rootless: bool) -> Result<BundlePlan> {
    let spec = admitted.spec();
    let scratch =
        admitted.limits().disk.map_or(MAX_SCRATCH_BYTES, |disk| disk.0.min(MAX_SCRATCH_BYTES));
    let user = choose_user(spec, rootless);
    let mut binds = resolve_mounts(spec)?;
    let place = |(target, mode): (&str, u32), read_only: bool| TmpfsMount {
        target: target.into(),
        mode,
        bytes: scratch,
        read_only,
    };
    let mut places: Vec<_> =
        PRIVATE_DIRECTORIES.into_iter().map(|private| place(private, false)).collect();
    let mut workspace_dir = WORKSPACE_ROOT;
    match &spec.workspace {
        Workspace::Local(path) => {
            workspace_dir = spec.workspace_dir();
            for target in spec.workspace_paths() {
                binds.insert(0, resolve_workspace(path, target, spec.read_only)?);
            }
        }
        // A copy-on-write one is not admitted on this backend.
        Workspace::Ephemeral | Workspace::Overlay(_) => {
            places.push(place((WORKSPACE_ROOT, 0o755), spec.read_only));
        }
    }
    let hosts = (!rootless).then(|| map_users_to_host(user, find_owner(&binds)));
    let workspace_dir = workspace_dir.to_owned();
    Ok(BundlePlan {
        pieces: list_image_pieces(&spec.image, user)?,
        binds,
        places,
        workspace_dir,
        user,
        hosts,
    })
}

/// The user that everything in the sandbox runs as. Without root there is only one user to be had, and it is
/// root by number, inside.
pub(super) fn choose_user(spec: &SandboxSpec, rootless: bool) -> User {
    let only = if rootless { User { uid: 0, gid: 0 } } else { DEFAULT_USER };
    spec.user.unwrap_or(only)
}

/// Owner of the files the guest works on: its user on the host. The user `nobody` where it is given none.
fn find_owner(binds: &[Bind]) -> User {
    let written = binds.iter().find(|bind| !bind.read_only);
    let found = written.and_then(|bind| fs::metadata(&bind.source).ok());
    found.map_or(User { uid: NOBODY_ID, gid: NOBODY_ID }, |found| User {
        uid: found.uid(),
        gid: found.gid(),
    })
}

/// User mappings, inside to host. The runtime's helpers are root inside and need a user on the host: root,
/// unless the guest itself is mapped to that.
fn map_users_to_host(user: User, owner: User) -> Vec<(User, User)> {
    let pair = |inside: u32, outside: u32| match inside {
        0 => vec![(0, outside)],
        inside => vec![(inside, outside), (0, if outside == 0 { NOBODY_ID } else { 0 })],
    };
    let (uids, gids) = (pair(user.uid, owner.uid), pair(user.gid, owner.gid));
    // One of the two may need a line less.
    let last = |list: &[(u32, u32)], at: usize| list.get(at).or(list.last()).copied();
    let line = |at: usize| {
        let ((uid, host_uid), (gid, host_gid)) = (last(&uids, at)?, last(&gids, at)?);
        Some((User { uid, gid }, User { uid: host_uid, gid: host_gid }))
    };
    (0..uids.len().max(gids.len())).filter_map(line).collect()
}

fn list_image_pieces(image: &Image, user: User) -> Result<Vec<Piece>> {
    let Image::Directory(path) = image else {
        // The other kinds are not admitted on this backend.
        return Ok(host_root(user.uid, user.gid));
    };
    let path = resolve_directory(&NAME, "image", path)?;
    let entries = fs::read_dir(&path)
        .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
        .map_err(|error| unusable_path(&NAME, "image", &path, "cannot be read").source(error))?;
    let names = entries.iter().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names
        .filter(|name| !RESERVED_DIRECTORIES.contains(&name.as_str()))
        .filter_map(|n| find_image_piece(&path, &n))
        .collect())
}

/// One entry of an image. A file is mounted too, so that programs keep their size and their mode.
fn find_image_piece(image: &Path, name: &str) -> Option<Piece> {
    let source = image.join(name);
    let found = fs::symlink_metadata(&source).ok()?;
    let made = match found.file_type() {
        kind if kind.is_symlink() => Made::Link(fs::read_link(&source).ok()?),
        kind if kind.is_dir() || kind.is_file() => Made::Mount(source),
        _ => return None,
    };
    Some(Piece { target: Path::new("/").join(name), made })
}

fn resolve_mounts(spec: &SandboxSpec) -> Result<Vec<Bind>> {
    let bind = |mount: stockade_core::Mount| {
        let source = resolve_path(&NAME, "mounts", &mount.source)?;
        Ok(Bind {
            source,
            target: PathBuf::from(mount.target.as_str()),
            read_only: mount.read_only,
        })
    };
    spec.all_mounts_without_commits().map(bind).collect()
}

fn resolve_workspace(path: &HostPath, target: &str, read_only: bool) -> Result<Bind> {
    let source = resolve_directory(&NAME, "workspace", path)?;
    Ok(Bind { source, target: target.into(), read_only })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(user: (u32, u32), owner: (u32, u32)) -> Vec<((u32, u32), (u32, u32))> {
        let make = |(uid, gid)| User { uid, gid };
        let pair = |(inside, outside): (User, User)| {
            ((inside.uid, inside.gid), (outside.uid, outside.gid))
        };
        map_users_to_host(make(user), make(owner)).into_iter().map(pair).collect()
    }

    #[test]
    fn the_guest_stands_for_the_owner_of_its_files_and_nobody_stands_for_two() {
        assert_eq!(told((1000, 1000), (7, 8)), [((1000, 1000), (7, 8)), ((0, 0), (0, 0))]);
        assert_eq!(
            told((1000, 1000), (0, 0)),
            [((1000, 1000), (0, 0)), ((0, 0), (NOBODY_ID, NOBODY_ID))]
        );
        assert_eq!(told((0, 0), (7, 8)), [((0, 0), (7, 8))]);
    }
}
