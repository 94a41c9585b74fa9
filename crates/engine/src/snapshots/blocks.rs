//! A part of a snapshot as blocks, of which those that are zero do not count: memory is mostly empty,
//! and what was never touched must cost nothing to digest, to keep or to carry.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use stockade_fs::next_data;

use crate::journal::ContentHash;

/// Size of every block but the last.
pub(super) const BLOCK_BYTES: u64 = 64 << 10;

/// What a part is, block by block. Two parts with the same digest hold the same bytes, whichever of their
/// zeros are holes of a sparse file. By BLAKE3, since all of a machine's memory may have to go through it
/// while a caller waits.
pub(super) struct Digester(blake3::Hasher);

impl Digester {
    pub(super) fn new(size: u64) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&size.to_le_bytes());
        Self(hasher)
    }

    pub(super) fn block(&mut self, index: u64, data: &[u8]) {
        self.0.update(&index.to_le_bytes());
        self.0.update(data);
    }

    pub(super) fn finish(self) -> ContentHash {
        ContentHash::from(*self.0.finalize().as_bytes())
    }
}

/// The length of a block of a part of this size.
pub(super) fn block_length(size: u64, index: u64) -> Option<usize> {
    let rest = size.checked_sub(index.checked_mul(BLOCK_BYTES)?)?;
    usize::try_from(rest.min(BLOCK_BYTES)).ok().filter(|length| *length > 0)
}

/// Calls with each block that is not zero, in order.
pub(super) fn for_each_block(
    file: &File,
    size: u64,
    mut call: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; BLOCK_BYTES as usize];
    let mut at = 0;
    while let Some(data) = next_data(file, at)?.filter(|data| *data < size) {
        let index = data / BLOCK_BYTES;
        let Some(length) = block_length(size, index) else { break };
        let block = &mut buffer[..length];
        file.read_exact_at(block, index * BLOCK_BYTES)?;
        if !is_zero(block) {
            call(index, block)?;
        }
        at = (index + 1) * BLOCK_BYTES;
    }
    Ok(())
}

fn is_zero(block: &[u8]) -> bool {
    let words = block.chunks_exact(16);
    words.remainder().iter().all(|byte| *byte == 0) && words.into_iter().all(|word| word == [0; 16])
}

/// The digest of a whole file.
pub(super) fn digest_file(file: &File, size: u64) -> io::Result<ContentHash> {
    let mut digester = Digester::new(size);
    for_each_block(file, size, |index, block| {
        digester.block(index, block);
        Ok(())
    })?;
    Ok(digester.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_sparse_file(size: u64, writes: &[(u64, &[u8])]) -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        for (at, data) in writes {
            file.write_all_at(data, *at).unwrap();
        }
        file
    }

    #[test]
    fn zeros_count_the_same_whether_they_are_a_hole_or_not() {
        let size = 5 * BLOCK_BYTES + 100;
        let hole = write_sparse_file(size, &[(BLOCK_BYTES + 7, b"data"), (size - 1, b"x")]);
        let zeros = vec![0; BLOCK_BYTES as usize];
        let filled = write_sparse_file(
            size,
            &[(3 * BLOCK_BYTES, &zeros), (BLOCK_BYTES + 7, b"data"), (size - 1, b"x")],
        );
        assert_eq!(digest_file(&hole, size).unwrap(), digest_file(&filled, size).unwrap());
    }

    #[test]
    fn a_byte_its_place_and_the_length_all_count() {
        let base = digest_file(
            &write_sparse_file(3 * BLOCK_BYTES, &[(BLOCK_BYTES, b"a")]),
            3 * BLOCK_BYTES,
        )
        .unwrap();
        let others = [
            (3 * BLOCK_BYTES, BLOCK_BYTES, b"b"),
            (3 * BLOCK_BYTES, BLOCK_BYTES + 1, b"a"),
            (3 * BLOCK_BYTES, 2 * BLOCK_BYTES, b"a"),
            (3 * BLOCK_BYTES + 1, BLOCK_BYTES, b"a"),
        ];
        for (size, at, data) in others {
            assert_ne!(digest_file(&write_sparse_file(size, &[(at, data)]), size).unwrap(), base);
        }
        assert_eq!(block_length(0, 0), None);
        assert_eq!(block_length(BLOCK_BYTES + 1, 1), Some(1));
        assert_eq!(block_length(BLOCK_BYTES, 1), None);
        assert_eq!(block_length(u64::MAX, u64::MAX), None);
    }
}
