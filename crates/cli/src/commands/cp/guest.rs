//! A sandbox's files, over its supervisor's socket.

use bytes::Bytes;
use stockade_core::{Entry, EntryKind, ErrorCode, Result};

use super::paths::parse_sandbox_path;
use crate::daemon::client::SupervisorConnection;
use crate::daemon::message::{CHUNK_BYTES, SupervisorReply, SupervisorRequest};
use crate::daemon::wire_error::out_of_turn;

/// A sandbox's files.
pub struct GuestFiles(SupervisorConnection);

impl GuestFiles {
    /// Over this connection.
    pub fn new(connection: SupervisorConnection) -> Self {
        Self(connection)
    }

    /// What is at a path; nothing if there is nothing.
    pub async fn stat(&mut self, at: &str) -> Result<Option<Entry>> {
        match self.0.ask(&SupervisorRequest::Stat { path: parse_sandbox_path(at)? }).await {
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
        let mut reply =
            self.0.ask(&SupervisorRequest::List { path: parse_sandbox_path(at)? }).await?.0;
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
        let request =
            SupervisorRequest::Read { path: parse_sandbox_path(at)?, offset, most: CHUNK_BYTES };
        match self.0.ask(&request).await? {
            (SupervisorReply::Data, data) => Ok(data),
            _ => Err(out_of_turn(self.0.operation)),
        }
    }

    /// Writes a piece of a file: from its start, or at its end.
    pub async fn write(&mut self, at: &str, data: &[u8], append: bool) -> Result<()> {
        let reply = self
            .0
            .ask_with(&SupervisorRequest::Write { path: parse_sandbox_path(at)?, append }, data)
            .await?
            .0;
        self.expect_done(&reply)
    }

    /// Makes a directory and those above it.
    pub async fn make_dir(&mut self, at: &str) -> Result<()> {
        let reply =
            self.0.ask(&SupervisorRequest::MakeDir { path: parse_sandbox_path(at)? }).await?.0;
        self.expect_done(&reply)
    }

    fn expect_done(&self, reply: &SupervisorReply) -> Result<()> {
        if matches!(reply, SupervisorReply::Done) {
            Ok(())
        } else {
            Err(out_of_turn(self.0.operation))
        }
    }
}
