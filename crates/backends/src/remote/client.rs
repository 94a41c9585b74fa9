//! Requests to a daemon: one connection each, with one deadline for all of it and a bound on the answer.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes as Data;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stockade_core::{Error, ErrorCode, Result, clean_foreign};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;

use super::sse::SseReader;
use super::tls::{DaemonTls, connect_host};
use super::{DaemonUrl, NAME};

/// Bytes of the head of an answer.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Bytes of an answer, unless its call says otherwise.
const MAX_ANSWER_BYTES: usize = 4 << 20;
/// Bytes of an answer that says what is wrong.
const MAX_FAILURE_BYTES: usize = 64 << 10;
const MAX_TOKEN_BYTES: u64 = 4 << 10;
/// Timeout for a call, unless it says otherwise.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// A daemon that can be asked.
#[derive(Debug, Clone)]
pub(super) struct DaemonClient {
    pub url: DaemonUrl,
    pub token_file: Option<PathBuf>,
    pub tls: DaemonTls,
}

/// One request, and what its answer is held to.
pub(super) struct DaemonCall {
    operation: &'static str,
    method: Method,
    path: String,
    content_type: &'static str,
    body: Data,
    timeout: Duration,
    max_answer_bytes: usize,
}

/// A connection, which is closed when this is dropped.
pub(super) struct DaemonConnection(JoinHandle<()>);

impl Drop for DaemonConnection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What a daemon says of a request that it did not grant.
#[derive(Deserialize)]
struct FailureAnswer {
    error: FailureDetail,
}

#[derive(Deserialize)]
struct FailureDetail {
    code: String,
    message: String,
    remedy: Option<String>,
}

impl DaemonCall {
    fn new(operation: &'static str, method: Method, path: impl Into<String>) -> Self {
        Self {
            operation,
            method,
            path: path.into(),
            content_type: "application/octet-stream",
            body: Data::new(),
            timeout: CALL_TIMEOUT,
            max_answer_bytes: MAX_ANSWER_BYTES,
        }
    }

    pub(super) fn get(operation: &'static str, path: impl Into<String>) -> Self {
        Self::new(operation, Method::GET, path)
    }

    pub(super) fn post(operation: &'static str, path: impl Into<String>) -> Self {
        Self::new(operation, Method::POST, path)
    }

    pub(super) fn delete(operation: &'static str, path: impl Into<String>) -> Self {
        Self::new(operation, Method::DELETE, path)
    }

    pub(super) fn json(self, body: &Value) -> Self {
        Self { body: body.to_string().into(), content_type: "application/json", ..self }
    }

    pub(super) fn bytes(self, body: Data) -> Self {
        Self { body, ..self }
    }

    pub(super) fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    pub(super) fn answered_in(self, max_answer_bytes: usize) -> Self {
        Self { max_answer_bytes, ..self }
    }
}

impl DaemonClient {
    /// Asks, and reads the whole answer.
    pub(super) async fn ask(&self, call: DaemonCall) -> Result<Data> {
        let (operation, most) = (call.operation, call.max_answer_bytes);
        in_time(operation, call.timeout, async {
            let (answer, _connection) = self.send(call).await?;
            read_answer(operation, answer.into_body(), most).await
        })
        .await
    }

    /// Asks for JSON.
    pub(super) async fn ask_json<T: DeserializeOwned>(&self, call: DaemonCall) -> Result<T> {
        let operation = call.operation;
        let answer = self.ask(call).await?;
        serde_json::from_slice(&answer).map_err(|error| {
            protocol_error(operation, "its answer is not what this version expects")
                .remedy("use the same version of stockade on both sides")
                .source(error)
        })
    }

    /// Asks for a stream of events. The deadline is for its beginning.
    pub(super) async fn open_stream(&self, call: DaemonCall) -> Result<SseReader> {
        in_time(call.operation, call.timeout, async {
            let (answer, connection) = self.send(call).await?;
            Ok(SseReader::new(answer.into_body(), connection))
        })
        .await
    }

    /// Sends a body as it comes, until the daemon answers.
    pub(super) async fn send_body<B>(
        &self,
        operation: &'static str,
        path: String,
        body: B,
    ) -> Result<()>
    where
        B: Body<Data = Data, Error = Infallible> + Send + 'static,
    {
        let call = DaemonCall::post(operation, path);
        let request = self.build_request(&call, body)?;
        self.exchange(operation, request).await.map(drop)
    }

    async fn send(&self, mut call: DaemonCall) -> Result<(Response<Incoming>, DaemonConnection)> {
        let body = Full::new(std::mem::take(&mut call.body));
        let request = self.build_request(&call, body)?;
        self.exchange(call.operation, request).await
    }

    fn build_request<B>(&self, call: &DaemonCall, body: B) -> Result<Request<B>> {
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(&call.path)
            .header(HOST, self.url.host())
            .header(CONTENT_TYPE, call.content_type);
        if let Some(file) = &self.token_file {
            request = request.header(AUTHORIZATION, format!("Bearer {}", read_token(file)?));
        }
        request.body(body).map_err(|error| {
            daemon_error(ErrorCode::Invalid, call.operation, "the request cannot be written")
                .source(error)
        })
    }

    async fn exchange<B>(
        &self,
        operation: &'static str,
        request: Request<B>,
    ) -> Result<(Response<Incoming>, DaemonConnection)>
    where
        B: Body<Data = Data, Error = Infallible> + Send + 'static,
    {
        let (mut sender, connection) = self.connect(operation).await?;
        let answer = sender.send_request(request).await;
        let answer = answer.map_err(|error| self.broken_off(operation).source(error))?;
        if answer.status().is_success() {
            return Ok((answer, connection));
        }
        let status = answer.status().as_u16();
        let said = read_answer(operation, answer.into_body(), MAX_FAILURE_BYTES).await?;
        Err(read_failure(operation, status, &said))
    }

    async fn connect<B>(
        &self,
        operation: &'static str,
    ) -> Result<(SendRequest<B>, DaemonConnection)>
    where
        B: Body<Data = Data, Error = Infallible> + Send + 'static,
    {
        let unreachable = |error: io::Error| self.unreachable(operation).source(error);
        let begun = match &self.url {
            DaemonUrl::Socket(path) => {
                begin_http(connect_socket(path).await.map_err(unreachable)?).await
            }
            DaemonUrl::Loopback(address) => {
                begin_http(TcpStream::connect(address).await.map_err(unreachable)?).await
            }
            DaemonUrl::Tls(host) => {
                let stream = connect_host(host).await.map_err(unreachable)?;
                begin_http(self.tls.encrypt(operation, host, stream).await?).await
            }
        };
        begun.map_err(|error| self.broken_off(operation).source(error))
    }

    fn unreachable(&self, operation: &'static str) -> Error {
        let message = format!("the daemon at `{}` cannot be reached", self.url);
        daemon_error(ErrorCode::Unavailable, operation, message)
            .remedy("start it there with `stockade serve`, or correct the URL")
    }

    fn broken_off(&self, operation: &'static str) -> Error {
        let message = format!("the daemon at `{}` broke the connection off", self.url);
        daemon_error(ErrorCode::Unavailable, operation, message)
    }
}

async fn begin_http<S, B>(stream: S) -> hyper::Result<(SendRequest<B>, DaemonConnection)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: Body<Data = Data, Error = Infallible> + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD_BYTES);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    // How a connection ends is told by the answer.
    let task = tokio::spawn(async move { drop(connection.await) });
    Ok((sender, DaemonConnection(task)))
}

/// Connects to a socket of this user or of root: another user would be told everything.
async fn connect_socket(path: &Path) -> io::Result<UnixStream> {
    // By a handle: a path to a socket has 107 bytes, and this one may have more.
    let socket = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let stream = UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await?;
    let peer = stream.peer_cred()?.uid();
    if peer == 0 || peer == rustix::process::geteuid().as_raw() {
        return Ok(stream);
    }
    let message = format!("user {peer} listens there");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

/// Reads a token, each time anew, so that a new one counts at once.
fn read_token(path: &Path) -> Result<String> {
    let unusable = |what: &str| {
        let message = format!("the token in `{}` {what}", path.display());
        daemon_error(ErrorCode::Denied, "read the token", message)
    };
    let read = || -> io::Result<(u32, u32, String)> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let (owner, mode, mut text) =
            (file.metadata()?.uid(), file.metadata()?.mode(), String::new());
        file.take(MAX_TOKEN_BYTES).read_to_string(&mut text)?;
        Ok((owner, mode, text))
    };
    let (owner, mode, text) = read().map_err(|error| {
        unusable("cannot be read")
            .remedy("write what `stockade token new` printed to it")
            .source(error)
    })?;
    if mode & 0o077 != 0 || owner != rustix::process::geteuid().as_raw() {
        let remedy = format!("chown it to this user and `chmod 600 {}`", path.display());
        return Err(unusable("can be read by other users").remedy(remedy));
    }
    let token = text.trim();
    match !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(token.to_owned()),
        false => Err(unusable("is none").remedy("write what `stockade token new` printed to it")),
    }
}

async fn read_answer(operation: &'static str, body: Incoming, most: usize) -> Result<Data> {
    let answer = Limited::new(body, most).collect().await.map_err(|error| {
        match error.is::<http_body_util::LengthLimitError>() {
            true => daemon_error(
                ErrorCode::TooLarge,
                operation,
                format!("the daemon answered more than {most} bytes"),
            ),
            false => daemon_error(
                ErrorCode::Unavailable,
                operation,
                "the daemon broke off in its answer",
            )
            .source(error),
        }
    })?;
    Ok(answer.to_bytes())
}

/// The error that an answer means: by its code, with what it says cleaned.
fn read_failure(operation: &'static str, status: u16, said: &[u8]) -> Error {
    let Ok(FailureAnswer { error }) = serde_json::from_slice(said) else {
        return protocol_error(operation, &format!("it answered with the status {status}"))
            .remedy("see whether a daemon of this version listens there");
    };
    let known = ErrorCode::ALL.into_iter().find(|code| code.name() == error.code);
    let code = known.unwrap_or(match status {
        401 => ErrorCode::Denied,
        404 | 405 => ErrorCode::Protocol,
        _ => ErrorCode::Invalid,
    });
    let told = daemon_error(code, operation, clean_foreign(&error.message));
    match error.remedy {
        Some(remedy) => told.remedy(clean_foreign(&remedy)),
        None => told,
    }
}

/// Runs something to its end or its deadline.
pub(super) async fn in_time<T>(
    operation: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        let message = format!("the daemon did not answer within {} s", limit.as_secs());
        Err(daemon_error(ErrorCode::TooSlow, operation, message))
    })
}

pub(super) fn daemon_error(
    code: ErrorCode,
    operation: &'static str,
    message: impl Into<String>,
) -> Error {
    Error::new(code, operation, message).backend(NAME)
}

/// The daemon did not keep to the protocol.
pub(super) fn protocol_error(operation: &'static str, what: &str) -> Error {
    daemon_error(ErrorCode::Protocol, operation, format!("the daemon cannot be used: {what}"))
}

/// Text as a value in a query.
pub(super) fn encode_query(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_that_others_can_read_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "stockade_1f0c\n").unwrap();
        let set = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode));
        set(0o600).unwrap();
        assert_eq!(read_token(&file).unwrap(), "stockade_1f0c");
        set(0o640).unwrap();
        assert!(read_token(&file).unwrap_err().hint().unwrap().contains("chmod 600"));
        set(0o600).unwrap();
        for wrong in ["", "\n", "a b", "a\nb", "\u{1b}"] {
            std::fs::write(&file, wrong).unwrap();
            assert_eq!(read_token(&file).unwrap_err().code(), ErrorCode::Denied, "{wrong:?}");
        }
        assert!(read_token(&dir.path().join("none")).is_err());
    }

    #[test]
    fn what_a_daemon_says_is_cleaned_and_keeps_its_code() {
        let said =
            br#"{"error": {"code": "not-found", "message": "a\u001b[2Jb", "remedy": "c\nd"}}"#;
        let error = read_failure("stat", 404, said);
        assert_eq!((error.code(), error.message()), (ErrorCode::NotFound, "a\u{fffd}[2Jb"));
        assert_eq!(error.hint(), Some("c d"));
        assert_eq!(read_failure("stat", 502, b"<html>").code(), ErrorCode::Protocol);
    }

    #[test]
    fn a_path_is_one_value_of_a_query() {
        assert_eq!(encode_query("/a b&c=d%é+?#"), "/a%20b%26c%3Dd%25%C3%A9%2B%3F%23");
    }
}
