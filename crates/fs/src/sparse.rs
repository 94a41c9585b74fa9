//! Sparse files: read and copied without reading what is only a hole, so that a file of a terabyte with
//! nothing in it costs nothing.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, copy_file_range, ftruncate, ioctl_ficlone, seek, sendfile};
use rustix::io::{Errno, pwrite};

/// Chunk size of a copy by hand.
const CHUNK_BYTES: usize = 1 << 20;
/// Chunk size of one system call that copies.
const RANGE_BYTES: u64 = 1 << 30;

/// Where the next byte is that is not in a hole. Moves where the file is read.
pub fn next_data(file: &File, at: u64) -> io::Result<Option<u64>> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NXIO) => Ok(None),
        // A file system that knows nothing of holes has none.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok((at < file.metadata()?.len()).then_some(at)),
        Err(errno) => Err(errno.into()),
    }
}

/// The next stretch that is not a hole: its start and its end. Moves where the file is read.
pub fn next_segment(file: &File, at: u64) -> io::Result<Option<(u64, u64)>> {
    let Some(start) = next_data(file, at)? else { return Ok(None) };
    let end = match seek(file, SeekFrom::Hole(start)) {
        Ok(found) => found,
        // Cut off meanwhile.
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => file.metadata()?.len(),
        Err(errno) => return Err(errno.into()),
    };
    Ok((start < end).then_some((start, end)))
}

/// Copies a file's content into an empty one, shared where the file system can, as [`copy_sparse`] does elsewhere.
pub fn clone_or_copy(from: &File, to: impl AsFd) -> io::Result<()> {
    match ioctl_ficlone(&to, from) {
        Ok(()) => Ok(()),
        Err(_) => copy_sparse(from, to).map(drop),
    }
}

/// Copies what is there of a file to the same places of another, which becomes as long; its holes stay holes.
/// Answers how many bytes were there, and moves where both are read and written. A stretch that is cut off while
/// it is copied is an error (`UnexpectedEof`).
pub fn copy_sparse(from: &File, to: impl AsFd) -> io::Result<u64> {
    ftruncate(&to, from.metadata()?.len())?;
    let (mut at, mut copied) = (0, 0);
    while let Some((start, end)) = next_segment(from, at)? {
        copy_range(from, &to, start, end)?;
        copied += end - start;
        at = end;
    }
    Ok(copied)
}

fn copy_range(from: &File, to: &impl AsFd, start: u64, end: u64) -> io::Result<()> {
    let (mut input, mut output) = (start, start);
    while input < end {
        let most = (end - input).min(RANGE_BYTES) as usize;
        match copy_file_range(from, Some(&mut input), to, Some(&mut output), most) {
            // Two file systems, or a filter.
            Ok(0)
            | Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => {
                return send_range(from, to, input, end);
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// A quarter faster than by hand: into memory, between two file systems.
fn send_range(from: &File, to: &impl AsFd, mut at: u64, end: u64) -> io::Result<()> {
    seek(to, SeekFrom::Start(at))?;
    while at < end {
        let most = (end - at).min(RANGE_BYTES) as usize;
        match sendfile(to, from, Some(&mut at), most) {
            Ok(0) | Err(Errno::INVAL | Errno::NOSYS | Errno::PERM) => {
                return copy_by_hand(from, to, at, end);
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn copy_by_hand(from: &File, to: &impl AsFd, mut at: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    while at < end {
        let most = usize::try_from(end - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        let read = read_full_at(from, &mut buffer[..most], at)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        write_all_at(to, &buffer[..read], at)?;
        at += read as u64;
    }
    Ok(())
}

/// Fills a buffer from a place of a file; answers how much there was.
pub fn read_full_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn write_all_at(to: &impl AsFd, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match pwrite(to, bytes, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                at += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn what_is_there_is_copied_and_the_rest_stays_nothing() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        from.set_len(64 << 20).unwrap();
        from.write_all_at(b"one", 5 << 20).unwrap();
        from.write_all_at(b"two", (64 << 20) - 3).unwrap();
        let copied = copy_sparse(&from, &to).unwrap();
        assert!(copied < 1 << 20, "{copied}");
        assert_eq!(to.metadata().unwrap().size(), 64 << 20);
        let mut text = [0; 3];
        to.read_exact_at(&mut text, (64 << 20) - 3).unwrap();
        assert_eq!(&text, b"two");
        to.read_exact_at(&mut text, 5 << 20).unwrap();
        assert_eq!(&text, b"one");
    }

    #[test]
    fn a_sparse_terabyte_is_copied_to_another_file_system_by_what_is_in_it() {
        let from = tempfile::tempfile().unwrap();
        let to = tempfile::tempfile_in("/dev/shm").unwrap();
        from.set_len(1 << 40).unwrap();
        from.write_all_at(&vec![7; CHUNK_BYTES + 1], 1 << 39).unwrap();
        clone_or_copy(&from, &to).unwrap();
        assert_eq!(to.metadata().unwrap().len(), 1 << 40);
        let mut found = vec![0; CHUNK_BYTES + 1];
        to.read_exact_at(&mut found, 1 << 39).unwrap();
        assert!(found.iter().all(|byte| *byte == 7));
        assert!(to.metadata().unwrap().blocks() < 8192);
    }

    #[test]
    fn segments_end_where_holes_begin() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(next_segment(&file, 0).unwrap(), None);
        file.set_len(8 << 20).unwrap();
        assert_eq!(next_segment(&file, 0).unwrap(), None);
        file.write_all_at(b"x", 4 << 20).unwrap();
        let (start, end) = next_segment(&file, 0).unwrap().unwrap();
        assert!(start <= 4 << 20 && end > 4 << 20 && end < 8 << 20);
        assert_eq!(next_segment(&file, end).unwrap(), None);
    }
}
