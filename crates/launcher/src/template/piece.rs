//! What a root is made of, as plain data: for the launcher, which lays it out in memory, and for callers
//! whose roots are built by another program.

use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use super::{etc, gather};

/// One thing in a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it appears; absolute.
    pub target: PathBuf,
    /// What it is.
    pub made: Made,
}

/// What a piece is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made {
    /// A symbolic link to this.
    Link(PathBuf),
    /// A file with this content.
    File(Vec<u8>),
    /// A directory of the host, to be mounted read-only.
    Mount(PathBuf),
}

/// The most a copied file of the host may have.
const COPY_LIMIT: u64 = 1 << 20;

/// The host's own programs and libraries as a root for this user, without the host's homes, state and
/// secrets. Directories for mounts and private places are not among the pieces.
pub fn host_root(uid: u32, gid: u32) -> Vec<Piece> {
    let system =
        gather::list_system_directories().filter_map(|inside| find_piece(Path::new("/"), inside));
    system.chain(etc::generate_files(uid, gid)).chain(etc::list_kept_files()).collect()
}

/// One entry of a root: a link as a link, a directory by mount, a small file by copy; nothing where
/// the host has nothing, or something else.
pub(super) fn find_piece(base: &Path, inside: &str) -> Option<Piece> {
    let source = base.join(inside);
    let stat = rustix::fs::lstat(&source).ok()?;
    let made = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => Made::Link(std::fs::read_link(&source).ok()?),
        FileType::Directory => Made::Mount(source),
        FileType::RegularFile if stat.st_size as u64 <= COPY_LIMIT => {
            // A file its owner keeps from us is none that a guest should have.
            Made::File(read_file(&source, stat.st_size as usize)?)
        }
        FileType::RegularFile
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => return None,
    };
    Some(Piece { target: Path::new("/").join(inside), made })
}

/// A whole file of this size, by one reading call where it has not changed since it was looked at.
fn read_file(path: &Path, size: usize) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    // One byte more than expected: only the end of the file comes before it.
    let mut content = Vec::with_capacity(size + 1);
    match rustix::io::read(&file, rustix::buffer::spare_capacity(&mut content)) {
        Ok(count) if count == size => Some(content),
        Ok(_) | Err(_) => std::fs::read(path).ok(),
    }
}
