//! Standard output and error, written byte for byte by a thread of its own: a reader who does not
//! read must not keep the event loop from timers and signals. The thread is made when there is
//! something to write, since many commands write nothing.

use std::io;
use std::os::fd::BorrowedFd;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use stockade_core::{Error, ErrorCode, StreamId};
use tokio::sync::{mpsc, oneshot};

/// Length of the queue to the writer, in chunks.
const OUTPUT_QUEUE_CHUNKS: usize = 16;

/// Why nothing more can be written.
#[derive(Debug)]
pub enum OutputStop {
    /// The reader of standard output is gone: he has seen enough.
    Closed,
    /// Writing failed.
    Failed(Error),
}

/// Where output goes.
#[derive(Debug, Default)]
pub struct Output {
    writer: Option<OutputWriter>,
}

#[derive(Debug)]
struct OutputWriter {
    pieces: mpsc::Sender<(StreamId, Bytes)>,
    end: oneshot::Receiver<Result<(), Errno>>,
}

impl Output {
    /// Hands a piece to the writer, waiting while it is behind.
    pub async fn write(&mut self, stream: StreamId, data: Bytes) -> Result<(), OutputStop> {
        let writer = match &mut self.writer {
            Some(writer) => writer,
            empty @ None => empty.insert(
                OutputWriter::start()
                    .map_err(|error| OutputStop::Failed(stdout_write_error(error)))?,
            ),
        };
        match writer.pieces.send((stream, data)).await {
            Ok(()) => Ok(()),
            Err(_) => self.finish().await,
        }
    }

    /// Waits until everything is written.
    pub async fn finish(&mut self) -> Result<(), OutputStop> {
        let Some(OutputWriter { pieces, end }) = self.writer.take() else { return Ok(()) };
        drop(pieces);
        match end.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Errno::PIPE)) | Err(_) => Err(OutputStop::Closed),
            Ok(Err(errno)) => Err(OutputStop::Failed(stdout_write_error(errno.into()))),
        }
    }
}

impl OutputWriter {
    fn start() -> io::Result<Self> {
        let (pieces, from) = mpsc::channel(OUTPUT_QUEUE_CHUNKS);
        let (ended, end) = oneshot::channel();
        std::thread::Builder::new().name("output".into()).spawn(move || {
            let _ = ended.send(write_all(from));
        })?;
        Ok(Self { pieces, end })
    }
}

fn write_all(mut from: mpsc::Receiver<(StreamId, Bytes)>) -> Result<(), Errno> {
    while let Some((stream, data)) = from.blocking_recv() {
        match stream {
            StreamId::Stdout => write_chunk(rustix::stdio::stdout(), &data)?,
            // An error of standard error is ignored: it cannot be reported, and the data still counts.
            StreamId::Stderr => write_chunk(rustix::stdio::stderr(), &data).unwrap_or_default(),
        }
    }
    Ok(())
}

fn write_chunk(to: BorrowedFd<'_>, mut data: &[u8]) -> Result<(), Errno> {
    while !data.is_empty() {
        match rustix::io::write(to, data) {
            Ok(count) => data = &data[count..],
            Err(Errno::INTR) => {}
            // Another process that shares the open file description may have made it non-blocking.
            Err(Errno::AGAIN) => drop(poll(&mut [PollFd::new(&to, PollFlags::OUT)], None)),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn stdout_write_error(error: io::Error) -> Error {
    Error::new(ErrorCode::System, "run", "standard output cannot be written")
        .remedy("make room, or send it elsewhere")
        .source(error)
}
