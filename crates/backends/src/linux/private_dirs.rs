//! Private directories of sandboxes. Each is named after its sandbox, so that a later process finds and
//! removes it: they lie in one place of this user's that no environment variable moves. Anything else under
//! that name is never used. The engine shows none of them to a guest: it knows them by their name
//! (`stockade-UID`).

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use stockade_core::{BackendName, Error, ErrorCode, Result, SandboxId};
use stockade_fs::remove_tree;

use super::running::left_behind;

/// The remedy where no private directory can be made.
pub(crate) const PRIVATE_DIR_REMEDY: &str =
    "see that /var/tmp or /tmp can be written to and has room to spare";

/// Parents of the private directory, on disk first: every user may write there, and none may rename
/// another's files.
const TEMP_DIRECTORIES: [&str; 2] = ["/var/tmp", "/tmp"];
/// The mode of the private directory: passed through by helpers of other users, listed by the owner
/// alone.
const PRIVATE_DIR_MODE: u32 = 0o711;
/// How many unpredictable names are tried.
const MAX_NAME_ATTEMPTS: usize = 8;

/// The place of this user, made if there is none. Without any symbolic link in the way.
pub(crate) fn ensure_base_dir() -> io::Result<PathBuf> {
    if let Some(found) = list_base_dirs().into_iter().next() {
        return Ok(found);
    }
    let mut told = io::Error::from(io::ErrorKind::NotFound);
    for shared in list_shared_dirs() {
        match create_base_dir(&shared) {
            Ok(made) => return Ok(made),
            Err(error) => told = error,
        }
    }
    Err(told)
}

/// Every place of this user's: two who came first at once may each have made one.
fn list_base_dirs() -> Vec<PathBuf> {
    list_shared_dirs().iter().flat_map(|shared| of_ours(shared)).collect()
}

/// The directories in which places may lie: those that protect what is not one's own.
fn list_shared_dirs() -> Vec<PathBuf> {
    let safe = |path: &PathBuf| {
        fs::metadata(path)
            .is_ok_and(|found| found.mode() & 0o002 == 0 || found.mode() & 0o1000 != 0)
    };
    TEMP_DIRECTORIES.iter().filter_map(|path| fs::canonicalize(path).ok()).filter(safe).collect()
}

fn base_dir_name() -> String {
    format!("stockade-{}", rustix::process::geteuid().as_raw())
}

/// The base directories in this shared directory that are this user's: under the plain name, or, where
/// another user has taken that, under one that begins with it.
fn of_ours(shared: &Path) -> Vec<PathBuf> {
    let plain = shared.join(base_dir_name());
    let mut found: Vec<PathBuf> =
        Some(plain.clone()).filter(|path| is_ours(path)).into_iter().collect();
    let longer = format!("{}-", base_dir_name());
    let entries = fs::read_dir(shared).into_iter().flatten().flatten();
    let names =
        entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(longer.as_bytes()));
    let mut others: Vec<_> = names.map(|entry| entry.path()).filter(|path| is_ours(path)).collect();
    others.sort();
    found.extend(others);
    found
}

fn is_ours(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(path).is_ok_and(|found| {
        found.is_dir() && found.uid() == own && found.mode() & 0o777 == PRIVATE_DIR_MODE
    })
}

fn create_base_dir(shared: &Path) -> io::Result<PathBuf> {
    let plain = shared.join(base_dir_name());
    let mut made = create_private_dir(&plain);
    for _ in 0..MAX_NAME_ATTEMPTS {
        if made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists) {
            made = create_private_dir(&shared.join(format!(
                "{}-{}",
                base_dir_name(),
                random_suffix()?
            )));
        }
    }
    made
}

/// Makes a directory of exactly these permissions, independent of the umask; one of this user's that is there
/// already serves as well.
fn create_private_dir(path: &Path) -> io::Result<PathBuf> {
    let own = rustix::process::geteuid().as_raw();
    let made = DirBuilder::new().mode(PRIVATE_DIR_MODE).create(path);
    let found = fs::symlink_metadata(path);
    match (made, found) {
        (_, Ok(found)) if found.is_dir() && found.uid() == own => {
            fs::set_permissions(path, Permissions::from_mode(PRIVATE_DIR_MODE))?;
            Ok(path.to_owned())
        }
        (Err(error), _) | (Ok(()), Err(error)) => Err(error),
        (Ok(()), Ok(_)) => Err(io::ErrorKind::AlreadyExists.into()),
    }
}

fn random_suffix() -> io::Result<String> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Creates a file that no other user can open, with any umask and even if others can pass through its
/// directory (C-07). It must be new.
pub(crate) fn create_file(path: &Path) -> io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// The private directories of one backend's sandboxes, told from those of others by their prefix.
pub(crate) struct PrivateDirs {
    pub backend: BackendName,
    pub prefix: &'static str,
}

impl PrivateDirs {
    /// Where all of them lie.
    pub(crate) fn base(&self) -> Result<PathBuf> {
        ensure_base_dir()
            .map_err(|error| self.unusable("the directory for private files cannot be used", error))
    }

    /// Makes the directory of one sandbox, with parts that are its user's alone. It must be new.
    pub(crate) fn make(&self, id: &SandboxId, mode: u32, parts: &[&str]) -> Result<PathBuf> {
        let path = self.path(&self.base()?, id);
        let parts = parts.iter().map(|part| (path.join(part), 0o700));
        for (directory, mode) in [(path.clone(), mode)].into_iter().chain(parts) {
            let made = DirBuilder::new().mode(mode).create(&directory);
            // Set once more, independent of the umask.
            made.and_then(|()| fs::set_permissions(&directory, Permissions::from_mode(mode)))
                .map_err(|error| self.unusable("the private directory cannot be made", error))?;
        }
        Ok(path)
    }

    /// The sandboxes of this user that have one.
    pub(crate) fn list(&self) -> Vec<SandboxId> {
        let entries =
            list_base_dirs().into_iter().flat_map(|base| fs::read_dir(base).into_iter().flatten());
        let directories =
            entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        directories
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix(self.prefix)?.parse().ok())
            .collect()
    }

    /// Removes what is there of one.
    pub(crate) fn remove(&self, id: &SandboxId) -> Result<()> {
        let removed =
            list_base_dirs().iter().try_for_each(|base| remove_tree(&self.path(base, id)));
        removed.map_err(|error| {
            left_behind(&self.backend, id, "its private directory cannot be removed").source(error)
        })
    }

    /// Something in it failed, as on a full disk.
    pub(crate) fn unusable(&self, what: &str, error: io::Error) -> Error {
        Error::new(ErrorCode::System, "create", what)
            .backend(self.backend.clone())
            .remedy(PRIVATE_DIR_REMEDY)
            .source(error)
    }

    fn path(&self, base: &Path, id: &SandboxId) -> PathBuf {
        base.join(format!("{}{id}", self.prefix))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_place_is_this_users_alone_whoever_sits_on_its_name() {
        let shared = tempfile::tempdir().unwrap();
        symlink("/", shared.path().join(base_dir_name())).unwrap();
        assert_eq!(of_ours(shared.path()), Vec::<PathBuf>::new());
        let made = create_base_dir(shared.path()).unwrap();
        assert_ne!(made, shared.path().join(base_dir_name()));
        assert_eq!(of_ours(shared.path()), [made]);
    }

    #[test]
    fn a_private_file_takes_no_right_from_the_umask() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let make = || {
            stockade_launcher::take_own_umask(rustix::fs::Mode::empty()).unwrap();
            create_file(&path).unwrap();
        };
        std::thread::scope(|scope| scope.spawn(make).join().unwrap());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert!(create_file(&path).is_err(), "what is there already may be somebody else's");
    }

    #[test]
    fn two_who_come_first_at_once_share_one_place() {
        let shared = tempfile::tempdir().unwrap();
        let first = create_base_dir(shared.path()).unwrap();
        assert_eq!(create_base_dir(shared.path()).unwrap(), first);
        assert_eq!(of_ours(shared.path()), [first]);
    }

    #[test]
    fn what_is_ours_and_was_opened_to_others_is_closed_again_before_it_is_used() {
        let shared = tempfile::tempdir().unwrap();
        let plain = shared.path().join(base_dir_name());
        fs::create_dir(&plain).unwrap();
        fs::set_permissions(&plain, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(of_ours(shared.path()), Vec::<PathBuf>::new());
        let made = create_base_dir(shared.path()).unwrap();
        assert_eq!(fs::metadata(&made).unwrap().mode() & 0o777, PRIVATE_DIR_MODE);
        assert_eq!(of_ours(shared.path()), [plain]);
    }
}
