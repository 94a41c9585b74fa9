//! Connections whose peer does not read: a write that gets nowhere for too long fails, and with it the connection.
//! One on which nothing is to be written may be idle for as long as it likes, and so may one whose answer waits for
//! its reader.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::AsyncWrite;
use tokio::time::{Sleep, sleep};

/// Timeout for a peer to take a part of what is sent to it.
const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether a peer may take as long as it likes.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReaderPatience(Arc<AtomicBool>);

impl ReaderPatience {
    /// Says so of what is written from now on.
    pub(crate) fn set(&self, patient: bool) {
        self.0.store(patient, Ordering::SeqCst);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// The writing half of a connection, whose writes fail where its peer takes nothing.
#[derive(Debug)]
pub(crate) struct StallTimeout<W> {
    writer: W,
    patience: ReaderPatience,
    /// Runs while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<W> StallTimeout<W> {
    /// Watches what is written.
    pub(crate) fn new(writer: W, patience: ReaderPatience) -> Self {
        Self { writer, patience, timer: None }
    }

    /// Passes the result of a write on, unless it has waited for too long.
    fn watch_write(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() || self.patience.is_set() {
            self.timer = None;
            return written;
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(WRITE_STALL_TIMEOUT)));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for StallTimeout<W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.writer).poll_write(context, data);
        self.watch_write(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.writer).poll_write_vectored(context, data);
        self.watch_write(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.writer.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Sockets have nothing to flush; what waits, waits in a write. So this is never put above TLS.
        Pin::new(&mut self.writer).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_ends_the_connection() {
        let (near, _far) = duplex(16);
        let mut stream = StallTimeout::new(near, ReaderPatience::default());
        stream.write_all(&[0; 16]).await.unwrap();
        let stalled = stream.write_all(&[0; 16]).await.unwrap_err();
        assert_eq!(stalled.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_waits_for_its_reader_waits() {
        let (near, mut far) = duplex(16);
        let patience = ReaderPatience::default();
        let mut stream = StallTimeout::new(near, patience.clone());
        patience.set(true);
        let reading = tokio::spawn(async move {
            sleep(10 * WRITE_STALL_TIMEOUT).await;
            far.read_exact(&mut [0; 32]).await.unwrap();
        });
        stream.write_all(&[0; 32]).await.unwrap();
        reading.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_slowly_or_has_nothing_to_read_stays() {
        let (near, mut far) = duplex(16);
        let mut stream = StallTimeout::new(near, ReaderPatience::default());
        let reading = tokio::spawn(async move {
            for _ in 0..4 {
                sleep(WRITE_STALL_TIMEOUT - Duration::from_secs(1)).await;
                far.read_exact(&mut [0; 16]).await.unwrap();
            }
            far
        });
        stream.write_all(&[0; 80]).await.unwrap();
        sleep(10 * WRITE_STALL_TIMEOUT).await;
        let mut far = reading.await.unwrap();
        far.read_exact(&mut [0; 16]).await.unwrap();
        stream.write_all(&[0; 16]).await.unwrap();
    }
}
