//! What the files below a directory take, counted from outside while a guest may be changing all of
//! it. Never leaves the directory and follows no link: each step is resolved by the kernel.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, openat, openat2, statat,
};
use rustix::io::Result;

/// The longest path that is resolved at once: some way below what the kernel takes.
const LONGEST: usize = 3000;
/// How many directories are kept open to start from: nothing anybody works with is that deep.
const MOST_STARTS: usize = 64;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory still to be looked at: a path below one that is open.
struct Place {
    start: Rc<OwnedFd>,
    /// How many starts lie between the first one and this one.
    starts: usize,
    path: PathBuf,
}

/// The bytes that files below a directory take, or nothing if that was no longer wanted. A tree too
/// deep to be walked is taken for endless: what cannot be counted must not be free.
pub(crate) fn used(root: &Path, wanted: impl Fn() -> bool) -> Option<u64> {
    let Ok(first) = openat(CWD, root, DIRECTORY, Mode::empty()) else { return Some(0) };
    let mut todo = vec![Place { start: Rc::new(first), starts: 0, path: PathBuf::from(".") }];
    let mut total = 0_u64;
    while let Some(place) = todo.pop() {
        if place.starts > MOST_STARTS {
            return Some(u64::MAX);
        }
        if !wanted() {
            return None;
        }
        // A directory that was moved or removed meanwhile is counted at the next look.
        let _ = look(&place, &mut total, &mut todo);
    }
    Some(total)
}

fn look(place: &Place, total: &mut u64, todo: &mut Vec<Place>) -> Result<()> {
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let directory = openat2(&*place.start, &place.path, DIRECTORY, Mode::empty(), inside)?;
    let directory = Rc::new(directory);
    for entry in Dir::read_from(&*directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let Ok(found) = statat(&*directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        *total += u64::try_from(found.st_blocks).unwrap_or(0) * 512;
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            todo.push(below(place, &directory, name));
        }
    }
    Ok(())
}

/// A directory in the one that was looked at: by a longer path, or, where that would get too long, from
/// a new start.
fn below(place: &Place, directory: &Rc<OwnedFd>, name: &CStr) -> Place {
    let name = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    if place.path.as_os_str().len() > LONGEST {
        let start = Rc::clone(directory);
        return Place { start, starts: place.starts + 1, path: name.to_owned() };
    }
    Place { start: Rc::clone(&place.start), starts: place.starts, path: place.path.join(name) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn used(root: &Path) -> u64 {
        super::used(root, || true).unwrap()
    }

    #[test]
    fn a_count_that_nobody_wants_any_more_ends_at_the_next_directory() {
        let dir = tempfile::tempdir().unwrap();
        (0..100).for_each(|n| fs::create_dir(dir.path().join(n.to_string())).unwrap());
        let asked = std::cell::Cell::new(0);
        let twice = || asked.replace(asked.get() + 1) < 2;
        assert_eq!(super::used(dir.path(), twice), None);
        assert_eq!(asked.get(), 3);
    }

    #[test]
    fn files_count_by_the_space_they_take_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let before = used(dir.path());
        fs::write(dir.path().join("file"), vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("link")).unwrap();
        let after = used(dir.path());
        assert!((1 << 20..2 << 20).contains(&(after - before)), "{before} {after}");
    }

    /// Directories in directories, each reached from the one before, as no path could.
    fn dig(from: &Path, depth: usize) -> OwnedFd {
        let name = "d".repeat(200);
        let mut at = openat(CWD, from, DIRECTORY, Mode::empty()).unwrap();
        for _ in 0..depth {
            rustix::fs::mkdirat(&at, &name, Mode::RWXU).unwrap();
            at = openat(&at, &name, DIRECTORY, Mode::empty()).unwrap();
        }
        at
    }

    #[test]
    fn what_lies_deeper_than_a_path_can_name_counts() {
        let dir = tempfile::tempdir().unwrap();
        let deepest = dig(dir.path(), 100);
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let file = openat(&deepest, "file", flags, Mode::RWXU).unwrap();
        rustix::io::write(&file, &vec![1; 1 << 20]).unwrap();
        assert!(used(dir.path()) >= 1 << 20);
    }

    #[test]
    fn a_tree_too_deep_to_be_walked_is_taken_for_endless() {
        let dir = tempfile::tempdir().unwrap();
        dig(dir.path(), 1200);
        assert_eq!(used(dir.path()), u64::MAX);
        // By a program that any depth can be trusted to.
        std::process::Command::new("rm").arg("-rf").arg(dir.path()).status().unwrap();
    }
}
