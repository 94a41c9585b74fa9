//! OCI layouts: a directory with `index.json` and `blobs/sha256/`, or an archive of one. An archive with Docker's list of
//! images instead is read as the layout that it stands for.
//!
//! An archive is not unpacked: its headers are walked once, and blobs are read where they lie. Nothing in it is
//! resolved as a path, and what does not have the name of a blob is not looked at.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open};
use stockade_core::clean_foreign;
use stockade_fs::open_beneath;

use crate::docker_archive::{DOCKER_LIST_FILE, convert_docker_list};
use crate::manifest::{Descriptor, OCI_INDEX, parse_index};
use crate::{Digest, ImageError, ImageLimits, ImageReference};

pub(crate) const INDEX_FILE: &str = "index.json";
pub(crate) const BLOB_DIR: &str = "blobs/sha256/";
/// Upper bound of an archive's entries.
const MAX_ARCHIVE_ENTRIES: usize = 100_000;
/// Annotations with the name of an image: whole, and as most tools write it, the tag alone.
pub(crate) const NAME_ANNOTATION: &str = "io.containerd.image.name";
const TAG_ANNOTATION: &str = "org.opencontainers.image.ref.name";

/// The name of an image that is imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportName<'a> {
    /// This one.
    Given(&'a ImageReference),
    /// The one that the layout gives it, if it does.
    Own,
    /// None, whatever the layout says: it is found by its id.
    Unnamed,
}

/// A layout that can be read.
#[derive(Debug)]
pub(crate) struct Layout {
    path: PathBuf,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Directory(OwnedFd),
    Archive(LayoutArchive),
}

/// An archive whose entries are known.
#[derive(Debug)]
pub(crate) struct LayoutArchive {
    file: File,
    /// Where a name's contents are: the first byte and their length.
    pub entries: HashMap<String, (u64, u64)>,
    /// What was made of Docker's list, by name.
    pub made: HashMap<String, Vec<u8>>,
}

impl Layout {
    pub fn open(path: &Path, limits: &ImageLimits) -> Result<Self, ImageError> {
        let failed = || ImageError::io("opened", path);
        // A pipe in its place would wait for a writer otherwise.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::empty()).map_err(|errno| failed()(errno.into()))?;
        let file = File::from(file);
        let kind = file.metadata().map_err(failed())?.file_type();
        let place = match (kind.is_dir(), kind.is_file()) {
            (true, _) => Place::Directory(file.into()),
            (false, true) => Place::Archive(LayoutArchive::open(file, path, limits)?),
            (false, false) => {
                return Err(ImageError::refused("it is neither a directory nor a file"));
            }
        };
        Ok(Self { path: path.to_owned(), place })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its images.
    pub fn read_index(&self, limit: u64) -> Result<Vec<Descriptor>, ImageError> {
        let bytes = self.read_file(INDEX_FILE, limit)?;
        parse_index(&bytes, OCI_INDEX)
    }

    /// A blob in memory.
    pub fn read_blob(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>, ImageError> {
        self.read_file(&format!("{BLOB_DIR}{}", digest.hex()), limit)
    }

    /// A blob to be read, and its length.
    pub fn open_blob(&self, digest: &Digest) -> Result<(Box<dyn Read>, u64), ImageError> {
        self.open_file(&format!("{BLOB_DIR}{}", digest.hex()))
    }

    fn read_file(&self, name: &str, limit: u64) -> Result<Vec<u8>, ImageError> {
        read_bounded(self.open_file(name)?, name, limit, &self.path)
    }

    fn open_file(&self, name: &str) -> Result<(Box<dyn Read>, u64), ImageError> {
        let missing = || ImageError::refused(format!("the layout lacks `{name}`"));
        match &self.place {
            Place::Directory(directory) => {
                let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
                // A pipe in its place would wait for a writer otherwise.
                let flags = OFlags::RDONLY | OFlags::NONBLOCK;
                let opened = open_beneath(directory, name, flags, Mode::empty(), within);
                let file = File::from(opened.map_err(|_| missing())?);
                let stat = fstat(&file)
                    .map_err(|errno| ImageError::io("read", &self.path)(errno.into()))?;
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    return Err(missing());
                }
                Ok((Box::new(file), u64::try_from(stat.st_size).unwrap_or(0)))
            }
            Place::Archive(archive) => archive.open_entry(name, &self.path),
        }
    }
}

impl LayoutArchive {
    fn open(file: File, path: &Path, limits: &ImageLimits) -> Result<Self, ImageError> {
        let entries = list_entries(&file)
            .map_err(|error| ImageError::refused(format!("the archive cannot be read: {error}")))?;
        let mut archive = Self { file, entries, made: HashMap::new() };
        let has = |name| archive.entries.contains_key(name);
        if !has(INDEX_FILE) && has(DOCKER_LIST_FILE) {
            convert_docker_list(&mut archive, path, limits)?;
        }
        Ok(archive)
    }

    /// A small file in memory.
    pub fn read_entry(&self, name: &str, path: &Path, limit: u64) -> Result<Vec<u8>, ImageError> {
        read_bounded(self.open_entry(name, path)?, name, limit, path)
    }

    fn open_entry(&self, name: &str, path: &Path) -> Result<(Box<dyn Read>, u64), ImageError> {
        if let Some(made) = self.made.get(name) {
            return Ok((Box::new(io::Cursor::new(made.clone())), made.len() as u64));
        }
        let missing = || ImageError::refused(format!("the layout lacks `{}`", clean_foreign(name)));
        let (at, size) = *self.entries.get(name).ok_or_else(missing)?;
        let file = self.file.try_clone().map_err(ImageError::io("read", path))?;
        Ok((Box::new(FileRange { file, at, left: size }), size))
    }
}

/// A whole file, refused where it is larger than this.
fn read_bounded(
    (reader, size): (Box<dyn Read>, u64),
    name: &str,
    limit: u64,
    path: &Path,
) -> Result<Vec<u8>, ImageError> {
    if size > limit {
        return Err(ImageError::TooLarge { what: format!("`{}`", clean_foreign(name)), limit });
    }
    let mut bytes = Vec::new();
    reader.take(limit).read_to_end(&mut bytes).map_err(ImageError::io("read", path))?;
    Ok(bytes)
}

/// A part of a file. Reads by position: clones of a file share their offset.
struct FileRange {
    file: File,
    at: u64,
    left: u64,
}

impl Read for FileRange {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        let count = std::os::unix::fs::FileExt::read_at(&self.file, &mut into[..most], self.at)?;
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

/// Where the contents of each name are. Extended headers are not followed: the names that count are short.
fn list_entries(file: &File) -> io::Result<HashMap<String, (u64, u64)>> {
    let mut reader = io::BufReader::new(file);
    reader.seek(SeekFrom::Start(0))?;
    let mut archive = tar::Archive::new(reader);
    let mut found = HashMap::new();
    for (count, entry) in archive.entries_with_seek()?.raw(true).enumerate() {
        let entry = entry?;
        if count >= MAX_ARCHIVE_ENTRIES {
            return Err(io::Error::other(format!(
                "it has more than {MAX_ARCHIVE_ENTRIES} entries"
            )));
        }
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let name = name.strip_prefix("./").unwrap_or(&name).to_owned();
        if entry.header().entry_type().is_file() {
            let place = (entry.raw_file_position(), entry.size());
            if found.insert(name, place).is_some() {
                return Err(io::Error::other("it has a name twice"));
            }
        }
    }
    Ok(found)
}

/// The image of a layout, and its name: the one that was asked for, or the only one.
pub(crate) fn choose_image(
    entries: &[Descriptor],
    name: ImportName<'_>,
) -> Result<(Descriptor, Option<ImageReference>), ImageError> {
    let wanted = match name {
        ImportName::Given(reference) => Some(reference),
        ImportName::Own | ImportName::Unnamed => None,
    };
    let is_wanted = |entry: &&Descriptor| {
        let tag = wanted.and_then(ImageReference::tag);
        let by_tag = tag.is_some() && annotation(entry, TAG_ANNOTATION) == tag;
        by_tag || (wanted.is_some() && annotated_name(entry).as_ref() == wanted)
    };
    let mut fitting: Vec<&Descriptor> = entries.iter().filter(is_wanted).collect();
    if fitting.is_empty() {
        fitting = entries.iter().collect();
    }
    match fitting.as_slice() {
        [one] => {
            let name = match name {
                ImportName::Given(reference) => Some(reference.clone()),
                ImportName::Own => annotated_name(one),
                ImportName::Unnamed => None,
            };
            Ok(((*one).clone(), name))
        }
        [] => Err(ImageError::refused("the layout has no image")),
        several => {
            let names =
                several.iter().filter_map(|entry| annotation(entry, TAG_ANNOTATION)).take(20);
            let names = clean_foreign(&names.collect::<Vec<_>>().join(", "));
            Err(ImageError::refused(format!("the layout has several images ({names}); name one")))
        }
    }
}

fn annotation<'d>(entry: &'d Descriptor, key: &str) -> Option<&'d str> {
    entry.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The whole name of an image. A tag alone is none.
fn annotated_name(entry: &Descriptor) -> Option<ImageReference> {
    let is_whole = |name: &&str| name.contains(['/', ':']);
    let name = annotation(entry, NAME_ANNOTATION).or(annotation(entry, TAG_ANNOTATION))?;
    Some(name).filter(is_whole)?.parse().ok()
}
