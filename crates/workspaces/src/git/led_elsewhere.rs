//! Refuses repositories of this host that lead to others. A guest may have written to the directory that is named; what git
//! reads by way of it, with its user's rights, is shown to the next guest.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The longest file that names a directory, and the longest configuration that is looked at.
const MAX_POINTER_BYTES: u64 = 64 << 10;
/// The most entries of an object database.
const MAX_OBJECTS: usize = 4_000_000;

type Problem = &'static str;

const BORROWED: Problem = "borrows objects from another repository (`objects/info/alternates`)";
const LINKED: Problem = "has a link among the files of its repository";
const PART: Problem = "holds a part of another repository (`commondir`)";
const NOT_NAMED_BACK: Problem =
    "has a `.git` that names a repository which does not name this directory as its worktree";

/// Checks the repository in a directory, whose path has no links.
pub(super) fn check_repository(dir: &Path) -> Result<(), Problem> {
    let dot_git = dir.join(".git");
    match fs::symlink_metadata(&dot_git) {
        Ok(found) if found.is_symlink() => Err(LINKED),
        Ok(found) if found.is_file() => check_worktree(dir, &dot_git),
        Ok(_) => check_whole(&dot_git),
        // A bare one, or none, as git says by itself.
        Err(_) => check_whole(dir),
    }
}

/// Checks a git directory that is in the directory that was named.
fn check_whole(git_dir: &Path) -> Result<(), Problem> {
    if fs::symlink_metadata(git_dir.join("commondir")).is_ok() {
        return Err(PART);
    }
    check_contents(git_dir)
}

/// Checks a worktree or submodule: its git directory lies elsewhere, where no guest of this directory could write, and
/// names it back.
fn check_worktree(dir: &Path, pointer: &Path) -> Result<(), Problem> {
    let named = read_pointer(pointer).ok_or(NOT_NAMED_BACK)?;
    let named = named.strip_prefix("gitdir:").ok_or(NOT_NAMED_BACK)?.trim();
    let git_dir = dir.join(named).canonicalize().map_err(|_| NOT_NAMED_BACK)?;
    if is_worktree_of(&git_dir, pointer) {
        let common = read_pointer(&git_dir.join("commondir")).unwrap_or_default();
        let common = git_dir.join(common.trim()).canonicalize().map_err(|_| NOT_NAMED_BACK)?;
        return check_contents(&common);
    }
    match is_submodule_of(&git_dir, dir) {
        true => check_whole(&git_dir),
        false => Err(NOT_NAMED_BACK),
    }
}

fn is_worktree_of(git_dir: &Path, pointer: &Path) -> bool {
    read_pointer(&git_dir.join("gitdir"))
        .and_then(|back| git_dir.join(back.trim()).canonicalize().ok())
        .is_some_and(|back| back == pointer)
}

fn is_submodule_of(git_dir: &Path, dir: &Path) -> bool {
    let config = read_pointer(&git_dir.join("config")).unwrap_or_default();
    let worktrees = config.lines().filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "worktree").then(|| git_dir.join(value.trim()))
    });
    let mut real = worktrees.filter_map(|path: PathBuf| path.canonicalize().ok());
    real.next().is_some_and(|path| path == dir) && real.next().is_none()
}

/// Checks what git reads objects and references from.
fn check_contents(git_dir: &Path) -> Result<(), Problem> {
    for name in ["HEAD", "config", "objects", "packed-refs", "refs", "shallow"] {
        refuse_link(&git_dir.join(name))?;
    }
    let objects = git_dir.join("objects");
    for name in ["info/alternates", "info/http-alternates"] {
        if fs::symlink_metadata(objects.join(name)).is_ok_and(|found| found.len() > 0) {
            return Err(BORROWED);
        }
    }
    refuse_links_below(&objects)
}

fn refuse_link(path: &Path) -> Result<(), Problem> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => Err(LINKED),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn refuse_links_below(top: &Path) -> Result<(), Problem> {
    let (mut directories, mut seen) = (vec![top.to_owned()], 0);
    while let Some(directory) = directories.pop() {
        // One that cannot be read is one from which git reads nothing.
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            seen += 1;
            let kind = entry.file_type();
            if seen > MAX_OBJECTS {
                return Err("has too many objects to be looked at");
            }
            match kind {
                Ok(kind) if kind.is_symlink() => return Err(LINKED),
                Ok(kind) if kind.is_dir() => directories.push(entry.path()),
                Ok(_) | Err(_) => {}
            }
        }
    }
    Ok(())
}

/// The text of a small file; nothing for any other.
fn read_pointer(path: &Path) -> Option<String> {
    let found = fs::symlink_metadata(path).ok()?;
    if !found.is_file() || found.len() > MAX_POINTER_BYTES {
        return None;
    }
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_POINTER_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A git directory as far as it is looked at.
    fn make_git_dir(at: &Path) {
        fs::create_dir_all(at.join("objects/info")).unwrap();
        fs::create_dir_all(at.join("objects/pack")).unwrap();
        fs::create_dir_all(at.join("refs/heads")).unwrap();
        fs::write(at.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(at.join("config"), "[core]\n\tbare = false\n").unwrap();
    }

    fn base() -> (tempfile::TempDir, PathBuf) {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().canonicalize().unwrap();
        make_git_dir(&path.join("private/.git"));
        fs::create_dir(path.join("named")).unwrap();
        (base, path)
    }

    #[test]
    fn whole_repositories_with_and_without_a_worktree_are_taken() {
        let (_base, path) = base();
        assert_eq!(check_repository(&path.join("private")), Ok(()));
        assert_eq!(check_repository(&path.join("private/.git")), Ok(()));
        assert_eq!(check_repository(&path.join("named")), Ok(()), "git says that it is none");
    }

    #[test]
    fn a_directory_that_only_names_another_repository_is_refused() {
        let (_base, path) = base();
        let named = path.join("named");
        let private = path.join("private/.git");
        fs::write(named.join(".git"), format!("gitdir: {}\n", private.display())).unwrap();
        assert_eq!(check_repository(&named), Err(NOT_NAMED_BACK));
        fs::remove_file(named.join(".git")).unwrap();
        symlink(&private, named.join(".git")).unwrap();
        assert_eq!(check_repository(&named), Err(LINKED));
        fs::remove_file(named.join(".git")).unwrap();
        fs::create_dir(named.join(".git")).unwrap();
        fs::write(named.join(".git/commondir"), format!("{}\n", private.display())).unwrap();
        assert_eq!(check_repository(&named), Err(PART));
    }

    #[test]
    fn objects_of_another_repository_are_refused_however_they_are_borrowed() {
        let (_base, path) = base();
        let (named, private) = (path.join("named/.git"), path.join("private/.git"));
        let is_refused = |make: &dyn Fn(), why: Problem| {
            let _ = fs::remove_dir_all(&named);
            make_git_dir(&named);
            make();
            assert_eq!(check_repository(&path.join("named")), Err(why));
        };
        let alternates = format!("{}\n", private.join("objects").display());
        for file in ["alternates", "http-alternates"] {
            is_refused(
                &|| fs::write(named.join("objects/info").join(file), &alternates).unwrap(),
                BORROWED,
            );
        }
        is_refused(
            &|| {
                fs::remove_dir_all(named.join("objects")).unwrap();
                symlink(private.join("objects"), named.join("objects")).unwrap();
            },
            LINKED,
        );
        is_refused(
            &|| symlink(private.join("objects/pack/p"), named.join("objects/pack/p")).unwrap(),
            LINKED,
        );
    }

    #[test]
    fn worktrees_and_submodules_that_are_named_back_are_taken() {
        let (_base, path) = base();
        let (named, main) = (path.join("named"), path.join("private/.git"));
        let admin = main.join("worktrees/named");
        fs::create_dir_all(&admin).unwrap();
        fs::write(admin.join("gitdir"), format!("{}\n", named.join(".git").display())).unwrap();
        fs::write(admin.join("commondir"), "../..\n").unwrap();
        fs::write(named.join(".git"), format!("gitdir: {}\n", admin.display())).unwrap();
        assert_eq!(check_repository(&named), Ok(()));
        // Another directory that says the same is not the one that is named back.
        fs::create_dir(path.join("forged")).unwrap();
        fs::copy(named.join(".git"), path.join("forged/.git")).unwrap();
        assert_eq!(check_repository(&path.join("forged")), Err(NOT_NAMED_BACK));

        let module = main.join("modules/sub");
        make_git_dir(&module);
        fs::write(module.join("config"), "[core]\n\tworktree = ../../../sub\n").unwrap();
        fs::create_dir(path.join("private/sub")).unwrap();
        fs::write(path.join("private/sub/.git"), "gitdir: ../.git/modules/sub\n").unwrap();
        assert_eq!(check_repository(&path.join("private/sub")), Ok(()));
    }
}
