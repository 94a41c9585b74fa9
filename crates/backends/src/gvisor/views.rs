//! What a guest may only read is read-only by the kernel, and not by the runtime's word alone: without root, newer
//! runtimes empty a file of a read-only mount before they refuse to write to it. With root the runtime's gofer
//! has such mounts of its own.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use stockade_core::Result;
use stockade_launcher::{Made, ReadOnlyView};

use super::plan::BundlePlan;
use super::private::{GvisorPrivate, PRIVATE_DIRS};
use crate::linux::private_dirs::create_file;

/// Lets the plan name places of the sandbox's own instead of what the guest may only read, and returns what is
/// to be shown at them.
pub(super) fn stage_views(
    private: &GvisorPrivate,
    plan: &mut BundlePlan,
) -> Result<Vec<ReadOnlyView>> {
    let mut views = Vec::new();
    if !plan.is_rootless() {
        return Ok(views);
    }
    let directory = private.path().join("views");
    make_directory(&directory)?;
    let mounted = plan.pieces.iter_mut().filter_map(|piece| match &mut piece.made {
        Made::Mount(source) => Some(source),
        Made::Link(_) | Made::File(_) => None,
    });
    let bound = plan.binds.iter_mut().filter(|bind| bind.read_only).map(|bind| &mut bind.source);
    for source in mounted.chain(bound) {
        let target = make_target(&directory.join(views.len().to_string()), source)?;
        let source = std::mem::replace(source, target.clone());
        views.push(ReadOnlyView { source, target });
    }
    Ok(views)
}

/// Something of the same kind, to be mounted on.
fn make_target(target: &Path, source: &Path) -> Result<PathBuf> {
    let found = fs::metadata(source);
    match found
        .map_err(|error| PRIVATE_DIRS.unusable("what is shown read-only cannot be found", error))?
    {
        found if found.is_dir() => make_directory(target)?,
        _ => create_file(target)
            .map(drop)
            .map_err(|error| PRIVATE_DIRS.unusable(VIEWS_ERROR, error))?,
    }
    Ok(target.to_owned())
}

fn make_directory(directory: &Path) -> Result<()> {
    let made = DirBuilder::new().mode(0o700).create(directory);
    made.map_err(|error| PRIVATE_DIRS.unusable(VIEWS_ERROR, error))
}

const VIEWS_ERROR: &str = "mount points for read-only mounts cannot be created";
