//! The private writable places: one tmpfs, shown under several names, so that one size bounds them
//! together. Gone with the sandbox.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode};
use rustix::io::Errno;

use crate::base_namespaces::SCRATCH_DIR;
use crate::error::{At, Failure, Wall};
use crate::fs;
use crate::template::SANDBOX_HOME;

/// The private writable directories of every sandbox, each with its mode.
pub const PRIVATE_DIRECTORIES: [(&str, u32); 5] = [
    ("/tmp", 0o1777),
    ("/var/tmp", 0o1777),
    ("/run", 0o755),
    (SANDBOX_HOME, 0o700),
    ("/dev/shm", 0o1777),
];

/// Mounts them into the staged root and says where they are.
pub(crate) fn set_up(root: &OwnedFd, bytes: u64) -> Result<Vec<PathBuf>, Failure> {
    let wall = Wall::Scratch;
    let memory = fs::make_tmpfs(bytes, "0755", fs::WRITABLE_MOUNT).at(wall, "a tmpfs")?;
    fs::attach_mount(&memory, fs::open_path(SCRATCH_DIR).at(wall, SCRATCH_DIR)?)
        .at(wall, SCRATCH_DIR)?;
    let mut places = Vec::new();
    for (number, (target, mode)) in PRIVATE_DIRECTORIES.into_iter().enumerate() {
        let name = number.to_string();
        rustix::fs::mkdirat(&memory, &name, Mode::from_raw_mode(mode)).at(wall, target)?;
        show_scratch(root, &name, Path::new(target)).at(wall, target)?;
        places.push(PathBuf::from(target));
    }
    Ok(places)
}

/// One more of them, for a workspace that is gone with the sandbox.
pub(crate) fn make_scratch_workspace() -> Result<OwnedFd, Errno> {
    let place = format!("{SCRATCH_DIR}/workspace");
    rustix::fs::mkdir(&place, Mode::from_raw_mode(0o755))?;
    rustix::fs::chmod(&place, Mode::from_raw_mode(0o755))?;
    fs::clone_tree(CWD, &place)
}

fn show_scratch(root: &OwnedFd, name: &str, target: &Path) -> Result<(), Errno> {
    let place = fs::open_mount_point(root, target)?;
    fs::attach_mount(fs::clone_tree(CWD, &format!("{SCRATCH_DIR}/{name}"))?, place)
}
