//! One connection: a greeting, then requests one after the other. Starting a program or reading its
//! output takes the connection up; everything else is answered and the next may follow.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use stockade_core::{Error, ErrorCode, Result};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::activity::Busy;
use super::host::Host;
use super::{attach, files, replay, states};
use crate::lasting::fault::WireError;
use crate::lasting::frame::{self, FrameError};
use crate::lasting::message::{PROTOCOL_VERSION, Reply, Request};
use crate::lasting::peer::{self, Stranger};

/// Timeout for the first request of a connection.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// One connection.
pub struct Session {
    /// The sandbox it is about.
    pub host: Arc<Host>,
    /// What the client says.
    pub reader: OwnedReadHalf,
    /// What it is told.
    pub writer: OwnedWriteHalf,
    /// Held from the first request that uses the sandbox.
    busy: Option<Busy>,
}

/// Serves a connection to its end. How it ended concerns nobody: the client has heard, or is gone.
pub async fn serve(host: Arc<Host>, stream: UnixStream) {
    let trusted = peer::check(&stream);
    let (reader, writer) = stream.into_split();
    let mut session = Session { host, reader, writer, busy: None };
    match trusted {
        Ok(()) => {}
        Err(Stranger::User) => return,
        Err(Stranger::Namespace) => {
            let _ = tokio::time::timeout(HANDSHAKE_TIMEOUT, session.send_away()).await;
            return;
        }
    }
    if let Ok(Ok(true)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, session.greet()).await {
        let _ = session.answer_all().await;
    }
}

fn from_elsewhere() -> Error {
    let message = "the request comes from a user or process namespace of its own";
    Error::new(ErrorCode::Denied, "serve", message)
        .remedy("run this where the sandbox was made, outside of any container")
}

impl Session {
    async fn greet(&mut self) -> Result<bool, FrameError> {
        let Some((Request::Hello { version }, _)) = frame::receive(&mut self.reader).await? else {
            return Ok(false);
        };
        if version == PROTOCOL_VERSION {
            self.reply(&Reply::Hello { version: PROTOCOL_VERSION }).await?;
            return Ok(true);
        }
        let message = "the sandbox was made by another version of stockade";
        let error = Error::new(ErrorCode::Protocol, "greet", message)
            .remedy("use the version that made it, or end its supervisor and make it anew");
        self.fail(&error).await?;
        Ok(false)
    }

    /// Tells a person in a container why nothing is answered. Their greeting is taken and not looked at,
    /// since a connection that is closed over it could lose the answer.
    async fn send_away(&mut self) -> Result<(), FrameError> {
        frame::receive::<Request>(&mut self.reader).await?;
        self.fail(&from_elsewhere()).await
    }

    async fn answer_all(mut self) -> Result<(), FrameError> {
        while let Some((request, payload)) = self.next_request().await? {
            self.note_use(&request);
            match request {
                Request::Info => self.reply(&Reply::Info(self.host.info())).await?,
                Request::Exec { command, detach } => {
                    return attach::exec(self, *command, detach).await;
                }
                Request::Logs { job, from, follow } => {
                    return replay::logs(self, job, from, follow).await;
                }
                Request::Stat { .. }
                | Request::List { .. }
                | Request::Read { .. }
                | Request::Write { .. }
                | Request::MakeDir { .. } => self.file(request, payload).await?,
                Request::Snapshot { .. }
                | Request::Restore { .. }
                | Request::Pause
                | Request::Resume
                | Request::Describe => self.state(request).await?,
                Request::Destroy => return self.destroy().await,
                Request::Hello { .. }
                | Request::Stdin
                | Request::StdinEnd
                | Request::Signal { .. }
                | Request::Resize { .. }
                | Request::Cancel => return self.out_of_turn().await,
            }
        }
        Ok(())
    }

    /// Nothing when the client has gone, or the sandbox.
    async fn next_request(&mut self) -> Result<Option<(Request, Bytes)>, FrameError> {
        tokio::select! {
            request = frame::receive(&mut self.reader) => request,
            _ = self.host.ended() => Ok(None),
        }
    }

    /// Looking does not keep a sandbox alive, and neither does the wish that it ends.
    fn note_use(&mut self, request: &Request) {
        if !matches!(request, Request::Info | Request::Destroy) {
            self.busy.get_or_insert_with(|| self.host.activity.begin());
        }
    }

    async fn file(&mut self, request: Request, payload: Bytes) -> Result<(), FrameError> {
        match files::answer(&self.host, request, payload).await {
            Ok(answers) => {
                for (reply, payload) in answers {
                    frame::send(&mut self.writer, &reply, &payload).await?;
                }
                Ok(())
            }
            Err(error) => self.fail(&error).await,
        }
    }

    async fn state(&mut self, request: Request) -> Result<(), FrameError> {
        match states::answer(&self.host, request).await {
            Ok(Some(reply)) => self.reply(&reply).await,
            Ok(None) => Err(FrameError::Closed),
            Err(error) => self.fail(&error).await,
        }
    }

    async fn destroy(mut self) -> Result<(), FrameError> {
        self.host.ask_to_end();
        let reply = match self.host.ended().await {
            Ok(()) => Reply::Done,
            Err(error) => Reply::Failed(error),
        };
        self.reply(&reply).await
    }

    async fn out_of_turn(mut self) -> Result<(), FrameError> {
        let message = "the request does not fit here";
        self.fail(&Error::new(ErrorCode::Protocol, "serve", message)).await
    }

    /// Sends an answer without payload.
    pub async fn reply(&mut self, reply: &Reply) -> Result<(), FrameError> {
        frame::send(&mut self.writer, reply, &[]).await
    }

    /// Sends an error.
    pub async fn fail(&mut self, error: &Error) -> Result<(), FrameError> {
        self.reply(&Reply::Failed(WireError::from(error))).await
    }
}
