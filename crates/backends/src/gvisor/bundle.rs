//! Lays a sandbox's root into its private directory: small files, links, and the places where the
//! runtime will mount the rest. Follows no link: those are laid last, when nothing is made any more.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use stockade_core::{Error, ErrorCode, Result, WORKSPACE_ROOT};
use stockade_launcher::Made;

use super::NAME;
use super::plan::Plan;
use super::private::{Private, unusable};
use crate::linux::embed;

/// The agent, inside.
pub(super) const AGENT: &str = "/.stockade-agent";

pub(super) fn lay(private: &Private, plan: &Plan) -> Result<()> {
    let root = private.root();
    let laid = points(&root, plan).and_then(|()| files(&root, plan));
    laid.map_err(|error| unusable("the root cannot be laid out", error))?;
    links(&root, plan)
}

/// Where something lies in the root, as seen from the host.
fn at(root: &Path, target: &Path) -> PathBuf {
    root.join(target.strip_prefix("/").unwrap_or(target))
}

/// The places of everything that is mounted.
fn points(root: &Path, plan: &Plan) -> io::Result<()> {
    for own in ["/proc", "/sys", "/dev", WORKSPACE_ROOT] {
        make(&at(root, Path::new(own)))?;
    }
    let mounted = plan.pieces.iter().filter_map(|piece| match &piece.made {
        Made::Mount(source) => Some((source, &piece.target)),
        Made::Link(_) | Made::File(_) => None,
    });
    let bound = plan.binds.iter().map(|bind| (&bind.source, &bind.target));
    for (source, target) in mounted.chain(bound) {
        point(&at(root, target), source.is_dir())?;
    }
    // What lies in a directory that is itself mounted, the runtime makes for itself.
    let own = |target: &Path| !plan.pieces.iter().any(|piece| target.starts_with(&piece.target));
    for place in plan.places.iter().filter(|place| own(&place.target)) {
        make(&at(root, &place.target))?;
    }
    Ok(())
}

/// Makes a directory and those above it, for everybody to look into, whatever the mask of this
/// process. Goes through no link.
fn make(place: &Path) -> io::Result<()> {
    if fs::symlink_metadata(place).is_ok_and(|found| found.is_dir()) {
        return Ok(());
    }
    place.parent().map_or(Ok(()), make)?;
    DirBuilder::new().mode(0o755).create(place)?;
    fs::set_permissions(place, Permissions::from_mode(0o755))
}

fn point(place: &Path, directory: bool) -> io::Result<()> {
    if directory {
        return make(place);
    }
    place.parent().map_or(Ok(()), make)?;
    OpenOptions::new().write(true).create(true).truncate(false).open(place).map(drop)
}

fn files(root: &Path, plan: &Plan) -> io::Result<()> {
    write(&at(root, Path::new(AGENT)), embed::agent_bytes(), 0o755)?;
    for piece in &plan.pieces {
        if let Made::File(bytes) = &piece.made {
            let place = at(root, &piece.target);
            place.parent().map_or(Ok(()), make)?;
            write(&place, bytes, 0o644)?;
        }
    }
    Ok(())
}

/// A new file: what is there already is a place that something else was meant for.
fn write(place: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(place)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(bytes)
}

fn links(root: &Path, plan: &Plan) -> Result<()> {
    for piece in &plan.pieces {
        if let Made::Link(to) = &piece.made {
            let place = at(root, &piece.target);
            let laid = place.parent().map_or(Ok(()), make);
            laid.and_then(|()| symlink(to, &place)).map_err(|error| {
                match error.kind() == io::ErrorKind::AlreadyExists {
                    true => behind(&piece.target),
                    false => unusable("the root cannot be laid out", error),
                }
            })?;
        }
    }
    Ok(())
}

fn behind(link: &Path) -> Error {
    let message = format!("mounts: a target lies behind `{}`, which is a link", link.display());
    Error::new(ErrorCode::Invalid, "create", message)
        .backend(NAME)
        .remedy("name the target by where the link leads")
}
