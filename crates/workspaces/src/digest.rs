//! Digests of what a guest wrote, by which an approval is bound to the very content that was looked
//! at (C-23).
//!
//! A file's digest covers its size and every block that holds anything but zeros, with its place: a
//! hole and zeros that were written are the same content, and a terabyte of holes costs nothing.

use std::fmt;
use std::fs::File;
use std::io;

use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};
use stockade_fs::{next_data, read_full_at};

/// Blocks begin at multiples of this.
const BLOCK_BYTES: usize = 1 << 16;

/// The SHA-256 digest of a file's content, of a symbolic link's target, or of a whole diff.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentDigest([u8; 32]);

impl ContentDigest {
    /// The digest of bytes as one piece.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of a file's content.
    pub(crate) fn of_file(file: &File) -> io::Result<Self> {
        let mut blocks = Blocks::new(file.metadata()?.len());
        let mut buffer = vec![0; BLOCK_BYTES];
        let mut at = 0;
        while let Some(data) = next_data(file, at)? {
            let start = data - data % BLOCK_BYTES as u64;
            let read = read_full_at(file, &mut buffer, start)?;
            if read == 0 {
                break;
            }
            blocks.add(start, &buffer[..read]);
            at = start + BLOCK_BYTES as u64;
        }
        Ok(blocks.finish())
    }

    /// The digest that a file with this content has.
    pub(crate) fn of_content(content: &[u8]) -> Self {
        let mut blocks = Blocks::new(content.len() as u64);
        for (at, block) in content.chunks(BLOCK_BYTES).enumerate() {
            blocks.add((at * BLOCK_BYTES) as u64, block);
        }
        blocks.finish()
    }
}

struct Blocks(Sha256);

impl Blocks {
    fn new(size: u64) -> Self {
        Self(Sha256::new().chain_update(size.to_le_bytes()))
    }

    fn add(&mut self, start: u64, block: &[u8]) {
        if block.iter().any(|byte| *byte != 0) {
            self.0.update(start.to_le_bytes());
            self.0.update((block.len() as u64).to_le_bytes());
            self.0.update(block);
        }
    }

    fn finish(self) -> ContentDigest {
        ContentDigest(self.0.finalize().into())
    }
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ContentDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn digest_sparse_file(size: u64, pieces: &[(u64, &[u8])]) -> ContentDigest {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        pieces.iter().for_each(|(at, text)| file.write_all_at(text, *at).unwrap());
        ContentDigest::of_file(&file).unwrap()
    }

    #[test]
    fn every_byte_its_place_and_the_size_count() {
        let long = BLOCK_BYTES as u64 * 3;
        let base = digest_sparse_file(long, &[(70_000, b"x")]);
        assert_eq!(base, digest_sparse_file(long, &[(70_000, b"x")]));
        assert_ne!(base, digest_sparse_file(long, &[(70_000, b"y")]));
        assert_ne!(base, digest_sparse_file(long, &[(70_001, b"x")]));
        assert_ne!(base, digest_sparse_file(long + 1, &[(70_000, b"x")]));
        assert_ne!(base, digest_sparse_file(long, &[(70_000 + BLOCK_BYTES as u64, b"x")]));
    }

    #[test]
    fn zeros_that_were_written_are_a_hole_and_memory_is_like_a_file() {
        let zeros = vec![0; BLOCK_BYTES * 2];
        let whole = [&zeros[..], b"end"].concat();
        let size = whole.len() as u64;
        let sparse = digest_sparse_file(size, &[(zeros.len() as u64, b"end")]);
        assert_eq!(sparse, digest_sparse_file(size, &[(0, &whole)]));
        assert_eq!(sparse, ContentDigest::of_content(&whole));
        assert_eq!(digest_sparse_file(0, &[]), ContentDigest::of_content(b""));
    }

    #[test]
    fn a_terabyte_of_holes_costs_nothing() {
        assert_ne!(
            digest_sparse_file(1 << 40, &[(1 << 39, b"x")]),
            digest_sparse_file(1 << 40, &[(1 << 39, b"y")])
        );
    }
}
