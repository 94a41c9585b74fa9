//! Whole trees in and out, as tar archives.

use std::sync::Arc;

use bytes::Bytes;
use stockade_core::{Result, SandboxPath};

use super::deadline::Deadline;
use super::files::{no_success, request_deadline};
use super::hub::{Hub, too_slow};
use super::lane::{Finish, Lane, LaneKind};
use crate::protocol::{FileRequest, ToAgent};

/// A request that yields a stream. Dropping it ends the request.
pub struct Yield {
    hub: Arc<Hub>,
    lane: Arc<Lane>,
    number: u32,
    operation: &'static str,
    /// When it has to be over; none for what goes on by nature, such as a watch.
    deadline: Option<Deadline>,
}

impl Yield {
    pub async fn open(
        hub: &Arc<Hub>,
        operation: &'static str,
        kind: LaneKind,
        request: FileRequest<'_>,
    ) -> Result<Self> {
        let open = hub.open(operation, kind, |number| ToAgent::File(number, request)).await?;
        let (number, lane) = open;
        let deadline = (kind != LaneKind::Watch).then(request_deadline);
        Ok(Self { hub: hub.clone(), lane, number, operation, deadline })
    }

    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// The next piece; nothing after the last. Safe to drop half-way.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let next = self.lane.next_output(self.number, &self.hub);
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
        self.lane.abandon_channel(self.number, &self.hub);
    }
}

/// An archive on its way out. Dropping it ends the work.
pub struct TarOut(Yield);

impl TarOut {
    pub(super) async fn open(hub: &Arc<Hub>, path: &SandboxPath) -> Result<Self> {
        let request = FileRequest::TarOut(path.as_str());
        Yield::open(hub, "archive", LaneKind::Stream, request).await.map(Self)
    }

    /// The next piece; nothing after the last. Safe to drop half-way.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        self.0.next().await
    }
}

/// An archive on its way in. Dropping it before `finish` ends the work half-way.
pub struct TarIn(Yield);

impl TarIn {
    pub(super) async fn open(hub: &Arc<Hub>, path: &SandboxPath) -> Result<Self> {
        let request = FileRequest::TarIn(path.as_str());
        Yield::open(hub, "unpack", LaneKind::Plain, request).await.map(Self)
    }

    /// Sends a piece, waiting while it is not unpacked. An archive that was refused says so here or
    /// from `finish`.
    pub async fn write(&mut self, data: Bytes) -> Result<()> {
        let bytes = data.len();
        let Yield { hub, lane, number, operation, deadline } = &self.0;
        let written =
            await_before_deadline(*deadline, operation, lane.write_input(*number, hub, data))
                .await?;
        if !written {
            let finish =
                await_before_deadline(*deadline, operation, lane.wait_for_finish()).await?;
            return Err(no_success(operation, finish));
        }
        self.0.extend_deadline(bytes);
        Ok(())
    }

    /// Ends the archive and waits until everything is in place.
    pub async fn finish(self) -> Result<()> {
        let Yield { hub, lane, number, operation, deadline } = &self.0;
        lane.close_input(*number, hub);
        let finish = await_before_deadline(*deadline, operation, lane.wait_for_finish()).await?;
        if matches!(finish, Finish::Done) { Ok(()) } else { Err(no_success(operation, finish)) }
    }
}
