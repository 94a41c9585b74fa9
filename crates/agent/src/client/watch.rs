//! Watching one directory.

use std::sync::Arc;

use stockade_core::{Result, SandboxPath};

use super::channel::ChannelKind;
use super::files::{no_success, request_deadline};
use super::listing::RecordBuffer;
use super::mux::{Closed, Mux, too_slow};
use super::transfer::Yield;
use crate::protocol::{FileRequest, WatchEvent, WatchKind};

/// One change in a watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryChange {
    /// What happened.
    pub kind: WatchKind,
    /// To which entry; empty where it concerns the whole directory.
    pub name: String,
}

/// A watch on one directory. Dropping it ends it. Changes that are not read in time are lost, and
/// [`WatchKind::Overflow`] says so.
pub struct DirectoryWatch {
    mux: Arc<Mux>,
    pieces: Yield,
    records: RecordBuffer,
}

impl DirectoryWatch {
    pub(super) async fn open(mux: &Arc<Mux>, path: &SandboxPath) -> Result<Self> {
        let request = FileRequest::Watch(path.as_str());
        let pieces = Yield::open(mux, "watch", ChannelKind::Watch, request).await?;
        let answer = pieces.channel().wait_until(|state| match &state.finish {
            Some(finish) => Some(Err(finish.clone())),
            None => state.confirmed.then_some(Ok(())),
        });
        let answer = request_deadline().within(answer).await.map_err(|_| too_slow("watch"))?;
        answer.map_err(|finish| no_success("watch", finish))?;
        Ok(Self { mux: mux.clone(), pieces, records: RecordBuffer::default() })
    }

    /// The next change; nothing once the directory is gone. Safe to drop half-way.
    pub async fn next(&mut self) -> Result<Option<DirectoryChange>> {
        loop {
            let read = |body: &[u8]| {
                WatchEvent::from_record(body)
                    .map(|event| DirectoryChange { kind: event.kind, name: event.name.to_owned() })
            };
            match self.records.next(read) {
                Ok(Some(change)) => return Ok(Some(change)),
                Ok(None) => {}
                Err(error) => {
                    let closed = Closed::broken(error);
                    self.mux.fail_all(closed.clone());
                    return Err(closed.to_error("watch"));
                }
            }
            match self.pieces.next().await? {
                Some(piece) => self.records.push_chunk(&piece),
                None => return Ok(None),
            }
        }
    }
}
