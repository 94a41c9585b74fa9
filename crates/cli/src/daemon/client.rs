//! The command's half of a supervisor's socket.

use std::time::Duration;

use bytes::Bytes;
use stockade_core::{Error, ErrorCode, Result, SandboxId};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::frame::{self, SupervisorFrameError};
use super::message::{PROTOCOL_VERSION, SupervisorReply, SupervisorRequest};
use super::socket::SupervisorSockets;
use super::wire_error::{broken_connection_error, out_of_turn};

/// Timeout for a supervisor's greeting: it does nothing that takes long but in tasks of its own.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to a supervisor that speaks the same language.
pub struct SupervisorConnection {
    /// What the supervisor says.
    pub reader: OwnedReadHalf,
    /// What it is told.
    pub writer: OwnedWriteHalf,
    /// What it is used for, for messages.
    pub operation: &'static str,
    /// The sandbox, by its whole id.
    pub sandbox: SandboxId,
}

impl SupervisorConnection {
    /// Connects; nothing if no supervisor listens.
    pub async fn open(
        sockets: &SupervisorSockets,
        id: &SandboxId,
        operation: &'static str,
    ) -> Result<Option<Self>> {
        let Some(stream) = sockets.connect(id).await? else { return Ok(None) };
        same_user(&stream, operation)?;
        let (reader, writer) = stream.into_split();
        let mut connection = Self { reader, writer, operation, sandbox: id.clone() };
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, connection.exchange_hello()).await {
            Ok(greeted) => greeted.map(|()| Some(connection)),
            Err(_) => {
                Err(Error::new(ErrorCode::TooSlow, operation, "its supervisor does not answer")
                    .remedy("end it: `stockade ps` shows its process id"))
            }
        }
    }

    async fn exchange_hello(&mut self) -> Result<()> {
        let answer = self.ask(&SupervisorRequest::Hello { version: PROTOCOL_VERSION }).await?.0;
        if !matches!(answer, SupervisorReply::Hello { version: PROTOCOL_VERSION }) {
            return Err(out_of_turn(self.operation));
        }
        Ok(())
    }

    /// Says one thing and hears the answer.
    pub async fn ask(&mut self, request: &SupervisorRequest) -> Result<(SupervisorReply, Bytes)> {
        self.ask_with(request, &[]).await
    }

    /// The same with a payload.
    pub async fn ask_with(
        &mut self,
        request: &SupervisorRequest,
        data: &[u8],
    ) -> Result<(SupervisorReply, Bytes)> {
        self.say(request, data).await?;
        self.hear().await
    }

    /// Says one thing.
    pub async fn say(&mut self, request: &SupervisorRequest, data: &[u8]) -> Result<()> {
        let sent = frame::send_frame(&mut self.writer, request, data).await;
        sent.map_err(|error| broken_connection_error(self.operation, error))
    }

    /// Hears one thing. An error of the peer is one here.
    pub async fn hear(&mut self) -> Result<(SupervisorReply, Bytes)> {
        receive_reply(&mut self.reader, self.operation).await
    }

    /// Waits until the supervisor has gone.
    pub async fn gone(mut self) {
        while let Ok(Some(_)) = frame::receive_frame::<SupervisorReply>(&mut self.reader).await {}
    }
}

/// Hears one thing. An error of the peer is one here.
pub async fn receive_reply(
    reader: &mut OwnedReadHalf,
    operation: &'static str,
) -> Result<(SupervisorReply, Bytes)> {
    match frame::receive_frame(reader).await {
        Ok(Some((SupervisorReply::Failed(error), _))) => Err(error.into_error(operation)),
        Ok(Some(heard)) => Ok(heard),
        Ok(None) => Err(broken_connection_error(operation, SupervisorFrameError::Closed)),
        Err(error) => Err(broken_connection_error(operation, error)),
    }
}

/// The supervisor must be this user's. Only root could listen in the user's directory too, and is refused.
fn same_user(stream: &UnixStream, operation: &'static str) -> Result<()> {
    let owner = stream.peer_cred().map(|peer| peer.uid()).ok();
    if owner == Some(rustix::process::geteuid().as_raw()) {
        return Ok(());
    }
    let message = "its supervisor belongs to another user";
    Err(Error::new(ErrorCode::Denied, operation, message).remedy("run this as that user"))
}
