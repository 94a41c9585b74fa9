//! What the program that runs a machine writes to its standard streams, kept for people: the last of it,
//! and no more. The guest's console ends there too, so nothing is ever decided by it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stockade_core::{ExitStatus, ProcessEvent, ProcessEvents, StreamId, is_unsafe_to_show};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;

use crate::linux::lock;

/// Size limit of what is kept of each stream.
const MAX_STREAM_BYTES: usize = 4096;
/// Length limit of what is shown of it.
const MAX_SHOWN_CHARS: usize = 600;
/// Timeout for a failed process to write why.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_millis(200);

/// Both streams of one process.
pub(super) struct VmmOutput {
    out: StreamTail,
    err: StreamTail,
    /// Closed when there will be no more.
    ended: watch::Receiver<()>,
}

/// The last of one stream.
#[derive(Clone, Default)]
struct StreamTail(Arc<Mutex<Vec<u8>>>);

impl VmmOutput {
    /// Reads both pipes from now on, so that the process never blocks on a full one.
    pub(super) fn from_pipes(stdout: OwnedFd, stderr: OwnedFd) -> io::Result<Self> {
        let (out, err) = (StreamTail::default(), StreamTail::default());
        let (open, ended) = watch::channel(());
        for (stream, kept) in [(stdout, &out), (stderr, &err)] {
            let from = pipe::Receiver::from_owned_fd(stream)?;
            tokio::spawn(collect_stream(from, kept.clone(), open.clone()));
        }
        Ok(Self { out, err, ended })
    }

    /// The same of a process inside walls, which tell what became of it.
    pub(super) fn from_events(events: Box<dyn ProcessEvents>) -> Self {
        let (out, err) = (StreamTail::default(), StreamTail::default());
        let (open, ended) = watch::channel(());
        tokio::spawn(collect_events(events, out.clone(), err.clone(), open));
        Self { out, err, ended }
    }

    /// Waits until there will be no more.
    pub(super) async fn wait_for_end(&self) {
        // Nothing is ever sent: an error is the end.
        let _ = self.ended.clone().changed().await;
    }

    /// The last lines, in one that can be shown. Of the streams of a process that has ended: all that
    /// it said.
    pub(super) async fn wait_for_last_words(&self) -> String {
        let _ = tokio::time::timeout(LAST_WORDS_TIMEOUT, self.wait_for_end()).await;
        self.read_so_far()
    }

    /// The same without waiting for more.
    pub(super) fn read_so_far(&self) -> String {
        let said: Vec<String> =
            [&self.out, &self.err].iter().map(|kept| kept.shown_text()).collect();
        said.iter().filter(|text| !text.is_empty()).cloned().collect::<Vec<_>>().join(" | ")
    }
}

impl StreamTail {
    fn append_bytes(&self, piece: &[u8]) {
        let mut last = lock(&self.0);
        last.extend_from_slice(piece);
        let excess = last.len().saturating_sub(MAX_STREAM_BYTES);
        last.drain(..excess);
    }

    fn shown_text(&self) -> String {
        let last = lock(&self.0);
        let text = String::from_utf8_lossy(&last);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let line: String = lines.collect::<Vec<_>>().join(" / ");
        let shown: Vec<char> = line.chars().filter(|c| !is_unsafe_to_show(*c)).collect();
        shown.iter().skip(shown.len().saturating_sub(MAX_SHOWN_CHARS)).collect()
    }
}

async fn collect_stream(mut from: pipe::Receiver, kept: StreamTail, _open: watch::Sender<()>) {
    let mut piece = [0; 1024];
    while let Ok(count @ 1..) = from.read(&mut piece).await {
        kept.append_bytes(&piece[..count]);
    }
}

async fn collect_events(
    mut events: Box<dyn ProcessEvents>,
    out: StreamTail,
    err: StreamTail,
    _open: watch::Sender<()>,
) {
    while let Some(event) = events.next().await {
        match event {
            ProcessEvent::Output(StreamId::Stdout, data) => out.append_bytes(&data),
            ProcessEvent::Output(StreamId::Stderr, data) => err.append_bytes(&data),
            ProcessEvent::Exit(exit) => {
                return err.append_bytes(describe_exit(&exit.status).as_bytes());
            }
        }
    }
}

/// What it could not say itself of its end.
fn describe_exit(status: &ExitStatus) -> String {
    match status {
        ExitStatus::StartFailed(failure) => format!("\nit did not start: {}", failure.detail()),
        ExitStatus::LimitExceeded(limit) => format!("\nit went beyond its limit: {limit}"),
        ExitStatus::Signalled(signal) => format!("\nit was ended by signal {signal}"),
        ExitStatus::Exited(code) => format!("\nit exited with code {code}"),
        ExitStatus::Lost(_) => String::new(),
    }
}
