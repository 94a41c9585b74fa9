//! A file with holes, as it travels: its size, then each piece of it that takes room, with where it
//! belongs. What takes no room there takes none on the way, and none here.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use stockade_fs::next_segment;

/// Entry type of a sparse file: one of those that archives leave to their makers.
pub(super) const SPARSE_ENTRY_TYPE: u8 = b'H';
/// Most segments of data of a sparse file: the last one takes the rest of the file, holes included.
const MAX_SEGMENTS: usize = 4096;
/// Header of each segment: its offset and its length.
const SEGMENT_HEADER_BYTES: u64 = 16;
/// Largest chunk that is read at once.
const READ_CHUNK_BYTES: usize = 64 * 1024;
/// Block size of a file system: the least that it allocates.
const FS_BLOCK_BYTES: u64 = 4096;

/// The pieces of a file that take room, in order; nothing if it has no holes.
pub(super) fn find_segments(file: &File, size: u64) -> io::Result<Option<Vec<(u64, u64)>>> {
    let (mut found, mut at): (Vec<(u64, u64)>, u64) = (Vec::new(), 0);
    while let Some((start, end)) = next_segment(file, at)?.filter(|(start, _)| *start < size) {
        let end = if found.len() + 1 == MAX_SEGMENTS { size } else { end.min(size) };
        found.push((start, end - start));
        at = end;
    }
    let whole = found == [(0, size)] || size == 0;
    Ok((!whole).then_some(found))
}

/// How long its entry is.
pub(super) fn encoded_length(pieces: &[(u64, u64)]) -> u64 {
    pieces.iter().map(|(_, length)| SEGMENT_HEADER_BYTES + length).sum::<u64>() + 8
}

/// Content of a sparse file's entry. Each piece has the announced length, even if the file changes meanwhile.
pub(super) fn segment_reader<'a>(
    file: &'a File,
    size: u64,
    pieces: &'a [(u64, u64)],
) -> impl Read + use<'a> {
    Content { file, pieces: pieces.iter(), head: size.to_le_bytes().to_vec(), at: 0, left: 0 }
}

struct Content<'a> {
    file: &'a File,
    pieces: std::slice::Iter<'a, (u64, u64)>,
    /// What has to go before the piece that is under way.
    head: Vec<u8>,
    at: u64,
    left: u64,
}

impl Read for Content<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.head.is_empty() && self.left == 0 {
            let Some((at, length)) = self.pieces.next() else { return Ok(0) };
            self.head = [at.to_le_bytes(), length.to_le_bytes()].concat();
            (self.at, self.left) = (*at, *length);
        }
        if !self.head.is_empty() {
            let taken = self.head.len().min(into.len());
            into[..taken].copy_from_slice(&self.head[..taken]);
            self.head.drain(..taken);
            return Ok(taken);
        }
        let wanted = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = match self.file.read_at(&mut into[..wanted], self.at)? {
            0 => {
                into[..wanted].fill(0);
                wanted
            }
            read => read,
        };
        self.at += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

/// Puts the pieces where they belong. `room` is asked before each whether there is so much.
pub(super) fn fill_sparse_file(
    file: &File,
    from: &mut impl Read,
    mut room: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let size = read_number(from)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    file.set_len(size)?;
    let mut behind = 0;
    while let Some(at) = read_number(from)? {
        let length = read_number(from)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let end = at.checked_add(length).filter(|end| at >= behind && *end <= size);
        behind = end.ok_or(io::ErrorKind::InvalidData)?;
        room(round_to_blocks(length))?;
        write_segment(file, from, at, length)?;
    }
    Ok(())
}

/// What so many bytes take.
pub(super) fn round_to_blocks(length: u64) -> u64 {
    length.checked_next_multiple_of(FS_BLOCK_BYTES).unwrap_or(u64::MAX)
}

fn write_segment(file: &File, from: &mut impl Read, mut at: u64, length: u64) -> io::Result<()> {
    let mut chunk = vec![0; READ_CHUNK_BYTES];
    let mut left = length;
    while left > 0 {
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(READ_CHUNK_BYTES);
        let piece = &mut chunk[..wanted];
        from.read_exact(piece)?;
        file.write_all_at(piece, at)?;
        at += wanted as u64;
        left -= wanted as u64;
    }
    Ok(())
}

/// The next number; nothing at the end.
fn read_number(from: &mut impl Read) -> io::Result<Option<u64>> {
    let mut bytes = [0; 8];
    if from.read(&mut bytes[..1])? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut bytes[1..])?;
    Ok(Some(u64::from_le_bytes(bytes)))
}
