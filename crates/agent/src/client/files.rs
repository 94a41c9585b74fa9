//! The sandbox's files over the pipe.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use stockade_core::{Entry, Error, ErrorCode, Files, Result, SandboxPath};

use super::hub::Hub;
use super::lane::{FileFailure, Finish, Kind};
use super::listing;
use super::reader::code_of;
use crate::protocol::{FileRequest, MAX_DATA, ToAgent};

/// The sandbox's files.
pub struct AgentFiles {
    hub: Arc<Hub>,
}

/// The public form of a failure.
pub fn error(operation: &'static str, failure: FileFailure) -> Error {
    let FileFailure { kind, path, detail } = failure;
    let separator = if detail.starts_with(char::is_lowercase) { " " } else { ": " };
    Error::new(code_of(kind), operation, format!("`{path}`{separator}{detail}"))
}

/// What is left when the end is not a success.
pub fn no_success(operation: &'static str, finish: Finish) -> Error {
    match finish {
        Finish::Failed(failure) => error(operation, failure),
        Finish::Closed(closed) => closed.error(operation),
        // The reader lets no answer through that does not fit its request.
        Finish::Exit(_) | Finish::Entry(_) | Finish::Data(_) | Finish::Done => {
            Error::new(ErrorCode::Protocol, operation, "the answer does not fit the request")
        }
    }
}

impl AgentFiles {
    pub fn new(hub: Arc<Hub>) -> Self {
        Self { hub }
    }

    async fn ask(
        &self,
        operation: &'static str,
        kind: Kind,
        request: FileRequest<'_>,
    ) -> Result<Finish> {
        let open = self.hub.open(operation, kind, |number| ToAgent::File(number, request));
        Ok(open.await?.1.finish().await)
    }

    /// A request that is answered by success alone.
    async fn tell(&self, operation: &'static str, request: FileRequest<'_>) -> Result<()> {
        let finish = self.ask(operation, Kind::Plain, request).await?;
        if matches!(finish, Finish::Done) { Ok(()) } else { Err(no_success(operation, finish)) }
    }

    async fn read_piece(&self, path: &str, offset: u64, most: u32) -> Result<Bytes> {
        let request = FileRequest::Read(path, offset, most);
        let finish = self.ask("read", Kind::Data(most), request).await?;
        if let Finish::Data(data) = finish { Ok(data) } else { Err(no_success("read", finish)) }
    }
}

#[async_trait]
impl Files for AgentFiles {
    async fn stat(&self, path: &SandboxPath) -> Result<Entry> {
        let finish = self.ask("stat", Kind::Entry, FileRequest::Stat(path.as_str())).await?;
        if let Finish::Entry(entry) = finish { Ok(entry) } else { Err(no_success("stat", finish)) }
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        listing::list(&self.hub, path).await
    }

    async fn read(&self, path: &SandboxPath, offset: u64, most: u32) -> Result<Bytes> {
        let mut whole = BytesMut::new();
        loop {
            let wanted = (most - whole.len() as u32).min(MAX_DATA as u32);
            let start = offset.saturating_add(whole.len() as u64);
            let piece = self.read_piece(path.as_str(), start, wanted).await?;
            whole.extend_from_slice(&piece);
            if piece.len() < wanted as usize || whole.len() as u32 == most {
                return Ok(whole.freeze());
            }
        }
    }

    async fn write(&self, path: &SandboxPath, mut data: Bytes, mut append: bool) -> Result<()> {
        loop {
            let piece = data.split_to(data.len().min(MAX_DATA));
            self.tell("write", FileRequest::Write(path.as_str(), append, &piece)).await?;
            append = true;
            if data.is_empty() {
                return Ok(());
            }
        }
    }

    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        self.tell("set mode", FileRequest::SetMode(path.as_str(), mode)).await
    }

    async fn make_dir(&self, path: &SandboxPath) -> Result<()> {
        self.tell("make directory", FileRequest::MakeDir(path.as_str())).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        self.tell("rename", FileRequest::Rename(from.as_str(), to.as_str())).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.tell("remove", FileRequest::Remove(path.as_str())).await
    }
}
