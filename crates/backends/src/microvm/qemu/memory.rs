//! The memory that machines are copies of: read once, sealed, and shared by all of them. Each has copies of
//! its own of those pages alone that it writes to.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::microvm::driver::Saved;
use crate::microvm::sparse;
use crate::microvm::touched::{self, Seen};

/// What the memory of machines is called.
const NAME: &str = "stockade-memory";

/// One of them.
pub(super) struct Memory {
    /// Nobody can change it.
    pub file: OwnedFd,
    /// The pages in which it is different from the file that was saved first.
    changed: Vec<u64>,
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
    /// The memory that was saved.
    pub(super) async fn of(&self, saved: &Saved) -> io::Result<Arc<Memory>> {
        let mut known = self.0.lock().await;
        let Some(touched) = &saved.touched else {
            if let Some(memory) = known.whole.get(&saved.memory) {
                return Ok(Arc::clone(memory));
            }
            let memory = read(saved.memory.clone(), None).await?;
            known.whole.insert(saved.memory.clone(), Arc::clone(&memory));
            return Ok(memory);
        };
        let key = (saved.memory.clone(), touched.clone());
        if let Some(memory) = known.touched.get(&key).and_then(Weak::upgrade) {
            return Ok(memory);
        }
        let memory = read(saved.memory.clone(), Some(touched.clone())).await?;
        known.touched.retain(|_, memory| memory.strong_count() > 0);
        known.touched.insert(key, Arc::downgrade(&memory));
        Ok(memory)
    }
}

async fn read(base: PathBuf, touched: Option<PathBuf>) -> io::Result<Arc<Memory>> {
    let read = move || {
        let file = File::from(memfd()?);
        sparse::copy(&File::open(base)?, &file)?;
        let changed = match touched {
            Some(touched) => touched::apply(File::open(touched)?, &file)?,
            None => Vec::new(),
        };
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        Ok(Arc::new(Memory { file: file.into(), changed }))
    };
    spawn_blocking(read).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

impl Memory {
    /// Writes the pages that this process has touched, and those that were different before.
    pub(super) fn keep_touched(&self, process: i32, saved: &Saved) -> io::Result<()> {
        let Some(to) = &saved.touched else { return Err(io::ErrorKind::InvalidInput.into()) };
        let seen = Seen::of(process, NAME)?;
        let mut pages = seen.touched()?;
        pages.extend(&self.changed);
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

pub(super) fn memfd() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    Ok(memfd_create(NAME, flags)?)
}
