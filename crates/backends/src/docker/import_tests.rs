//! Imports beside another process that makes the same image: an engine of these tests, whose answers are those that
//! Docker with containerd's store of images gave.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bollard::Docker as Api;
use bytes::Bytes;
use futures_util::stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::images::import_root_archive;

const ALREADY_EXISTS: &str =
    r#"{"message":"failed to create image: AlreadyExists: already exists"}"#;
const DISK_FULL: &str = r#"{"message":"no space left on device"}"#;
const NO_SUCH_IMAGE: &str = r#"{"message":"No such image"}"#;

/// An engine that refuses every import, for this reason, and has the image from this question for it on.
struct RefusingEngine {
    reason: &'static str,
    there_from: usize,
    questions: AtomicUsize,
}

impl RefusingEngine {
    fn answer(&self, head: &str) -> (&'static str, &'static str) {
        if head.starts_with("POST") {
            return ("500 Internal Server Error", self.reason);
        }
        match self.questions.fetch_add(1, Ordering::SeqCst) >= self.there_from {
            true => ("200 OK", r#"{"Id":"sha256:0f"}"#),
            false => ("404 Not Found", NO_SUCH_IMAGE),
        }
    }

    async fn serve(self: Arc<Self>, mut stream: UnixStream) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return,
            }
        }
        let (status, body) = self.answer(&String::from_utf8_lossy(&head));
        let length = body.len();
        let reply = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        );
        // A client that has gone needs no answer.
        let _ = stream.write_all(reply.as_bytes()).await;
        // To the end of what it sends: closing before would break the connection.
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    }
}

/// Imports a root through such an engine; answers what came of it, and how often the image was asked for.
async fn import(reason: &'static str, there_from: usize) -> (Result<(), String>, usize) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let engine = Arc::new(RefusingEngine { reason, there_from, questions: AtomicUsize::new(0) });
    let serving = Arc::clone(&engine);
    let accept = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(Arc::clone(&serving).serve(stream));
        }
    });
    let path = path.to_str().unwrap();
    let api = Api::connect_with_unix(path, 10, bollard::API_DEFAULT_VERSION).unwrap();
    let archive = stream::iter([Ok(Bytes::from_static(b"a root"))]);
    let imported = import_root_archive(&api, "stockade-root:one", archive).await;
    accept.abort();
    (imported.map_err(|error| error.to_string()), engine.questions.load(Ordering::SeqCst))
}

#[tokio::test]
async fn an_image_that_another_process_is_making_is_waited_for_and_used() {
    let (imported, questions) = import(ALREADY_EXISTS, 3).await;
    assert_eq!((imported, questions), (Ok(()), 4));
}

#[tokio::test]
async fn an_image_that_cannot_be_made_is_an_error_at_once() {
    let (imported, questions) = import(DISK_FULL, usize::MAX).await;
    assert!(imported.is_err_and(|error| error.contains("no space left on device")));
    assert_eq!(questions, 2);
}

#[tokio::test]
async fn an_image_that_is_there_already_is_not_made() {
    assert_eq!(import(DISK_FULL, 0).await, (Ok(()), 1));
}
