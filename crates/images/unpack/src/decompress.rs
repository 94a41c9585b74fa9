//! Layers as they are compressed, to the archive in them: counted, bounded and digested on the way.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use sha2::{Digest, Sha256};

use crate::{Compression, UnpackError};

const BUFFER_BYTES: usize = 128 << 10;
/// The window that `zstd --long` asks for, and what readers take without being told.
const MAX_ZSTD_WINDOW_BYTES: u64 = 128 << 20;

/// The archive of a layer.
pub(crate) struct Decompressed<'a> {
    source: Box<dyn Read + 'a>,
    hasher: Sha256,
    bytes: u64,
    limit: u64,
}

impl<'a> Decompressed<'a> {
    pub fn new(layer: impl Read + 'a, compression: Compression, limit: u64) -> Self {
        let layer = BufReader::with_capacity(BUFFER_BYTES, layer);
        let source: Box<dyn Read + 'a> = match compression {
            Compression::None => Box::new(layer),
            Compression::Gzip => Box::new(MultiGzDecoder::new(layer)),
            Compression::Zstd => Box::new(ZstdReader::new(layer)),
        };
        Self { source, hasher: Sha256::new(), bytes: 0, limit }
    }

    /// Reads on. Nothing is read at the end only.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, UnpackError> {
        let count = loop {
            match self.source.read(into) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error().is_some() => {
                    return Err(UnpackError::io("read", "the layer", error));
                }
                Err(error) => {
                    return Err(UnpackError::refused(format!(
                        "the layer cannot be decompressed: {error}"
                    )));
                }
                Ok(count) => break count,
            }
        };
        self.bytes += count as u64;
        if self.bytes > self.limit {
            let limit = self.limit;
            return Err(UnpackError::refused(format!(
                "the layer unpacks to more than {limit} bytes"
            )));
        }
        self.hasher.update(&into[..count]);
        Ok(count)
    }

    /// Reads until the buffer is full or the archive ends.
    pub fn read_full(&mut self, into: &mut [u8]) -> Result<usize, UnpackError> {
        let mut filled = 0;
        while filled < into.len() {
            match self.read(&mut into[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(filled)
    }

    /// Reads what is left, and answers with the digest and the length of it all.
    pub fn finish(mut self) -> Result<(String, u64), UnpackError> {
        let mut rest = vec![0; BUFFER_BYTES];
        while self.read(&mut rest)? > 0 {}
        Ok((to_hex(self.hasher), self.bytes))
    }

    /// Bytes that were read so far.
    pub fn position(&self) -> u64 {
        self.bytes
    }
}

/// The digest that a hasher has come to, in hexadecimal.
pub(crate) fn to_hex(hasher: Sha256) -> String {
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Any number of frames, those to be skipped among them.
struct ZstdReader<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> ZstdReader<R> {
    fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_ZSTD_WINDOW_BYTES);
        Self { source, decoder, in_frame: false }
    }

    /// Begins the next frame. False at the end.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped =
                        io::copy(&mut self.source.by_ref().take(length.into()), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for ZstdReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame && !self.next_frame()? {
                return Ok(0);
            }
            self.in_frame = true;
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let blocks = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, blocks).map_err(io::Error::other)?;
            }
            match self.decoder.read(into)? {
                0 => self.in_frame = false,
                count => return Ok(count),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn read_all(
        layer: &[u8],
        compression: Compression,
        limit: u64,
    ) -> Result<Vec<u8>, UnpackError> {
        let mut archive = Decompressed::new(layer, compression, limit);
        let mut all = vec![0; 1 << 20];
        let count = archive.read_full(&mut all)?;
        all.truncate(count);
        Ok(all)
    }

    #[test]
    fn all_frames_of_a_zstd_stream_are_read_and_skippable_ones_skipped() {
        let mut layer = compress_to_vec(&b"one "[..], CompressionLevel::Fastest);
        layer.extend([0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 9, 9, 9]);
        layer.extend(compress_to_vec(&b"two"[..], CompressionLevel::Fastest));
        assert_eq!(read_all(&layer, Compression::Zstd, 100).unwrap(), b"one two");
        assert!(read_all(&layer[..layer.len() - 4], Compression::Zstd, 100).is_err());
        assert!(read_all(&layer[..22], Compression::Zstd, 100).is_err());
    }

    #[test]
    fn a_bomb_is_cut_at_the_limit() {
        let bomb = compress_to_vec(&vec![0; 1 << 20][..], CompressionLevel::Fastest);
        assert!(bomb.len() < 10_000);
        let refused = read_all(&bomb, Compression::Zstd, 1000).unwrap_err();
        assert!(refused.to_string().contains("more than 1000 bytes"), "{refused}");
    }
}
