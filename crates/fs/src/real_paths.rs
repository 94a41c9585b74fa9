//! Paths behind all links, for many that are looked at together: what they have in common is looked at once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

/// Links that one path may lead through, and parts of a path, before the system is left to decide: each takes some of the
/// stack, and links are made by guests.
const MAX_LINKS: usize = 8;
const MAX_PARTS: usize = 48;

/// Resolves paths as [`fs::canonicalize`] does, and remembers each directory on the way. What changes meanwhile may not
/// be seen: a value of this serves one look, and the next takes a new one.
#[derive(Debug, Default)]
pub struct RealPaths {
    known: RefCell<HashMap<PathBuf, PathBuf>>,
}

impl RealPaths {
    /// The path behind all links. It must exist.
    pub fn canonicalize(&self, path: &Path) -> io::Result<PathBuf> {
        match is_plain(path) {
            true => self.resolve(path, 0),
            false => fs::canonicalize(path),
        }
    }

    fn resolve(&self, path: &Path, links: usize) -> io::Result<PathBuf> {
        if let Some(known) = self.known.borrow().get(path) {
            return Ok(known.clone());
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(path.to_owned());
        };
        let parent = self.resolve(parent, links)?;
        let found = parent.join(name);
        let real = match rustix::fs::readlink(&found, Vec::new()) {
            Err(Errno::INVAL) => found,
            Err(errno) => return Err(errno.into()),
            Ok(target) => {
                let led_to = parent.join(std::ffi::OsStr::from_bytes(target.as_bytes()));
                match is_plain(&led_to) && links < MAX_LINKS {
                    true => self.resolve(&led_to, links + 1)?,
                    false => fs::canonicalize(&led_to)?,
                }
            }
        };
        self.known.borrow_mut().insert(path.to_owned(), real.clone());
        Ok(real)
    }
}

/// Absolute, short, without a way back, and with nothing at its end that only a directory may have.
fn is_plain(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    let named = path == Path::new("/") || !(bytes.ends_with(b"/") || bytes.ends_with(b"/."));
    let mut parts = path.components();
    let is_back = parts.by_ref().take(MAX_PARTS).any(|part| part == Component::ParentDir);
    named && path.is_absolute() && !is_back && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// On a small stack: a guest can make links that are as long as the system allows.
    #[test]
    fn long_links_to_links_take_little_of_the_stack() {
        let base = tempfile::tempdir().unwrap();
        let long = "/x".repeat(1500);
        for link in 0..40 {
            let target = format!("{}/{}{long}", base.path().display(), link + 1);
            symlink(target, base.path().join(link.to_string())).unwrap();
        }
        let named = base.path().join("0");
        let resolve = move || RealPaths::default().canonicalize(&named).is_err();
        let small = std::thread::Builder::new().stack_size(512 << 10);
        assert!(small.spawn(resolve).unwrap().join().unwrap());
    }

    #[test]
    fn a_path_is_resolved_as_the_system_does_it() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/file"), "").unwrap();
        for (target, link) in [
            ("a", "relative"),
            ("../a/b", "a/up"),
            ("relative/b", "through"),
            ("missing", "dangling"),
            ("loop", "loop"),
            (at("a").to_str().unwrap(), "absolute"),
            ("a/file", "to-file"),
        ] {
            symlink(target, at(link)).unwrap();
        }
        symlink("0", at("1")).unwrap();
        fs::create_dir(at("0")).unwrap();
        let deep = "deep/".repeat(60);
        fs::create_dir_all(at(&deep)).unwrap();
        for link in 2..60 {
            symlink((link - 1).to_string(), at(&link.to_string())).unwrap();
        }
        let paths = RealPaths::default();
        // Twice: what is remembered is the same.
        for _ in 0..2 {
            for name in [
                "",
                "a",
                "a/",
                "a/b",
                "a/./b",
                "a/../a",
                "a/up",
                "a/up/..",
                "relative/b",
                "through",
                "dangling",
                "dangling/x",
                "loop",
                "loop/x",
                "absolute/b",
                "absolute/up",
                "missing",
                "a/file",
                "a/file/",
                "a/file/.",
                "a/file/x",
                "to-file",
                "to-file/",
                "to-file/x",
                "30",
                "59",
                "59/x",
                deep.trim_end_matches('/'),
                &deep.repeat(2),
            ] {
                let path = at(name);
                let told =
                    |result: io::Result<PathBuf>| result.map_err(|error| error.raw_os_error());
                let (ours, theirs) = (paths.canonicalize(&path), fs::canonicalize(&path));
                assert_eq!(told(ours), told(theirs), "{name}");
            }
        }
        assert_eq!(paths.canonicalize(Path::new("/")).unwrap(), Path::new("/"));
        assert!(paths.canonicalize(Path::new("")).is_err());
    }
}
