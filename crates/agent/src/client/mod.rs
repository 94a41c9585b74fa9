//! The host's half of the pipe.
//!
//! Everything that arrives is guest input: bounded by credit, decoded strictly, checked against what
//! was asked for. The first thing that does not fit closes the pipe, and with it everything that
//! went over it. One task reads, one writes; neither ever waits for a consumer.

mod channel;
mod deadline;
mod files;
mod listing;
mod mux;
mod network;
mod pipe_writer;
mod process;
mod reader;
mod transfer;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use stockade_core::{Command, Error, ErrorCode, Files, Process, Result, SandboxPath};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

pub use crate::protocol::{Limit, WatchKind};
pub use deadline::{Deadline, Expired};
pub use process::ProgramPid;
pub use transfer::{TarIn, TarOut};
pub use watch::{DirectoryChange, DirectoryWatch};

use files::AgentFiles;
use mux::{Closed, Mux};

/// A connection to one agent. Dropping it closes the pipe, and the agent ends with everything in
/// its sandbox.
pub struct AgentClient {
    mux: Arc<Mux>,
    files: AgentFiles,
    /// Who reads what the agent says.
    reading: Mutex<JoinHandle<()>>,
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
        Self::connect_with(reader, writer, deadline, |mux| mux.greet_agent())
            .await
            .map(|(client, ())| client)
    }

    /// Connects to a copy of an agent that had another client; `last` was that client's last channel. Programs on the
    /// `carried` channels are returned in that order; output of all others is discarded.
    pub async fn take_over<R, W>(
        reader: R,
        writer: W,
        deadline: Duration,
        last: u32,
        carried: &[u32],
    ) -> Result<(Self, Vec<Process>)>
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let greet = |mux: &Arc<Mux>| process::carry_over(mux, last, carried);
        Self::connect_with(reader, writer, deadline, greet).await
    }

    async fn connect_with<R, W, T>(
        reader: R,
        writer: W,
        deadline: Duration,
        greet: impl FnOnce(&Arc<Mux>) -> T,
    ) -> Result<(Self, T)>
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let mux = Arc::new(Mux::new(writer));
        let greeted = greet(&mux);
        let reading = tokio::spawn(reader::read_messages(mux.clone(), reader));
        let files = AgentFiles::new(mux.clone());
        let client = Self { mux: mux.clone(), files, reading: Mutex::new(reading) };
        tokio::spawn(async move { mux.write_outbox().await });
        client.wait_for_hello(deadline).await.map(|()| (client, greeted))
    }

    /// Reconnects, over new streams, to the agent of a restored machine, whose state is that of when `last` was the last
    /// channel. With `own`, a state of this very client's machine, programs that ran then continue; all others end as if
    /// killed, and requests are lost.
    pub async fn go_back<R, W>(
        &self,
        reader: R,
        writer: W,
        deadline: Duration,
        (last, own): (u32, bool),
    ) -> Result<()>
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let mut reading = self.reading.lock().await;
        // Not to take the end of the old streams for that of everything.
        reading.abort();
        let _ = (&mut *reading).await;
        self.mux.renew_link(Box::new(writer), last, own);
        *reading = tokio::spawn(reader::read_messages(self.mux.clone(), reader));
        drop(reading);
        self.wait_for_hello(deadline).await
    }

    async fn wait_for_hello(&self, deadline: Duration) -> Result<()> {
        match tokio::time::timeout(deadline, self.mux.wait_for_hello()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(closed)) => Err(closed.to_error("connect")),
            Err(_) => {
                let message =
                    format!("the agent did not answer within {} ms", deadline.as_millis());
                Err(Error::new(ErrorCode::TooSlow, "connect", message))
            }
        }
    }

    /// The last channel that was used.
    pub fn last_channel(&self) -> u32 {
        self.mux.last_channel()
    }

    /// Whether a program has not ended on this channel, as far as is known here.
    pub fn is_running(&self, channel: u32) -> bool {
        self.mux.find_channel(channel).is_ok_and(|channel| channel.goes_on())
    }

    /// Starts a command, with limits for each of its processes. Returns without waiting for the
    /// agent: a program that cannot be started says so as its exit (C-10).
    pub async fn spawn(&self, command: &Command, limits: &[(Limit, u64)]) -> Result<Process> {
        Ok(self.spawn_with_pid(command, limits).await?.1)
    }

    /// The same, with the process number that the program will have.
    pub async fn spawn_with_pid(
        &self,
        command: &Command,
        limits: &[(Limit, u64)],
    ) -> Result<(ProgramPid, Process)> {
        let (_, pid, process) = process::spawn_process(&self.mux, command, limits).await?;
        Ok((pid, process))
    }

    /// The same, and the channel that a copy of the agent knows the program by.
    pub async fn spawn_on_channel(
        &self,
        command: &Command,
        limits: &[(Limit, u64)],
    ) -> Result<(u32, ProgramPid, Process)> {
        process::spawn_process(&self.mux, command, limits).await
    }

    /// The sandbox's files.
    pub fn files(&self) -> &dyn Files {
        &self.files
    }

    /// A tree as a tar archive. The entries of a directory are named from inside it. Holds regular
    /// files, directories and symbolic links.
    pub async fn tar_out(&self, path: &SandboxPath) -> Result<TarOut> {
        TarOut::open(&self.mux, path).await
    }

    /// Unpacks a tar archive into a directory, which is made where it is missing. Regular files,
    /// directories and symbolic links only; everything else is refused by name.
    pub async fn tar_in(&self, path: &SandboxPath) -> Result<TarIn> {
        TarIn::open(&self.mux, path).await
    }

    /// Puts what is in `with`, a directory in this one, in the place of all else in it. What is mounted there
    /// stays.
    pub async fn replace(&self, directory: &SandboxPath, with: &str) -> Result<()> {
        self.files.replace(directory, with).await
    }

    /// Starts the network helper. What [`crate::protocol::network`] describes is its input and its output;
    /// dropping its events ends it.
    pub async fn open_network(&self) -> Result<Process> {
        network::open(&self.mux).await
    }

    /// Watches one directory.
    pub async fn watch(&self, path: &SandboxPath) -> Result<DirectoryWatch> {
        DirectoryWatch::open(&self.mux, path).await
    }

    /// Whether the pipe is open, as far as is known.
    pub fn is_open(&self) -> bool {
        self.mux.is_open()
    }

    /// Waits until the pipe is gone, and says why.
    pub async fn closed(&self) -> String {
        self.mux.wait_until_closed().await.message
    }

    /// Closes the pipe. Idempotent.
    pub fn close(&self) {
        self.mux.fail_all(Closed::new(ErrorCode::Gone, "the pipe was closed"));
    }
}

impl Drop for AgentClient {
    fn drop(&mut self) {
        self.close();
    }
}
