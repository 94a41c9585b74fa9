//! A Firecracker process inside what is built around it: asked, stopped, and ended.

use std::io;
use std::time::Duration;

use serde_json::Value;
use stockade_core::{Error, ErrorCode, Result};
use tokio::time::{sleep, timeout};

use super::api::{self, Asked, Fault, Method, Sockets};
use super::jailed::Jailed;
use super::stop::StoppableProcess;
use super::{Patience, failed};
use crate::microvm::cage::Cage;
use crate::microvm::words::Words;

/// Poll interval until a process that starts listens on its socket.
const SOCKET_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// What a process runs in.
pub(super) enum Inside {
    /// Native walls.
    Walls(Cage),
    /// Firecracker's own jail.
    Jail(Jailed),
}

/// One process, and its socket.
pub(super) struct Process {
    inside: Inside,
    /// Whoever serves the API socket, once it does.
    stoppable: Option<StoppableProcess>,
    pub sockets: Sockets,
    pub patience: Patience,
}

impl Process {
    /// Waits until one that was started listens. One that does not is ended.
    pub(super) async fn start(
        inside: Inside,
        sockets: Sockets,
        patience: Patience,
    ) -> Result<Self> {
        let mut process = Self { inside, stoppable: None, sockets, patience };
        let found = match process.listens().await {
            Ok(()) => process.find_server().await,
            Err(error) => Err(error),
        };
        process.or_end(found).await
    }

    /// Finds the process behind the API socket, so that it can be stopped.
    async fn find_server(&mut self) -> Result<()> {
        let found = StoppableProcess::serving(&self.sockets).await;
        self.stoppable = Some(found.map_err(|error| {
            failed(ErrorCode::Unavailable, "create", "Firecracker's process cannot be found")
                .remedy("see whether Firecracker was killed, and try again")
                .source(error)
        })?);
        Ok(())
    }

    /// Stops the whole process where it is, or lets it go on. Returns when it is so.
    pub(super) async fn stop(&self, stop: bool) -> Result<()> {
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
        let what = self.with_words("Firecracker's process cannot be stopped or continued".into());
        Err(failed(code, operation, what.await)
            .remedy("see whether Firecracker was killed; destroy the sandbox")
            .source(error))
    }

    /// Itself, or nothing of it.
    pub(super) async fn or_end(self, done: Result<()>) -> Result<Self> {
        match done {
            Ok(()) => Ok(self),
            Err(error) => {
                self.end().await?;
                Err(error)
            }
        }
    }

    async fn listens(&self) -> Result<()> {
        let connected = async {
            while self.sockets.connect(api::API_SOCKET).await.is_err() {
                sleep(SOCKET_POLL_INTERVAL).await;
            }
        };
        let soon = self.patience.soon;
        let what = tokio::select! {
            () = connected => return Ok(()),
            () = self.ended() => "Firecracker ended before it listened".to_owned(),
            () = sleep(soon) => {
                format!("Firecracker did not listen within {soon:?}")
            }
        };
        let what = self.with_words(what).await;
        Err(failed(ErrorCode::Unavailable, "create", what)
            .remedy("start the binary by hand with the same KVM and see what it says"))
    }

    /// Asks it for something. A process that ends instead says why.
    pub(super) async fn ask(
        &self,
        operation: &'static str,
        method: Method,
        path: &str,
        body: &Value,
        limit: Duration,
    ) -> Result<()> {
        match api::ask(&self.sockets, &method, path, body, limit).await {
            Ok(()) => Ok(()),
            Err(fault) => Err(self.refused(operation, Asked(&method, path), fault).await),
        }
    }

    /// Waits for the end of one that nobody can reach any more, and so for all that it says.
    async fn comes_to_its_end(&self) {
        if self.sockets.connect(api::API_SOCKET).await.is_err() {
            // It may hang instead.
            let _ = timeout(self.patience.soon, self.ended()).await;
        }
    }

    async fn refused(&self, operation: &'static str, asked: Asked<'_>, fault: Fault) -> Error {
        let (code, remedy) = match &fault {
            Fault::Refused { .. } => {
                (ErrorCode::WallMissing, "see that kernel, disks and snapshot fit this Firecracker")
            }
            Fault::Silent(_) => (ErrorCode::TooSlow, "see whether the host is overloaded"),
            Fault::TooLarge | Fault::Unaskable(_) => {
                (ErrorCode::Protocol, "see that the binary is Firecracker, unchanged")
            }
            Fault::Unreachable(_) | Fault::Broken(_) => {
                self.comes_to_its_end().await;
                (ErrorCode::Unavailable, "see whether Firecracker was killed, and try again")
            }
        };
        let what = self.with_words(format!("asked for {asked}, Firecracker {fault}")).await;
        failed(code, operation, what).remedy(remedy).source(fault)
    }

    fn words(&self) -> &Words {
        match &self.inside {
            Inside::Walls(cage) => &cage.words,
            Inside::Jail(jailed) => &jailed.words,
        }
    }

    /// What it wrote so far.
    pub(super) fn said(&self) -> String {
        self.words().so_far()
    }

    /// Adds how it ended, if it has, and the last of what it wrote.
    pub(super) async fn with_words(&self, mut what: String) -> String {
        let said = self.words().last().await;
        let ended = match &self.inside {
            // Among what was said.
            Inside::Walls(_) => None,
            Inside::Jail(jailed) => jailed.exit_status(),
        };
        if let Some(status) = ended {
            what = format!("{what}; it ended by {status}");
        }
        if said.is_empty() { what } else { format!("{what}; it wrote: {said}") }
    }

    /// Waits for its end.
    pub(super) async fn ended(&self) {
        match &self.inside {
            Inside::Walls(cage) => cage.words.ended().await,
            Inside::Jail(jailed) => jailed.ended().await,
        }
    }

    /// Ends it and waits until nothing of it is left.
    pub(super) async fn end(&self) -> Result<()> {
        match &self.inside {
            Inside::Walls(cage) => cage.end().await,
            Inside::Jail(jailed) => jailed.end(self.patience.soon).await,
        }
    }
}
