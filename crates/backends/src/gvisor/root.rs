//! Roots that sandboxes share. What is laid in a root depends on the host and on the spec, seldom on the
//! sandbox, and laying it takes longer than much of what is run: so it is laid once, kept beside the
//! private directories under a name that tells what is in it, and looked at before each use.
//!
//! A guest has no more way to change one than to change the host's own programs: the runtime mounts both
//! read-only, on its gofer's side too. A sandbox that uses one holds its lock; unlocked ones go when a new
//! one comes.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};
use stockade_core::Result;
use stockade_fs::remove_tree;

use super::bundle::{self, RootPart, RootParts};
use super::plan::BundlePlan;
use super::private::{GvisorPrivate, PRIVATE_DIRS};
use crate::linux::dir_lock::DirectoryLock;
use crate::linux::embed;

/// The prefix of the names of shared roots.
const ROOT_PREFIX: &str = "root-";
/// How many unused roots are kept, beside the one that was used last.
const MAX_IDLE_ROOTS: usize = 3;

/// A root to run in, for as long as it is held.
pub(super) struct BundleRoot {
    pub path: PathBuf,
    /// Absent where it is the sandbox's own.
    pub held: Option<DirectoryLock>,
}

/// The root of this plan: one that is there already, or a new one. Where it cannot be shared, one that
/// goes with the sandbox.
pub(super) fn prepare_root(private: &GvisorPrivate, plan: &BundlePlan) -> Result<BundleRoot> {
    find_or_lay(
        &PRIVATE_DIRS.base()?,
        private.path(),
        &private.root(),
        &bundle::list_root_parts(plan),
    )
}

/// The same below `base`, for who has the directory `private`, and would have the root `own` in it.
fn find_or_lay(
    base: &Path,
    private: &Path,
    own: &Path,
    parts: &RootParts<'_>,
) -> Result<BundleRoot> {
    let shared = base.join(format!("{ROOT_PREFIX}{}", hash_parts(parts)));
    if let Some(held) = hold_root(&shared, parts) {
        return Ok(BundleRoot { path: shared, held: Some(held) });
    }
    bundle::lay_root(own, parts)?;
    set_aside(&shared, private);
    Ok(match share_root(own, &shared, parts) {
        Some(held) => {
            // Where another process was first, this root is left: it would stay readable by others (C-07). An
            // error is ignored: it goes with the sandbox.
            let _ = remove_tree(own);
            remove_unused_roots(base, &shared);
            BundleRoot { path: shared, held: Some(held) }
        }
        None => BundleRoot { path: own.to_owned(), held: None },
    })
}

/// Tells what is laid in a root. The agent is told by its version: all of it is looked at in any case.
fn hash_parts(parts: &RootParts<'_>) -> String {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    add(embed::programs_version().as_bytes());
    for (target, part) in parts {
        add(target.as_os_str().as_encoded_bytes());
        match part {
            RootPart::Directory => add(b"directory"),
            RootPart::Point => add(b"point"),
            RootPart::File(..) if *target == Path::new(bundle::AGENT_PATH) => add(b"agent"),
            RootPart::File(bytes, _) => add(bytes),
            RootPart::Link(to) => add(to.as_os_str().as_encoded_bytes()),
        }
    }
    hash.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}

/// Holds a root, if it is there, this user's, and as it would be laid now.
fn hold_root(root: &Path, parts: &RootParts<'_>) -> Option<DirectoryLock> {
    let own = rustix::process::geteuid().as_raw();
    let held = DirectoryLock::lock_shared(root).ok()?;
    let ours = fs::symlink_metadata(root).is_ok_and(|found| found.uid() == own);
    (ours && bundle::has_all_parts(root, parts)).then_some(held)
}

/// Moves a stale root out of the way, unless it is in use: it goes with the sandbox that found it, closed to
/// others.
fn set_aside(stale: &Path, private: &Path) {
    if let Ok(_alone) = DirectoryLock::lock_exclusive(stale) {
        let aside = private.join("stale");
        // An error is ignored: the next sandbox finds it stale too.
        let _ = fs::rename(stale, &aside)
            .and_then(|()| fs::set_permissions(&aside, Permissions::from_mode(0o700)));
    }
}

/// Gives a new root the name under which others find it. Locked before it has that name, so that no other
/// process removes it in between. Where another process was first, its root serves as well.
fn share_root(own: &Path, shared: &Path, parts: &RootParts<'_>) -> Option<DirectoryLock> {
    let held = DirectoryLock::lock_shared(own).ok()?;
    match fs::rename(own, shared) {
        Ok(()) => Some(held),
        Err(error) => {
            let there = [io::ErrorKind::DirectoryNotEmpty, io::ErrorKind::AlreadyExists];
            there.contains(&error.kind()).then(|| hold_root(shared, parts)).flatten()
        }
    }
}

/// Removes the oldest roots that are not in use.
fn remove_unused_roots(base: &Path, used: &Path) {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let roots = entries.filter(|entry| {
        entry.file_name().as_encoded_bytes().starts_with(ROOT_PREFIX.as_bytes())
            && entry.path() != used
    });
    let age = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    let mut roots: Vec<(Option<SystemTime>, PathBuf)> =
        roots.map(|entry| (age(&entry.path()), entry.path())).collect();
    roots.sort();
    let many = roots.len().saturating_sub(MAX_IDLE_ROOTS);
    for (_, root) in roots.into_iter().take(many) {
        if let Ok(_alone) = DirectoryLock::lock_exclusive(&root) {
            // An error is ignored: the next removal tries again.
            let _ = remove_tree(&root);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        /// What a sandbox of this name gets whose root holds this.
        fn root(&self, sandbox: &str, content: &str) -> BundleRoot {
            let private = self.0.path().join(sandbox);
            fs::create_dir(&private).unwrap();
            let parts = [
                (Path::new("/usr"), RootPart::Directory),
                (Path::new("/etc/hosts"), RootPart::File(content.as_bytes(), 0o644)),
                (Path::new("/bin"), RootPart::Link(Path::new("usr/bin"))),
            ];
            find_or_lay(self.0.path(), &private, &private.join("rootfs"), &parts).unwrap()
        }

        fn shared(&self) -> usize {
            let entries = fs::read_dir(self.0.path()).unwrap().flatten();
            let is_root = |name: String| name.starts_with(ROOT_PREFIX);
            entries.filter(|entry| is_root(entry.file_name().into_string().unwrap())).count()
        }
    }

    fn holds(root: &BundleRoot) -> String {
        fs::read_to_string(root.path.join("etc/hosts")).unwrap()
    }

    #[test]
    fn sandboxes_share_a_root_if_the_same_is_in_it() {
        let place = Place::new();
        let (one, two) = (place.root("one", "same"), place.root("two", "same"));
        assert_eq!(one.path, two.path);
        assert!(one.held.is_some() && two.held.is_some());
        assert!(!place.0.path().join("two/rootfs").exists());
        let other = place.root("other", "different");
        assert_ne!(other.path, one.path);
        assert_eq!((holds(&one), holds(&other)), ("same".into(), "different".into()));
    }

    #[test]
    fn what_was_changed_in_a_shared_root_is_never_used() {
        let place = Place::new();
        let root = place.root("first", "right");
        let changes: [fn(&Path); 5] = [
            |root| fs::write(root.join("etc/hosts"), "wrong").unwrap(),
            |root| fs::remove_file(root.join("etc/hosts")).unwrap(),
            |root| fs::remove_dir(root.join("usr")).unwrap(),
            |root| fs::remove_file(root.join("bin")).unwrap(),
            |root| {
                fs::set_permissions(root.join("etc/hosts"), Permissions::from_mode(0o666)).unwrap();
            },
        ];
        drop(root.held);
        for (number, change) in changes.into_iter().enumerate() {
            change(&root.path);
            let next = place.root(&format!("next{number}"), "right");
            assert_eq!(next.path, root.path);
            assert_eq!(holds(&next), "right");
            assert!(next.path.join("usr").is_dir());
            let aside = fs::metadata(place.0.path().join(format!("next{number}/stale"))).unwrap();
            assert_eq!(aside.mode() & 0o077, 0, "{:o}", aside.mode());
        }
        assert_eq!(place.shared(), 1);
    }

    #[test]
    fn a_changed_root_that_is_in_use_is_left_to_who_uses_it() {
        let place = Place::new();
        let used = place.root("used", "right");
        fs::write(used.path.join("etc/hosts"), "wrong").unwrap();
        let own = place.root("own", "right");
        assert_eq!(own.path, place.0.path().join("own/rootfs"));
        assert_eq!((holds(&own), holds(&used)), ("right".into(), "wrong".into()));
    }

    #[test]
    fn roots_that_nobody_uses_do_not_gather() {
        let place = Place::new();
        let used = place.root("used", "in use");
        for number in 0..3 * MAX_IDLE_ROOTS {
            drop(place.root(&format!("s{number}"), &number.to_string()));
        }
        assert!(place.shared() <= MAX_IDLE_ROOTS + 2, "{}", place.shared());
        assert_eq!(holds(&used), "in use");
    }
}
