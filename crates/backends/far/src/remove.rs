//! Removes a tree in which a guest worked: it may have taken every permission from its directories, and
//! links in it are never followed. Nobody writes to it any more.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Removes everything. Succeeds when nothing is there.
pub fn remove(tree: &Path) -> io::Result<()> {
    let removed = fs::remove_dir_all(tree);
    match removed {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            unlock(tree)?;
            forget(fs::remove_dir_all(tree))
        }
        removed => forget(removed),
    }
}

fn forget(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn unlock(dir: &Path) -> io::Result<()> {
    fs::set_permissions(dir, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            unlock(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_without_permissions_goes_and_a_link_out_of_it_is_not_followed() {
        let base = tempfile::tempdir().unwrap();
        let (tree, kept) = (base.path().join("tree"), base.path().join("kept"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        std::os::unix::fs::symlink(&kept, tree.join("a/link")).unwrap();
        fs::set_permissions(tree.join("a/b"), Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(tree.join("a"), Permissions::from_mode(0o000)).unwrap();
        remove(&tree).unwrap();
        assert!(!tree.exists() && kept.join("file").exists());
        remove(&tree).unwrap();
    }
}
