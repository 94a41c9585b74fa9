//! Everything that an execution wrote, read to its end: the loop that front ends would otherwise each write.

use std::borrow::Cow;

use stockade_core::{Outcome, StreamId};

use crate::execution::Watcher;
use crate::history::{OutputEvent, Subscription};

/// The most that is collected unless the caller names another bound. The execution's own output cap is lower
/// unless the limit was raised or given up.
const MAX_COLLECTED_BYTES: u64 = 256 << 20;

/// Everything that an execution wrote, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub outcome: Outcome,
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error.
    pub stderr: Vec<u8>,
    /// Bytes that are in neither: they were gone when this reader came, or are beyond its bound. What the output
    /// cap dropped is told in the outcome.
    pub missed: u64,
}

impl Output {
    /// Whether the program ran to its end and exited with 0.
    pub fn success(&self) -> bool {
        self.outcome.success()
    }

    /// Standard output as text; what is not UTF-8 is replaced.
    pub fn stdout_utf8(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stdout)
    }

    /// Standard error as text; what is not UTF-8 is replaced.
    pub fn stderr_utf8(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.stderr)
    }
}

/// Both streams, up to a bound on their sum.
struct Collected {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    room: u64,
    missed: u64,
}

impl Collected {
    fn within(max_bytes: u64) -> Self {
        Self { stdout: Vec::new(), stderr: Vec::new(), room: max_bytes, missed: 0 }
    }

    fn push(&mut self, stream: StreamId, data: &[u8]) {
        let taken = usize::try_from(self.room).unwrap_or(usize::MAX).min(data.len());
        let whole = match stream {
            StreamId::Stdout => &mut self.stdout,
            StreamId::Stderr => &mut self.stderr,
        };
        whole.extend_from_slice(&data[..taken]);
        self.room -= taken as u64;
        self.missed += (data.len() - taken) as u64;
    }

    fn end(self, outcome: Outcome) -> Output {
        let Self { stdout, stderr, missed, room: _ } = self;
        Output { outcome, stdout, stderr, missed }
    }
}

impl Subscription {
    /// Reads to the end and keeps what is written, at most 256 MiB of it.
    pub async fn output(self) -> Output {
        self.output_within(MAX_COLLECTED_BYTES).await
    }

    /// Reads to the end and keeps at most this many bytes of both streams together. The rest is read and counted,
    /// so that the program is never held up by the bound.
    pub async fn output_within(mut self, max_bytes: u64) -> Output {
        let mut collected = Collected::within(max_bytes);
        while let Some(event) = self.next().await {
            match event {
                OutputEvent::Output { stream, data, .. } => collected.push(stream, &data),
                OutputEvent::Gap { bytes, .. } => collected.missed += bytes,
                OutputEvent::End(_) => {}
            }
        }
        // Asked here, since the caller may have read the end before.
        collected.end(self.outcome().await)
    }
}

impl Watcher {
    /// Reads it to its end: what the history still has, then everything that follows. To miss nothing of a
    /// program that has just been started, use the follower that came with it.
    pub async fn output(&self) -> Output {
        self.follow().output().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_the_bound_is_counted_and_not_kept() {
        let mut collected = Collected::within(6);
        collected.push(StreamId::Stdout, b"abcd");
        collected.push(StreamId::Stderr, b"efgh");
        collected.push(StreamId::Stdout, b"ij");
        assert_eq!((&collected.stdout[..], &collected.stderr[..]), (&b"abcd"[..], &b"ef"[..]));
        assert_eq!(collected.missed, 4);
    }
}
