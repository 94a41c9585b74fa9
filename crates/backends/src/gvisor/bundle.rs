//! Lays a sandbox's root: small files, links, and the places where the runtime will mount the rest. Follows
//! no link: those are laid last, when nothing is made any more. Also tells whether a root that was laid
//! before is still what would be laid now.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use stockade_core::{Error, ErrorCode, Result, WORKSPACE_ROOT};
use stockade_launcher::Made;

use super::NAME;
use super::plan::BundlePlan;
use super::private::PRIVATE_DIRS;
use crate::linux::embed;

/// The agent's path inside.
pub(super) const AGENT_PATH: &str = "/.stockade-agent";

/// The mode of directories and of the agent: readable by every user, writable by the owner alone.
const PUBLIC_MODE: u32 = 0o755;

/// The mode of a file that another is mounted on.
const MOUNT_POINT_MODE: u32 = 0o644;

/// One part of a root.
pub(super) enum RootPart<'p> {
    Directory,
    /// A file to mount another on.
    Point,
    File(&'p [u8], u32),
    Link(&'p Path),
}

/// Parts, with where each lies in the root.
pub(super) type RootParts<'p> = [(&'p Path, RootPart<'p>)];

/// Every part of a root with where it lies, in the order in which they are laid.
pub(super) fn list_root_parts(plan: &BundlePlan) -> Vec<(&Path, RootPart<'_>)> {
    let mut parts: Vec<_> = list_mount_points(plan);
    parts.push((Path::new(AGENT_PATH), RootPart::File(embed::agent_bytes(), PUBLIC_MODE)));
    let made = |piece: &'_ Made| matches!(piece, Made::File(_));
    let (files, links): (Vec<_>, Vec<_>) = plan.pieces.iter().partition(|piece| made(&piece.made));
    for piece in files.into_iter().chain(links) {
        match &piece.made {
            Made::File(bytes) => parts.push((&piece.target, RootPart::File(bytes, 0o644))),
            Made::Link(to) => parts.push((&piece.target, RootPart::Link(to))),
            Made::Mount(_) => {}
        }
    }
    parts
}

/// The places of everything that is mounted.
fn list_mount_points(plan: &BundlePlan) -> Vec<(&Path, RootPart<'_>)> {
    let own = ["/proc", "/sys", "/dev", WORKSPACE_ROOT].map(Path::new);
    let mut points: Vec<_> = own.into_iter().map(|own| (own, RootPart::Directory)).collect();
    let mounted = plan.pieces.iter().filter_map(|piece| match &piece.made {
        Made::Mount(source) => Some((source, &piece.target)),
        Made::Link(_) | Made::File(_) => None,
    });
    let bound = plan.binds.iter().map(|bind| (&bind.source, &bind.target));
    for (source, target) in mounted.chain(bound) {
        points.push((target, if source.is_dir() { RootPart::Directory } else { RootPart::Point }));
    }
    // What lies in a directory that is itself mounted, the runtime makes for itself.
    let own = |target: &Path| !plan.pieces.iter().any(|piece| target.starts_with(&piece.target));
    let places = plan.places.iter().map(|place| place.target.as_path());
    points.extend(places.filter(|target| own(target)).map(|target| (target, RootPart::Directory)));
    points
}

/// Lays a new root.
pub(super) fn lay_root(root: &Path, parts: &RootParts<'_>) -> Result<()> {
    create_directories(root)
        .map_err(|error| PRIVATE_DIRS.unusable("the root cannot be created", error))?;
    for (target, part) in parts {
        let laid = lay_one(&host_path(root, target), part);
        laid.map_err(|error| match (part, is_place_taken(&error)) {
            (RootPart::Link(_), true) => target_behind_link(target),
            (_, true) => place_is_taken(target).source(error),
            (_, false) => PRIVATE_DIRS.unusable("the root cannot be created", error),
        })?;
    }
    Ok(())
}

/// Where something lies in the root, as seen from the host.
fn host_path(root: &Path, target: &Path) -> PathBuf {
    root.join(target.strip_prefix("/").unwrap_or(target))
}

fn lay_one(place: &Path, part: &RootPart<'_>) -> io::Result<()> {
    if !matches!(part, RootPart::Directory) {
        place.parent().map_or(Ok(()), create_directories)?;
    }
    match part {
        RootPart::Directory => create_directories(place),
        RootPart::Point => {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(MOUNT_POINT_MODE);
            options.open(place).map(drop)
        }
        RootPart::File(bytes, mode) => write_new_file(place, bytes, *mode),
        RootPart::Link(to) => symlink(to, place),
    }
}

/// Makes a directory and its parents, readable by every user, independent of the umask. Goes through no link.
fn create_directories(place: &Path) -> io::Result<()> {
    if fs::symlink_metadata(place).is_ok_and(|found| found.is_dir()) {
        return Ok(());
    }
    place.parent().map_or(Ok(()), create_directories)?;
    DirBuilder::new().mode(PUBLIC_MODE).create(place)?;
    fs::set_permissions(place, Permissions::from_mode(PUBLIC_MODE))
}

/// A new file: what is there already is a place that something else was meant for.
fn write_new_file(place: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(place)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(bytes)
}

/// Whether a root has every part as it would be laid now: another process may have removed files from it.
pub(super) fn has_all_parts(root: &Path, parts: &RootParts<'_>) -> bool {
    parts.iter().all(|(target, part)| fits_one(&host_path(root, target), part).unwrap_or(false))
}

fn fits_one(place: &Path, part: &RootPart<'_>) -> io::Result<bool> {
    let found = fs::symlink_metadata(place)?;
    let has = |mode: u32| found.permissions().mode() & 0o7777 == mode;
    Ok(match part {
        RootPart::Directory => found.is_dir() && has(PUBLIC_MODE),
        RootPart::Point => found.is_file() && found.permissions().mode() & 0o022 == 0,
        RootPart::File(bytes, mode) => found.is_file() && has(*mode) && fs::read(place)? == *bytes,
        RootPart::Link(to) => found.is_symlink() && fs::read_link(place)? == *to,
    })
}

/// Whether something of another kind lies where a part belongs, or on the way there.
fn is_place_taken(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, IsADirectory, NotADirectory};
    matches!(error.kind(), AlreadyExists | IsADirectory | NotADirectory)
}

fn place_is_taken(target: &Path) -> Error {
    let message = format!("image: something else lies where `{}` belongs", target.display());
    Error::new(ErrorCode::Invalid, "create", message)
        .backend(NAME)
        .remedy("use an image that has nothing there, or a directory")
}

fn target_behind_link(link: &Path) -> Error {
    let message = format!("mounts: a target lies behind `{}`, which is a link", link.display());
    Error::new(ErrorCode::Invalid, "create", message)
        .backend(NAME)
        .remedy("name the target by where the link leads")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_root_can_be_written_to_by_others_whatever_the_umask() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        let parts = [
            (Path::new("/usr"), RootPart::Directory),
            (Path::new("/etc/point"), RootPart::Point),
            (Path::new("/etc/file"), RootPart::File(b"x", 0o644)),
        ];
        let make = || {
            stockade_launcher::take_own_umask(rustix::fs::Mode::empty()).unwrap();
            lay_root(&root, &parts).unwrap();
        };
        std::thread::scope(|scope| scope.spawn(make).join().unwrap());
        for made in ["", "usr", "etc", "etc/point", "etc/file"] {
            let mode = fs::metadata(root.join(made)).unwrap().permissions().mode();
            assert_eq!(mode & 0o022, 0, "{made}");
        }
        assert!(has_all_parts(&root, &parts));
        fs::set_permissions(root.join("etc/point"), Permissions::from_mode(0o666)).unwrap();
        assert!(!has_all_parts(&root, &parts), "somebody may have written to it");
    }

    #[test]
    fn an_image_with_programs_in_the_places_of_a_sandbox_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &'static str| Path::new(name);
        for (number, parts) in [
            [(place("/workspace"), RootPart::Directory), (place("/workspace"), RootPart::Point)],
            [(place("/var"), RootPart::Point), (place("/var/tmp"), RootPart::Directory)],
            [(place("/agent"), RootPart::Point), (place("/agent"), RootPart::File(b"x", 0o755))],
        ]
        .iter()
        .enumerate()
        {
            let refused = lay_root(&dir.path().join(number.to_string()), parts).unwrap_err();
            assert_eq!(refused.code(), ErrorCode::Invalid, "{refused}");
        }
    }
}
