//! Files of which most is nothing: copied without the nothing.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::{SeekFrom, ftruncate, seek, sendfile};
use rustix::io::Errno;

/// Chunk size of one `sendfile`.
const COPY_CHUNK_BYTES: u64 = 1 << 30;

/// Copies what is there of a file to the same places of another, which becomes as long.
pub(super) fn copy_sparse(from: &File, to: impl AsFd) -> io::Result<u64> {
    let (length, to) = (from.metadata()?.len(), to.as_fd());
    ftruncate(to, length)?;
    let (mut at, mut copied) = (0, 0);
    while let Some((start, end)) = find_data_segment(from, at)? {
        seek(to, SeekFrom::Start(start))?;
        seek(from, SeekFrom::Start(start))?;
        let mut left = end - start;
        while left > 0 {
            let sent = sendfile(to, from, None, left.min(COPY_CHUNK_BYTES) as usize)? as u64;
            if sent == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            left -= sent;
            copied += sent;
        }
        at = end;
    }
    Ok(copied)
}

/// The next stretch that is not nothing.
fn find_data_segment(file: &File, from: u64) -> io::Result<Option<(u64, u64)>> {
    match seek(file, SeekFrom::Data(from)) {
        Ok(start) => Ok(Some((start, seek(file, SeekFrom::Hole(start))?))),
        // Nothing more to the end.
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

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
}
