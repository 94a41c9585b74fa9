//! Bodies of requests: small ones in memory, blobs streamed from disk by a thread of their own.

use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

const UPLOAD_CHUNK_BYTES: usize = 64 << 10;
/// Chunks that are read ahead of the connection.
const UPLOAD_QUEUE_CHUNKS: usize = 4;

/// A blob to be sent, and how much of it the connection has taken.
pub(crate) struct FileUpload {
    pub file: File,
    pub size: u64,
    pub sent: Arc<AtomicU64>,
}

/// The body of a request.
pub(super) enum RequestBody {
    /// Bytes, or nothing.
    Whole(Option<Bytes>),
    /// A file.
    File(FileBody),
}

/// A file on its way.
pub(super) struct FileBody {
    chunks: mpsc::Receiver<io::Result<Bytes>>,
    left: u64,
    sent: Arc<AtomicU64>,
}

impl FileUpload {
    /// The file as a body. Its reading ends with the body.
    pub(super) fn into_body(self) -> RequestBody {
        let (sender, chunks) = mpsc::channel(UPLOAD_QUEUE_CHUNKS);
        let Self { file, size, sent } = self;
        tokio::task::spawn_blocking(move || read_chunks(file.take(size), &sender));
        RequestBody::File(FileBody { chunks, left: size, sent })
    }
}

fn read_chunks(mut file: impl Read, sender: &mpsc::Sender<io::Result<Bytes>>) {
    loop {
        let mut chunk = Vec::with_capacity(UPLOAD_CHUNK_BYTES);
        let read = (&mut file).take(UPLOAD_CHUNK_BYTES as u64).read_to_end(&mut chunk);
        let (chunk, is_last) = match read {
            Ok(0) => return,
            Ok(_) => (Ok(Bytes::from(chunk)), false),
            Err(error) => (Err(error), true),
        };
        if sender.blocking_send(chunk).is_err() || is_last {
            return;
        }
    }
}

impl RequestBody {
    /// Bytes that are in memory.
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()).filter(|bytes: &Bytes| !bytes.is_empty()))
    }

    /// How much of it the connection has taken, where it is large enough to count.
    pub fn sent_bytes(&self) -> Arc<AtomicU64> {
        match self {
            Self::Whole(_) => Arc::default(),
            Self::File(file) => file.sent.clone(),
        }
    }
}

impl FileBody {
    fn count(&mut self, chunk: &io::Result<Bytes>) {
        let bytes = chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        self.left = self.left.saturating_sub(bytes);
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::File(file) => file.chunks.poll_recv(context).map(|chunk| {
                let chunk = chunk?;
                file.count(&chunk);
                Some(chunk.map(Frame::data))
            }),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::File(file) => file.left == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match self {
            Self::Whole(bytes) => bytes.as_ref().map_or(0, |bytes| bytes.len() as u64),
            Self::File(file) => file.left,
        })
    }
}
