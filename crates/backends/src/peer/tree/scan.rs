//! How a whole tree looks now. Nothing is opened but directories.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, OFlags, statat};
use rustix::io::Errno;

use super::stamp::{FileStamp, StampKind};
use super::{Count, Side, TreeError, TreeManifest, beneath};

/// Deepest tree that is copied: each level holds a descriptor.
const MAX_TREE_DEPTH: usize = 256;

/// Looks at everything below the root.
pub(super) fn scan_tree(root: &OwnedFd, side: Side) -> Result<TreeManifest, TreeError> {
    let mut found = TreeManifest::new();
    let top = beneath::open_readable(root, Path::new(""), OFlags::DIRECTORY, side);
    let top = top.map_err(|error| TreeError::at(Path::new("."), error))?;
    TreeScan { side, found: &mut found, count: Count::default() }.scan_directory(
        &top,
        Path::new(""),
        0,
    )?;
    Ok(found)
}

struct TreeScan<'a> {
    side: Side,
    found: &'a mut TreeManifest,
    count: Count,
}

impl TreeScan<'_> {
    fn scan_directory(
        &mut self,
        dir: &OwnedFd,
        path: &Path,
        depth: usize,
    ) -> Result<(), TreeError> {
        if depth > MAX_TREE_DEPTH {
            return Err(TreeError::TooLarge(format!("{MAX_TREE_DEPTH} directories in each other")));
        }
        for item in Dir::read_from(dir).map_err(|errno| TreeError::at(path, errno))? {
            let item = item.map_err(|errno| TreeError::at(path, errno))?;
            let name = OsStr::from_bytes(item.file_name().to_bytes());
            if name != "." && name != ".." {
                self.scan_entry(dir, name, path.join(name), depth)?;
            }
        }
        Ok(())
    }

    fn scan_entry(
        &mut self,
        dir: &OwnedFd,
        name: &OsStr,
        path: PathBuf,
        depth: usize,
    ) -> Result<(), TreeError> {
        let stat = match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            // It vanished between being listed and being looked at.
            Err(Errno::NOENT) => return Ok(()),
            stat => stat.map_err(|errno| TreeError::at(&path, errno))?,
        };
        let Some(stamp) = FileStamp::of(&stat, self.side) else { return Ok(()) };
        let is_dir = stamp.kind == StampKind::Directory;
        self.count.add_path(&path)?;
        self.found.insert(OsString::from(&path), stamp);
        if !is_dir {
            return Ok(());
        }
        match beneath::open_readable(dir, Path::new(name), OFlags::DIRECTORY, self.side) {
            Ok(inner) => self.scan_directory(&inner, &path, depth + 1),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(TreeError::at(&path, error)),
        }
    }
}
