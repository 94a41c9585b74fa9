//! A Firecracker process inside what is built around it: asked, stopped, and ended.

use std::io;
use std::time::Duration;

use serde_json::Value;
use stockade_core::{Error, ErrorCode, Result};
use tokio::time::{sleep, timeout};

use super::api::{self, Method, RequestFault, RequestLine, SocketDir};
use super::jailed::Jailed;
use super::stop::StoppableProcess;
use super::{Patience, microvm_error};
use crate::microvm::vmm_output::VmmOutput;
use crate::microvm::vmm_sandbox::VmmSandbox;

/// Poll interval until a process that starts listens on its socket.
const SOCKET_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// What a process runs in.
pub(super) enum Confinement {
    /// Native walls.
    Walls(VmmSandbox),
    /// Firecracker's own jail.
    Jail(Jailed),
}

/// One process, and its socket.
pub(super) struct FirecrackerProcess {
    inside: Confinement,
    /// The process that serves the API socket, once one does.
    stoppable: Option<StoppableProcess>,
    pub sockets: SocketDir,
    pub patience: Patience,
}

impl FirecrackerProcess {
    /// Waits until one that was started listens. One that does not is ended.
    pub(super) async fn start(
        inside: Confinement,
        sockets: SocketDir,
        patience: Patience,
    ) -> Result<Self> {
        let mut process = Self { inside, stoppable: None, sockets, patience };
        let found = match process.wait_for_listener().await {
            Ok(()) => process.find_server().await,
            Err(error) => Err(error),
        };
        process.or_kill(found).await
    }

    /// Finds the process behind the API socket, so that it can be stopped.
    async fn find_server(&mut self) -> Result<()> {
        let found = StoppableProcess::from_api_socket(&self.sockets).await;
        self.stoppable = Some(found.map_err(|error| {
            microvm_error(ErrorCode::Unavailable, "create", "Firecracker's process cannot be found")
                .remedy("see whether Firecracker was killed, and try again")
                .source(error)
        })?);
        Ok(())
    }

    /// Stops the whole process where it is, or lets it go on. Returns when it is so.
    pub(super) async fn set_stopped(&self, stop: bool) -> Result<()> {
        let operation = if stop { "pause" } else { "resume" };
        let stopped = match &self.stoppable {
            Some(process) => timeout(self.patience.soon, process.set_stopped(stop)).await,
            None => Ok(Err(io::ErrorKind::NotConnected.into())),
        };
        let (code, error) = match stopped {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => (ErrorCode::Gone, error),
            Err(_) => (ErrorCode::TooSlow, io::ErrorKind::TimedOut.into()),
        };
        let what =
            self.append_last_words("Firecracker's process cannot be stopped or continued".into());
        Err(microvm_error(code, operation, what.await)
            .remedy("see whether Firecracker was killed; destroy the sandbox")
            .source(error))
    }

    /// Itself, or nothing of it.
    pub(super) async fn or_kill(self, done: Result<()>) -> Result<Self> {
        match done {
            Ok(()) => Ok(self),
            Err(error) => {
                self.kill_and_wait().await?;
                Err(error)
            }
        }
    }

    async fn wait_for_listener(&self) -> Result<()> {
        let connected = async {
            while self.sockets.connect(api::API_SOCKET).await.is_err() {
                sleep(SOCKET_POLL_INTERVAL).await;
            }
        };
        let soon = self.patience.soon;
        let what = tokio::select! {
            () = connected => return Ok(()),
            () = self.wait_for_exit() => "Firecracker ended before it listened".to_owned(),
            () = sleep(soon) => {
                format!("Firecracker did not listen within {soon:?}")
            }
        };
        let what = self.append_last_words(what).await;
        Err(microvm_error(ErrorCode::Unavailable, "create", what)
            .remedy("start the binary by hand with the same KVM and see what it says"))
    }

    /// Asks it for something. A process that ends instead says why.
    pub(super) async fn send_request(
        &self,
        operation: &'static str,
        method: Method,
        path: &str,
        body: &Value,
        limit: Duration,
    ) -> Result<()> {
        match api::send_request(&self.sockets, &method, path, body, limit).await {
            Ok(()) => Ok(()),
            Err(fault) => {
                Err(self.request_error(operation, RequestLine(&method, path), fault).await)
            }
        }
    }

    /// Waits for the exit of a process whose API socket is unreachable, and so for all of its output.
    async fn wait_for_exit_if_unreachable(&self) {
        if self.sockets.connect(api::API_SOCKET).await.is_err() {
            // It may hang instead.
            let _ = timeout(self.patience.soon, self.wait_for_exit()).await;
        }
    }

    async fn request_error(
        &self,
        operation: &'static str,
        asked: RequestLine<'_>,
        fault: RequestFault,
    ) -> Error {
        let (code, remedy) = match &fault {
            RequestFault::Refused { .. } => {
                (ErrorCode::WallMissing, "see that kernel, disks and snapshot fit this Firecracker")
            }
            RequestFault::Silent(_) => (ErrorCode::TooSlow, "see whether the host is overloaded"),
            RequestFault::TooLarge | RequestFault::Unaskable(_) => {
                (ErrorCode::Protocol, "see that the binary is Firecracker, unchanged")
            }
            RequestFault::Unreachable(_) | RequestFault::Broken(_) => {
                self.wait_for_exit_if_unreachable().await;
                (ErrorCode::Unavailable, "see whether Firecracker was killed, and try again")
            }
        };
        let what = self.append_last_words(format!("asked for {asked}, Firecracker {fault}")).await;
        microvm_error(code, operation, what).remedy(remedy).source(fault)
    }

    fn words(&self) -> &VmmOutput {
        match &self.inside {
            Confinement::Walls(cage) => &cage.words,
            Confinement::Jail(jailed) => &jailed.words,
        }
    }

    /// What it wrote so far.
    pub(super) fn output_so_far(&self) -> String {
        self.words().read_so_far()
    }

    /// Adds how it ended, if it has, and the last of what it wrote.
    pub(super) async fn append_last_words(&self, mut what: String) -> String {
        let said = self.words().wait_for_last_words().await;
        let ended = match &self.inside {
            // Among what was said.
            Confinement::Walls(_) => None,
            Confinement::Jail(jailed) => jailed.exit_status(),
        };
        if let Some(status) = ended {
            what = format!("{what}; it ended by {status}");
        }
        if said.is_empty() { what } else { format!("{what}; it wrote: {said}") }
    }

    /// Waits for its end.
    pub(super) async fn wait_for_exit(&self) {
        match &self.inside {
            Confinement::Walls(cage) => cage.words.wait_for_end().await,
            Confinement::Jail(jailed) => jailed.wait_for_exit().await,
        }
    }

    /// Ends it and waits until nothing of it is left.
    pub(super) async fn kill_and_wait(&self) -> Result<()> {
        match &self.inside {
            Confinement::Walls(cage) => cage.tear_down().await,
            Confinement::Jail(jailed) => jailed.kill_and_wait(self.patience.soon).await,
        }
    }
}
