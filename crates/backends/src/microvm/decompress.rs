//! What distributions compress kernels and modules by: told by how it begins, and never more than was asked
//! for.

use std::io::{self, Read};

use flate2::read::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::StreamingDecoder;

/// The most that one block of the kernel's LZ4 format holds.
const LZ4_BLOCK_BYTES: usize = 8 << 20;
/// The most that a decoder may keep of what it has decompressed: what `zstd --ultra -22` and `xz -9` ask for, and
/// what they take themselves.
const MAX_WINDOW_KIB: u32 = 192 << 10;

/// A way of compressing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CompressionFormat {
    Gzip,
    Xz,
    Zstd,
    /// The frame that the kernel's own tools write.
    Lz4,
}

impl CompressionFormat {
    const ALL_FORMATS: [Self; 4] = [Self::Gzip, Self::Xz, Self::Zstd, Self::Lz4];

    fn magic(self) -> &'static [u8] {
        match self {
            Self::Gzip => &[0x1f, 0x8b],
            Self::Xz => &[0xfd, b'7', b'z', b'X', b'Z', 0],
            Self::Zstd => &[0x28, 0xb5, 0x2f, 0xfd],
            Self::Lz4 => &[0x02, 0x21, 0x4c, 0x18],
        }
    }

    /// By how it begins.
    pub(super) fn from_magic(compressed: &[u8]) -> Option<Self> {
        Self::ALL_FORMATS.into_iter().find(|format| compressed.starts_with(format.magic()))
    }

    /// Decompresses it. More than `most` bytes are an error.
    pub(super) fn decompress(self, compressed: &[u8], most: usize) -> io::Result<Vec<u8>> {
        match self {
            Self::Gzip => read_limited(MultiGzDecoder::new(compressed), most),
            Self::Xz => {
                read_limited(XzReader::new_mem_limit(compressed, true, MAX_WINDOW_KIB), most)
            }
            Self::Zstd => {
                read_limited(StreamingDecoder::new(compressed).map_err(io::Error::other)?, most)
            }
            Self::Lz4 => decompress_lz4_blocks(&compressed[Self::Lz4.magic().len()..], most),
        }
    }
}

pub(super) fn invalid_data(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Four bytes of a kernel's own formats.
pub(super) fn read_u32_le(bytes: &[u8], at: usize) -> io::Result<usize> {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    four.map(|four| u32::from_le_bytes(four) as usize)
        .ok_or_else(|| invalid_data("it is cut short"))
}

fn read_limited(from: impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut whole = Vec::new();
    from.take(most as u64 + 1).read_to_end(&mut whole)?;
    if whole.len() > most {
        Err(invalid_data("it is larger than its header says or than is allowed"))
    } else {
        Ok(whole)
    }
}

/// Block after block, each behind its length.
fn decompress_lz4_blocks(mut frame: &[u8], most: usize) -> io::Result<Vec<u8>> {
    let mut whole = Vec::new();
    while !frame.is_empty() && whole.len() < most {
        let size = read_u32_le(frame, 0)?;
        let block = frame.get(4..4 + size).ok_or_else(|| invalid_data("it is cut short"))?;
        let room = LZ4_BLOCK_BYTES.min(most - whole.len());
        let piece = lz4_flex::block::decompress(block, room).map_err(io::Error::other)?;
        whole.extend_from_slice(&piece);
        frame = &frame[4 + size..];
    }
    Ok(whole)
}

/// The same text, compressed by each.
#[cfg(test)]
pub(super) mod samples {
    use super::CompressionFormat;

    pub(in crate::microvm) fn plain_text() -> Vec<u8> {
        let text = "a module that says the same thing again and again; ".repeat(6);
        text.trim_end().as_bytes().to_vec()
    }

    pub(in crate::microvm) fn all_samples() -> Vec<(CompressionFormat, Vec<u8>)> {
        let lz4 = lz4_flex::block::compress(&plain_text());
        let length = u32::try_from(lz4.len()).unwrap().to_le_bytes();
        vec![
            (CompressionFormat::Gzip, GZIP_SAMPLE.to_vec()),
            (CompressionFormat::Xz, XZ_SAMPLE.to_vec()),
            (CompressionFormat::Zstd, ZSTD_SAMPLE.to_vec()),
            (CompressionFormat::Lz4, [CompressionFormat::Lz4.magic(), &length, &lz4].concat()),
        ]
    }

    /// By `gzip -9`.
    const GZIP_SAMPLE: &[u8] = &[
        0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0x4b, 0x54, 0xc8, 0xcd, 0x4f,
        0x29, 0xcd, 0x49, 0x55, 0x28, 0xc9, 0x48, 0x2c, 0x51, 0x28, 0x4e, 0xac, 0x2c, 0x06, 0xb2,
        0x52, 0x81, 0x8c, 0x5c, 0x90, 0x50, 0x66, 0x5e, 0xba, 0x42, 0x62, 0x7a, 0x62, 0x66, 0x9e,
        0x42, 0x62, 0x5e, 0x0a, 0x84, 0x65, 0xad, 0x90, 0x38, 0xa2, 0xb5, 0x00, 0x00, 0x26, 0x96,
        0x14, 0x75, 0x31, 0x01, 0x00, 0x00,
    ];

    /// By `xz --check=crc32 --x86 --lzma2=dict=32MiB`.
    const XZ_SAMPLE: &[u8] = &[
        0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x01, 0x69, 0x22, 0xde, 0x36, 0x02, 0x01, 0x04,
        0x00, 0x21, 0x01, 0x1a, 0x00, 0x01, 0xc9, 0x80, 0xb3, 0xe0, 0x01, 0x30, 0x00, 0x31, 0x5d,
        0x00, 0x30, 0x88, 0x09, 0xa7, 0x33, 0xa9, 0x42, 0x8c, 0x5a, 0xf5, 0x26, 0x96, 0xaf, 0xb1,
        0x03, 0x18, 0x65, 0x53, 0x33, 0x43, 0x60, 0xf7, 0x25, 0x56, 0xc4, 0x9b, 0xdf, 0xe9, 0x7c,
        0x68, 0xcb, 0xc9, 0x1a, 0x6e, 0xbd, 0x7d, 0x04, 0x46, 0x9e, 0x7a, 0xed, 0x29, 0x27, 0x59,
        0xf4, 0xfc, 0xbb, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x26, 0x96, 0x14, 0x75, 0x00, 0x01,
        0x49, 0xb1, 0x02, 0x00, 0x00, 0x00, 0x56, 0x66, 0xac, 0x6c, 0x3e, 0x30, 0x0d, 0x8b, 0x02,
        0x00, 0x00, 0x00, 0x00, 0x01, 0x59, 0x5a,
    ];

    /// By `zstd -22 --ultra`.
    const ZSTD_SAMPLE: &[u8] = &[
        0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x88, 0x9d, 0x01, 0x00, 0xd2, 0xc2, 0x09, 0x11, 0xb0, 0x37,
        0x07, 0x70, 0xcd, 0xd7, 0x0b, 0xc3, 0x8c, 0x8f, 0x9c, 0x04, 0x30, 0x20, 0x63, 0x11, 0x01,
        0x03, 0xba, 0x7e, 0xa2, 0xa1, 0x87, 0x13, 0x96, 0x17, 0x29, 0x5e, 0x96, 0xe3, 0x29, 0x9e,
        0xb5, 0xbc, 0x86, 0xa1, 0x42, 0x6e, 0x02, 0x00, 0x7b, 0xab, 0x28, 0x5e, 0x87, 0x52, 0x06,
        0x54, 0x97, 0xae, 0x45,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_is_told_by_how_it_begins_and_gives_no_more_than_is_asked_for() {
        let plain = samples::plain_text();
        for (format, compressed) in samples::all_samples() {
            assert_eq!(CompressionFormat::from_magic(&compressed), Some(format));
            assert_eq!(format.decompress(&compressed, plain.len()).unwrap(), plain, "{format:?}");
            assert!(format.decompress(&compressed, plain.len() - 1).is_err(), "{format:?}");
            let cut = &compressed[..compressed.len() / 2];
            assert!(format.decompress(cut, plain.len()).is_err(), "{format:?}");
        }
        assert_eq!(CompressionFormat::from_magic(b"\x7fELF"), None);
        assert_eq!(CompressionFormat::from_magic(b""), None);
    }

    #[test]
    fn every_block_is_decompressed() {
        let whole: Vec<u8> = (0..LZ4_BLOCK_BYTES + 1000).map(|n| (n / 100) as u8).collect();
        let mut frame = Vec::new();
        for piece in whole.chunks(LZ4_BLOCK_BYTES) {
            let block = lz4_flex::block::compress(piece);
            frame.extend_from_slice(&(block.len() as u32).to_le_bytes());
            frame.extend_from_slice(&block);
        }
        assert!(decompress_lz4_blocks(&frame, whole.len()).unwrap() == whole);
        assert!(decompress_lz4_blocks(&frame[..frame.len() - 1], whole.len()).is_err());
    }
}
