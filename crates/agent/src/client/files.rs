//! The sandbox's files over the pipe.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use stockade_core::{Entry, Error, ErrorCode, Files, Result, SandboxPath};

use super::channel::{ChannelKind, FileFailure, Finish};
use super::deadline::Deadline;
use super::listing;
use super::mux::{Mux, too_slow};
use super::reader::code_of;
use crate::protocol::{FileRequest, MAX_DATA, ToAgent};

/// How long a request may take before anything of its answer is there, and however much that is.
pub const FILE_TIMEOUT: Duration = Duration::from_secs(120);
pub const FILE_TRANSFER_TIMEOUT: Duration = Duration::from_secs(600);

/// The deadline of one request.
pub fn request_deadline() -> Deadline {
    Deadline::after(FILE_TIMEOUT, FILE_TRANSFER_TIMEOUT)
}

/// The sandbox's files.
pub struct AgentFiles {
    mux: Arc<Mux>,
}

/// The public form of a failure.
pub fn to_error(operation: &'static str, failure: FileFailure) -> Error {
    let FileFailure { kind, path, detail } = failure;
    let separator = if detail.starts_with(char::is_lowercase) { " " } else { ": " };
    Error::new(code_of(kind), operation, format!("`{path}`{separator}{detail}"))
}

/// What is left when the end is not a success.
pub fn no_success(operation: &'static str, finish: Finish) -> Error {
    match finish {
        Finish::Failed(failure) => to_error(operation, failure),
        Finish::Closed(closed) => closed.to_error(operation),
        // The reader lets no answer through that does not fit its request.
        Finish::Exit(_) | Finish::Entry(_) | Finish::Data(_) | Finish::Done => {
            Error::new(ErrorCode::Protocol, operation, "the answer does not fit the request")
        }
    }
}

impl AgentFiles {
    pub fn new(mux: Arc<Mux>) -> Self {
        Self { mux }
    }

    async fn send_request(
        &self,
        operation: &'static str,
        kind: ChannelKind,
        request: FileRequest<'_>,
        deadline: Deadline,
    ) -> Result<Finish> {
        let open = self.mux.open(operation, kind, |number| ToAgent::File(number, request));
        let answer = async { Ok(open.await?.1.wait_for_finish().await) };
        deadline.within(answer).await.unwrap_or_else(|_| Err(too_slow(operation)))
    }

    /// A request that is answered by success alone.
    async fn run_request(&self, operation: &'static str, request: FileRequest<'_>) -> Result<()> {
        self.run_request_before(operation, request, request_deadline()).await
    }

    async fn run_request_before(
        &self,
        operation: &'static str,
        request: FileRequest<'_>,
        deadline: Deadline,
    ) -> Result<()> {
        let finish = self.send_request(operation, ChannelKind::Plain, request, deadline).await?;
        if matches!(finish, Finish::Done) { Ok(()) } else { Err(no_success(operation, finish)) }
    }

    pub(super) async fn replace(&self, directory: &SandboxPath, with: &str) -> Result<()> {
        self.run_request("replace", FileRequest::Replace(directory.as_str(), with)).await
    }

    async fn read_piece(
        &self,
        path: &str,
        offset: u64,
        most: u32,
        deadline: Deadline,
    ) -> Result<Bytes> {
        let request = FileRequest::Read(path, offset, most);
        let finish = self.send_request("read", ChannelKind::Data(most), request, deadline).await?;
        if let Finish::Data(data) = finish { Ok(data) } else { Err(no_success("read", finish)) }
    }
}

#[async_trait]
impl Files for AgentFiles {
    async fn stat(&self, path: &SandboxPath) -> Result<Entry> {
        let request = FileRequest::Stat(path.as_str());
        let finish =
            self.send_request("stat", ChannelKind::Entry, request, request_deadline()).await?;
        if let Finish::Entry(entry) = finish { Ok(entry) } else { Err(no_success("stat", finish)) }
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<Entry>> {
        listing::list_directory(&self.mux, path).await
    }

    async fn read(&self, path: &SandboxPath, offset: u64, most: u32) -> Result<Bytes> {
        let (mut whole, mut deadline) = (BytesMut::new(), request_deadline());
        loop {
            let wanted = (most - whole.len() as u32).min(MAX_DATA as u32);
            let start = offset.saturating_add(whole.len() as u64);
            let piece = self.read_piece(path.as_str(), start, wanted, deadline).await?;
            deadline.transferred(piece.len());
            whole.extend_from_slice(&piece);
            if piece.len() < wanted as usize || whole.len() as u32 == most {
                return Ok(whole.freeze());
            }
        }
    }

    async fn write(&self, path: &SandboxPath, mut data: Bytes, mut append: bool) -> Result<()> {
        let mut deadline = request_deadline();
        loop {
            let piece = data.split_to(data.len().min(MAX_DATA));
            let request = FileRequest::Write(path.as_str(), append, &piece);
            self.run_request_before("write", request, deadline).await?;
            deadline.transferred(piece.len());
            append = true;
            if data.is_empty() {
                return Ok(());
            }
        }
    }

    async fn set_mode(&self, path: &SandboxPath, mode: u32) -> Result<()> {
        self.run_request("set mode", FileRequest::SetMode(path.as_str(), mode)).await
    }

    async fn make_dir(&self, path: &SandboxPath) -> Result<()> {
        self.run_request("make directory", FileRequest::MakeDir(path.as_str())).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<()> {
        self.run_request("rename", FileRequest::Rename(from.as_str(), to.as_str())).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<()> {
        self.run_request("remove", FileRequest::Remove(path.as_str())).await
    }
}
