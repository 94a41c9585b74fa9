//! Locks on files, by `flock`: freed by the kernel when their holder dies.

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// How long a lock is waited for: holders need microseconds, so longer means that one is stuck.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// A file under `flock`, freed when this is dropped or the process dies.
#[derive(Debug)]
pub struct Locked(File);

/// How a lock is shared.
#[derive(Debug, Clone, Copy)]
pub enum Sharing {
    /// With other readers.
    Shared,
    /// With no other holder.
    Exclusive,
}

impl Locked {
    /// The lock if it is free at this instant, else the file back.
    pub fn attempt(file: File, sharing: Sharing) -> io::Result<Result<Self, File>> {
        let operation = match sharing {
            Sharing::Shared => FlockOperation::NonBlockingLockShared,
            Sharing::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        match rustix::fs::flock(&file, operation) {
            Ok(()) => Ok(Ok(Self(file))),
            Err(Errno::WOULDBLOCK) => Ok(Err(file)),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The lock, waited for until a timeout; nothing if it stays taken.
    pub fn within(mut file: File, sharing: Sharing, timeout: Duration) -> io::Result<Option<Self>> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(20);
        loop {
            file = match Self::attempt(file, sharing)? {
                Ok(locked) => return Ok(Some(locked)),
                Err(file) => file,
            };
            if start.elapsed() >= timeout {
                return Ok(None);
            }
            // The kernel has no lock call with a deadline, so this asks again, ever more slowly.
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.0
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // A child between fork and exec may still hold a copy: closing alone would not free the lock.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}
