//! The memory that machines are copies of: read once, sealed, and shared by all of them. Each has copies of
//! its own of those pages alone that it writes to.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, Weak};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use stockade_core::Bytes;
use stockade_fs::copy_sparse;
use tokio::task::spawn_blocking;

use crate::linux::lock;
use crate::microvm::dirty_pages::{self, ProcessMemory};
use crate::microvm::driver::Saved;

/// The memfd name of machines' memory.
const MEMFD_NAME: &str = "stockade-memory";

/// One of them.
pub(super) struct SealedMemory {
    /// The memfd, sealed once it is filled. It may be mapped before.
    pub file: OwnedFd,
    base: File,
    touched: Option<File>,
    /// The pages in which it is different from the file that was saved first, once it is filled.
    changed: Mutex<Option<Vec<u64>>>,
}

/// Memories by their files. Those that were saved whole are kept: every new machine begins with one. Others
/// are kept while a machine uses them.
#[derive(Default)]
pub(super) struct Memories(Mutex<Known>);

#[derive(Default)]
struct Known {
    whole: HashMap<Which, Arc<SealedMemory>>,
    touched: HashMap<(Which, Which), Weak<SealedMemory>>,
}

/// Which file it is: another one may have its name by now.
type Which = (u64, u64);

fn identify_file(file: &File) -> io::Result<Which> {
    file.metadata().map(|found| (found.dev(), found.ino()))
}

impl Memories {
    /// The memory that was saved, which may have to be filled yet.
    pub(super) fn get_or_create(
        &self,
        saved: &Saved,
        size: Bytes,
    ) -> io::Result<Arc<SealedMemory>> {
        let base = File::open(&saved.memory)?;
        let touched = saved.touched.as_ref().map(File::open).transpose()?;
        let mut known = lock(&self.0);
        let Some(pages) = &touched else {
            let key = identify_file(&base)?;
            if let Some(memory) = known.whole.get(&key) {
                return Ok(Arc::clone(memory));
            }
            let memory = SealedMemory::new_unfilled(base, touched, size)?;
            known.whole.insert(key, Arc::clone(&memory));
            return Ok(memory);
        };
        let key = (identify_file(&base)?, identify_file(pages)?);
        if let Some(memory) = known.touched.get(&key).and_then(Weak::upgrade) {
            return Ok(memory);
        }
        let memory = SealedMemory::new_unfilled(base, touched, size)?;
        known.touched.retain(|_, memory| memory.strong_count() > 0);
        known.touched.insert(key, Arc::downgrade(&memory));
        Ok(memory)
    }

    /// Removes a memory that could not be filled.
    pub(super) fn forget_memory(&self, memory: &Arc<SealedMemory>) {
        lock(&self.0).whole.retain(|_, known| !Arc::ptr_eq(known, memory));
    }
}

impl SealedMemory {
    fn new_unfilled(base: File, touched: Option<File>, size: Bytes) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { file: create_memfd(size)?, base, touched, changed: Mutex::default() }))
    }

    /// Waits until all of it is there.
    pub(super) async fn wait_until_filled(self: &Arc<Self>) -> io::Result<()> {
        let memory = Arc::clone(self);
        let filled = spawn_blocking(move || memory.fill_once()).await;
        filled.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    /// Fills it once; other callers wait for the lock.
    fn fill_once(&self) -> io::Result<()> {
        let mut changed = lock(&self.changed);
        if changed.is_some() {
            return Ok(());
        }
        let file = File::from(self.file.try_clone()?);
        if self.base.metadata()?.len() != file.metadata()?.len() {
            return Err(io::Error::other("it is not of the machine's size"));
        }
        copy_sparse(&self.base, &file)?;
        let pages = match &self.touched {
            Some(touched) => {
                let mut touched = touched.try_clone()?;
                touched.rewind()?;
                dirty_pages::apply_pages(touched, &file)?
            }
            None => Vec::new(),
        };
        stockade_launcher::add_seals(&file)?;
        *changed = Some(pages);
        Ok(())
    }

    /// Writes the pages that this process has touched, and those that were different before.
    pub(super) fn save_dirty_pages(&self, process: i32, saved: &Saved) -> io::Result<()> {
        let Some(to) = &saved.touched else { return Err(io::ErrorKind::InvalidInput.into()) };
        let seen = ProcessMemory::open(process, MEMFD_NAME)?;
        let mut pages = seen.find_dirty_pages()?;
        pages.extend(lock(&self.changed).iter().flatten());
        pages.sort_unstable();
        pages.dedup();
        seen.write_pages(&pages, File::create_new(to)?)
    }
}

/// Writes all of a memory that shows in a file.
pub(super) fn save_all_pages(memory: &OwnedFd, saved: &Saved) -> io::Result<()> {
    let memory = File::from(memory.try_clone()?);
    copy_sparse(&memory, File::create(&saved.memory)?).map(drop)
}

/// Whether the memory of this process can be seen from here.
pub(super) fn is_memory_readable(process: i32) -> bool {
    ProcessMemory::open(process, MEMFD_NAME).and_then(|seen| seen.find_dirty_pages()).is_ok()
}

/// Memory in which nothing is.
pub(super) fn create_memfd(size: Bytes) -> io::Result<OwnedFd> {
    let memory = memfd_create(MEMFD_NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, size.0)?;
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;

    use super::*;

    const MEMORY_SIZE: Bytes = Bytes::mib(1);

    /// A memory that begins with this, in a file that was not there before.
    fn write_saved_memory(dir: &std::path::Path, first: &str) -> Saved {
        let (draft, memory) = (dir.join("draft"), dir.join("memory"));
        let file = File::create(&draft).unwrap();
        file.set_len(MEMORY_SIZE.0).unwrap();
        file.write_all_at(first.as_bytes(), 0).unwrap();
        std::fs::rename(draft, &memory).unwrap();
        Saved { state: PathBuf::new(), memory, touched: None }
    }

    fn begins_with(memory: &SealedMemory, first: &str) -> bool {
        let mut found = vec![0; first.len()];
        let file = File::from(memory.file.try_clone().unwrap());
        file.read_exact_at(&mut found, 0).unwrap();
        found == first.as_bytes()
    }

    #[tokio::test]
    async fn another_file_of_the_same_name_is_another_memory() {
        let dir = tempfile::tempdir().unwrap();
        let memories = Memories::default();
        let saved = write_saved_memory(dir.path(), "first");
        let first = memories.get_or_create(&saved, MEMORY_SIZE).unwrap();
        first.wait_until_filled().await.unwrap();
        assert!(Arc::ptr_eq(&first, &memories.get_or_create(&saved, MEMORY_SIZE).unwrap()));
        let next =
            memories.get_or_create(&write_saved_memory(dir.path(), "other"), MEMORY_SIZE).unwrap();
        next.wait_until_filled().await.unwrap();
        assert!(begins_with(&first, "first") && begins_with(&next, "other"));
    }

    #[tokio::test]
    async fn one_that_could_not_be_filled_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let memories = Memories::default();
        let saved = write_saved_memory(dir.path(), "first");
        let wrong = memories.get_or_create(&saved, Bytes::mib(2)).unwrap();
        assert!(wrong.wait_until_filled().await.is_err());
        memories.forget_memory(&wrong);
        let memory = memories.get_or_create(&saved, MEMORY_SIZE).unwrap();
        memory.wait_until_filled().await.unwrap();
        assert!(begins_with(&memory, "first"));
    }
}
