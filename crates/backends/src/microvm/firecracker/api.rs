//! One request to Firecracker's API socket: HTTP/1.1, one connection each, everything bounded. What is
//! at the other end shares a process with a guest's devices, and is not trusted to keep to anything.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes as Data;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
pub(super) use hyper::Method;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use serde_json::Value;
use stockade_core::clean_foreign;
use tokio::net::UnixStream;

/// Size limits of a reply: its head, and its body.
const MAX_HEAD_BYTES: usize = 16 << 10;
const MAX_BODY_BYTES: usize = 16 << 10;
/// Length limit of a Firecracker error message in ours.
const MAX_SHOWN_CHARS: usize = 600;

/// Why a request was not granted.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestFault {
    #[error("answered {status}: {said}")]
    Refused { status: u16, said: String },
    #[error("cannot be reached")]
    Unreachable(#[source] io::Error),
    #[error("gave no answer within {0:?}")]
    Silent(Duration),
    #[error("broke off")]
    Broken(#[source] hyper::Error),
    #[error("answered more than {MAX_BODY_BYTES} bytes")]
    TooLarge,
    #[error("cannot be sent that request")]
    Unaskable(#[source] hyper::http::Error),
}

/// A directory with sockets in it. They are reached through descriptors: a path may be longer than a
/// socket's name can be, and a link that the process put in its place could lead anywhere.
pub(super) struct SocketDir(OwnedFd);

impl SocketDir {
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(dir, flags, Mode::empty())?))
    }

    pub(super) async fn connect(&self, name: &str) -> io::Result<UnixStream> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = rustix::fs::openat(&self.0, name, flags, Mode::empty())?;
        UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await
    }
}

/// The name of the API socket in a machine's directory.
pub(super) const API_SOCKET: &str = "api";

/// Asks, and waits for the answer. Only that it is one of success matters.
pub(super) async fn send_request(
    sockets: &SocketDir,
    method: &Method,
    path: &str,
    body: &Value,
    limit: Duration,
) -> Result<(), RequestFault> {
    let asked = exchange_http(sockets, method, path, body);
    tokio::time::timeout(limit, asked).await.map_err(|_| RequestFault::Silent(limit))?
}

async fn exchange_http(
    sockets: &SocketDir,
    method: &Method,
    path: &str,
    body: &Value,
) -> Result<(), RequestFault> {
    let stream = sockets.connect(API_SOCKET).await.map_err(RequestFault::Unreachable)?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "localhost")
        .header(header::ACCEPT, "application/json")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Data::from(body.to_string())))
        .map_err(RequestFault::Unaskable)?;
    let mut connecting = http1::Builder::new();
    connecting.max_buf_size(MAX_HEAD_BYTES);
    let (mut sender, connection) =
        connecting.handshake(TokioIo::new(stream)).await.map_err(RequestFault::Broken)?;
    let answered = async move {
        let answer = sender.send_request(request).await.map_err(RequestFault::Broken)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_BODY_BYTES)
            .collect()
            .await
            .map_err(classify_body_error)?;
        check_status(status, &body.to_bytes())
    };
    // What ends the connection early ends the answer too, and says why.
    tokio::join!(answered, connection).0
}

fn classify_body_error(error: Box<dyn std::error::Error + Send + Sync>) -> RequestFault {
    match error.downcast::<hyper::Error>() {
        Ok(broken) => RequestFault::Broken(*broken),
        Err(other) if other.is::<LengthLimitError>() => RequestFault::TooLarge,
        Err(other) => RequestFault::Unreachable(io::Error::other(other)),
    }
}

fn check_status(status: StatusCode, body: &[u8]) -> Result<(), RequestFault> {
    #[derive(Deserialize)]
    struct ErrorBody {
        fault_message: String,
    }
    if status.is_success() {
        return Ok(());
    }
    let said = match serde_json::from_slice(body) {
        Ok(ErrorBody { fault_message }) => fault_message,
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    Err(RequestFault::Refused { status: status.as_u16(), said: to_single_line(&said) })
}

/// What can be shown of it.
fn to_single_line(said: &str) -> String {
    clean_foreign(said).chars().take(MAX_SHOWN_CHARS).collect()
}

/// A request as people write it.
pub(super) struct RequestLine<'a>(pub &'a Method, pub &'a str);

impl fmt::Display for RequestLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{} {}`", self.0, self.1)
    }
}
