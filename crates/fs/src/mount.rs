//! What is mounted inside a tree is not the tree's: engines put files of their own into their containers.

use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, statx};
use rustix::path::Arg;

/// Whether something is mounted at a name, or at the directory itself if that is empty. A kernel that does not
/// tell, such as gVisor's, is taken to have nothing mounted there.
pub fn is_mount_point(dir: impl std::os::fd::AsFd, name: impl Arg) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    let found = statx(dir, name, flags, StatxFlags::empty());
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}
