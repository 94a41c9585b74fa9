//! The way out: a caller tries to write its data at once, which saves waking a task; what the pipe does not
//! take is left to the writing task.

use std::io;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::AsyncWrite;

pub type PipeWriter = Box<dyn AsyncWrite + Unpin + Send>;

/// The writing end of the pipe, with what is being written.
pub struct BatchWriter(Mutex<BatchWriterInner>);

struct BatchWriterInner {
    /// Taken away when the pipe is closed.
    writer: Option<PipeWriter>,
    batch: Vec<u8>,
    at: usize,
}

impl BatchWriter {
    pub fn new(writer: PipeWriter) -> Self {
        Self(Mutex::new(BatchWriterInner { writer: Some(writer), batch: Vec::new(), at: 0 }))
    }

    /// Writes everything that `refill` hands out. Ready when there is nothing left.
    pub fn poll(
        &self,
        context: &mut Context<'_>,
        refill: impl FnMut(&mut Vec<u8>),
    ) -> Poll<io::Result<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).poll(context, refill)
    }

    /// Writes what can be written now. Returns whether that was everything; if not, the writing task
    /// must be woken: it alone waits for the pipe.
    pub fn try_all(&self, refill: impl FnMut(&mut Vec<u8>)) -> bool {
        let mut inner = match self.0.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let mut context = Context::from_waker(Waker::noop());
        matches!(inner.poll(&mut context, refill), Poll::Ready(Ok(())))
    }

    /// Goes on with another writing end. What was being written is dropped.
    pub fn replace_writer(&self, writer: PipeWriter) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *inner = BatchWriterInner { writer: Some(writer), batch: Vec::new(), at: 0 };
    }

    /// Closes the writing end.
    pub fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).writer = None;
    }
}

impl BatchWriterInner {
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        mut refill: impl FnMut(&mut Vec<u8>),
    ) -> Poll<io::Result<()>> {
        let Some(writer) = &mut self.writer else {
            return Poll::Ready(Ok(()));
        };
        loop {
            if self.at == self.batch.len() {
                self.batch.clear();
                self.at = 0;
                refill(&mut self.batch);
                if self.batch.is_empty() {
                    return Pin::new(writer).poll_flush(context);
                }
            }
            match ready!(Pin::new(&mut *writer).poll_write(context, &self.batch[self.at..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.at += count,
            }
        }
    }
}
