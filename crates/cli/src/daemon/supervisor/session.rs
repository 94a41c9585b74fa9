//! One connection: a greeting, then requests one after the other. Starting a program, reading its output,
//! connecting to a port or serving an agent takes the connection up; everything else is answered and the next may follow.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use stockade_core::{Error, ErrorCode, Result};
use stockade_server::life::Busy;
use stockade_server::peer::{self, Stranger};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::host::SupervisorHost;
use super::{attach, files, network, replay, states, tools};
use crate::daemon::frame::{self, SupervisorFrameError};
use crate::daemon::message::{
    PROTOCOL_VERSION, SandboxFileRequest, SandboxNetworkRequest, SandboxStateRequest,
    SupervisorReply, SupervisorRequest,
};
use crate::daemon::wire_error::WireError;

/// Timeout for the first request of a connection.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// One connection.
pub struct ClientSession {
    /// The sandbox it is about.
    pub host: Arc<SupervisorHost>,
    /// What the client says.
    pub reader: OwnedReadHalf,
    /// What it is told.
    pub writer: OwnedWriteHalf,
    /// Held from the first request that uses the sandbox.
    busy: Option<Busy>,
}

/// Serves a connection to its end. The result is dropped: the client has its reply, or is gone.
pub async fn serve_session(host: Arc<SupervisorHost>, stream: UnixStream) {
    let trusted = peer::check_peer(&stream);
    let (reader, writer) = stream.into_split();
    let mut session = ClientSession { host, reader, writer, busy: None };
    match trusted {
        Ok(()) => {}
        Err(Stranger::User) => return,
        Err(Stranger::Namespace) => {
            let _ = tokio::time::timeout(HANDSHAKE_TIMEOUT, session.send_away()).await;
            return;
        }
    }
    if let Ok(Ok(true)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, session.answer_hello()).await {
        let _ = session.answer_all().await;
    }
}

fn from_elsewhere() -> Error {
    let message = "the request comes from a user or process namespace of its own";
    Error::new(ErrorCode::Denied, "serve", message)
        .remedy("run this where the sandbox was made, outside of any container")
}

impl ClientSession {
    async fn answer_hello(&mut self) -> Result<bool, SupervisorFrameError> {
        let Some((SupervisorRequest::Hello { version }, _)) =
            frame::receive_frame(&mut self.reader).await?
        else {
            return Ok(false);
        };
        if version == PROTOCOL_VERSION {
            self.reply(&SupervisorReply::Hello { version: PROTOCOL_VERSION }).await?;
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
    async fn send_away(&mut self) -> Result<(), SupervisorFrameError> {
        frame::receive_frame::<SupervisorRequest>(&mut self.reader).await?;
        self.fail(&from_elsewhere()).await
    }

    async fn answer_all(mut self) -> Result<(), SupervisorFrameError> {
        while let Some((request, payload)) = self.next_request().await? {
            self.note_use(&request);
            match request {
                SupervisorRequest::Info => {
                    self.reply(&SupervisorReply::Info(self.host.info())).await?
                }
                SupervisorRequest::Exec { command, detach } => {
                    return attach::serve_exec(self, *command, detach).await;
                }
                SupervisorRequest::Logs { job, from, follow } => {
                    return replay::serve_logs(self, job, from, follow).await;
                }
                SupervisorRequest::File(request) => {
                    self.serve_file_request(request, payload).await?
                }
                SupervisorRequest::State(request) => self.serve_state_request(request).await?,
                SupervisorRequest::Network(request) => self.serve_network_request(request).await?,
                SupervisorRequest::Connect { port } => {
                    return network::serve_port(self, port).await;
                }
                SupervisorRequest::Tools(request) => {
                    return tools::serve_tools(self, request).await;
                }
                SupervisorRequest::Destroy => return self.destroy_sandbox().await,
                SupervisorRequest::Hello { .. } | SupervisorRequest::Program(_) => {
                    return self.out_of_turn().await;
                }
            }
        }
        Ok(())
    }

    /// Nothing when the client has gone, or the sandbox.
    async fn next_request(
        &mut self,
    ) -> Result<Option<(SupervisorRequest, Bytes)>, SupervisorFrameError> {
        tokio::select! {
            request = frame::receive_frame(&mut self.reader) => request,
            _ = self.host.ended() => Ok(None),
        }
    }

    /// Looking does not keep a sandbox alive, and neither does the wish that it ends.
    fn note_use(&mut self, request: &SupervisorRequest) {
        let looks = matches!(
            request,
            SupervisorRequest::Info
                | SupervisorRequest::Destroy
                | SupervisorRequest::Network(SandboxNetworkRequest::Show)
        );
        if !looks {
            self.busy.get_or_insert_with(|| self.host.life.begin_use());
        }
    }

    async fn serve_file_request(
        &mut self,
        request: SandboxFileRequest,
        payload: Bytes,
    ) -> Result<(), SupervisorFrameError> {
        match files::answer_file_request(&self.host, request, payload).await {
            Ok(answers) => {
                for (reply, payload) in answers {
                    frame::send_frame(&mut self.writer, &reply, &payload).await?;
                }
                Ok(())
            }
            Err(error) => self.fail(&error).await,
        }
    }

    async fn serve_state_request(
        &mut self,
        request: SandboxStateRequest,
    ) -> Result<(), SupervisorFrameError> {
        match states::answer_state_request(&self.host, request).await {
            Ok(reply) => self.reply(&reply).await,
            Err(error) => self.fail(&error).await,
        }
    }

    async fn serve_network_request(
        &mut self,
        request: SandboxNetworkRequest,
    ) -> Result<(), SupervisorFrameError> {
        match network::answer_network_request(&self.host, request).await {
            Ok(reply) => self.reply(&reply).await,
            Err(error) => self.fail(&error).await,
        }
    }

    async fn destroy_sandbox(mut self) -> Result<(), SupervisorFrameError> {
        self.host.ask_to_end();
        let reply = match self.host.ended().await {
            Ok(()) => SupervisorReply::Done,
            Err(error) => SupervisorReply::Failed(error),
        };
        self.reply(&reply).await
    }

    async fn out_of_turn(mut self) -> Result<(), SupervisorFrameError> {
        let message = "the request does not fit here";
        self.fail(&Error::new(ErrorCode::Protocol, "serve", message)).await
    }

    /// Sends an answer without payload.
    pub async fn reply(&mut self, reply: &SupervisorReply) -> Result<(), SupervisorFrameError> {
        frame::send_frame(&mut self.writer, reply, &[]).await
    }

    /// Sends an error.
    pub async fn fail(&mut self, error: &Error) -> Result<(), SupervisorFrameError> {
        self.reply(&SupervisorReply::Failed(WireError::from(error))).await
    }
}
