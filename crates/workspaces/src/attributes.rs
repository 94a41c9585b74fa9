//! Extended attributes that a file keeps when its content is replaced: the user's own notes, and the list
//! of who may reach it. Never one that gives a program rights.

use std::fs::File;

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fsetxattr};
use rustix::io::Errno;

/// Without it the bits of the group would let in users that the list keeps out.
const ACCESS_LIST: &str = "system.posix_acl_access";
const USER_XATTR_PREFIX: &str = "user.";
/// Marks of overlays made by ordinary users: of no meaning outside of a layer.
const LAYER_MARKS: &str = "user.overlay.";
/// Upper bound that the kernel sets for a list of attribute names and for a value.
const MAX_XATTR_BYTES: usize = 64 << 10;

/// Gives a new file what the old one has of them.
pub(crate) fn copy_attributes(old: &File, new: &File) -> rustix::io::Result<()> {
    let mut names = vec![0; MAX_XATTR_BYTES];
    let length = match flistxattr(old, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        listed => listed?,
    };
    let mut value = vec![0; MAX_XATTR_BYTES];
    let listed = names[..length].split(|byte| *byte == 0);
    for name in listed.filter_map(|name| str::from_utf8(name).ok()).filter(|name| is_kept(name)) {
        match fgetxattr(old, name, &mut value[..]) {
            Ok(length) => fsetxattr(new, name, &value[..length], XattrFlags::empty())?,
            // Removed meanwhile.
            Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn is_kept(name: &str) -> bool {
    name == ACCESS_LIST || (name.starts_with(USER_XATTR_PREFIX) && !name.starts_with(LAYER_MARKS))
}
