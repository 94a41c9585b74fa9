//! `COPY` and `ADD`: files of a directory as a layer. The directory may be a stranger's: it is read beneath its root,
//! through no symbolic link, and what is no file, directory or link is refused by name.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, readlinkat};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use stockade_fs::{list_names, open_beneath};
use stockade_unpack::{EntryState, LayerWriter, PackedLayer};

use super::ignore::{IgnoreRules, fits_component, is_pattern};
use crate::{Digest, ImageError};

/// What the name of a file begins with that hides one of the layers below.
const WHITEOUT_PREFIX: &[u8] = b".wh.";
const WITHIN: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);
const LOOK_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW);
const READ_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK);
const LIST_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW);
/// Links on the way to a destination.
const MAX_LINKS: usize = 40;
const MAX_DEPTH: usize = 200;
const NOT_COPIED: &str = "is no file, directory or symbolic link";

/// A directory that files are copied from.
#[derive(Debug)]
pub struct CopySource {
    root: OwnedFd,
    ignore: IgnoreRules,
}

/// What is copied.
#[derive(Debug)]
pub struct CopyRequest {
    /// Paths or patterns beneath the source.
    pub sources: Vec<String>,
    /// Where to, in the image.
    pub destination: String,
    /// The directory that a relative destination starts at.
    pub workdir: String,
    /// The mode of files, instead of their own.
    pub chmod: Option<u32>,
    /// Bound of all entries.
    pub max_entries: usize,
}

/// A layer with copies.
#[derive(Debug)]
pub struct PackedCopy {
    /// The layer.
    pub layer: PackedLayer,
    /// Digest of names, modes and contents, without times.
    pub contents: Digest,
}

/// One thing to be copied, by its place in the image.
struct CopyItem {
    source: Vec<u8>,
    kind: FileType,
    state: EntryState,
}

impl CopySource {
    /// A directory of the host, without what the rules leave out.
    pub fn open(directory: &Path, ignore: IgnoreRules) -> Result<Self, ImageError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(directory, flags, Mode::empty())
            .map_err(|errno| ImageError::io("opened", directory)(errno.into()))?;
        Ok(Self { root, ignore })
    }

    /// A small file beneath the directory; nothing if there is none.
    pub fn read_small(&self, path: &str, limit: u64) -> Result<Option<String>, ImageError> {
        let file = match open_beneath(&self.root, path, READ_FLAGS, Mode::empty(), WITHIN) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(unusable(path.as_bytes(), errno)),
        };
        let stat = fstat(&file).map_err(|errno| unusable(path.as_bytes(), errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(refused(path.as_bytes(), "is no file"));
        }
        let mut text = String::new();
        let read = File::from(file).take(limit + 1).read_to_string(&mut text);
        read.map_err(|error| refused(path.as_bytes(), &error.to_string()))?;
        match text.len() as u64 > limit {
            true => Err(ImageError::TooLarge { what: format!("`{path}`"), limit }),
            false => Ok(Some(text)),
        }
    }

    /// Leaves out what these rules say.
    pub fn with_rules(self, ignore: IgnoreRules) -> Self {
        Self { ignore, ..self }
    }

    fn look(&self, path: &[u8]) -> Result<Stat, ImageError> {
        let path = if path.is_empty() { b".".as_slice() } else { path };
        let opened = open_beneath(&self.root, path, LOOK_FLAGS, Mode::empty(), WITHIN);
        opened.and_then(fstat).map_err(|errno| unusable(path, errno))
    }

    fn list(&self, path: &[u8]) -> Result<Vec<Vec<u8>>, ImageError> {
        let path = if path.is_empty() { b".".as_slice() } else { path };
        let opened = open_beneath(&self.root, path, LIST_FLAGS, Mode::empty(), WITHIN);
        let names = opened.and_then(list_names).map_err(|errno| unusable(path, errno))?;
        Ok(names.into_iter().map(|name| name.into_bytes()).collect())
    }

    fn is_ignored(&self, path: &[u8]) -> bool {
        !path.is_empty() && self.ignore.is_ignored(&String::from_utf8_lossy(path))
    }

    /// The paths that a source stands for.
    fn find(&self, source: &str) -> Result<Vec<Vec<u8>>, ImageError> {
        let mut found = vec![Vec::new()];
        for part in source.split('/').filter(|part| !matches!(*part, "" | ".")) {
            if part == ".." {
                return Err(refused(source.as_bytes(), "leads upwards"));
            }
            let mut next = Vec::new();
            for path in found {
                if !is_pattern(part) {
                    next.push(join(&path, part.as_bytes()));
                    continue;
                }
                let names = self.list(&path)?.into_iter();
                let fitting =
                    names.filter(|name| fits_component(part, &String::from_utf8_lossy(name)));
                next.extend(fitting.map(|name| join(&path, &name)));
            }
            found = next;
        }
        found.retain(|path| !self.is_ignored(path) || self.ignore.may_include_below());
        match found.is_empty() {
            true => Err(refused(source.as_bytes(), "is not there, or left out by .dockerignore")),
            false => Ok(found),
        }
    }
}

/// Packs copies as a layer for an image with this tree.
pub fn pack_copy(
    source: &CopySource,
    request: &CopyRequest,
    tree: BorrowedFd<'_>,
    layer: File,
) -> Result<PackedCopy, ImageError> {
    let items = plan_copy(source, request, tree)?;
    let mut writer = LayerWriter::new(layer);
    let mut hasher = Sha256::new();
    for (target, item) in &items {
        write_item(source, target, item, &mut writer, &mut hasher)?;
    }
    let layer = writer.finish().map_err(|error| ImageError::Unpack(error.to_string()))?;
    Ok(PackedCopy { layer, contents: Digest::from_hasher(hasher) })
}

fn plan_copy(
    source: &CopySource,
    request: &CopyRequest,
    tree: BorrowedFd<'_>,
) -> Result<BTreeMap<Vec<u8>, CopyItem>, ImageError> {
    let (destination, is_directory) = in_tree(tree, &request.workdir, &request.destination)?;
    let mut found = Vec::new();
    for one in &request.sources {
        found.extend(source.find(one)?);
    }
    let named = request.destination.ends_with('/') || request.destination.ends_with("/.");
    if found.len() > 1 && !named && !is_directory {
        let reason = "is the destination of several sources and does not end with `/`";
        return Err(refused(request.destination.as_bytes(), reason));
    }
    let into = named || is_directory || request.destination == ".";
    let mut plan = CopyPlan { source, request, items: BTreeMap::new() };
    for path in found {
        let stat = source.look(&path)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                if !is_directory && !destination.is_empty() {
                    plan.add(destination.clone(), &path, FileType::Directory, &stat)?;
                }
                plan.add_contents(&destination, &path, 0)?;
            }
            FileType::RegularFile => {
                let base = path.rsplit(|byte| *byte == b'/').next().unwrap_or(&path);
                let target = if into { join(&destination, base) } else { destination.clone() };
                plan.add(target, &path, FileType::RegularFile, &stat)?;
            }
            FileType::Symlink => {
                return Err(refused(&path, "is a symbolic link: name what it leads to"));
            }
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => return Err(refused(&path, NOT_COPIED)),
        }
    }
    Ok(plan.items)
}

struct CopyPlan<'a> {
    source: &'a CopySource,
    request: &'a CopyRequest,
    items: BTreeMap<Vec<u8>, CopyItem>,
}

impl CopyPlan<'_> {
    fn add(
        &mut self,
        target: Vec<u8>,
        source: &[u8],
        kind: FileType,
        stat: &Stat,
    ) -> Result<(), ImageError> {
        if target.is_empty() {
            return Err(refused(source, "would take the place of the root"));
        }
        if target.split(|byte| *byte == b'/').any(|part| part.starts_with(WHITEOUT_PREFIX)) {
            return Err(refused(source, "has the name of a whiteout"));
        }
        let own = stat.st_mode & 0o777;
        let chmod = self.request.chmod.filter(|_| kind == FileType::RegularFile);
        let mode = chmod.unwrap_or(own);
        let state = EntryState { mode, mtime: stat.st_mtime };
        self.items.insert(target, CopyItem { source: source.to_owned(), kind, state });
        match self.items.len() > self.request.max_entries {
            true => {
                Err(ImageError::Copy("more files are copied than an image may have".to_owned()))
            }
            false => Ok(()),
        }
    }

    fn add_contents(&mut self, target: &[u8], path: &[u8], depth: usize) -> Result<(), ImageError> {
        if depth > MAX_DEPTH {
            return Err(refused(path, "lies too deep"));
        }
        for name in self.source.list(path)? {
            let (inner, target) = (join(path, &name), join(target, &name));
            let ignored = self.source.is_ignored(&inner);
            let stat = self.source.look(&inner)?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            if kind == FileType::Directory {
                if !ignored {
                    self.add(target.clone(), &inner, kind, &stat)?;
                }
                if !ignored || self.source.ignore.may_include_below() {
                    self.add_contents(&target, &inner, depth + 1)?;
                }
            } else if matches!(kind, FileType::RegularFile | FileType::Symlink) && !ignored {
                self.add(target, &inner, kind, &stat)?;
            } else if !ignored {
                return Err(refused(&inner, NOT_COPIED));
            }
        }
        Ok(())
    }
}

fn write_item(
    source: &CopySource,
    target: &[u8],
    item: &CopyItem,
    writer: &mut LayerWriter,
    hasher: &mut Sha256,
) -> Result<(), ImageError> {
    let failed = |error: io::Error| refused(&item.source, &error.to_string());
    let mut note = |part: &[u8]| {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    };
    note(target);
    note(format!("{:?} {:o}", item.kind, item.state.mode).as_bytes());
    if item.kind == FileType::Directory {
        return writer.add_directory(target, item.state).map_err(failed);
    }
    if item.kind == FileType::Symlink {
        let opened = open_beneath(&source.root, &*item.source, LOOK_FLAGS, Mode::empty(), WITHIN);
        let link = opened.and_then(|link| readlinkat(link, "", Vec::new()));
        let link = link.map_err(|errno| unusable(&item.source, errno))?;
        note(link.as_bytes());
        return writer.add_symlink(target, link.as_bytes(), item.state).map_err(failed);
    }
    let opened = open_beneath(&source.root, &*item.source, READ_FLAGS, Mode::empty(), WITHIN);
    let file = opened.map_err(|errno| unusable(&item.source, errno))?;
    let stat = fstat(&file).map_err(|errno| unusable(&item.source, errno))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(refused(&item.source, "has become something else"));
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    note(&size.to_le_bytes());
    let contents = HashedReader { inner: File::from(file).take(size), hasher, left: size };
    writer.add_file(target, item.state, size, contents).map_err(failed)
}

/// Digests what is read, and fails where a file has become shorter than it was.
struct HashedReader<'h, R> {
    inner: R,
    hasher: &'h mut Sha256,
    left: u64,
}

impl<R: Read> Read for HashedReader<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        if count == 0 && self.left > 0 && !into.is_empty() {
            return Err(io::Error::other("it was shortened meanwhile"));
        }
        self.left = self.left.saturating_sub(count as u64);
        self.hasher.update(&into[..count]);
        Ok(count)
    }
}

/// Where a path of an image is, through its symbolic links but never out of it, and whether it is a directory.
pub fn in_tree(tree: impl AsFd, workdir: &str, path: &str) -> Result<(Vec<u8>, bool), ImageError> {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{workdir}/{path}") };
    let mut due: VecDeque<Vec<u8>> =
        whole.split('/').map(|part| part.as_bytes().to_owned()).collect();
    let (mut at, mut links, mut is_directory): (Vec<u8>, usize, bool) = (Vec::new(), 0, true);
    while let Some(part) = due.pop_front() {
        match part.as_slice() {
            b"" | b"." => continue,
            b".." => {
                let end = at.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                at.truncate(end);
                is_directory = true;
                continue;
            }
            _ => {}
        }
        let next = join(&at, &part);
        let opened = open_beneath(&tree, &*next, LOOK_FLAGS, Mode::empty(), WITHIN);
        let kind = match opened.as_ref().map(fstat) {
            Ok(Ok(stat)) => Some(FileType::from_raw_mode(stat.st_mode)),
            Ok(Err(errno)) => return Err(unusable(&next, errno)),
            Err(&Errno::NOENT | &Errno::NOTDIR) => None,
            Err(errno) => return Err(unusable(&next, *errno)),
        };
        let (Some(FileType::Symlink), Ok(link)) = (kind, &opened) else {
            is_directory = kind == Some(FileType::Directory);
            at = next;
            continue;
        };
        links += 1;
        if links > MAX_LINKS {
            return Err(refused(&next, "is one of too many symbolic links"));
        }
        let target = readlinkat(link, "", Vec::new()).map_err(|errno| unusable(&next, errno))?;
        if target.as_bytes().starts_with(b"/") {
            at.clear();
        }
        for part in target.as_bytes().rsplit(|byte| *byte == b'/') {
            due.push_front(part.to_owned());
        }
    }
    Ok((at, is_directory))
}

fn join(directory: &[u8], base: &[u8]) -> Vec<u8> {
    let joint: &[u8] = if directory.is_empty() { b"" } else { b"/" };
    [directory, joint, base].concat()
}

fn refused(path: &[u8], reason: &str) -> ImageError {
    let shown: String = String::from_utf8_lossy(path).escape_debug().take(200).collect();
    ImageError::Copy(format!("`{shown}` {reason}"))
}

fn unusable(path: &[u8], errno: Errno) -> ImageError {
    match errno {
        Errno::NOENT => refused(path, "is not there"),
        Errno::LOOP => refused(path, "is behind a symbolic link"),
        Errno::XDEV => refused(path, "leads out of its directory"),
        errno => refused(path, &io::Error::from(errno).to_string()),
    }
}
