//! The host's half of the pipe.
//!
//! Everything that arrives is guest input: bounded by credit, decoded strictly, checked against what
//! was asked for. The first thing that does not fit closes the pipe, and with it everything that
//! went over it. One task reads, one writes; neither ever waits for a consumer.

mod files;
mod hub;
mod lane;
mod listing;
mod outlet;
mod process;
mod reader;
mod transfer;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use stockade_core::{Command, Error, ErrorCode, Files, Process, Result, SandboxPath};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

pub use crate::protocol::{Limit, WatchKind};
pub use transfer::{TarIn, TarOut};
pub use watch::{Change, Watch};

use crate::protocol::{Hello, MAX_FRAME, ToAgent, VERSION};
use files::AgentFiles;
use hub::{Closed, Hub};

/// A connection to one agent. Dropping it closes the pipe, and the agent ends with everything in
/// its sandbox.
pub struct AgentClient {
    hub: Arc<Hub>,
    files: AgentFiles,
}

impl AgentClient {
    /// Takes a connected socket into use. The agent must say hello before the deadline.
    pub async fn connect(socket: UnixStream, deadline: Duration) -> Result<Self> {
        let (reader, writer) = socket.into_split();
        Self::connect_halves(reader, writer, deadline).await
    }

    /// The same for any two byte streams, such as the standard streams of a helper program.
    pub async fn connect_halves<R, W>(reader: R, writer: W, deadline: Duration) -> Result<Self>
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let hub = Arc::new(Hub::new(writer));
        let client = Self { hub: hub.clone(), files: AgentFiles::new(hub.clone()) };
        hub.send(&ToAgent::Hello(Hello { version: VERSION, max_frame: MAX_FRAME as u32 }));
        tokio::spawn(reader::read(hub.clone(), reader));
        let writing = hub.clone();
        tokio::spawn(async move { writing.write().await });
        match tokio::time::timeout(deadline, hub.greeted()).await {
            Ok(Ok(())) => Ok(client),
            Ok(Err(closed)) => Err(closed.error("connect")),
            Err(_) => {
                let message = format!("the agent said nothing for {} ms", deadline.as_millis());
                Err(Error::new(ErrorCode::TooSlow, "connect", message))
            }
        }
    }

    /// Starts a command, with limits for each of its processes. Returns without waiting for the
    /// agent: a program that cannot be started says so as its exit (C-10).
    pub async fn spawn(&self, command: &Command, limits: &[(Limit, u64)]) -> Result<Process> {
        process::spawn(&self.hub, command, limits).await
    }

    /// The sandbox's files.
    pub fn files(&self) -> &dyn Files {
        &self.files
    }

    /// A tree as a tar archive. The entries of a directory are named from inside it. Holds regular
    /// files, directories and symbolic links.
    pub async fn tar_out(&self, path: &SandboxPath) -> Result<TarOut> {
        TarOut::open(&self.hub, path).await
    }

    /// Unpacks a tar archive into a directory, which is made where it is missing. Regular files,
    /// directories and symbolic links only; everything else is refused by name.
    pub async fn tar_in(&self, path: &SandboxPath) -> Result<TarIn> {
        TarIn::open(&self.hub, path).await
    }

    /// Watches one directory.
    pub async fn watch(&self, path: &SandboxPath) -> Result<Watch> {
        Watch::open(&self.hub, path).await
    }

    /// Whether the pipe is there, as far as anybody has noticed.
    pub fn is_open(&self) -> bool {
        self.hub.is_open()
    }

    /// Waits until the pipe is gone, and says why.
    pub async fn closed(&self) -> String {
        self.hub.closed().await.message
    }

    /// Closes the pipe. Idempotent.
    pub fn close(&self) {
        self.hub.fail(Closed::new(ErrorCode::Gone, "the pipe was closed"));
    }
}

impl Drop for AgentClient {
    fn drop(&mut self) {
        self.close();
    }
}
