//! What the runtime says on its standard error, kept for people: the last of it, and no more. The
//! guest could write there too, so nothing is ever decided by it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stockade_core::clean_foreign;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;

use crate::linux::lock;

/// How much of the runtime's standard error is kept.
const MAX_STDERR_BYTES: usize = 2048;
/// How long a runtime that failed may take to close its streams.
const STREAM_CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) struct RuntimeStderr {
    kept: Arc<Mutex<Vec<u8>>>,
    listening: JoinHandle<()>,
}

impl RuntimeStderr {
    /// Reads from now on, so that the runtime never blocks on a full pipe.
    pub(super) fn listen(stderr: OwnedFd) -> io::Result<Self> {
        let from = pipe::Receiver::from_owned_fd(stderr)?;
        let kept = Arc::new(Mutex::default());
        let listening = tokio::spawn(keep_last_bytes(from, Arc::clone(&kept)));
        Ok(Self { kept, listening })
    }

    /// The last line, in one that can be shown.
    pub(super) async fn last(self) -> String {
        let _ = tokio::time::timeout(STREAM_CLOSE_TIMEOUT, self.listening).await;
        let kept = lock(&self.kept);
        let text = String::from_utf8_lossy(&kept);
        let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        clean_foreign(line).chars().take(400).collect()
    }
}

async fn keep_last_bytes(mut from: pipe::Receiver, kept: Arc<Mutex<Vec<u8>>>) {
    let mut piece = [0; 1024];
    while let Ok(count @ 1..) = from.read(&mut piece).await {
        let mut kept = lock(&kept);
        kept.extend_from_slice(&piece[..count]);
        let excess = kept.len().saturating_sub(MAX_STDERR_BYTES);
        kept.drain(..excess);
    }
}
