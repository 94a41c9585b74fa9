//! Standard output and error, written byte for byte by a thread of its own: a reader who does not
//! read must not keep the event loop from timers and signals. The thread is made when there is
//! something to write, since many commands write nothing.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::termios::isatty;
use stockade_core::{Error, ErrorCode, StreamId, is_unsafe_to_show};
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

/// Held while a question stands on the terminal, and while a piece of output is written to it.
pub type TerminalTurn = Arc<Mutex<()>>;

/// Where output goes.
#[derive(Debug, Default)]
pub struct TerminalOutput {
    writer: Option<OutputWriter>,
    turn: Option<TerminalTurn>,
}

#[derive(Debug)]
struct OutputWriter {
    pieces: mpsc::Sender<(StreamId, Bytes)>,
    end: oneshot::Receiver<Result<(), Errno>>,
}

impl TerminalOutput {
    /// For a program beside which questions are asked on the same terminal: it writes nothing there while one stands,
    /// and nothing that a terminal would obey, so that it cannot change what a question shows.
    pub fn beside_questions(turn: TerminalTurn) -> Self {
        Self { writer: None, turn: Some(turn) }
    }

    /// Hands a piece to the writer, waiting while it is behind.
    pub async fn write(&mut self, stream: StreamId, data: Bytes) -> Result<(), OutputStop> {
        let writer = match &mut self.writer {
            Some(writer) => writer,
            empty @ None => empty.insert(
                OutputWriter::start(self.turn.clone())
                    .map_err(|error| OutputStop::Failed(stdout_write_error("run", error)))?,
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
            Ok(Err(errno)) => Err(OutputStop::Failed(stdout_write_error("run", errno.into()))),
        }
    }
}

impl OutputWriter {
    fn start(turn: Option<TerminalTurn>) -> io::Result<Self> {
        let (pieces, from) = mpsc::channel(OUTPUT_QUEUE_CHUNKS);
        let (ended, end) = oneshot::channel();
        std::thread::Builder::new().name("output".into()).spawn(move || {
            let _ = ended.send(write_all(from, turn.as_ref()));
        })?;
        Ok(Self { pieces, end })
    }
}

fn write_all(
    mut from: mpsc::Receiver<(StreamId, Bytes)>,
    turn: Option<&TerminalTurn>,
) -> Result<(), Errno> {
    while let Some((stream, data)) = from.blocking_recv() {
        match stream {
            StreamId::Stdout => write_piece(rustix::stdio::stdout(), &data, turn)?,
            // An error of standard error is ignored: it cannot be reported, and the data still counts.
            StreamId::Stderr => {
                write_piece(rustix::stdio::stderr(), &data, turn).unwrap_or_default();
            }
        }
    }
    Ok(())
}

fn write_piece(to: BorrowedFd<'_>, data: &[u8], turn: Option<&TerminalTurn>) -> Result<(), Errno> {
    match turn.filter(|_| isatty(to)) {
        Some(turn) => {
            // Nothing panics while it is held.
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            write_chunk(to, show_plainly(data).as_bytes())
        }
        None => write_chunk(to, data),
    }
}

/// Lines and tabs as they are; a sign in the place of everything else that a terminal would obey.
fn show_plainly(data: &[u8]) -> String {
    let show = |c: char| match c {
        '\n' | '\t' => c,
        _ if is_unsafe_to_show(c) => char::REPLACEMENT_CHARACTER,
        _ => c,
    };
    String::from_utf8_lossy(data).chars().map(show).collect()
}

/// Writes all of it, waiting while there is no room.
pub fn write_chunk(to: BorrowedFd<'_>, mut data: &[u8]) -> Result<(), Errno> {
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

/// Output was lost, for a reason other than a closed pipe.
pub fn stdout_write_error(operation: &'static str, error: io::Error) -> Error {
    Error::new(ErrorCode::System, operation, "standard output cannot be written")
        .remedy("make room, or send it elsewhere")
        .source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_passes_beside_questions() {
        let written = show_plainly("one\ttwo\n\u{1b}[2Kpypi.org\r\u{9b}1A\u{202e}é\n".as_bytes());
        let sign = char::REPLACEMENT_CHARACTER;
        let expected = format!("one\ttwo\n{sign}[2Kpypi.org{sign}{sign}1A{sign}é\n");
        assert_eq!(written, expected);
    }
}
