//! Removes a directory tree that a guest has filled, after its last process has ended: of any depth, with
//! any modes and names. Never follows a link, and needs the same memory for any tree. Two processes may
//! clear it at once: a warden, and one that finds the warden's owner gone.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, chmodat, openat, renameat, unlinkat};
use rustix::io::Errno;

/// How many entries are read before those are removed.
const MAX_BATCH_ENTRIES: usize = 512;

/// Removes a directory with everything in it. Succeeds when nothing is there.
pub fn clear(path: &Path) -> io::Result<()> {
    let top = match open_directory(CWD, path) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    let mut moved = 0;
    // A directory inside gives its own directories to the top before it goes, so that the way down
    // is never longer than one step.
    loop {
        empty_directory(&top, |name| flatten_directory(&top, name, &mut moved))?;
        match ignore_missing(unlinkat(CWD, path, AtFlags::REMOVEDIR)) {
            // A concurrent removal has just moved a directory up.
            Err(Errno::NOTEMPTY) => {}
            removed => return Ok(removed?),
        }
    }
}

/// Removes everything but directories, which are dealt with as told until none is left.
fn empty_directory(
    directory: &OwnedFd,
    mut deal_with: impl FnMut(&CStr) -> Result<(), Errno>,
) -> Result<(), Errno> {
    loop {
        let entries = read_entry_batch(directory)?;
        if entries.is_empty() {
            return Ok(());
        }
        for (name, is_directory) in entries {
            match is_directory {
                true => ignore_missing(remove_directory(directory, &name, &mut deal_with))?,
                false => ignore_missing(unlinkat(directory, &name, AtFlags::empty()))?,
            }
        }
    }
}

/// Removes a directory, which is dealt with as told where it is not empty. Most are: places to mount on.
fn remove_directory(
    directory: &OwnedFd,
    name: &CStr,
    deal_with: &mut impl FnMut(&CStr) -> Result<(), Errno>,
) -> Result<(), Errno> {
    match unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => deal_with(name),
        removed => removed,
    }
}

fn ignore_missing(removed: Result<(), Errno>) -> Result<(), Errno> {
    if removed == Err(Errno::NOENT) { Ok(()) } else { removed }
}

fn open_directory(
    at: impl std::os::fd::AsFd,
    name: impl rustix::path::Arg,
) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

/// Some entries, each with whether it is a directory; none only where there are none.
fn read_entry_batch(directory: &OwnedFd) -> Result<Vec<(CString, bool)>, Errno> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match is_directory(directory, name, entry.file_type()) {
            Err(Errno::NOENT) => continue,
            told => entries.push((name.to_owned(), told?)),
        }
        if entries.len() == MAX_BATCH_ENTRIES {
            break;
        }
    }
    Ok(entries)
}

/// Some file systems do not say with the name what it is.
fn is_directory(directory: &OwnedFd, name: &CStr, told: FileType) -> Result<bool, Errno> {
    if told != FileType::Unknown {
        return Ok(told == FileType::Directory);
    }
    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Empties one directory of the top and removes it.
fn flatten_directory(top: &OwnedFd, name: &CStr, moved: &mut u64) -> Result<(), Errno> {
    // Its owner may have locked itself out of it.
    chmodat(top, name, Mode::RWXU, AtFlags::empty())?;
    let directory = open_directory(top, name)?;
    empty_directory(&directory, |inner| move_up(&directory, inner, top, moved))?;
    match ignore_missing(unlinkat(top, name, AtFlags::REMOVEDIR)) {
        // Another one has been moved here meanwhile: it is met again at the top.
        Err(Errno::NOTEMPTY) => Ok(()),
        removed => removed,
    }
}

fn move_up(from: &OwnedFd, name: &CStr, top: &OwnedFd, moved: &mut u64) -> Result<(), Errno> {
    // A directory can be moved only by who may write to it.
    chmodat(from, name, Mode::RWXU, AtFlags::empty())?;
    loop {
        *moved += 1;
        let to = format!(".cleared-{moved}");
        match renameat(from, name, top, to) {
            // The guest has guessed the name: the next one will do.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_tree_of_any_depth_and_mode_is_removed_and_links_are_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let (top, kept) = (home.path().join("top"), home.path().join("kept"));
        std::fs::create_dir(&top).unwrap();
        std::fs::write(&kept, "kept").unwrap();
        symlink(home.path(), top.join("link")).unwrap();
        std::fs::write(top.join(".cleared-1"), "in the way").unwrap();
        let mut at = open_directory(CWD, &top).unwrap();
        // Deeper than any path can name, and than descriptors can follow.
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = open_directory(&at, "d").unwrap();
        }
        let locked = top.join("locked");
        std::fs::create_dir(&locked).unwrap();
        std::fs::write(locked.join("file"), "x").unwrap();
        std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o0)).unwrap();
        clear(&top).unwrap();
        assert!(!top.exists());
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), "kept");
        clear(&top).unwrap();
    }

    fn fill_tree(top: &Path) {
        for place in ["a/b/c", "a/d", "e/f/g/h", "i"] {
            let place = top.join(place);
            std::fs::create_dir_all(&place).unwrap();
            (0..20).for_each(|n| std::fs::write(place.join(n.to_string()), "x").unwrap());
        }
    }

    #[test]
    fn two_who_remove_the_same_tree_both_succeed() {
        let home = tempfile::tempdir().unwrap();
        let top = home.path().join("top");
        for _ in 0..50 {
            fill_tree(&top);
            let start = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                let both = [(); 2].map(|()| {
                    scope.spawn(|| {
                        start.wait();
                        clear(&top)
                    })
                });
                for one in both {
                    one.join().unwrap().unwrap();
                }
            });
            assert!(!top.exists());
        }
    }
}
