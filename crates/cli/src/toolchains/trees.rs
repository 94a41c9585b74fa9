//! Which directories and files of a toolchain's root are shown: those of its row that are there, without what
//! may hold credentials. A link below the root leads out of the list, so nothing behind one is shown.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use stockade_fs::RealPaths;

use super::table::{NEVER_SHOWN, ToolchainRoot};

/// Directories that hold programs and libraries alone, by the thousand: they are not looked into.
const PROGRAM_DIRS: [&str; 9] =
    ["bin", "sbin", "lib", "lib64", "libexec", "include", "share", "shims", "src"];
/// The most entries of one root that are looked at. A root that has more is not shown at all.
const MAX_ENTRIES: usize = 20_000;

/// What is shown of one root, and what is not, with the reason.
#[derive(Debug, Default)]
pub struct ShownTrees {
    pub paths: Vec<PathBuf>,
    pub left_out: Vec<(PathBuf, String)>,
}

/// Looks through the trees of a root that `wanted` accepts.
pub fn expand_root(
    paths: &RealPaths,
    root: &Path,
    row: &ToolchainRoot,
    (patterns, depth): (&[&str], usize),
    wanted: impl Fn(&Path) -> bool,
) -> ShownTrees {
    let mut scan = SecretScan { paths, row, depth, entries: 0, shown: ShownTrees::default() };
    let Ok(real_root) = paths.canonicalize(root) else { return scan.shown };
    for pattern in patterns {
        for path in expand_pattern(root, pattern).into_iter().filter(|path| wanted(path)) {
            scan.scan_tree(root, &real_root, &path);
        }
    }
    scan.shown
}

/// Paths that a pattern stands for. Not all need be there.
fn expand_pattern(root: &Path, pattern: &str) -> Vec<PathBuf> {
    let parts = pattern.split('/').filter(|part| *part != ".");
    parts.fold(vec![root.to_owned()], |found, part| match part {
        "*" => found
            .iter()
            .flat_map(|dir| list_children(dir).unwrap_or_default())
            .map(|c| c.path)
            .collect(),
        name => found.into_iter().map(|dir| dir.join(name)).collect(),
    })
}

/// One entry of a directory.
struct Child {
    path: PathBuf,
    kind: fs::FileType,
}

fn list_children(dir: &Path) -> io::Result<Vec<Child>> {
    let child = |entry: io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok(Child { path: entry.path(), kind: entry.file_type()? })
    };
    let mut found = fs::read_dir(dir)?.map(child).collect::<io::Result<Vec<_>>>()?;
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

struct SecretScan<'r> {
    paths: &'r RealPaths,
    row: &'r ToolchainRoot,
    depth: usize,
    entries: usize,
    shown: ShownTrees,
}

impl SecretScan<'_> {
    fn scan_tree(&mut self, root: &Path, real_root: &Path, path: &Path) {
        let Ok(real) = self.paths.canonicalize(path) else { return };
        let expected = path.strip_prefix(root).map(|inside| real_root.join(inside));
        // Joining nothing leaves a slash at the end, which is the same path.
        if expected.is_ok_and(|expected| expected.components().eq(real.components())) {
            let dir = real.is_dir();
            match if dir { self.holds_secrets(path, 0) } else { Ok(false) } {
                Ok(false) => self.shown.paths.push(path.to_owned()),
                Ok(true) => self.show_parts(path, 0),
                Err(why) => self.leave_out(path, why),
            }
        } else {
            self.leave_out(path, format!("is a link to `{}`", real.display()));
        }
    }

    /// Whether something below this directory must not be shown.
    fn holds_secrets(&mut self, dir: &Path, depth: usize) -> Result<bool, String> {
        if depth >= self.depth || is_program_dir(dir, depth) {
            return Ok(false);
        }
        for child in self.list_bounded(dir)? {
            let secret = self.is_secret(&child.path);
            if secret || (child.kind.is_dir() && self.holds_secrets(&child.path, depth + 1)?) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Shows the parts of a directory one by one, without those that must not be shown.
    fn show_parts(&mut self, dir: &Path, depth: usize) {
        let children = match self.list_bounded(dir) {
            Ok(children) => children,
            Err(why) => return self.leave_out(dir, why),
        };
        for Child { path, kind } in children {
            if self.is_secret(&path) {
                self.leave_out(&path, "may hold credentials".into());
                continue;
            }
            let within =
                if kind.is_dir() { self.holds_secrets(&path, depth + 1) } else { Ok(false) };
            match within {
                // A link is not mounted; within one of the trees it is shown with that.
                Ok(false) if kind.is_symlink() => {}
                Ok(false) => self.shown.paths.push(path),
                Ok(true) => self.show_parts(&path, depth + 1),
                Err(why) => self.leave_out(&path, why),
            }
        }
    }

    fn list_bounded(&mut self, dir: &Path) -> Result<Vec<Child>, String> {
        let found = list_children(dir).map_err(|error| format!("cannot be read: {error}"))?;
        self.entries += found.len();
        match self.entries > MAX_ENTRIES {
            true => Err("holds too many files to scan".into()),
            false => Ok(found),
        }
    }

    fn is_secret(&self, path: &Path) -> bool {
        let named = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        named.starts_with(".env.") || is_named(path, NEVER_SHOWN) || is_named(path, self.row.never)
    }

    fn leave_out(&mut self, path: &Path, why: String) {
        self.shown.left_out.push((path.to_owned(), why));
    }
}

/// Deeper than in the list it is one only beside `bin`: an installation may have such a name too.
fn is_program_dir(dir: &Path, depth: usize) -> bool {
    let beside_programs = || dir.parent().is_some_and(|parent| parent.join("bin").is_dir());
    is_named(dir, &PROGRAM_DIRS) && (depth == 0 || beside_programs())
}

fn is_named(path: &Path, names: &[&str]) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| names.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST_ROOT: ToolchainRoot = ToolchainRoot {
        variable: None,
        defaults: &[],
        shown: &[],
        never: &["etc"],
        depth: 2,
        marks: &[],
        in_path_only: false,
        in_home: &[],
    };

    fn make(base: &Path, files: &[&str]) {
        for file in files {
            let path = base.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
    }

    fn shown(base: &Path, patterns: &[&str]) -> (Vec<String>, Vec<String>) {
        let inside = |path: &PathBuf| path.strip_prefix(base).unwrap().display().to_string();
        let found = expand_root(
            &RealPaths::default(),
            base,
            &TEST_ROOT,
            (patterns, TEST_ROOT.depth),
            |_| true,
        );
        let left_out = found.left_out.iter().map(|(path, _)| inside(path)).collect();
        (found.paths.iter().map(inside).collect(), left_out)
    }

    fn strings(all: &[&str]) -> Vec<String> {
        all.iter().map(|one| (*one).to_owned()).collect()
    }

    #[test]
    fn a_tree_without_credentials_is_shown_whole() {
        let base = tempfile::tempdir().unwrap();
        make(base.path(), &["bin/cargo", "credentials.toml", "versions/3.12/bin/python"]);
        let (paths, left_out) = shown(base.path(), &["bin", "versions", "absent"]);
        assert_eq!(paths, strings(&["bin", "versions"]));
        assert_eq!(left_out, strings(&[]));
    }

    #[test]
    fn what_may_hold_credentials_is_left_out_and_the_rest_shown_part_by_part() {
        let base = tempfile::tempdir().unwrap();
        let files = ["v/a/bin/x", "v/a/etc/npmrc", "v/a/lib/y", "v/b/bin/x", "v/c/pip.conf"];
        make(base.path(), &files);
        let (paths, left_out) = shown(base.path(), &["v"]);
        assert_eq!(paths, strings(&["v/a/bin", "v/a/lib", "v/b"]));
        assert_eq!(left_out, strings(&["v/a/etc", "v/c/pip.conf"]));
    }

    #[test]
    fn an_installation_that_is_called_like_a_directory_of_programs_is_looked_into() {
        let base = tempfile::tempdir().unwrap();
        make(base.path(), &["v/lib/bin/x", "v/lib/.npmrc", "v/b/bin/x", "v/b/lib/.npmrc"]);
        let (paths, left_out) = shown(base.path(), &["v"]);
        assert_eq!(paths, strings(&["v/b", "v/lib/bin"]));
        assert_eq!(left_out, strings(&["v/lib/.npmrc"]));
    }

    #[test]
    fn nothing_behind_a_link_is_shown() {
        let base = tempfile::tempdir().unwrap();
        make(base.path(), &["secrets/key", "bin/x"]);
        std::os::unix::fs::symlink(base.path().join("secrets"), base.path().join("lib")).unwrap();
        let (paths, left_out) = shown(base.path(), &["bin", "lib"]);
        assert_eq!((paths, left_out), (strings(&["bin"]), strings(&["lib"])));
    }

    #[test]
    fn a_star_stands_for_any_one_name() {
        let base = tempfile::tempdir().unwrap();
        make(base.path(), &["versions/1/bin/x", "versions/2/bin/x", "versions/2/etc/npmrc"]);
        let (paths, _) = shown(base.path(), &["versions/*/bin"]);
        assert_eq!(paths, strings(&["versions/1/bin", "versions/2/bin"]));
    }
}
