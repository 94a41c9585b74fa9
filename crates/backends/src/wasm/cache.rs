//! Compiled code on disk, by content, version and settings. Each entry carries a code of authenticity
//! under a key of this user's own; one that does not fit is removed and never executed. Any number of
//! processes share it: entries appear whole or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};

use super::code::Trusted;
use super::program::Hash;

/// Size limit of all entries together.
const MAX_CACHE_BYTES: u64 = 1 << 30;
/// Largest entry that is read.
pub(super) const MAX_ENTRY_BYTES: u64 = 512 << 20;
/// First bytes of an entry: the format and its version.
const ENTRY_MAGIC: &[u8; 8] = b"stkwasm1";
/// Length of an entry's message authentication code, which follows the magic.
const MAC_BYTES: usize = 32;
/// Block size of the hash function, to which the key is padded.
const HASH_BLOCK_BYTES: usize = 64;
/// Age at which a draft counts as abandoned by its writer.
const STALE_DRAFT_AGE: Duration = Duration::from_secs(3600);

/// Name prefix of entries that are being written.
const DRAFT_PREFIX: &str = "draft-";

/// What a cache in this directory holds for `stockade clean`. Entries are read whole, so that none is in use;
/// the key stays.
#[cfg(feature = "factory")]
pub(super) fn cache_dirs(directory: &Path) -> Vec<stockade_fs::CacheDir> {
    let cache = |is_entry: fn(&str) -> bool, min_age| stockade_fs::CacheDir {
        kind: "compiled WebAssembly",
        path: directory.join("code"),
        is_entry,
        used: std::collections::BTreeSet::new(),
        min_age,
        maker_lock: None,
    };
    vec![
        cache(|name| !name.starts_with(DRAFT_PREFIX), Duration::ZERO),
        cache(|name| name.starts_with(DRAFT_PREFIX), STALE_DRAFT_AGE),
    ]
}

/// The cache.
pub(super) struct Cache {
    entries: PathBuf,
    key: [u8; 32],
    most: u64,
}

impl Cache {
    /// The cache in this directory, which is made if it is not there. The key lies beside the entries,
    /// not among them.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let entries = directory.join("code");
        DirBuilder::new().recursive(true).mode(0o700).create(&entries)?;
        let key = load_or_create_key(&directory.join("key"))?;
        Ok(Self { entries, key, most: MAX_CACHE_BYTES })
    }

    /// The same with another bound on its size.
    #[cfg(test)]
    pub(super) fn with_most(self, most: u64) -> Self {
        Self { most, ..self }
    }

    fn entry_path(&self, machine: &str, hash: &Hash) -> PathBuf {
        self.entries.join(format!("{}-{machine}", encode_hex(hash)))
    }

    /// The code of a program, if it was kept and has not been changed since.
    pub(super) fn load_entry(&self, machine: &str, hash: &Hash) -> Option<Trusted> {
        let path = self.entry_path(machine, hash);
        let entry = read_bounded_file(&path, MAX_ENTRY_BYTES).ok()?;
        let Some(code) = self.verify_entry(&entry_name(&path), &entry) else {
            // An entry that fails the check is not ours: it is compiled anew.
            let _ = fs::remove_file(&path);
            return None;
        };
        let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Some(Trusted::vouched(code.to_vec()))
    }

    fn verify_entry<'e>(&self, name: &str, entry: &'e [u8]) -> Option<&'e [u8]> {
        let rest = entry.strip_prefix(ENTRY_MAGIC)?;
        let (claimed, code) = rest.split_at_checked(MAC_BYTES)?;
        constant_time_eq(claimed, &self.compute_mac(name, code)).then_some(code)
    }

    /// The code of authenticity of an entry under its name.
    fn compute_mac(&self, name: &str, code: &[u8]) -> [u8; MAC_BYTES] {
        let padded = |with: u8| {
            let mut block = [with; HASH_BLOCK_BYTES];
            block.iter_mut().zip(self.key).for_each(|(byte, key)| *byte ^= key);
            block
        };
        let length = (name.len() as u64).to_le_bytes();
        let inner = Sha256::new()
            .chain_update(padded(0x36))
            .chain_update(length)
            .chain_update(name)
            .chain_update(code);
        let outer = Sha256::new().chain_update(padded(0x5c)).chain_update(inner.finalize());
        outer.finalize().into()
    }

    /// Keeps the code of a program.
    pub(super) fn store_entry(&self, machine: &str, hash: &Hash, code: &[u8]) -> io::Result<()> {
        static NEXT_DRAFT_NUMBER: AtomicU32 = AtomicU32::new(0);
        let path = self.entry_path(machine, hash);
        let number = NEXT_DRAFT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let draft = self.entries.join(format!("{DRAFT_PREFIX}{}-{number}", std::process::id()));
        let written = self
            .write_entry(&draft, &entry_name(&path), code)
            .and_then(|()| fs::rename(&draft, &path));
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        written?;
        self.evict_entries()
    }

    fn write_entry(&self, draft: &Path, name: &str, code: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft)?;
        file.write_all(ENTRY_MAGIC)?;
        file.write_all(&self.compute_mac(name, code))?;
        file.write_all(code)
    }

    /// Removes the entries that were not used for longest, until the rest fits.
    fn evict_entries(&self) -> io::Result<()> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.entries)?.flatten() {
            let Ok(found) = entry.metadata() else { continue };
            let used = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let draft = entry.file_name().as_encoded_bytes().starts_with(DRAFT_PREFIX.as_bytes());
            if draft && used.elapsed().is_ok_and(|age| age > STALE_DRAFT_AGE) {
                let _ = fs::remove_file(entry.path());
            } else if !draft {
                all.push((used, found.len(), entry.path()));
            }
        }
        all.sort();
        let mut total: u64 = all.iter().map(|(_, size, _)| size).sum();
        // The last one is the one that was just written, however large.
        let older = all.len().saturating_sub(1);
        for (_, size, path) in all.into_iter().take(older) {
            if total <= self.most {
                break;
            }
            let _ = fs::remove_file(path);
            total -= size;
        }
        Ok(())
    }
}

/// A whole regular file of at most this size. It is checked after the open, which never blocks: the process
/// that wrote it may put something else in its place.
pub(super) fn read_bounded_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(SAFE_OPEN_FLAGS).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.len() > most {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut entry = Vec::with_capacity(usize::try_from(found.len()).unwrap_or(0));
    file.take(most).read_to_end(&mut entry)?;
    Ok(entry)
}

/// Open flags that follow no symbolic link and do not block.
const SAFE_OPEN_FLAGS: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();

fn entry_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Compares in a time that does not depend on where they differ.
fn constant_time_eq(one: &[u8], two: &[u8]) -> bool {
    one.len() == two.len() && one.iter().zip(two).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// Digits of a digest.
pub(super) fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The key of this user, made by the first process that needs it.
fn load_or_create_key(path: &Path) -> io::Result<[u8; 32]> {
    if let Err(error) = fs::symlink_metadata(path)
        && error.kind() == io::ErrorKind::NotFound
    {
        make_key(path)?;
    }
    let mut file = OpenOptions::new().read(true).custom_flags(SAFE_OPEN_FLAGS).open(path)?;
    let found = file.metadata()?;
    let own = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
    if !own || found.len() != 32 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut key = [0; 32];
    file.read_exact(&mut key)?;
    Ok(key)
}

fn make_key(path: &Path) -> io::Result<()> {
    let mut key = [0; 32];
    rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
    let draft = path.with_extension(format!("draft{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let linked = file.write_all(&key).and_then(|()| match fs::hard_link(&draft, path) {
        // Another process was first: its key is used.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    });
    fs::remove_file(&draft)?;
    linked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load_code(cache: &Cache, hash: &Hash) -> Option<Vec<u8>> {
        cache.load_entry("m", hash).map(Trusted::into_bytes)
    }

    #[test]
    fn an_entry_comes_back_as_it_was_kept_also_to_another_process() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path()).unwrap();
        cache.store_entry("m", &[1; 32], b"code").unwrap();
        assert_eq!(load_code(&cache, &[1; 32]).as_deref(), Some(&b"code"[..]));
        let again = Cache::open(dir.path()).unwrap();
        assert_eq!(load_code(&again, &[1; 32]).as_deref(), Some(&b"code"[..]));
        assert_eq!(load_code(&again, &[2; 32]), None);
        assert!(again.load_entry("other", &[1; 32]).is_none());
    }

    #[test]
    fn an_entry_that_was_changed_in_any_byte_is_not_taken_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path()).unwrap();
        cache.store_entry("m", &[1; 32], b"code").unwrap();
        let path = cache.entry_path("m", &[1; 32]);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, changed).unwrap();
            assert_eq!(load_code(&cache, &[1; 32]), None, "byte {at}");
            assert!(!path.exists());
        }
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(load_code(&cache, &[1; 32]), None);
    }

    #[test]
    fn an_entry_under_the_name_of_another_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path()).unwrap();
        cache.store_entry("m", &[1; 32], b"harmless").unwrap();
        fs::rename(cache.entry_path("m", &[1; 32]), cache.entry_path("m", &[2; 32])).unwrap();
        assert_eq!(load_code(&cache, &[2; 32]), None);
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path()).unwrap().with_most(2500);
        for number in 0..4_u8 {
            cache.store_entry("m", &[number; 32], &[number; 1000]).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::from(number) + 1);
            let file = File::open(cache.entry_path("m", &[number; 32])).unwrap();
            file.set_modified(time).unwrap();
        }
        cache.evict_entries().unwrap();
        let left: Vec<bool> = (0..4_u8).map(|n| load_code(&cache, &[n; 32]).is_some()).collect();
        assert_eq!(left, [false, false, true, true]);
    }

    #[test]
    fn a_key_that_others_can_read_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        Cache::open(dir.path()).unwrap();
        fs::set_permissions(dir.path().join("key"), fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Cache::open(dir.path()).is_err());
    }
}
