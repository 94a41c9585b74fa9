//! Whole trees in and out, as tar archives.

use std::sync::Arc;

use bytes::Bytes;
use stockade_core::{Result, SandboxPath};

use super::channel::{ChannelKind, ClientChannel, Finish};
use super::deadline::Deadline;
use super::files::{no_success, request_deadline};
use super::mux::{Mux, too_slow};
use crate::protocol::{FileRequest, ToAgent};

/// A request that yields a stream. Dropping it ends the request.
pub struct Yield {
    mux: Arc<Mux>,
    channel: Arc<ClientChannel>,
    number: u32,
    operation: &'static str,
    /// When it has to be over; none for what goes on by nature, such as a watch.
    deadline: Option<Deadline>,
}

impl Yield {
    pub async fn open(
        mux: &Arc<Mux>,
        operation: &'static str,
        kind: ChannelKind,
        request: FileRequest<'_>,
    ) -> Result<Self> {
        let open = mux.open(operation, kind, |number| ToAgent::File(number, request)).await?;
        let (number, channel) = open;
        let deadline = (kind != ChannelKind::Watch).then(request_deadline);
        Ok(Self { mux: mux.clone(), channel, number, operation, deadline })
    }

    pub fn channel(&self) -> &ClientChannel {
        &self.channel
    }

    /// The next piece; nothing after the last. Safe to drop half-way.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let next = self.channel.next_output(self.number, &self.mux);
        match await_before_deadline(self.deadline, self.operation, next).await? {
            Ok((_, data)) => {
                self.extend_deadline(data.len());
                Ok(Some(data))
            }
            Err(Finish::Done) => Ok(None),
            Err(finish) => Err(no_success(self.operation, finish)),
        }
    }
}

impl Yield {
    fn extend_deadline(&mut self, bytes: usize) {
        self.deadline.iter_mut().for_each(|deadline| deadline.transferred(bytes));
    }
}

async fn await_before_deadline<T>(
    deadline: Option<Deadline>,
    operation: &'static str,
    part: impl Future<Output = T>,
) -> Result<T> {
    match deadline {
        None => Ok(part.await),
        Some(deadline) => deadline.within(part).await.map_err(|_| too_slow(operation)),
    }
}

impl Drop for Yield {
    fn drop(&mut self) {
        self.channel.abandon_channel(self.number, &self.mux);
    }
}

/// An archive on its way out. Dropping it ends the work.
pub struct TarOut(Yield);

impl TarOut {
    pub(super) async fn open(mux: &Arc<Mux>, path: &SandboxPath) -> Result<Self> {
        let request = FileRequest::TarOut(path.as_str());
        Yield::open(mux, "archive", ChannelKind::Stream, request).await.map(Self)
    }

    /// The next piece; nothing after the last. Safe to drop half-way.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        self.0.next().await
    }
}

/// An archive on its way in. Dropping it before `finish` ends the work half-way.
pub struct TarIn(Yield);

impl TarIn {
    pub(super) async fn open(mux: &Arc<Mux>, path: &SandboxPath) -> Result<Self> {
        let request = FileRequest::TarIn(path.as_str());
        Yield::open(mux, "unpack", ChannelKind::Plain, request).await.map(Self)
    }

    /// Sends a piece, waiting while it is not unpacked. An archive that was refused says so here or
    /// from `finish`.
    pub async fn write(&mut self, data: Bytes) -> Result<()> {
        let bytes = data.len();
        let Yield { mux, channel, number, operation, deadline } = &self.0;
        let written =
            await_before_deadline(*deadline, operation, channel.write_input(*number, mux, data))
                .await?;
        if !written {
            let finish =
                await_before_deadline(*deadline, operation, channel.wait_for_finish()).await?;
            return Err(no_success(operation, finish));
        }
        self.0.extend_deadline(bytes);
        Ok(())
    }

    /// Ends the archive and waits until everything is in place.
    pub async fn finish(self) -> Result<()> {
        let Yield { mux, channel, number, operation, deadline } = &self.0;
        channel.close_input(*number, mux);
        let finish = await_before_deadline(*deadline, operation, channel.wait_for_finish()).await?;
        if matches!(finish, Finish::Done) { Ok(()) } else { Err(no_success(operation, finish)) }
    }
}
