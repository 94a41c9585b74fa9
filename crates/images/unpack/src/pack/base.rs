//! The tree of an image, to be compared with. Opened beneath its root, through no symbolic link.

use std::fs::File;
use std::io::Read;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, readlinkat, statat};
use rustix::io::Errno;
use stockade_fs::{list_names, open_beneath};

use super::writer::EntryState;
use crate::UnpackError;
use crate::archive::Archive;
use crate::name::{EntryName, show, system_path};

const WITHIN: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);
const LOOK_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW);
const READ_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK);
const LIST_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW);
const COMPARE_BUFFER_BYTES: usize = 64 << 10;

/// The tree of an image.
pub(super) struct BaseTree<'a>(BorrowedFd<'a>);

impl<'a> BaseTree<'a> {
    pub fn new(root: BorrowedFd<'a>) -> Self {
        Self(root)
    }

    /// What is at a name; nothing if there is nothing.
    fn look(&self, name: &EntryName) -> Result<Option<(OwnedFd, Stat)>, UnpackError> {
        let path = system_path(name.bytes());
        match open_beneath(self.0, path, LOOK_FLAGS, Mode::empty(), WITHIN) {
            Ok(opened) => {
                let stat = fstat(&opened).map_err(|errno| failed(name.bytes(), errno))?;
                Ok(Some((opened, stat)))
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(failed(name.bytes(), errno)),
        }
    }

    /// Whether there is anything at a name.
    pub fn has(&self, name: &EntryName) -> Result<bool, UnpackError> {
        Ok(self.look(name)?.is_some())
    }

    /// Whether there is the same file: mode, time, length and contents, which are read from the archive.
    pub fn has_file(
        &self,
        name: &EntryName,
        state: EntryState,
        contents: &mut Archive<'_>,
    ) -> Result<bool, UnpackError> {
        let Some((_, stat)) = self.look(name)? else { return Ok(false) };
        let same_kind = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let same_size =
            u64::try_from(stat.st_size).is_ok_and(|size| size == contents.unread_bytes());
        if !same_kind || !same_size || state_of(&stat) != state {
            return Ok(false);
        }
        let path = system_path(name.bytes());
        match open_beneath(self.0, path, READ_FLAGS, Mode::empty(), WITHIN) {
            Ok(file) => has_contents(File::from(file), contents),
            // Packed again where its owner may not read it.
            Err(Errno::ACCESS) => Ok(false),
            Err(errno) => Err(failed(name.bytes(), errno)),
        }
    }

    /// Whether there is the same directory, and the state that one has in a layer: the bits that archives of a
    /// sandbox leave out are the image's.
    pub fn compare_directory(
        &self,
        name: &EntryName,
        state: EntryState,
    ) -> Result<(bool, EntryState), UnpackError> {
        match self.look(name)? {
            Some((_, stat)) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                let kept = EntryState { mode: stat.st_mode & 0o7000 | state.mode, ..state };
                Ok((state_of(&stat) == state, kept))
            }
            Some(_) | None => Ok((false, state)),
        }
    }

    /// Whether there is the same symbolic link.
    pub fn has_symlink(&self, name: &EntryName, target: &[u8]) -> Result<bool, UnpackError> {
        let Some((opened, stat)) = self.look(name)? else { return Ok(false) };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            return Ok(false);
        }
        let there = readlinkat(&opened, "", Vec::new());
        Ok(there.map_err(|errno| failed(name.bytes(), errno))?.as_bytes() == target)
    }

    /// The names in a directory; of each, whether it is a file and whether it is a directory.
    pub fn list(&self, directory: &[u8]) -> Result<Vec<(Vec<u8>, bool, bool)>, UnpackError> {
        let path = system_path(directory);
        let opened = open_beneath(self.0, path, LIST_FLAGS, Mode::empty(), WITHIN)
            .map_err(|errno| failed(directory, errno))?;
        let names = list_names(&opened).map_err(|errno| failed(directory, errno))?;
        let mut listed = Vec::new();
        for name in names {
            let stat = statat(&opened, &*name, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|errno| failed(directory, errno))?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            let is_directory = kind == FileType::Directory;
            listed.push((name.to_bytes().to_owned(), kind == FileType::RegularFile, is_directory));
        }
        Ok(listed)
    }
}

fn state_of(stat: &Stat) -> EntryState {
    EntryState { mode: stat.st_mode & 0o777, mtime: stat.st_mtime }
}

/// Whether a file has the rest of an entry's contents, which is as long.
fn has_contents(mut file: File, contents: &mut Archive<'_>) -> Result<bool, UnpackError> {
    let (mut one, mut other) = (vec![0; COMPARE_BUFFER_BYTES], vec![0; COMPARE_BUFFER_BYTES]);
    loop {
        let count = contents.read_contents(&mut one)?;
        if count == 0 {
            return Ok(true);
        }
        if file.read_exact(&mut other[..count]).is_err() || one[..count] != other[..count] {
            return Ok(false);
        }
    }
}

fn failed(path: &[u8], errno: Errno) -> UnpackError {
    UnpackError::io("compared", &show(path), errno)
}
