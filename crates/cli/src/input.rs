//! Standard input, read by a thread of its own: a read that waits for a person must not keep the
//! event loop from timers and signals. The thread is never joined; it ends with the process.

use bytes::Bytes;
use stockade_core::{Error, ErrorCode, Result};
use tokio::sync::mpsc;

use crate::attend::Control;

/// Pieces read ahead of the program.
const AHEAD: usize = 4;
const PIECE: usize = 64 * 1024;

/// Passes standard input on, and returns when it has ended.
pub async fn feed(program: &impl Control) -> Result<()> {
    let mut pieces = start()?;
    while let Some(piece) = pieces.recv().await {
        // A program need not read its input.
        if program.write_stdin(piece).await.is_err() {
            return std::future::pending().await;
        }
    }
    let _ = program.close_stdin().await;
    Ok(())
}

fn start() -> Result<mpsc::Receiver<Bytes>> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    let reader = std::thread::Builder::new().name("stdin".into()).spawn(move || read(&sender));
    reader.map_err(|error| {
        Error::new(ErrorCode::System, "run", "standard input cannot be read").source(error)
    })?;
    Ok(receiver)
}

fn read(sender: &mpsc::Sender<Bytes>) {
    let mut buffer = vec![0; PIECE];
    loop {
        match rustix::io::read(rustix::stdio::stdin(), &mut buffer[..]) {
            Ok(0) => return,
            Ok(count) => {
                if sender.blocking_send(Bytes::copy_from_slice(&buffer[..count])).is_err() {
                    return;
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
