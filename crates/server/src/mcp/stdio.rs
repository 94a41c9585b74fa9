//! The protocol on standard input and output, for a client that starts the server itself, or on another pair of
//! streams. Ends when input does.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use rmcp::transport::io::stdio_pipes;
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::sync::CancellationToken;

use super::desk::Desk;
use super::handler::Handler;

/// How long calls may take to be answered after input has ended. Clients kill after two seconds.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Why a connection could not be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// It did not begin as the protocol wants it.
    #[error("the client's handshake does not follow the protocol: {0}")]
    Opening(String),
    /// The loop that serves it broke.
    #[error("the connection to the client was lost")]
    Broken(#[source] tokio::task::JoinError),
}

/// Serves the client on the standard streams until it is gone. The desk stays open.
pub async fn serve_stdio(desk: Arc<Desk>) -> Result<(), ServeError> {
    let (input, output) = stdio_pipes();
    serve_client(desk, input, output).await
}

/// Serves the client behind these streams until it is gone. The desk stays open.
pub async fn serve_client(
    desk: Arc<Desk>,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl tokio::io::AsyncWrite + Send + Unpin + 'static,
) -> Result<(), ServeError> {
    let ended = CancellationToken::new();
    let input = WatchedInput { input, ended: ended.clone() };
    let served = serve_streams(Arc::clone(&desk), input, output);
    let hurry = async {
        ended.cancelled().await;
        tokio::time::sleep(LAST_WORDS).await;
        desk.hurry();
        std::future::pending().await
    };
    tokio::select! {
        served = served => served,
        never = hurry => never,
    }
}

async fn serve_streams(
    desk: Arc<Desk>,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl tokio::io::AsyncWrite + Send + Unpin + 'static,
) -> Result<(), ServeError> {
    match Handler::new(desk).serve((input, output)).await {
        Ok(serving) => serving.waiting().await.map(drop).map_err(ServeError::Broken),
        // The client closed before the handshake, as one does that only checks whether the server starts.
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => Err(ServeError::Opening(error.to_string())),
    }
}

/// Input that says when it has ended.
struct WatchedInput<R> {
    input: R,
    ended: CancellationToken,
}

impl<R: AsyncRead + Unpin> AsyncRead for WatchedInput<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.input).poll_read(context, buffer);
        let over = matches!(polled, Poll::Ready(_)) && buffer.filled().len() == before;
        if over && buffer.remaining() > 0 {
            self.ended.cancel();
        }
        polled
    }
}
