//! Standard input, read by a thread of its own: a read that waits for a person must not keep the
//! event loop from timers and signals. The thread is never joined; it ends with the process.

use std::os::fd::OwnedFd;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::stdio::stdin;
use stockade_core::{Error, ErrorCode, Result};
use tokio::sync::mpsc;

use crate::terminal::stdio_loop::ProgramControl;

/// Length of the queue to the program, in chunks.
const INPUT_QUEUE_CHUNKS: usize = 4;
const READ_CHUNK_BYTES: usize = 64 * 1024;

/// Passes standard input on, and returns when it has ended.
pub async fn feed_stdin(program: &impl ProgramControl) -> Result<()> {
    // Closed with this future: what is typed after the program's end is not for it.
    let (ended, _wanted) =
        pipe_with(PipeFlags::CLOEXEC).map_err(|errno| stdin_read_error(errno.into()))?;
    let mut pieces = start_reader_thread(ended)?;
    while let Some(piece) = pieces.recv().await {
        // A program need not read its input.
        if program.write_stdin(piece).await.is_err() {
            return std::future::pending().await;
        }
    }
    let _ = program.close_stdin().await;
    Ok(())
}

fn start_reader_thread(ended: OwnedFd) -> Result<mpsc::Receiver<Bytes>> {
    let (sender, receiver) = mpsc::channel(INPUT_QUEUE_CHUNKS);
    let reader = std::thread::Builder::new()
        .name("stdin".into())
        .spawn(move || while let Some(true) = read_chunk(&sender, &ended) {});
    reader.map(|_| receiver).map_err(stdin_read_error)
}

fn stdin_read_error(error: std::io::Error) -> Error {
    Error::new(ErrorCode::System, "run", "standard input cannot be read").source(error)
}

/// Reads one chunk. Says whether there may be more, or `None` when no reader is left.
fn read_chunk(sender: &mpsc::Sender<Bytes>, ended: &OwnedFd) -> Option<bool> {
    let stdin = stdin();
    let mut watched = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(ended, PollFlags::IN)];
    match poll(&mut watched, None) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(_) => return None,
    }
    let [input, end] = watched.map(|fd| !fd.revents().is_empty());
    if end {
        return None;
    }
    if !input {
        return Some(true);
    }
    let mut buffer = vec![0; READ_CHUNK_BYTES];
    match rustix::io::read(stdin, &mut buffer[..]) {
        Ok(0) => Some(false),
        Ok(count) => {
            buffer.truncate(count);
            sender.blocking_send(buffer.into()).ok().map(|()| true)
        }
        Err(Errno::INTR | Errno::AGAIN) => Some(true),
        Err(_) => None,
    }
}
