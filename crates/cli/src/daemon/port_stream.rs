//! A connection to a port of a sandbox, carried over the rest of a supervisor's connection. Both sides are the same:
//! each has a stream of its own (the supervisor the one into the sandbox, the command a socket of this host) and
//! sends the other what it reads from it.
//!
//! A side sends [`WINDOW_PIECES`] ahead at most and goes on when they were passed on, so that a stream which is not
//! read costs bounded memory, holds back no bytes of the other direction, and a peer that went away is noticed at
//! once. An end of the connection before both directions have said theirs means that the stream broke.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc};

use super::frame;
use super::message::PortFrame;

/// Pieces of one direction that may be on their way.
const WINDOW_PIECES: u32 = 4;
/// The most bytes of a piece.
const PIECE_BYTES: usize = 64 << 10;
/// Frames that wait to be sent: what is on its way, and an answer to each that comes.
const SEND_QUEUE_FRAMES: usize = 2 * WINDOW_PIECES as usize + 1;

/// Pieces of the peer that wait for the stream.
enum QueuedPiece {
    Data(Bytes),
    End,
}

/// What the two directions have to know of each other.
struct CarriedStream {
    /// How many pieces may be sent.
    credit: Semaphore,
    /// The end of this side's stream was told.
    told_end: AtomicBool,
}

type Frames = mpsc::Sender<(PortFrame, Bytes)>;

/// Carries a stream until both directions have ended. False: it broke before, on this side or the other.
pub async fn carry_stream(
    reader: &mut OwnedReadHalf,
    writer: &mut OwnedWriteHalf,
    stream: impl AsyncRead + AsyncWrite,
) -> bool {
    let (from_stream, to_stream) = tokio::io::split(stream);
    let carried = CarriedStream {
        credit: Semaphore::new(WINDOW_PIECES as usize),
        told_end: AtomicBool::new(false),
    };
    // One more than the pieces: their end.
    let (queue, pieces) = mpsc::channel(WINDOW_PIECES as usize + 1);
    let (frames, outbox) = mpsc::channel(SEND_QUEUE_FRAMES);
    let both = async {
        let read = read_stream(from_stream, &carried, frames.clone());
        let written = write_stream(to_stream, pieces, frames);
        let (read, (), sent) = tokio::join!(read, written, send_frames(writer, outbox));
        read && sent
    };
    tokio::select! {
        () = receive_frames(reader, queue, &carried) => false,
        complete = both => complete,
    }
}

/// Sends what the stream yields. False if it broke.
async fn read_stream(
    mut stream: impl AsyncRead + Unpin,
    carried: &CarriedStream,
    frames: Frames,
) -> bool {
    let complete = loop {
        // The semaphore is never closed.
        let _ = carried.credit.acquire().await.map(|permit| permit.forget());
        let mut piece = BytesMut::with_capacity(PIECE_BYTES);
        match stream.read_buf(&mut piece).await {
            Ok(0) => break true,
            Ok(_) => {
                if frames.send((PortFrame::Data, piece.freeze())).await.is_err() {
                    break false;
                }
            }
            Err(_) => break false,
        }
    };
    // The peer has everything before it hears of the end, be it a good one or not.
    carried.credit.add_permits(1);
    let _ = carried.credit.acquire_many(WINDOW_PIECES).await.map(|permits| permits.forget());
    if complete {
        carried.told_end.store(true, Ordering::Relaxed);
        return frames.send((PortFrame::End, Bytes::new())).await.is_ok();
    }
    false
}

/// Passes on what the peer sends. A stream that takes no more is left alone: whether it broke shows where it
/// is read.
async fn write_stream(
    mut stream: impl AsyncWrite + Unpin,
    mut pieces: mpsc::Receiver<QueuedPiece>,
    frames: Frames,
) {
    while let Some(piece) = pieces.recv().await {
        match piece {
            QueuedPiece::Data(data) => {
                if stream.write_all(&data).await.is_err()
                    || frames.send((PortFrame::Taken, Bytes::new())).await.is_err()
                {
                    return;
                }
            }
            QueuedPiece::End => {
                // A stream that is gone needs no end.
                let _ = stream.shutdown().await;
                return;
            }
        }
    }
}

/// Sends frames until both directions are done. False if the peer is gone.
async fn send_frames(
    writer: &mut OwnedWriteHalf,
    mut outbox: mpsc::Receiver<(PortFrame, Bytes)>,
) -> bool {
    while let Some((header, data)) = outbox.recv().await {
        if frame::send_frame(writer, &header, &data).await.is_err() {
            return false;
        }
    }
    true
}

/// Takes what the peer sends. Returns when it went away too early or broke the rules.
async fn receive_frames(
    reader: &mut OwnedReadHalf,
    queue: mpsc::Sender<QueuedPiece>,
    carried: &CarriedStream,
) {
    let mut ended = false;
    while let Ok(Some((header, data))) = frame::receive_frame::<PortFrame>(reader).await {
        let queued = match header {
            PortFrame::Taken => {
                if carried.credit.available_permits() >= WINDOW_PIECES as usize {
                    return;
                }
                carried.credit.add_permits(1);
                Ok(())
            }
            PortFrame::Data | PortFrame::End if ended => return,
            PortFrame::Data => queue.try_send(QueuedPiece::Data(data)),
            PortFrame::End => {
                ended = true;
                queue.try_send(QueuedPiece::End)
            }
        };
        match queued {
            // What the stream takes no more has no effect, as after any end.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(_)) => return,
        }
    }
    // The peer is done only when it has heard both ends. What it sent last may still be passed on here.
    if ended && carried.told_end.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::DuplexStream;
    use tokio::net::UnixStream;

    use super::*;

    /// A stream that is carried over a connection: its two far ends, and whether each side found it complete.
    fn carry_pair() -> (DuplexStream, DuplexStream, tokio::task::JoinHandle<(bool, bool)>) {
        let (near, near_inner) = tokio::io::duplex(1024);
        let (far, far_inner) = tokio::io::duplex(1024);
        let (one, other) = UnixStream::pair().unwrap();
        let carry = |connection: UnixStream, stream: DuplexStream| async move {
            let (mut reader, mut writer) = connection.into_split();
            carry_stream(&mut reader, &mut writer, stream).await
        };
        let (near_side, far_side) = (carry(one, near_inner), carry(other, far_inner));
        let carrying = tokio::spawn(async move {
            let far_side = tokio::spawn(far_side);
            (near_side.await, far_side.await.unwrap())
        });
        (near, far, carrying)
    }

    #[tokio::test]
    async fn each_direction_ends_by_itself_and_nothing_is_lost() {
        let (mut near, mut far, carrying) = carry_pair();
        let sent: Vec<u8> = (0..1_000_000u32).map(|it| it as u8).collect();
        let expected = sent.clone();
        let question = tokio::spawn(async move {
            near.write_all(&sent).await.unwrap();
            near.shutdown().await.unwrap();
            let mut answer = Vec::new();
            near.read_to_end(&mut answer).await.unwrap();
            answer
        });
        let mut asked = Vec::new();
        far.read_to_end(&mut asked).await.unwrap();
        assert!(asked == expected, "{} bytes", asked.len());
        far.write_all(b"answer").await.unwrap();
        far.shutdown().await.unwrap();
        assert_eq!(question.await.unwrap(), b"answer");
        assert_eq!(carrying.await.unwrap(), (true, true));
    }

    #[tokio::test]
    async fn a_direction_that_is_not_read_holds_back_no_other() {
        let (near, mut far, carrying) = carry_pair();
        let flood = tokio::spawn(async move {
            let (mut from_near, mut to_near) = tokio::io::split(near);
            let mut small = [0; 5];
            tokio::select! {
                () = async { while to_near.write_all(&[1; 4096]).await.is_ok() {} } => {}
                read = from_near.read_exact(&mut small) => assert_eq!(read.unwrap(), 5),
            }
            small
        });
        far.write_all(b"small").await.unwrap();
        assert_eq!(&flood.await.unwrap(), b"small");
        carrying.abort();
    }

    #[tokio::test]
    async fn a_side_that_goes_away_early_breaks_the_stream() {
        let (near, stream) = tokio::io::duplex(1024);
        let (one, other) = UnixStream::pair().unwrap();
        let (mut reader, mut writer) = one.into_split();
        drop(other);
        let carried = carry_stream(&mut reader, &mut writer, stream);
        let carried = tokio::time::timeout(Duration::from_secs(60), carried).await;
        assert_eq!(carried, Ok(false));
        drop(near);
    }
}
