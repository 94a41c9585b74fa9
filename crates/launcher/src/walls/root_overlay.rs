//! The copy-on-write root: an overlay whose changes land in memory of this sandbox alone. The lower
//! directories stay read-only, regardless of writes above.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode};
use rustix::io::Errno;

use crate::base_namespaces::{LAYER_DIR, STAGE_DIR};
use crate::error::{At, Failure, Wall};
use crate::fs;
use crate::open::format_path;
use crate::template::RootTemplate;

/// The owner that the kernel shows for one that has no number inside.
const OVERFLOW_UID: u32 = 65534;

/// Builds the root on the stage: one overlay for the root itself, one for each system directory,
/// and plain clones of what is not layered (devices, parts of `/etc`).
pub(crate) fn stage_layered_root(
    bytes: u64,
    template: &RootTemplate,
    uid: u32,
) -> Result<OwnedFd, Failure> {
    let wall = Wall::CopyOnWrite;
    let memory =
        fs::make_tmpfs(bytes, "0755", fs::WRITABLE_MOUNT).at(wall, "memory for the layer")?;
    let place = fs::open_path(LAYER_DIR).at(wall, LAYER_DIR)?;
    fs::attach_mount(&memory, place).at(wall, LAYER_DIR)?;
    let root = mount_overlay(&memory, 0, &template.bare_path(), uid)?;
    fs::attach_mount(&root, fs::open_path(STAGE_DIR).at(wall, STAGE_DIR)?).at(wall, STAGE_DIR)?;
    for (index, target) in template.mounts.iter().enumerate() {
        let below = format!("{}{}", template.path, format_path(target));
        let tree = match template.layers.contains(target) {
            true => mount_overlay(&memory, index + 1, &below, uid)?,
            false => fs::clone_tree(CWD, &below).at(wall, &below)?,
        };
        fs::attach_in(&tree, &root, target).at(wall, &format_path(target))?;
    }
    Ok(root)
}

fn mount_overlay(
    memory: &OwnedFd,
    index: usize,
    below: &str,
    uid: u32,
) -> Result<OwnedFd, Failure> {
    owned_inside(below, uid)?;
    let (upper, work) = (format!("upper{index}"), format!("work{index}"));
    for directory in [&upper, &work] {
        rustix::fs::mkdirat(memory, Path::new(directory), Mode::from_raw_mode(0o755))
            .at(Wall::CopyOnWrite, directory)?;
    }
    let (upper, work) = (format!("{LAYER_DIR}/{upper}"), format!("{LAYER_DIR}/{work}"));
    let options =
        [("lowerdir", below), ("upperdir", &upper), ("workdir", &work), ("userxattr", "")];
    fs::make_detached_fs("overlay", &options, fs::WRITABLE_MOUNT).at(Wall::CopyOnWrite, below)
}

/// The kernel can copy up only what has an owner in this user namespace; finding out when the guest
/// first writes would look like a broken disk.
fn owned_inside(below: &str, uid: u32) -> Result<(), Failure> {
    let owner = rustix::fs::stat(below).at(Wall::CopyOnWrite, below)?.st_uid;
    match owner == OVERFLOW_UID && uid != OVERFLOW_UID {
        false => Ok(()),
        true => {
            Err(Failure::new(Wall::CopyOnWrite, Errno::OVERFLOW, describe_owner_problem(below))
                .remedy("run as root, or start from an image (--image) of the user who runs this"))
        }
    }
}

fn describe_owner_problem(below: &str) -> String {
    let inside = below.splitn(4, '/').nth(3).unwrap_or_default();
    format!("/{inside} belongs to a user who does not exist inside")
}
