//! Whether the kernel can lay a view over a directory here. Asked before one is made, since a sandbox
//! that finds out has nothing to fall back on.

use std::os::fd::AsFd;

use rustix::fs::{XattrFlags, fremovexattr, fsetxattr, fstatfs};

/// File systems that are known to serve as upper layers, by the numbers the kernel gives them: ext2 to
/// ext4, xfs, btrfs, tmpfs, f2fs, bcachefs, zfs. Overlays, networks' and those in user space do not.
const UPPER_FILESYSTEM_MAGICS: [u64; 7] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0xf2f5_2010, 0xca45_1a4e, 0x2fc1_2fc1];

/// Extended attribute that needs what the overlay's own attributes need.
const PROBE_XATTR: &str = "user.stockade";

/// Whether a directory lies on a file system that can hold an upper layer. A copy is made where that is
/// not certain.
pub(crate) fn holds_layers(dir: impl AsFd) -> bool {
    let known =
        fstatfs(&dir).is_ok_and(|found| UPPER_FILESYSTEM_MAGICS.contains(&(found.f_type as u64)));
    known
        && fsetxattr(&dir, PROBE_XATTR, b"1", XattrFlags::empty())
            .and_then(|()| fremovexattr(&dir, PROBE_XATTR))
            .is_ok()
}
