//! Streams of records: cut out of the pieces they arrive in.

use std::sync::Arc;

use bytes::{Buf, BytesMut};
use stockade_core::{Entry, Error, ErrorCode, Result, SandboxPath};

use super::channel::ChannelKind;
use super::mux::{Closed, Mux};
use super::reader::to_entry;
use super::transfer::Yield;
use crate::protocol::{
    DecodeError, FileEntry, FileRequest, HEADER_BYTES, MAX_ENTRIES, frame_length,
};

/// The longest record: a name and a little more.
const MAX_RECORD: usize = 4096;

/// Records that have not been looked at yet. Holds one piece and one record at most.
#[derive(Default)]
pub struct RecordBuffer(BytesMut);

impl RecordBuffer {
    pub fn push_chunk(&mut self, piece: &[u8]) {
        self.0.extend_from_slice(piece);
    }

    /// The next whole record, as `read` understands it.
    pub fn next<T>(
        &mut self,
        read: impl FnOnce(&[u8]) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        let Some(length) = frame_length(&self.0)? else {
            return Ok(None);
        };
        if length > MAX_RECORD {
            return Err(DecodeError::TooLong(length));
        }
        let Some(body) = self.0.get(HEADER_BYTES..HEADER_BYTES + length) else {
            return Ok(None);
        };
        let record = read(body)?;
        self.0.advance(HEADER_BYTES + length);
        Ok(Some(record))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What is in a directory.
pub async fn list_directory(mux: &Arc<Mux>, path: &SandboxPath) -> Result<Vec<Entry>> {
    let request = FileRequest::List(path.as_str());
    let mut pieces = Yield::open(mux, "list", ChannelKind::Stream, request).await?;
    let (mut records, mut entries) = (RecordBuffer::default(), Vec::new());
    let broken = |error| {
        let closed = Closed::broken(error);
        mux.fail_all(closed.clone());
        closed.to_error("list")
    };
    while let Some(piece) = pieces.next().await? {
        records.push_chunk(&piece);
        let read = |body: &[u8]| FileEntry::from_record(body).map(to_entry);
        while let Some(entry) = records.next(read).map_err(broken)? {
            if entries.len() == MAX_ENTRIES {
                let message = format!("`{path}` has more than {MAX_ENTRIES} entries");
                return Err(Error::new(ErrorCode::TooLarge, "list", message));
            }
            entries.push(entry);
        }
    }
    if records.is_empty() { Ok(entries) } else { Err(broken(DecodeError::Short)) }
}
