//! The entries of an archive, in ustar, GNU and POSIX form.
//!
//! Header blocks are walked here rather than by the `tar` crate, which reads extended headers of any size into
//! memory and follows whichever of two sizes it finds. What two readers could part differently is refused: a size
//! in an extended header that is not the header's own, contents of an entry that has none, two names for one entry.

use tar::Header;

use crate::UnpackError;
use crate::decompress::Decompressed;
use crate::name::{EntryName, show};
use crate::pax::PaxRecords;

const BLOCK_BYTES: usize = 512;
/// Where in a header its kind is: the library takes a zero for `0`, which is not the same.
const KIND_OFFSET: usize = 156;
const MAX_PAX_BYTES: u64 = 1 << 20;
const MAX_LONG_NAME_BYTES: u64 = 64 << 10;
/// The largest size that a plain header can have: a larger one is in the extended header alone.
const MAX_OCTAL_SIZE: u64 = 0o77_777_777_777;
/// Bits of a mode that are kept: not set-user-id and set-group-id. No program in a sandbox gains anything by them, on the
/// host such a file is an escape route, and the walls around the unpacking refuse them.
const KEPT_MODE_BITS: u32 = 0o1777;

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ArchiveEntryKind {
    File,
    Directory,
    /// With its target, as it is.
    Symlink(Vec<u8>),
    /// With the name that it is another name of.
    HardLink(EntryName),
    /// A character or block device, or a pipe.
    Device,
}

/// One entry. Its contents are read from the archive before the next one.
#[derive(Debug)]
pub(crate) struct ArchiveEntry {
    pub name: EntryName,
    pub kind: ArchiveEntryKind,
    pub mode: u32,
    pub mtime: (i64, u32),
    pub user_xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The entries of an archive.
pub(crate) struct Archive<'a> {
    source: Decompressed<'a>,
    /// Bytes of the current entry's contents that have not been read, and of the padding behind them.
    unread: u64,
    padding: u64,
    entries: u64,
    max_entries: u64,
}

/// What came before a header and belongs to its entry.
#[derive(Default)]
struct Extensions {
    pax: Option<PaxRecords>,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
}

impl<'a> Archive<'a> {
    pub fn new(source: Decompressed<'a>, max_entries: u64) -> Self {
        Self { source, unread: 0, padding: 0, entries: 0, max_entries }
    }

    /// How many entries there were so far.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// The next entry, or nothing at the end.
    pub fn next_entry(&mut self) -> Result<Option<ArchiveEntry>, UnpackError> {
        let mut extensions = Extensions::default();
        loop {
            self.skip_contents()?;
            let Some(header) = self.read_header()? else {
                return match extensions.is_empty() {
                    true => Ok(None),
                    false => Err(UnpackError::refused("the archive ends within an entry")),
                };
            };
            let size = header_size(&header)?;
            match header.as_bytes()[KIND_OFFSET] {
                b'x' => {
                    let records = PaxRecords::parse(&self.read_extension(size, MAX_PAX_BYTES)?)?;
                    set_once(&mut extensions.pax, records)?;
                }
                b'g' => {
                    let records = PaxRecords::parse(&self.read_extension(size, MAX_PAX_BYTES)?)?;
                    if records.changes_entries() || !extensions.is_empty() {
                        let reason = "a global header changes names or sizes, or parts an entry";
                        return Err(UnpackError::refused(reason));
                    }
                }
                b'L' => {
                    let name = self.read_extension(size, MAX_LONG_NAME_BYTES)?;
                    set_once(&mut extensions.long_name, without_zero(name))?;
                }
                b'K' => {
                    let name = self.read_extension(size, MAX_LONG_NAME_BYTES)?;
                    set_once(&mut extensions.long_link, without_zero(name))?;
                }
                _ => return self.begin_entry(&header, size, extensions).map(Some),
            }
        }
    }

    fn begin_entry(
        &mut self,
        header: &Header,
        size: u64,
        extensions: Extensions,
    ) -> Result<ArchiveEntry, UnpackError> {
        self.entries += 1;
        if self.entries > self.max_entries {
            let limit = self.max_entries;
            return Err(UnpackError::refused(format!("the layer has more than {limit} entries")));
        }
        let pax = extensions.pax.unwrap_or_default();
        let raw_name = one_of(pax.path, extensions.long_name)?;
        let raw_name = raw_name.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = one_of(pax.link_path, extensions.long_link)?;
        let link = link
            .or_else(|| header.link_name_bytes().map(|link| link.into_owned()))
            .unwrap_or_default();
        let name = EntryName::parse(&raw_name)?;
        let kind = entry_kind(header.as_bytes()[KIND_OFFSET], &raw_name, link)?;
        let size = agreed_size(&name, size, pax.size)?;
        if kind != ArchiveEntryKind::File && size != 0 {
            let shown = show(name.bytes());
            return Err(UnpackError::refused(format!(
                "{shown} has contents, which only files have"
            )));
        }
        let wrong = |_| UnpackError::refused(format!("{} has a wrong header", show(name.bytes())));
        let mode = header.mode().map_err(wrong)? & KEPT_MODE_BITS;
        // Times that a header cannot hold are no reason to refuse an image.
        let whole = header.mtime().ok().and_then(|mtime| i64::try_from(mtime).ok()).unwrap_or(0);
        self.unread = size;
        self.padding = padding_of(size);
        let mtime = pax.mtime.unwrap_or((whole, 0));
        Ok(ArchiveEntry { name, kind, mode, mtime, user_xattrs: pax.user_xattrs })
    }

    /// How many bytes of the current entry's contents have not been read.
    pub fn unread_bytes(&self) -> u64 {
        self.unread
    }

    /// Where in the archive the next byte comes from.
    pub fn position(&self) -> u64 {
        self.source.position()
    }

    /// Reads contents of the current entry. Nothing is read at their end only.
    pub fn read_contents(&mut self, into: &mut [u8]) -> Result<usize, UnpackError> {
        let most = usize::try_from(self.unread).unwrap_or(usize::MAX).min(into.len());
        if most == 0 {
            return Ok(0);
        }
        match self.source.read(&mut into[..most])? {
            0 => Err(cut_short()),
            count => {
                self.unread -= count as u64;
                Ok(count)
            }
        }
    }

    fn skip_contents(&mut self) -> Result<(), UnpackError> {
        let mut buffer = [0; 8 * BLOCK_BYTES];
        while self.read_contents(&mut buffer)? > 0 {}
        self.skip_padding()
    }

    /// Skips what fills the last block. Some writers leave it out at the archive's end.
    fn skip_padding(&mut self) -> Result<(), UnpackError> {
        let mut buffer = [0; BLOCK_BYTES];
        let padding = usize::try_from(std::mem::take(&mut self.padding)).unwrap_or(0);
        self.source.read_full(&mut buffer[..padding]).map(drop)
    }

    fn read_extension(&mut self, size: u64, limit: u64) -> Result<Vec<u8>, UnpackError> {
        if size > limit {
            let reason = format!("an extended header is larger than {limit} bytes");
            return Err(UnpackError::refused(reason));
        }
        let mut contents = vec![0; usize::try_from(size).unwrap_or(0)];
        if self.source.read_full(&mut contents)? < contents.len() {
            return Err(cut_short());
        }
        self.padding = padding_of(size);
        Ok(contents)
    }

    /// The next header. Nothing at the end: where the archive stops, or at a block of zeros.
    fn read_header(&mut self) -> Result<Option<Header>, UnpackError> {
        let mut header = Header::new_old();
        match self.source.read_full(header.as_mut_bytes())? {
            0 => return Ok(None),
            BLOCK_BYTES => {}
            _ => return Err(cut_short()),
        }
        if header.as_bytes().iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let checksum = header.cksum().map_err(|_| not_an_archive())?;
        let counted = |(at, byte): (usize, &u8)| {
            u32::from(if (148..156).contains(&at) { b' ' } else { *byte })
        };
        match checksum == header.as_bytes().iter().enumerate().map(counted).sum::<u32>() {
            true => Ok(Some(header)),
            false => Err(not_an_archive()),
        }
    }

    /// Reads what is left, and answers with the digest and the length of the whole archive.
    pub fn finish(self) -> Result<(String, u64), UnpackError> {
        self.source.finish()
    }
}

impl Extensions {
    fn is_empty(&self) -> bool {
        self.pax.is_none() && self.long_name.is_none() && self.long_link.is_none()
    }
}

fn cut_short() -> UnpackError {
    UnpackError::refused("the archive is cut short")
}

fn not_an_archive() -> UnpackError {
    UnpackError::refused("the layer is no archive: a header has a wrong checksum")
}

fn header_size(header: &Header) -> Result<u64, UnpackError> {
    header.entry_size().map_err(|_| UnpackError::refused("a header has a wrong size"))
}

fn padding_of(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK_BYTES as u64
}

/// A long name without the zero at its end. More zeros are not cut: readers differ about what is before them.
fn without_zero(mut name: Vec<u8>) -> Vec<u8> {
    name.pop_if(|last| *last == 0);
    name
}

fn set_once<T>(place: &mut Option<T>, value: T) -> Result<(), UnpackError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(UnpackError::refused("an entry has two extended headers of a kind")),
    }
}

fn one_of(pax: Option<Vec<u8>>, gnu: Option<Vec<u8>>) -> Result<Option<Vec<u8>>, UnpackError> {
    match (pax, gnu) {
        (Some(_), Some(_)) => Err(UnpackError::refused("an entry has two names")),
        (pax, gnu) => Ok(pax.or(gnu)),
    }
}

/// The size by the header, or that of the extended header where the header cannot hold it.
fn agreed_size(name: &EntryName, header: u64, pax: Option<u64>) -> Result<u64, UnpackError> {
    match pax {
        None => Ok(header),
        Some(pax) if pax == header || (pax > MAX_OCTAL_SIZE && header == 0) => Ok(pax),
        Some(pax) => Err(UnpackError::refused(format!(
            "{} has two sizes: {header} by its header and {pax} by its extended header",
            show(name.bytes())
        ))),
    }
}

fn entry_kind(kind: u8, raw_name: &[u8], link: Vec<u8>) -> Result<ArchiveEntryKind, UnpackError> {
    let slash = raw_name.ends_with(b"/");
    let refused = |reason: &str| UnpackError::refused(format!("{} {reason}", show(raw_name)));
    match kind {
        b'\0' if slash => Ok(ArchiveEntryKind::Directory),
        b'\0' | b'0' | b'7' if !slash => Ok(ArchiveEntryKind::File),
        b'\0' | b'0' | b'7' => Err(refused("is a file with the name of a directory")),
        b'1' => Ok(ArchiveEntryKind::HardLink(EntryName::parse(&link)?)),
        b'2' if link.is_empty() || link.contains(&0) => {
            Err(refused("is a symbolic link to nothing"))
        }
        b'2' => Ok(ArchiveEntryKind::Symlink(link)),
        b'3' | b'4' | b'6' => Ok(ArchiveEntryKind::Device),
        b'5' => Ok(ArchiveEntryKind::Directory),
        b'S' => Err(refused("is a sparse file, which is not taken")),
        other => Err(refused(&format!("is of the unknown type {:?}", char::from(other)))),
    }
}

#[cfg(test)]
mod tests;
