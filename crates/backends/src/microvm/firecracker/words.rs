//! What Firecracker writes to its standard streams, kept for people: the last of it, and no more. The
//! guest's console ends there too, so nothing is ever decided by it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use crate::linux::lock;

/// How much is kept of each stream.
const MOST: usize = 4096;
/// How much of that is shown.
const SHOWN: usize = 600;
/// How long somebody who failed may take to say why.
const SOON: Duration = Duration::from_millis(200);

/// Both streams of one process.
pub(super) struct Words([Kept; 2]);

struct Kept {
    last: Arc<Mutex<Vec<u8>>>,
    ended: tokio::sync::watch::Receiver<()>,
}

impl Words {
    /// Reads from now on, so that nobody ever waits for somebody to read.
    pub(super) fn listen(stdout: OwnedFd, stderr: OwnedFd) -> io::Result<Self> {
        Ok(Self([Kept::of(stdout)?, Kept::of(stderr)?]))
    }

    /// The last lines, in one that can be shown. Of the streams of a process that has ended: all that
    /// it said.
    pub(super) async fn last(&self) -> String {
        let both = async {
            for kept in &self.0 {
                // An error is the end of the stream.
                let _ = kept.ended.clone().changed().await;
            }
        };
        let _ = tokio::time::timeout(SOON, both).await;
        self.so_far()
    }

    /// The same without waiting for more.
    pub(super) fn so_far(&self) -> String {
        let [out, err] = &self.0;
        let said: Vec<String> = [out, err].iter().map(|kept| kept.text()).collect();
        said.iter().filter(|text| !text.is_empty()).cloned().collect::<Vec<_>>().join(" | ")
    }
}

impl Kept {
    fn of(stream: OwnedFd) -> io::Result<Self> {
        let from = pipe::Receiver::from_owned_fd(stream)?;
        let last = Arc::new(Mutex::default());
        let (open, ended) = tokio::sync::watch::channel(());
        tokio::spawn(listen(from, Arc::clone(&last), open));
        Ok(Self { last, ended })
    }

    fn text(&self) -> String {
        let last = lock(&self.last);
        let text = String::from_utf8_lossy(&last);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let line: String = lines.collect::<Vec<_>>().join(" / ");
        let shown: Vec<char> = line.chars().filter(|c| !c.is_control()).collect();
        shown.iter().skip(shown.len().saturating_sub(SHOWN)).collect()
    }
}

async fn listen(
    mut from: pipe::Receiver,
    last: Arc<Mutex<Vec<u8>>>,
    _open: tokio::sync::watch::Sender<()>,
) {
    let mut piece = [0; 1024];
    while let Ok(count @ 1..) = from.read(&mut piece).await {
        let mut last = lock(&last);
        last.extend_from_slice(&piece[..count]);
        let excess = last.len().saturating_sub(MOST);
        last.drain(..excess);
    }
}
