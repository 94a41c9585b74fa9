//! The copy-on-write workspace: an overlay of the host's directory whose changes land beside it. The
//! layers themselves are mounted where only this process sees them, and go with the old root.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, XattrFlags};
use rustix::io::Errno;

use crate::error::{At, Failure, Wall};
use crate::fs;
use crate::ground::{BESIDE, LOWER};
use crate::open::Layers;

/// The kernel's name for it.
pub(crate) const KIND: &str = "overlay";

/// A mark that needs what the overlay's own marks need.
const MARK: &str = "user.stockade";

/// Mounts the view, detached. A view that is only read needs no place for changes: what was changed
/// before lies on top of what is shown.
pub(crate) fn mount(layers: &Layers, read_only: bool) -> Result<OwnedFd, Failure> {
    put(&layers.lower, LOWER)?;
    put(&layers.beside, BESIDE)?;
    let (upper, work) = (opened(&layers.upper), opened(&layers.work));
    if read_only {
        let both = format!("{upper}:{LOWER}");
        let options = [("lowerdir", both.as_str()), ("userxattr", "")];
        return fs::make(KIND, &options, fs::READ_ONLY).map_err(refused);
    }
    holds_marks(&work)?;
    writable(LOWER, &upper, &work)
}

/// Mounts a view of an empty directory, with layers in memory. On older kernels memory holds no marks,
/// which the layers of a real one must.
pub(crate) fn trial() -> Result<OwnedFd, Failure> {
    let memory = fs::tmpfs(1 << 20, "0755", fs::WRITABLE).at(Wall::Workspace, "a tmpfs")?;
    put(&memory, BESIDE)?;
    for layer in ["lower", "upper", "work"] {
        let made = rustix::fs::mkdirat(&memory, layer, Mode::from_raw_mode(0o755));
        made.at(Wall::Workspace, layer)?;
    }
    let [lower, upper, work] = ["lower", "upper", "work"].map(|name| format!("{BESIDE}/{name}"));
    writable(&lower, &upper, &work)
}

fn writable(lower: &str, upper: &str, work: &str) -> Result<OwnedFd, Failure> {
    let options = [
        ("lowerdir", lower),
        ("upperdir", upper),
        ("workdir", work),
        ("userxattr", ""),
        // An index would tie the layers to this very lower directory, and a copy of them to none.
        ("index", "off"),
    ];
    fs::make(KIND, &options, fs::WRITABLE).map_err(refused)
}

/// A path to something that is open. The mount it was opened in is this sandbox's by now.
fn opened(layer: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", layer.as_raw_fd())
}

fn put(tree: &OwnedFd, place: &str) -> Result<(), Failure> {
    fs::open_path(place).and_then(|place| fs::attach(tree, place)).at(Wall::Workspace, place)
}

/// Without marks the kernel would mount it all the same, and fail at the first directory that is
/// removed and made again.
fn holds_marks(work: &str) -> Result<(), Failure> {
    let marked = rustix::fs::setxattr(work, MARK, b"1", XattrFlags::empty())
        .and_then(|()| rustix::fs::removexattr(work, MARK));
    marked.map_err(|errno| {
        let failure = Failure::new(Wall::Workspace, errno, "marking the layers");
        match errno {
            Errno::OPNOTSUPP => failure.remedy(
                "keep the layers on a file system with extended attributes (ext4, xfs, btrfs, or a \
                 tmpfs since Linux 6.6)",
            ),
            _ => failure.remedy("give the layers to the user who runs this"),
        }
    })
}

fn refused(errno: Errno) -> Failure {
    Failure::new(Wall::Workspace, errno, "an overlay of the workspace").remedy(
        "use Linux 5.11 or later, keep the layers on a plain file system (not on an overlay or a \
         network's), and show a directory without other file systems below",
    )
}
