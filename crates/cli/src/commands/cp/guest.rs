//! A sandbox's files, over its supervisor's socket.

use bytes::Bytes;
use stockade_core::{Entry, EntryKind, Error, ErrorCode, Result};

use super::paths::parse_sandbox_path;
use crate::daemon::client::SupervisorConnection;
use crate::daemon::message::{CHUNK_BYTES, SandboxFileRequest, SupervisorReply, SupervisorRequest};
use crate::daemon::wire_error::out_of_turn;

/// Mode of a program that was copied to where a symbolic link leads.
const LINKED_PROGRAM_MODE: u32 = 0o755;

/// A sandbox's files.
pub struct GuestFiles(SupervisorConnection);

impl GuestFiles {
    /// Over this connection.
    pub fn new(connection: SupervisorConnection) -> Self {
        Self(connection)
    }

    /// What is at a path; nothing if there is nothing.
    pub async fn stat(&mut self, at: &str) -> Result<Option<Entry>> {
        let request = SandboxFileRequest::Stat { path: parse_sandbox_path(at)? };
        match self.ask(request, &[]).await {
            Ok((SupervisorReply::Entry(entry), _)) => Ok(Some(entry)),
            Ok(_) => Err(out_of_turn(self.0.operation)),
            Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a path is, or leads to, a directory.
    pub async fn is_dir(&mut self, at: &str) -> Result<bool> {
        Ok(match self.stat(at).await?.map(|entry| entry.kind) {
            Some(EntryKind::Directory) => true,
            Some(EntryKind::Symlink) => self.list(at).await.is_ok(),
            Some(EntryKind::File | EntryKind::Other) | None => false,
        })
    }

    /// What is in a directory.
    pub async fn list(&mut self, at: &str) -> Result<Vec<Entry>> {
        let mut all = Vec::new();
        let request = SandboxFileRequest::List { path: parse_sandbox_path(at)? };
        let mut reply = self.ask(request, &[]).await?.0;
        loop {
            let SupervisorReply::Entries { entries, more } = reply else {
                return Err(out_of_turn(self.0.operation));
            };
            all.extend(entries);
            if !more {
                return Ok(all);
            }
            reply = self.0.hear().await?.0;
        }
    }

    /// A piece of a file; the last one is short.
    pub async fn read(&mut self, at: &str, offset: u64) -> Result<Bytes> {
        let path = parse_sandbox_path(at)?;
        let request = SandboxFileRequest::Read { path, offset, most: CHUNK_BYTES };
        match self.ask(request, &[]).await? {
            (SupervisorReply::Data, data) => Ok(data),
            _ => Err(out_of_turn(self.0.operation)),
        }
    }

    /// Writes a piece of a file: from its start, or at its end.
    pub async fn write(&mut self, at: &str, data: &[u8], append: bool) -> Result<()> {
        let request = SandboxFileRequest::Write { path: parse_sandbox_path(at)?, append };
        let reply = self.ask(request, data).await?.0;
        self.expect_done(&reply)
    }

    /// Makes a file executable for each class of users that may read it.
    pub async fn make_executable(&mut self, at: &str) -> Result<()> {
        let mode = match self.stat(at).await?.map(|entry| (entry.kind, entry.mode)) {
            Some((EntryKind::File, mode)) => add_execute_bits(mode),
            // The permission bits of a link are not those of the file that was written through it.
            Some((EntryKind::Symlink, _)) => LINKED_PROGRAM_MODE,
            Some((EntryKind::Directory | EntryKind::Other, _)) | None => {
                return Err(Error::new(ErrorCode::NotFound, self.0.operation, "the file is gone"));
            }
        };
        let request = SandboxFileRequest::SetMode { path: parse_sandbox_path(at)?, mode };
        let reply = self.ask(request, &[]).await?.0;
        self.expect_done(&reply)
    }

    /// Makes a directory and those above it.
    pub async fn make_dir(&mut self, at: &str) -> Result<()> {
        let request = SandboxFileRequest::MakeDir { path: parse_sandbox_path(at)? };
        let reply = self.ask(request, &[]).await?.0;
        self.expect_done(&reply)
    }

    async fn ask(
        &mut self,
        request: SandboxFileRequest,
        data: &[u8],
    ) -> Result<(SupervisorReply, Bytes)> {
        self.0.ask_with(&SupervisorRequest::File(request), data).await
    }

    fn expect_done(&self, reply: &SupervisorReply) -> Result<()> {
        if matches!(reply, SupervisorReply::Done) {
            Ok(())
        } else {
            Err(out_of_turn(self.0.operation))
        }
    }
}

/// Execute permission for every class that has read permission.
const fn add_execute_bits(mode: u32) -> u32 {
    mode | (mode & 0o444) >> 2
}

#[cfg(test)]
mod tests {
    use super::add_execute_bits;

    #[test]
    fn who_may_read_a_program_may_execute_it_and_nobody_else() {
        for (mode, executable) in [(0o644, 0o755), (0o600, 0o700), (0o640, 0o750), (0o755, 0o755)] {
            assert_eq!(add_execute_bits(mode), executable, "{mode:o}");
        }
    }
}
