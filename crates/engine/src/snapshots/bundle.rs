//! A snapshot as one portable stream.
//!
//! ```text
//! stockade-snapshot 1\n
//! length of the sealed manifest (u32, little endian), the sealed manifest
//! deflated: for each part in the order of its name
//!     index (u64, little endian) and content of each block that is not zero, in order
//!     the index u64::MAX
//! the SHA-256 of every byte before
//! ```
//! All of it is a stranger's word until each part has the digest that the manifest gives it, and the
//! manifest the hash it starts with; nothing gets a name before that.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use flate2::Compression;
use flate2::bufread::DeflateDecoder;
use flate2::write::DeflateEncoder;
use sha2::{Digest as _, Sha256};
use stockade_core::{Bytes, Error, ErrorCode, Result, SnapshotId};

use super::blocks::{self, BLOCK_BYTES, Digester};
use super::manifest::{MAX_MANIFEST, Part, Snapshot, build_damaged_error};
use super::{SnapshotDraft, Snapshots, build_unusable_error, open_plain};

const PARCEL_MAGIC: &str = "stockade-snapshot ";
const PARCEL_VERSION: u32 = 1;
/// Index that ends a part.
const END_OF_PART: u64 = u64::MAX;

impl Snapshots {
    /// Writes a snapshot as one stream.
    pub fn export(&self, snapshot: &Snapshot, to: &mut dyn Write) -> Result<()> {
        let parts = self.parts(snapshot)?;
        let sealed = snapshot.seal()?;
        let length = u32::try_from(sealed.len()).unwrap_or(u32::MAX).to_le_bytes();
        let head =
            [format!("{PARCEL_MAGIC}{PARCEL_VERSION}\n").as_bytes(), &length, &sealed].concat();
        let mut to = Hashed { stream: to, hash: Sha256::new() };
        to.write_all(&head).map_err(not_written)?;
        let mut body = DeflateEncoder::new(to, Compression::fast());
        for (name, part) in &snapshot.parts {
            pack_part(parts.get(name)?, part, &mut body)?;
        }
        let Hashed { stream: to, hash } = body.finish().map_err(not_written)?;
        to.write_all(&hash.finalize()).and_then(|()| to.flush()).map_err(not_written)
    }

    /// Reads a snapshot from a stream and stores it under its own name. One that does not fit this
    /// host, or would hold more than `most`, is refused before anything is written.
    pub fn import(&self, from: &mut dyn Read, most: Bytes) -> Result<Snapshot> {
        self.take_in(from, most, |_, _| Ok(())).map(|(snapshot, _)| snapshot)
    }

    /// The same, with the draft in which it was put together, about which something may be said before the
    /// snapshot has a name. No draft where the snapshot was there already: it is read to its end all the
    /// same, so that a damaged one is refused even then.
    pub(super) fn take_in(
        &self,
        from: &mut dyn Read,
        most: Bytes,
        ready: impl FnOnce(&SnapshotDraft, &SnapshotId) -> Result<()>,
    ) -> Result<(Snapshot, Option<SnapshotDraft>)> {
        let mut from = Hashed { stream: BufReader::new(from), hash: Sha256::new() };
        let sealed = read_sealed_manifest(&mut from)?;
        let snapshot = Snapshot::unseal(&sealed)?;
        snapshot.fits_this_host()?;
        if snapshot.size() > most {
            let size = snapshot.size().rounded();
            let message = format!("the snapshot holds {size}, and {most} are allowed");
            return Err(Error::new(ErrorCode::TooLarge, "import", message)
                .remedy("allow more with `--max-size`"));
        }
        let there = self.get(&snapshot.id).ok();
        let is_new = there.is_none();
        there.map_or(Ok(()), |there| check_same_snapshot(&there, &snapshot))?;
        let draft = self.draft()?;
        let mut body = DeflateDecoder::new(from);
        for (name, part) in &snapshot.parts {
            unpack_part(&mut body, &draft, name, part)?;
        }
        ends_here(body)?;
        if is_new {
            ready(&draft, &snapshot.id)?;
        }
        self.keep(&draft, &snapshot)?;
        Ok((snapshot, is_new.then_some(draft)))
    }
}

fn check_same_snapshot(there: &Snapshot, snapshot: &Snapshot) -> Result<()> {
    if there == snapshot {
        return Ok(());
    }
    let message = format!("there is another snapshot `{}`", snapshot.id);
    Err(Error::new(ErrorCode::Invalid, "import", message).remedy("remove that one first"))
}

fn pack_part(path: &Path, part: &Part, to: &mut impl Write) -> Result<()> {
    let failed = |error| build_unusable_error("export", path, error);
    let file = open_plain(path).map_err(failed)?;
    let mut digester = Digester::new(part.size.0);
    // An error of reading and one of writing have different remedies.
    let mut unwritten = None;
    let packed = blocks::for_each_block(&file, part.size.0, |index, block| {
        digester.block(index, block);
        let written = to.write_all(&index.to_le_bytes()).and_then(|()| to.write_all(block));
        written.map_err(|error| {
            let kind = error.kind();
            unwritten = Some(error);
            kind.into()
        })
    });
    if let Some(error) = unwritten {
        return Err(not_written(error));
    }
    packed.map_err(failed)?;
    if digester.finish() != part.digest {
        return Err(build_damaged_error("it was changed while it was exported"));
    }
    to.write_all(&END_OF_PART.to_le_bytes()).map_err(not_written)
}

/// The sealed manifest.
fn read_sealed_manifest(from: &mut impl Read) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() <= PARCEL_MAGIC.len() + 10 && line.last() != Some(&b'\n') {
        from.read_exact(&mut byte).map_err(read_failure)?;
        line.push(byte[0]);
    }
    let line = String::from_utf8_lossy(&line);
    let version = line.strip_prefix(PARCEL_MAGIC).and_then(|rest| rest.strip_suffix('\n'));
    match version.and_then(|version| version.parse::<u32>().ok()) {
        Some(PARCEL_VERSION) => {}
        Some(newer) if newer > PARCEL_VERSION => {
            let message =
                format!("the file has format {newer}; this version reads {PARCEL_VERSION}");
            return Err(Error::new(ErrorCode::Unsupported, "import", message)
                .remedy("use a newer version of Stockade"));
        }
        Some(_) | None => {
            let message = "this is not an exported snapshot";
            return Err(Error::new(ErrorCode::Invalid, "import", message)
                .remedy("`stockade snapshot export` writes one"));
        }
    }
    let mut length = [0; 4];
    from.read_exact(&mut length).map_err(read_failure)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_MANIFEST {
        return Err(build_damaged_error("its manifest is longer than one may be"));
    }
    let mut sealed = vec![0; length];
    from.read_exact(&mut sealed).map_err(read_failure)?;
    Ok(sealed)
}

/// Writes one part where the draft keeps it. Block indexes must increase, so that a part never makes the
/// reader write more than the manifest says.
fn unpack_part(body: &mut impl Read, draft: &SnapshotDraft, name: &str, part: &Part) -> Result<()> {
    let path = draft.parts().join(name);
    let failed = |error| build_unusable_error("import", &path, error);
    let size = part.size.0;
    let file = File::create_new(&path).map_err(failed)?;
    file.set_len(size).map_err(failed)?;
    let mut digester = Digester::new(size);
    let mut buffer = vec![0; BLOCK_BYTES as usize];
    let mut next = 0;
    loop {
        let mut index = [0; 8];
        body.read_exact(&mut index).map_err(read_failure)?;
        let index = u64::from_le_bytes(index);
        if index == END_OF_PART {
            break;
        }
        let length = blocks::block_length(size, index).filter(|_| index >= next);
        let length = length.ok_or_else(|| build_damaged_error("its blocks are not in order"))?;
        let block = &mut buffer[..length];
        body.read_exact(block).map_err(read_failure)?;
        file.write_all_at(block, index * BLOCK_BYTES).map_err(failed)?;
        digester.block(index, block);
        next = index + 1;
    }
    if digester.finish() != part.digest {
        return Err(build_damaged_error(format!("its part `{name}` was changed")));
    }
    file.sync_all().map_err(failed)
}

/// The seal over all of it, and nothing after that.
fn ends_here(mut body: DeflateDecoder<Hashed<impl BufRead>>) -> Result<()> {
    let over = body.read(&mut [0]).map_err(read_failure)?;
    let Hashed { stream: mut from, hash } = body.into_inner();
    let mut seal = [0; 32];
    from.read_exact(&mut seal).map_err(read_failure)?;
    if over != 0 || seal != <[u8; 32]>::from(hash.finalize()) {
        return Err(build_damaged_error("it was changed"));
    }
    match from.fill_buf().map_err(read_failure)?.is_empty() {
        true => Ok(()),
        false => Err(build_damaged_error("something follows it")),
    }
}

/// A stream of which every byte that passed is counted in.
struct Hashed<S> {
    stream: S,
    hash: Sha256,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = self.stream.write(data)?;
        self.hash.update(&data[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

impl<R: BufRead> Read for Hashed<R> {
    fn read(&mut self, data: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(data)?;
        self.hash.update(&data[..count]);
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Hashed<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.stream.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        // What is consumed was in the buffer, so that looking again reads nothing.
        if let Ok(buffer) = self.stream.fill_buf() {
            self.hash.update(&buffer[..count.min(buffer.len())]);
        }
        self.stream.consume(count);
    }
}

fn read_failure(error: io::Error) -> Error {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    if error.kind() == UnexpectedEof {
        return build_damaged_error("it is cut off");
    }
    if matches!(error.kind(), InvalidInput | InvalidData) {
        return build_damaged_error("what is compressed in it was changed").source(error);
    }
    Error::new(ErrorCode::System, "import", "it cannot be read").source(error)
}

fn not_written(error: io::Error) -> Error {
    Error::new(ErrorCode::System, "export", "the snapshot cannot be written")
        .remedy("see whether there is room where it goes")
        .source(error)
}
