//! Where paths lie on their file systems, by the kernel's own list of mounts.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

const MOUNTINFO_PATH: &str = "/proc/self/mountinfo";
/// Types of file systems that show or control the kernel, its devices or its objects: each mount of one, wherever
/// it is, is the host's own.
const KERNEL_FILESYSTEM_TYPES: [&str; 24] = [
    "binder",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "functionfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nfsd",
    "nsfs",
    "proc",
    "pstore",
    "resctrl",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// The type of the file system that holds the kernel's device nodes, and where the empty one lies in it. Containers and
/// other sandboxes bind it over a file that is to be hidden: it shows nothing of the host.
const EMPTY_DEVICE: (&str, &str) = ("devtmpfs", "/null");

/// The mounts of this process, in the order in which they were made.
pub(super) struct MountTable(Vec<MountEntry>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct MountEntry {
    device: String,
    /// Which directory of its file system is mounted.
    root: PathBuf,
    /// Where.
    at: PathBuf,
    /// The type of its file system.
    kind: String,
}

/// A path, and where it lies on its file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Located {
    pub(super) path: PathBuf,
    /// The device, and the path on it. Absent only where no mount is above it.
    on: Option<(String, PathBuf)>,
}

/// A path that is shown, and what is shown with it.
pub(super) struct LocatedView {
    pub(super) at: Located,
    /// The mounts below it.
    below: Vec<Located>,
}

impl MountTable {
    pub(super) fn read() -> io::Result<Self> {
        Ok(Self::parse(&stockade_fs::read_kernel_bytes(MOUNTINFO_PATH)?))
    }

    fn parse(list: &[u8]) -> Self {
        let lines = list.split(|byte| *byte == b'\n');
        Self(lines.filter_map(parse_line).collect())
    }

    /// Where a path lies that has no links in it.
    pub(super) fn locate(&self, path: &Path) -> Located {
        let on = self.mount_of(path).and_then(|mount| {
            let rest = path.strip_prefix(&mount.at).ok()?;
            Some((mount.device.clone(), join_mount_root(&mount.root, rest)))
        });
        Located { path: path.to_owned(), on }
    }

    /// Where a file system of the kernel is mounted that this path, which has no links in it, lies in or shows.
    pub(super) fn find_kernel_mount(&self, path: &Path) -> Option<&Path> {
        let below = self.0.iter().filter(|mount| lies_in(&mount.at, path));
        let mut shown = self.mount_of(path).into_iter().chain(below);
        shown.find(|mount| mount.shows_kernel()).map(|mount| mount.at.as_path())
    }

    /// The mount that a path lies in.
    fn mount_of(&self, path: &Path) -> Option<&MountEntry> {
        let above = self.0.iter().filter(|mount| lies_in(path, &mount.at));
        // The last of those at the same place covers the others.
        above.max_by_key(|mount| mount.at.components().count())
    }

    /// A path that is shown, which has no links in it, with the mounts below it.
    pub(super) fn locate_view(&self, path: &Path) -> LocatedView {
        let below = self.0.iter().filter(|mount| lies_in(&mount.at, path));
        LocatedView { at: self.locate(path), below: below.map(MountEntry::located).collect() }
    }
}

impl MountEntry {
    fn shows_kernel(&self) -> bool {
        let is_empty = (self.kind.as_str(), self.root.as_path())
            == (EMPTY_DEVICE.0, Path::new(EMPTY_DEVICE.1));
        !is_empty && KERNEL_FILESYSTEM_TYPES.contains(&self.kind.as_str())
    }

    fn located(&self) -> Located {
        Located { path: self.at.clone(), on: Some((self.device.clone(), self.root.clone())) }
    }
}

impl LocatedView {
    /// Whether it shows `other`: it contains it, or a mount below it shows it or a part of it.
    pub(super) fn shows(&self, other: &Located) -> bool {
        self.at.contains(other)
            || self.below.iter().any(|mounted| {
                mounted.at_or_above(other) || (*mounted != self.at && other.at_or_above(mounted))
            })
    }
}

impl Located {
    /// Whether both are the same directory, by name or by place.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.path == other.path || (self.on.is_some() && self.on == other.on)
    }

    /// Whether `other` is this or lies in it, by name or by place.
    pub(super) fn contains(&self, other: &Self) -> bool {
        other.path.starts_with(&self.path) || self.at_or_above(other)
    }

    /// The way from here to `other`, if it lies in this.
    pub(super) fn rest_of<'o>(&self, other: &'o Self) -> Option<&'o Path> {
        let by_name = other.path.strip_prefix(&self.path).ok();
        by_name.or_else(|| match (&self.on, &other.on) {
            (Some((device, path)), Some((other_device, other))) if device == other_device => {
                other.strip_prefix(path).ok()
            }
            _ => None,
        })
    }

    fn at_or_above(&self, other: &Self) -> bool {
        match (&self.on, &other.on) {
            (Some((device, path)), Some((other_device, other))) => {
                device == other_device && other.starts_with(path)
            }
            (None, _) | (_, None) => false,
        }
    }
}

/// Whether a path is a directory or lies in it, for paths without links and dots. Most differ in their first bytes, and
/// comparing these is far quicker than taking both apart.
pub(super) fn lies_in(path: &Path, dir: &Path) -> bool {
    path.as_os_str().as_bytes().starts_with(dir.as_os_str().as_bytes()) && path.starts_with(dir)
}

/// Without a slash at the end, which would make it another path to compare.
fn join_mount_root(root: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { root.to_owned() } else { root.join(rest) }
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ').skip(2);
    let device = String::from_utf8(fields.next()?.to_vec()).ok()?;
    let (root, at) = (unescape_mount_path(fields.next()?), unescape_mount_path(fields.next()?));
    // Options and optional fields end with a field of their own.
    let mut after_options = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = String::from_utf8_lossy(after_options.next().unwrap_or_default()).into_owned();
    Some(MountEntry { device, root, at, kind })
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescape_mount_path(text: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *byte == b'\\');
        let code =
            digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        path.push(code.unwrap_or(*byte));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(path).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE_MOUNTINFO: &[u8] = b"\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
23 22 0:5 / /proc rw - proc proc rw\n\
30 22 8:1 /home/me /mnt/alias rw - ext4 /dev/sda1 rw\n\
31 22 8:1 /home/me/state/run /srv/a\\040b/run rw - ext4 /dev/sda1 rw\n\
32 22 0:5 / /srv/chroot/proc rw shared:7 master:2 - proc proc rw\n\
33 22 0:6 /cpu /mnt/cpu rw - cgroup2 cgroup rw\n\
34 22 0:7 / /mnt/memory rw - tmpfs proc rw\n\
35 22 0:8 /null /home/me/project/.env rw - devtmpfs udev rw\n\
36 22 0:8 /sda /home/you/disk rw - devtmpfs udev rw\n";

    fn has_view_of(view: &str, other: &str) -> bool {
        let mounts = MountTable::parse(SAMPLE_MOUNTINFO);
        mounts.locate_view(Path::new(view)).shows(&mounts.locate(Path::new(other)))
    }

    #[test]
    fn a_directory_is_found_under_every_name_it_is_mounted_at() {
        for view in ["/", "/home", "/home/me", "/home/me/state", "/mnt", "/mnt/alias"] {
            assert!(has_view_of(view, "/home/me/state"), "{view}");
        }
        assert!(has_view_of("/srv", "/home/me/state"), "a part of it is mounted below");
        assert!(has_view_of("/srv/a b", "/home/me/state"));
        for view in ["/home/me/project", "/mnt/alias/project", "/usr", "/proc"] {
            assert!(!has_view_of(view, "/home/me/state"), "{view}");
        }
    }

    #[test]
    fn file_systems_of_the_kernel_are_found_by_their_type_wherever_they_are() {
        let mounts = MountTable::parse(SAMPLE_MOUNTINFO);
        for (path, at) in [
            ("/proc/1", "/proc"),
            ("/srv", "/srv/chroot/proc"),
            ("/srv/chroot", "/srv/chroot/proc"),
            ("/srv/chroot/proc/sys", "/srv/chroot/proc"),
            ("/mnt", "/mnt/cpu"),
            ("/home/you", "/home/you/disk"),
        ] {
            assert_eq!(mounts.find_kernel_mount(Path::new(path)), Some(Path::new(at)), "{path}");
        }
        // A file in `/home/me` is hidden by the empty device.
        for path in ["/home/me", "/mnt/alias", "/mnt/memory", "/srv/a b", "/srv/chroot/etc"] {
            assert_eq!(mounts.find_kernel_mount(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn what_lies_in_a_directory_is_known_by_any_name() {
        let mounts = MountTable::parse(SAMPLE_MOUNTINFO);
        let locate = |path: &str| mounts.locate(Path::new(path));
        let state = locate("/home/me/state");
        for inside in ["/home/me/state/run", "/mnt/alias/state", "/srv/a b/run/x"] {
            assert!(state.contains(&locate(inside)), "{inside}");
        }
        assert!(!state.contains(&locate("/home/me/state2")));
        assert!(locate("/home/me").is(&locate("/mnt/alias")));
    }
}
