//! A registry that says what a test wants it to say, byte by byte.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::image::{OCI_MANIFEST, TestImage};

/// A request as it came.
#[derive(Debug, Clone)]
pub struct SeenRequest {
    pub path: String,
    head: String,
}

impl SeenRequest {
    pub fn method(&self) -> &str {
        self.head.split(' ').next().unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let named = |line: &str| {
            line.split_once(':').is_some_and(|(found, _)| found.eq_ignore_ascii_case(name))
        };
        let line = self.head.lines().find(|line| named(line))?;
        Some(line.split_once(':')?.1.trim())
    }

    /// Where a range begins that was asked for.
    pub fn range_start(&self) -> usize {
        let range = self.header("range").and_then(|range| range.strip_prefix("bytes="));
        range.and_then(|range| range.strip_suffix('-')?.parse().ok()).unwrap_or(0)
    }
}

/// What a server does after a part of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Ends it as it should.
    End,
    /// Cuts the connection after this many bytes of the body.
    Cut(usize),
    /// Sends nothing more after this many bytes, and keeps the connection.
    Stall(usize),
    /// Sends byte after byte, with a pause before each.
    Drip,
}

pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub then: Then,
    /// Whether the body's length is announced.
    pub sized: bool,
}

impl Reply {
    pub fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), then: Then::End, sized: true }
    }

    pub fn ok(body: &[u8]) -> Self {
        Self { body: body.to_owned(), ..Self::new(200) }
    }

    pub fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub fn then(self, then: Then) -> Self {
        Self { then, ..self }
    }
}

/// A server on loopback. It ends with this.
pub struct Server {
    pub port: u16,
    seen: Arc<Mutex<Vec<SeenRequest>>>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub async fn start(answer: impl Fn(&SeenRequest) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (seen, answer) = (Arc::new(Mutex::new(Vec::new())), Arc::new(answer));
        let log = seen.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (log, answer) = (log.clone(), answer.clone());
                tokio::spawn(async move {
                    if let Some((stream, request)) = read_request(stream).await {
                        log.lock().unwrap().push(request.clone());
                        let reply = answer(&request);
                        let _ = write_reply(stream, reply).await;
                    }
                });
            }
        });
        Self { port, seen, task }
    }

    /// One that has an image, and what `other` answers instead, if anything.
    pub async fn of_image(
        image: TestImage,
        other: impl Fn(&SeenRequest) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        Self::start(move |request| other(request).unwrap_or_else(|| serve(&image, request))).await
    }

    pub fn reference(&self) -> String {
        format!("127.0.0.1:{}/test:1", self.port)
    }

    pub fn requests(&self) -> Vec<SeenRequest> {
        self.seen.lock().unwrap().clone()
    }
}

/// What an honest registry answers.
pub fn serve(image: &TestImage, request: &SeenRequest) -> Reply {
    let name = request.path.rsplit('/').next().unwrap_or_default();
    if request.path.contains("/manifests/") {
        return Reply::ok(&image.manifest).header("Content-Type", OCI_MANIFEST);
    }
    let Some(blob) = image.blobs.get(name) else { return Reply::new(404) };
    match request.range_start() {
        0 => Reply::ok(blob),
        start => {
            let range = format!("bytes {start}-{}/{}", blob.len() - 1, blob.len());
            let reply = Reply { body: blob[start..].to_owned(), ..Reply::new(206) };
            reply.header("Content-Range", range)
        }
    }
}

async fn read_request(mut stream: TcpStream) -> Option<(TcpStream, SeenRequest)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = stream.read_u8().await.ok()?;
        head.push(byte);
        assert!(head.len() < 64 << 10, "a client does not send that much");
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split(' ').nth(1)?.to_owned();
    let request = SeenRequest { path, head };
    // Read to its end: closing a connection with unread bytes would take the reply back.
    let length = request.header("content-length").and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some((stream, request))
}

async fn write_reply(mut stream: TcpStream, reply: Reply) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", reply.status);
    if reply.sized {
        head.push_str(&format!("Content-Length: {}\r\n", reply.body.len()));
    }
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).await?;
    match reply.then {
        Then::End => stream.write_all(&reply.body).await?,
        Then::Cut(bytes) => stream.write_all(&reply.body[..bytes]).await?,
        Then::Stall(bytes) => {
            stream.write_all(&reply.body[..bytes]).await?;
            stream.flush().await?;
            // Until the client gives up.
            let _ = stream.read_u8().await;
        }
        Then::Drip => {
            for byte in reply.body {
                tokio::time::sleep(Duration::from_millis(10)).await;
                stream.write_all(&[byte]).await?;
            }
        }
    }
    stream.shutdown().await
}
