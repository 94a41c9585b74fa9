//! One request on one connection, and the reading of its answer.
//!
//! Connections are not kept: an image is a handful of requests, and TLS sessions are resumed. The deadline covers
//! connecting, the answer's head, and each [`MIN_PROGRESS_BYTES`] of a body in either direction, so that a peer
//! that sends or takes a byte now and then is cut off as one that does nothing.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use super::body::RequestBody;
use super::connect::{Reach, connect, server_name};
use super::endpoint::Endpoint;
use super::proxy::ProxyRoutes;
use crate::ImageError;

/// Bytes of a body that have to arrive within one deadline, unless it ends.
const MIN_PROGRESS_BYTES: u64 = 16 << 10;
/// Upper bound of an answer's head.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// A client with the certificates of one registry.
pub(super) struct HttpClient {
    pub tls: TlsConnector,
    pub stall: Duration,
    pub proxies: ProxyRoutes,
}

/// An answer whose body has not been read yet.
pub(super) struct Exchange {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: BodyReader,
    /// The address that answered. Nothing where only a proxy knows it.
    pub peer: Option<IpAddr>,
}

/// Reads a body, with a deadline. The connection ends when this is dropped.
pub(crate) struct BodyReader {
    incoming: Incoming,
    host: String,
    stall: Duration,
    deadline: Instant,
    since_deadline: u64,
    _connection: AbortOnDrop,
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl HttpClient {
    /// Sends a request and answers when the answer's head is there.
    pub async fn send(
        &self,
        endpoint: &Endpoint,
        reach: Reach,
        request: Request<RequestBody>,
    ) -> Result<Exchange, ImageError> {
        let host = endpoint.authority();
        let (stream, peer, request) = match self.proxies.find(endpoint) {
            None => {
                let (stream, peer) = connect(endpoint, reach, self.stall).await?;
                (stream, Some(peer), request)
            }
            Some(proxy) => {
                let (stream, peer) = proxy.connect(endpoint, reach, self.stall).await?;
                let request = match endpoint.tls {
                    true => request,
                    false => proxy.address_request(endpoint, request)?,
                };
                (stream, peer, request)
            }
        };
        let stalled = || ImageError::Stalled { host: host.clone(), after: self.stall };
        let sent = request.body().sent_bytes();
        let answered = async {
            match endpoint.tls {
                true => {
                    let tls = self.tls.connect(server_name(endpoint)?, stream).await;
                    let unreachable =
                        |source| ImageError::Unreachable { host: host.clone(), source };
                    exchange(&host, tls.map_err(unreachable)?, request).await
                }
                false => exchange(&host, stream, request).await,
            }
        };
        let (response, connection) =
            unless_stalled(self.stall, &sent, answered).await.ok_or_else(stalled)??;
        let (head, incoming) = response.into_parts();
        let body = BodyReader {
            incoming,
            host,
            stall: self.stall,
            deadline: Instant::now() + self.stall,
            since_deadline: 0,
            _connection: connection,
        };
        Ok(Exchange { status: head.status, headers: head.headers, body, peer })
    }
}

/// Waits for an answer as long as the request's body moves on. Nothing where it stands still.
async fn unless_stalled<T>(
    stall: Duration,
    sent: &AtomicU64,
    answered: impl Future<Output = T>,
) -> Option<T> {
    tokio::pin!(answered);
    let mut before = 0;
    loop {
        if let Ok(answer) = timeout(stall, &mut answered).await {
            return Some(answer);
        }
        let now = sent.load(Ordering::Relaxed);
        if now < before + MIN_PROGRESS_BYTES {
            return None;
        }
        before = now;
    }
}

async fn exchange(
    host: &str,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<RequestBody>,
) -> Result<(http::Response<Incoming>, AbortOnDrop), ImageError> {
    let handshake =
        http1::Builder::new().max_buf_size(MAX_HEAD_BYTES).handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(|error| broken(host, error))?;
    // Its errors come out of the request and the body too.
    let driver = AbortOnDrop(tokio::spawn(async move { drop(connection.await) }));
    let response = sender.send_request(request).await.map_err(|error| broken(host, error))?;
    Ok((response, driver))
}

/// What a connection failed with: a breach of the protocol, or its loss.
fn broken(host: &str, error: hyper::Error) -> ImageError {
    match error.is_parse() || error.is_parse_too_large() {
        true => ImageError::Protocol { host: host.to_owned(), what: error.to_string() },
        false => ImageError::Unreachable { host: host.to_owned(), source: io::Error::other(error) },
    }
}

impl BodyReader {
    /// The next piece, or nothing at the end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ImageError> {
        loop {
            let frame = timeout_at(self.deadline, self.incoming.frame())
                .await
                .map_err(|_| ImageError::Stalled { host: self.host.clone(), after: self.stall })?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|error| broken(&self.host, error))?;
            // Trailers are not read.
            let Ok(data) = frame.into_data() else { continue };
            self.since_deadline += data.len() as u64;
            if self.since_deadline >= MIN_PROGRESS_BYTES {
                self.since_deadline = 0;
                self.deadline = Instant::now() + self.stall;
            }
            if !data.is_empty() {
                return Ok(Some(data));
            }
        }
    }

    /// The whole body, refused where it is larger than this.
    pub async fn read_all(mut self, what: &str, limit: u64) -> Result<Vec<u8>, ImageError> {
        let mut all = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if all.len() as u64 + chunk.len() as u64 > limit {
                return Err(ImageError::TooLarge { what: what.to_owned(), limit });
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }

    /// The host that sends it.
    pub fn host(&self) -> &str {
        &self.host
    }
}
