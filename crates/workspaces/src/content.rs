//! The contents of files: compared and copied without reading what is only a hole, so that a file of
//! a terabyte with nothing in it costs nothing.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

const CHUNK_BYTES: usize = 1 << 20;
/// Start of a file that decides whether it is text.
const TEXT_PROBE_BYTES: usize = 8 << 10;

/// Whether two files hold the same bytes.
pub(crate) fn has_same_content(one: &File, other: &File) -> io::Result<bool> {
    let size = one.metadata()?.len();
    if size != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    let mut at = 0;
    while let Some(data) = next_data(one, other, at)? {
        let read = read_full_at(one, &mut left, data)?;
        if read_full_at(other, &mut right, data)? != read || left[..read] != right[..read] {
            return Ok(false);
        }
        if read == 0 {
            return Ok(true);
        }
        at = data + read as u64;
    }
    Ok(true)
}

/// Where the next byte is that one of two files may have other than as a hole.
fn next_data(one: &File, other: &File, at: u64) -> io::Result<Option<u64>> {
    let (one, other) = (data_from(one, at)?, data_from(other, at)?);
    Ok(one.into_iter().chain(other).min())
}

pub(crate) fn data_from(file: &File, at: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NXIO) => Ok(None),
        // A file system that knows nothing of holes has none.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok((at < file.metadata()?.len()).then_some(at)),
        Err(errno) => Err(errno.into()),
    }
}

fn hole_from(file: &File, at: u64) -> io::Result<u64> {
    match rustix::fs::seek(file, SeekFrom::Hole(at)) {
        Ok(found) => Ok(found),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(file.metadata()?.len()),
        Err(errno) => Err(errno.into()),
    }
}

pub(crate) fn read_full_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
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

/// Whether a file is not text: a zero byte near its beginning.
pub(crate) fn is_binary(file: &File) -> io::Result<bool> {
    let mut head = vec![0; TEXT_PROBE_BYTES];
    let read = read_full_at(file, &mut head, 0)?;
    Ok(head[..read].contains(&0))
}

/// The whole of a file, unless it is longer than a bound.
pub(crate) fn read_bounded(file: &File, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; most + 1];
    let read = read_full_at(file, &mut bytes, 0)?;
    bytes.truncate(read);
    Ok((read <= most).then_some(bytes))
}

/// Copies a file's content into an empty one: shared where the file system can, holes kept as holes.
pub(crate) fn copy_content(from: &File, to: &File) -> io::Result<()> {
    if rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    to.set_len(from.metadata()?.len())?;
    let mut at = 0;
    while let Some(data) = data_from(from, at)? {
        at = hole_from(from, data)?;
        copy_range(from, to, data, at)?;
    }
    Ok(())
}

fn copy_range(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    let (mut input, mut output) = (start, start);
    while input < end {
        let most = usize::try_from(end - input).unwrap_or(usize::MAX).min(1 << 30);
        match rustix::fs::copy_file_range(from, Some(&mut input), to, Some(&mut output), most) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                return copy_by_hand(from, to, input, end);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn copy_by_hand(from: &File, to: &File, mut at: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    while at < end {
        let most = usize::try_from(end - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        let read = read_full_at(from, &mut buffer[..most], at)?;
        if read == 0 {
            return Ok(());
        }
        to.write_all_at(&buffer[..read], at)?;
        at += read as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn write_sparse_file(size: u64, at: u64, text: &[u8]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        file.write_all_at(text, at).unwrap();
        file
    }

    #[test]
    fn sparse_terabytes_are_compared_and_copied_by_what_is_in_them() {
        let size = 1 << 40;
        let (one, other) =
            (write_sparse_file(size, 1 << 39, b"x"), write_sparse_file(size, 1 << 39, b"y"));
        assert!(!has_same_content(&one, &other).unwrap() && has_same_content(&one, &one).unwrap());
        let copied = tempfile::tempfile().unwrap();
        copy_content(&one, &copied).unwrap();
        assert!(has_same_content(&one, &copied).unwrap());
        assert!(copied.metadata().is_ok_and(|data| {
            use std::os::unix::fs::MetadataExt;
            data.len() == size && data.blocks() < 64
        }));
    }

    #[test]
    fn files_that_differ_in_their_last_byte_differ() {
        let mut long = vec![7; CHUNK_BYTES * 2];
        let file = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            file
        };
        let one = file(&long);
        assert!(has_same_content(&one, &file(&long)).unwrap());
        *long.last_mut().unwrap() = 8;
        assert!(!has_same_content(&one, &file(&long)).unwrap());
    }

    #[test]
    fn a_zero_byte_makes_a_file_binary() {
        assert!(is_binary(&write_sparse_file(10, 0, b"ab")).unwrap());
        assert!(!is_binary(&write_sparse_file(2, 0, b"ab")).unwrap());
    }
}
