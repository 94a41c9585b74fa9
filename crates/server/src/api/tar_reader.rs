//! A tar archive as it comes, entry by entry: POSIX and GNU headers. It is a client's: names are bounded, numbers are
//! checked, and nothing is kept of what has been passed on.

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use stockade_core::ErrorCode;

use super::body::{check_length, next_chunk};
use super::failure::ApiFailure;

const BLOCK_BYTES: usize = 512;
/// The longest name and the longest set of attributes of an entry.
const MAX_NAME_BYTES: u64 = 4096;
const MAX_ATTRIBUTES_BYTES: u64 = 64 << 10;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TarKind {
    File,
    Directory,
    /// A link, a device or a fifo.
    Other,
}

/// One entry. Its content follows, if it has any.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TarEntry {
    pub name: String,
    pub kind: TarKind,
    /// Permission bits.
    pub mode: u32,
    pub size: u64,
}

/// What a header says of the entry that comes after it.
#[derive(Debug, Default)]
struct Announced {
    name: Option<String>,
    size: Option<u64>,
}

/// An archive that comes in a body.
pub(super) struct TarReader {
    body: Body,
    buffer: BytesMut,
    max_bytes: u64,
    received: u64,
    /// Content of the current entry that was not read, and what fills its last block.
    left: u64,
    padding: u64,
}

impl TarReader {
    /// A reader of a body of at most this many bytes.
    pub(super) fn new(body: Body, max_bytes: u64) -> Self {
        let buffer = BytesMut::new();
        Self { body, buffer, max_bytes, received: 0, left: 0, padding: 0 }
    }

    /// The next entry; nothing at the end, where the rest of the body has been read.
    pub(super) async fn next_entry(&mut self) -> Result<Option<TarEntry>, ApiFailure> {
        let mut announced = Announced::default();
        loop {
            self.skip_content().await?;
            let Some(header) = self.take_header().await? else { return Ok(None) };
            let entry = parse_header(&header)?;
            self.begin_content(entry.1.size);
            match entry {
                (b'L', _) => announced.name = Some(text(&self.read_whole(MAX_NAME_BYTES).await?)?),
                (b'x', _) => {
                    parse_attributes(&self.read_whole(MAX_ATTRIBUTES_BYTES).await?, &mut announced)?
                }
                // Of the archive as a whole, or a target of a link.
                (b'g' | b'K', _) => drop(self.read_whole(MAX_ATTRIBUTES_BYTES).await?),
                (_, entry) => {
                    let size = announced.size.unwrap_or(entry.size);
                    self.begin_content(size);
                    let name = announced.name.unwrap_or(entry.name);
                    return Ok(Some(TarEntry { name, size, ..entry }));
                }
            }
        }
    }

    /// The next piece of the current entry's content; nothing at its end.
    pub(super) async fn next_piece(&mut self, most: usize) -> Result<Option<Bytes>, ApiFailure> {
        if self.left == 0 {
            return Ok(None);
        }
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(most);
        let piece = self.take(wanted).await?;
        self.left -= piece.len() as u64;
        Ok(Some(piece))
    }

    fn begin_content(&mut self, size: u64) {
        self.left = size;
        self.padding = size.next_multiple_of(BLOCK_BYTES as u64) - size;
    }

    async fn skip_content(&mut self) -> Result<(), ApiFailure> {
        while self.next_piece(BLOCK_BYTES * 128).await?.is_some() {}
        let padding = std::mem::take(&mut self.padding);
        self.take(usize::try_from(padding).unwrap_or(0)).await.map(drop)
    }

    /// The whole content of an entry that is about another one.
    async fn read_whole(&mut self, most: u64) -> Result<Bytes, ApiFailure> {
        if self.left > most {
            return Err(malformed("a name or attribute in it is too long"));
        }
        let whole = self.next_piece(usize::try_from(most).unwrap_or(0)).await?;
        Ok(whole.unwrap_or_default())
    }

    /// The next header. Nothing at the end: a block of zeroes, or of the body.
    async fn take_header(&mut self) -> Result<Option<Bytes>, ApiFailure> {
        if self.fill(1).await? {
            let block = self.take(BLOCK_BYTES).await?;
            if block.iter().any(|byte| *byte != 0) {
                return Ok(Some(block));
            }
        }
        // What follows the end means nothing, and a client that sends it waits until it is read.
        self.buffer.clear();
        while self.fill(1).await? {
            self.buffer.clear();
        }
        Ok(None)
    }

    /// Exactly this many bytes.
    async fn take(&mut self, wanted: usize) -> Result<Bytes, ApiFailure> {
        match self.fill(wanted).await? {
            true => Ok(self.buffer.split_to(wanted).freeze()),
            false => Err(malformed("it ends in the middle of an entry")),
        }
    }

    /// Whether there are this many bytes.
    async fn fill(&mut self, wanted: usize) -> Result<bool, ApiFailure> {
        while self.buffer.len() < wanted {
            let Some(chunk) = next_chunk(&mut self.body).await? else { return Ok(false) };
            self.received += chunk.len() as u64;
            check_length(self.received, self.max_bytes)?;
            self.buffer.extend_from_slice(&chunk);
        }
        Ok(true)
    }
}

fn malformed(why: &str) -> ApiFailure {
    ApiFailure::new(ErrorCode::Invalid, format!("the body is no tar archive: {why}"))
        .remedy("send an uncompressed archive, such as `tar -cf -` writes")
        .last()
}

fn text(bytes: &[u8]) -> Result<String, ApiFailure> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let text = std::str::from_utf8(&bytes[..end]);
    text.map(str::to_owned).map_err(|_| malformed("a name in it is not UTF-8"))
}

/// A number in octal, or in GNU's base 256 where it has more digits than fit.
fn number(field: &[u8]) -> Result<u64, ApiFailure> {
    let wrong = || malformed("a number in it is not one");
    if field[0] & 0x80 != 0 {
        let (front, last) = field.split_at(field.len().saturating_sub(8));
        let is_small = field[0] == 0x80 && front.iter().skip(1).all(|byte| *byte == 0);
        let value = last.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        return if is_small && front.len() > 1 { Ok(value) } else { Err(wrong()) };
    }
    let digits = std::str::from_utf8(field).map_err(|_| wrong())?;
    let digits = digits.trim_matches(['\0', ' ']);
    match digits.bytes().all(|digit| digit.is_ascii_digit()) {
        true if digits.is_empty() => Ok(0),
        true => u64::from_str_radix(digits, 8).map_err(|_| wrong()),
        false => Err(wrong()),
    }
}

/// The type of a header, and the entry that it describes.
fn parse_header(header: &[u8]) -> Result<(u8, TarEntry), ApiFailure> {
    let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
    let field: u64 = header[148..156].iter().map(|byte| u64::from(*byte)).sum();
    // The field of the sum itself counts as blanks.
    if number(&header[148..156])? != sum - field + 8 * u64::from(b' ') {
        return Err(malformed("the checksum of a header is wrong"));
    }
    let mut name = text(&header[..100])?;
    let prefix = text(&header[345..500])?;
    if header[257..263] == *b"ustar\0" && !prefix.is_empty() {
        name = format!("{prefix}/{name}");
    }
    let kind = match header[156] {
        // Old archives mark a directory by its name alone.
        b'0' | 0 if name.ends_with('/') => TarKind::Directory,
        b'0' | b'7' | 0 => TarKind::File,
        b'5' => TarKind::Directory,
        _ => TarKind::Other,
    };
    let mode = u32::try_from(number(&header[100..108])? & 0o777).unwrap_or(0o644);
    // Links, devices and directories have no content, whatever the size of a link's target is.
    let size = match header[156] {
        b'1'..=b'6' => 0,
        _ => number(&header[124..136])?,
    };
    if size > i64::MAX as u64 {
        return Err(malformed("an entry in it is too large"));
    }
    Ok((header[156], TarEntry { name, kind, mode, size }))
}

/// Lines of `LENGTH KEY=VALUE`, of which name and size are known here.
fn parse_attributes(mut lines: &[u8], announced: &mut Announced) -> Result<(), ApiFailure> {
    let wrong = || malformed("the attributes of an entry are damaged");
    while !lines.is_empty() {
        let blank = lines.iter().position(|byte| *byte == b' ').ok_or_else(wrong)?;
        let length = std::str::from_utf8(&lines[..blank]).ok().and_then(|text| text.parse().ok());
        let length: usize = length.ok_or_else(wrong)?;
        let line = lines.get(blank + 1..length).and_then(|line| line.strip_suffix(b"\n"));
        let line = line.ok_or_else(wrong)?;
        let equals = line.iter().position(|byte| *byte == b'=').ok_or_else(wrong)?;
        let (key, value) = (&line[..equals], &line[equals + 1..]);
        match key {
            b"path" if value.len() as u64 > MAX_NAME_BYTES => return Err(wrong()),
            b"path" => announced.name = Some(text(value)?),
            b"size" => {
                let size = text(value)?.parse().ok().filter(|size| *size <= i64::MAX as u64);
                announced.size = Some(size.ok_or_else(wrong)?);
            }
            _ => {}
        }
        lines = &lines[length..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;

    use super::*;

    /// A header as `tar` writes it.
    fn header(name: &str, kind: u8, size: &[u8]) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[100..107].copy_from_slice(b"0000640");
        block[124..124 + size.len()].copy_from_slice(size);
        block[156] = kind;
        block[257..263].copy_from_slice(b"ustar\0");
        block[148..156].fill(b' ');
        let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        block
    }

    fn entry(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
        let mut entry = header(name, kind, format!("{:011o}", content.len()).as_bytes());
        entry.extend_from_slice(content);
        entry.resize(entry.len().next_multiple_of(BLOCK_BYTES), 0);
        entry
    }

    /// Names, kinds and contents of an archive that comes in pieces of this length.
    async fn read(
        archive: &[u8],
        piece: usize,
    ) -> Result<Vec<(String, TarKind, usize)>, ApiFailure> {
        let pieces: Vec<_> = archive.chunks(piece).map(Bytes::copy_from_slice).collect();
        let body = Body::from_stream(stream::iter(pieces.into_iter().map(Ok::<_, Infallible>)));
        let mut reader = TarReader::new(body, 1 << 20);
        let mut found = Vec::new();
        while let Some(entry) = reader.next_entry().await? {
            let mut length = 0;
            // Half of them are left unread.
            while found.len() % 2 == 0
                && let Some(piece) = reader.next_piece(100).await?
            {
                length += piece.len();
            }
            found.push((entry.name, entry.kind, length));
        }
        Ok(found)
    }

    #[tokio::test]
    async fn entries_come_whole_however_the_body_is_cut() {
        let long = "d/".repeat(150) + "name";
        let attributes = format!("{} path={long}\n", long.len() + 10);
        let archive = [
            entry("a", b'0', &[1; 1000]),
            entry("dir/", b'5', b""),
            entry("x", b'x', attributes.as_bytes()),
            entry("cut", b'0', b"long"),
            entry("././@LongLink", b'L', b"gnu/name\0"),
            entry("cut", b'0', b"other"),
            entry("link", b'2', b""),
            vec![0; 2 * BLOCK_BYTES],
            b"what follows".to_vec(),
        ]
        .concat();
        let expected = [
            ("a".to_owned(), TarKind::File, 1000),
            ("dir/".to_owned(), TarKind::Directory, 0),
            (long.clone(), TarKind::File, 4),
            ("gnu/name".to_owned(), TarKind::File, 0),
            ("link".to_owned(), TarKind::Other, 0),
        ];
        for piece in [1, 511, 512, 513, 1 << 20] {
            assert_eq!(read(&archive, piece).await.unwrap(), expected, "{piece}");
        }
        assert_eq!(read(&[], 1).await.unwrap(), []);
    }

    #[tokio::test]
    async fn what_is_damaged_or_too_long_is_refused() {
        let mut changed = entry("a", b'0', b"x");
        changed[0] = b'b';
        let mut garbled = header("a", b'0', b"9");
        garbled[124] = b'9';
        for (what, archive) in [
            ("a changed header", changed),
            ("a cut header", entry("a", b'0', b"")[..100].to_vec()),
            ("cut content", entry("a", b'0', &[0; 600])[..700].to_vec()),
            ("no archive", vec![b'x'; 1024]),
            ("a number", garbled),
            ("a long name", entry("x", b'L', &[b'x'; 5000])),
            ("an endless name", header("x", b'L', b"77777777777")),
            (
                "a huge entry",
                header("x", b'0', &[0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            ),
            ("a negative size", header("x", b'0', &[0xff; 12])),
            ("attributes", entry("x", b'x', b"99 path=a\n")),
            ("more attributes", entry("x", b'x', b"0 path=a\n")),
            ("too much", entry("a", b'0', &vec![0; 2 << 20])),
        ] {
            assert!(read(&archive, 4096).await.is_err(), "{what}");
        }
    }
}
