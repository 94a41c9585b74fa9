//! The copy-on-write workspace: an overlay of the host's directory whose changes land beside it. The
//! layers themselves are mounted where only this process sees them, and go with the old root.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, XattrFlags};
use rustix::io::Errno;

use crate::base_namespaces::{CHANGES_DIR, LOWER_DIR};
use crate::error::{At, Failure, Wall};
use crate::fs;
use crate::open::OpenLayers;

/// The kernel's name for the file system.
pub(crate) const OVERLAY_FS_TYPE: &str = "overlay";

/// An extended attribute that needs what the overlay's own ones need.
const PROBE_XATTR: &str = "user.stockade";

/// Mounts the view, detached. A view that is only read needs no place for changes: what was changed
/// before lies on top of what is shown.
pub(crate) fn mount_overlay(layers: &OpenLayers, read_only: bool) -> Result<OwnedFd, Failure> {
    attach_tree(&layers.lower, LOWER_DIR)?;
    attach_tree(&layers.beside, CHANGES_DIR)?;
    let (upper, work) = (descriptor_path(&layers.upper), descriptor_path(&layers.work));
    if read_only {
        let both = format!("{upper}:{LOWER_DIR}");
        let options = [("lowerdir", both.as_str()), ("userxattr", "")];
        return fs::make_detached_fs(OVERLAY_FS_TYPE, &options, fs::READ_ONLY_MOUNT)
            .map_err(build_mount_failure);
    }
    holds_marks(&work)?;
    mount_writable(LOWER_DIR, &upper, &work)
}

/// Mounts a view of an empty directory, with layers in memory. On older kernels memory holds no marks,
/// which the layers of a real one must.
pub(crate) fn mount_trial_overlay() -> Result<OwnedFd, Failure> {
    let memory =
        fs::make_tmpfs(1 << 20, "0755", fs::WRITABLE_MOUNT).at(Wall::Workspace, "a tmpfs")?;
    attach_tree(&memory, CHANGES_DIR)?;
    for layer in ["lower", "upper", "work"] {
        let made = rustix::fs::mkdirat(&memory, layer, Mode::from_raw_mode(0o755));
        made.at(Wall::Workspace, layer)?;
    }
    let [lower, upper, work] =
        ["lower", "upper", "work"].map(|name| format!("{CHANGES_DIR}/{name}"));
    mount_writable(&lower, &upper, &work)
}

fn mount_writable(lower: &str, upper: &str, work: &str) -> Result<OwnedFd, Failure> {
    let options = [
        ("lowerdir", lower),
        ("upperdir", upper),
        ("workdir", work),
        ("userxattr", ""),
        // An index would tie the layers to this very lower directory, and a copy of them to none.
        ("index", "off"),
    ];
    fs::make_detached_fs(OVERLAY_FS_TYPE, &options, fs::WRITABLE_MOUNT).map_err(build_mount_failure)
}

/// A path to something that is open. The mount it was opened in is this sandbox's by now.
fn descriptor_path(layer: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", layer.as_raw_fd())
}

fn attach_tree(tree: &OwnedFd, place: &str) -> Result<(), Failure> {
    fs::open_path(place).and_then(|place| fs::attach_mount(tree, place)).at(Wall::Workspace, place)
}

/// Without marks the kernel would mount it all the same, and fail at the first directory that is
/// removed and made again.
fn holds_marks(work: &str) -> Result<(), Failure> {
    let marked = rustix::fs::setxattr(work, PROBE_XATTR, b"1", XattrFlags::empty())
        .and_then(|()| rustix::fs::removexattr(work, PROBE_XATTR));
    marked.map_err(|errno| {
        let failure = Failure::new(Wall::Workspace, errno, "marking the layers");
        match errno {
            Errno::OPNOTSUPP => failure.remedy(
                "keep the layers on a file system with extended attributes (ext4, xfs, btrfs, or a \
                 tmpfs since Linux 6.6)",
            ),
            _ => failure.remedy("give the layers to the user who runs this"),
        }
    })
}

fn build_mount_failure(errno: Errno) -> Failure {
    Failure::new(Wall::Workspace, errno, "an overlay of the workspace").remedy(
        "use Linux 5.11 or later, keep the layers on a plain file system (not on an overlay or a \
         network's), and show a directory without other file systems below",
    )
}
