//! The contents of files: compared and copied without reading what is only a hole, so that a file of
//! a terabyte with nothing in it costs nothing.

use std::fs::File;
use std::io;
use stockade_fs::{clone_or_copy, next_data, read_full_at};

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
    while let Some(data) = next_data_of_either(one, other, at)? {
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
fn next_data_of_either(one: &File, other: &File, at: u64) -> io::Result<Option<u64>> {
    let (one, other) = (next_data(one, at)?, next_data(other, at)?);
    Ok(one.into_iter().chain(other).min())
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

/// Copies a file's content into an empty one: shared where the file system can, holes kept as holes. A file
/// of the user's may become shorter meanwhile: the copy then ends in zeros.
pub(crate) fn copy_content(from: &File, to: &File) -> io::Result<()> {
    match clone_or_copy(from, to) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        copied => copied,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

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
