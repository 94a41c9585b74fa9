//! Extended attributes of users. A file system without them does without.

use std::os::fd::BorrowedFd;

use rustix::fs::{XattrFlags, flistxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

use super::failed;
use crate::UnpackError;
use crate::archive::ArchiveEntry;
use crate::name::{EntryName, show};

const USER_XATTR_PREFIX: &[u8] = b"user.";
/// Upper bound that the kernel sets for a list of attribute names.
const MAX_XATTR_LIST_BYTES: usize = 64 << 10;

/// Gives a file or directory the attributes of its entry.
pub(super) fn set_user_xattrs(
    file: BorrowedFd<'_>,
    entry: &ArchiveEntry,
) -> Result<(), UnpackError> {
    for (name, value) in &entry.user_xattrs {
        match fsetxattr(file, name.as_slice(), value, XattrFlags::empty()) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(Errno::INVAL | Errno::RANGE | Errno::TOOBIG) => {
                let shown = show(entry.name.bytes());
                return Err(UnpackError::refused(format!(
                    "{shown} has a wrong extended attribute"
                )));
            }
            Err(errno) => return Err(failed("given its attributes", &entry.name, errno)),
        }
    }
    Ok(())
}

/// Removes the attributes that lower layers gave a directory: a layer that lists it says all that it has.
pub(super) fn remove_user_xattrs(
    directory: BorrowedFd<'_>,
    name: &EntryName,
) -> Result<(), UnpackError> {
    let mut list = vec![0; MAX_XATTR_LIST_BYTES];
    let length = match flistxattr(directory, &mut list[..]) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        listed => listed.map_err(|errno| failed("looked at", name, errno))?,
    };
    let listed = list[..length].split(|byte| *byte == 0);
    for xattr in listed.filter(|xattr| xattr.starts_with(USER_XATTR_PREFIX)) {
        match fremovexattr(directory, xattr) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(errno) => return Err(failed("given its attributes", name, errno)),
        }
    }
    Ok(())
}
