//! Tells one state of files on this host from another without reading them.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use super::RESERVED_DIRECTORIES;

/// A short name for these bytes.
pub(crate) fn hash_bytes(bytes: &[u8]) -> String {
    encode_hex(Sha256::digest(bytes).as_slice())
}

fn encode_hex(digest: &[u8]) -> String {
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Tells one state of a file from another.
pub(crate) fn hash_file_state(path: &Path) -> io::Result<String> {
    Ok(hash_bytes(describe_file_state(path)?.as_bytes()))
}

/// The same of a whole tree, as far as it is an image's own.
pub(crate) fn of_tree(root: &Path) -> io::Result<String> {
    let mut all = Sha256::new();
    visit_tree(root, &mut |path| {
        all.update(path.as_os_str().as_bytes());
        all.update(describe_file_state(path)?);
        Ok(())
    })?;
    Ok(encode_hex(all.finalize().as_slice()))
}

fn describe_file_state(path: &Path) -> io::Result<String> {
    let found = fs::symlink_metadata(path)?;
    let (dev, inode, mode, size) = (found.dev(), found.ino(), found.mode(), found.size());
    let (seconds, rest) = (found.ctime(), found.ctime_nsec());
    Ok(format!("\0{dev} {inode} {mode} {size} {seconds} {rest}\0"))
}

/// Goes to everything below, in the same order each time.
pub(crate) fn visit_tree(
    root: &Path,
    each: &mut impl FnMut(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let mut todo = vec![root.to_owned()];
    while let Some(directory) = todo.pop() {
        let mut names: Vec<_> = fs::read_dir(&directory)?
            .map(|entry| Ok(entry?.file_name()))
            .collect::<io::Result<_>>()?;
        names.sort();
        let ours =
            |name: &OsStr| directory == root && RESERVED_DIRECTORIES.iter().any(|own| name == *own);
        for name in names.into_iter().filter(|name| !ours(name)) {
            let path = directory.join(name);
            each(&path)?;
            if fs::symlink_metadata(&path)?.is_dir() {
                todo.push(path);
            }
        }
    }
    Ok(())
}
