//! The memory that machines are copies of: read once, sealed, and shared by all of them. Each has copies of
//! its own of those pages alone that it writes to.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use stockade_core::Bytes;
use tokio::task::spawn_blocking;

use crate::linux::lock;
use crate::microvm::driver::Saved;
use crate::microvm::sparse;
use crate::microvm::touched::{self, Seen};

/// What the memory of machines is called.
const NAME: &str = "stockade-memory";

/// One of them.
pub(super) struct Memory {
    /// Nobody can change it, once it is filled. It may be mapped before.
    pub file: OwnedFd,
    saved: Saved,
    /// The pages in which it is different from the file that was saved first, once it is filled.
    changed: Mutex<Option<Vec<u64>>>,
}

/// Those that were saved whole are kept: they are what every new machine begins with. Others are while
/// somebody uses them.
#[derive(Default)]
pub(super) struct Memories(Mutex<Known>);

#[derive(Default)]
struct Known {
    whole: HashMap<PathBuf, Arc<Memory>>,
    touched: HashMap<(PathBuf, PathBuf), Weak<Memory>>,
}

impl Memories {
    /// The memory that was saved, which may have to be filled yet.
    pub(super) fn of(&self, saved: &Saved, size: Bytes) -> io::Result<Arc<Memory>> {
        let mut known = lock(&self.0);
        let Some(touched) = &saved.touched else {
            if let Some(memory) = known.whole.get(&saved.memory) {
                return Ok(Arc::clone(memory));
            }
            let memory = Memory::empty(saved, size)?;
            known.whole.insert(saved.memory.clone(), Arc::clone(&memory));
            return Ok(memory);
        };
        let key = (saved.memory.clone(), touched.clone());
        if let Some(memory) = known.touched.get(&key).and_then(Weak::upgrade) {
            return Ok(memory);
        }
        let memory = Memory::empty(saved, size)?;
        known.touched.retain(|_, memory| memory.strong_count() > 0);
        known.touched.insert(key, Arc::downgrade(&memory));
        Ok(memory)
    }
}

impl Memory {
    fn empty(saved: &Saved, size: Bytes) -> io::Result<Arc<Self>> {
        let (file, saved) = (sized(size)?, saved.clone());
        Ok(Arc::new(Self { file, saved, changed: Mutex::default() }))
    }

    /// Waits until all of it is there.
    pub(super) async fn filled(self: &Arc<Self>) -> io::Result<()> {
        let memory = Arc::clone(self);
        let filled = spawn_blocking(move || memory.fill()).await;
        filled.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    /// Once; whoever else wants it waits. After a failure the next one tries again.
    fn fill(&self) -> io::Result<()> {
        let mut changed = lock(&self.changed);
        if changed.is_some() {
            return Ok(());
        }
        let (file, base) = (File::from(self.file.try_clone()?), File::open(&self.saved.memory)?);
        if base.metadata()?.len() != file.metadata()?.len() {
            return Err(io::Error::other("it is not of the machine's size"));
        }
        sparse::copy(&base, &file)?;
        let pages = match &self.saved.touched {
            Some(touched) => touched::apply(File::open(touched)?, &file)?,
            None => Vec::new(),
        };
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        *changed = Some(pages);
        Ok(())
    }

    /// Writes the pages that this process has touched, and those that were different before.
    pub(super) fn keep_touched(&self, process: i32, saved: &Saved) -> io::Result<()> {
        let Some(to) = &saved.touched else { return Err(io::ErrorKind::InvalidInput.into()) };
        let seen = Seen::of(process, NAME)?;
        let mut pages = seen.touched()?;
        pages.extend(lock(&self.changed).iter().flatten());
        pages.sort_unstable();
        pages.dedup();
        seen.write(&pages, File::create_new(to)?)
    }
}

/// Writes all of a memory that shows in a file.
pub(super) fn keep_all(memory: &OwnedFd, saved: &Saved) -> io::Result<()> {
    let memory = File::from(memory.try_clone()?);
    sparse::copy(&memory, File::create(&saved.memory)?).map(drop)
}

/// Whether the memory of this process can be seen from here.
pub(super) fn is_seen(process: i32) -> bool {
    Seen::of(process, NAME).and_then(|seen| seen.touched()).is_ok()
}

/// Memory in which nothing is.
pub(super) fn sized(size: Bytes) -> io::Result<OwnedFd> {
    let memory = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, size.0)?;
    Ok(memory)
}
