//! A fresh `/proc` of the new pid namespace, read-only as a whole, with what tells about the host
//! masked; and the sandbox's own terminals.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::mount::MountAttrFlags;

use crate::error::{At, Failure, Wall};
use crate::fs;

/// Masked where the host has it: a directory by an empty one, a file by an empty one. The mount
/// refuses every write; these may not be read either. Every file that its mode alone keeps from others
/// than root is masked too, listed here or not: root's guests are root to such a mode. What the kernel
/// itself shows only to capabilities of the host (addresses in `kallsyms`, `iomem`, `modules`) is not listed.
const MASKED_ENTRIES: &[(&str, &str)] = &[
    ("acpi", "hardware"),
    ("asound", "hardware"),
    ("allocinfo", "the kernel's memory"),
    ("kcore", "the kernel's memory"),
    ("key-users", "keyrings, which namespaces do not hold apart"),
    ("keys", "likewise"),
    ("kpagecgroup", "physical memory"),
    ("kpagecount", "physical memory"),
    ("kpageflags", "physical memory"),
    ("pagetypeinfo", "physical memory"),
    ("latency_stats", "what other processes do"),
    ("sched_debug", "what other processes do"),
    ("scsi", "hardware"),
    ("slabinfo", "the kernel's memory"),
    ("timer_list", "what other processes do"),
    ("timer_stats", "what other processes do"),
    ("tty/driver", "hardware"),
    ("vmallocinfo", "the kernel's memory"),
];

/// One masked name, and whether it is a directory.
#[derive(Clone, Debug)]
pub(crate) struct ProcMask {
    name: String,
    pub path: String,
    directory: bool,
}

/// What of the list this host has; looked up once.
pub(crate) fn list_masks() -> Vec<ProcMask> {
    let of = |name: &str| {
        let path = format!("/proc/{name}");
        let directory = rustix::fs::lstat(path.as_str()).ok()?.st_mode & libc::S_IFMT;
        Some(ProcMask { name: name.to_owned(), path, directory: directory == libc::S_IFDIR })
    };
    let listed = MASKED_ENTRIES.iter().map(|(name, _)| (*name).to_owned());
    let names: BTreeSet<String> = listed.chain(roots_alone()).collect();
    names.iter().filter_map(|name| of(name)).collect()
}

/// The files that only root may read, by their modes.
fn roots_alone() -> Vec<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let closed = entries.filter(|entry| {
        let found = entry.metadata();
        found.is_ok_and(|found| found.is_file() && found.mode() & 0o004 == 0)
    });
    closed.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Mounts and masks it. Comes before the old root is left: the kernel gives a fresh `/proc` only to
/// those who can still see a whole one.
pub(crate) fn set_up(root: &OwnedFd, masks: &[ProcMask]) -> Result<(), Failure> {
    let tree =
        fs::make_detached_fs("proc", &[], fs::NOEXEC_MOUNT).at(Wall::Proc, "a fresh /proc")?;
    fs::attach_in(&tree, root, Path::new("/proc")).at(Wall::Proc, "/proc")?;
    for mask in masks {
        // The root's /sys is an empty directory, and /dev/null reads as an empty file.
        let empty = if mask.directory { "sys" } else { "dev/null" };
        let cover = fs::clone_tree(root, empty).at(Wall::Proc, &mask.path)?;
        fs::attach_at(cover, &tree, &mask.name).at(Wall::Proc, &mask.path)?;
    }
    Ok(())
}

/// The sandbox's own terminals: none of the host's can be seen or opened.
pub(crate) fn mount_terminals(root: &OwnedFd) -> Result<(), Failure> {
    let options = [("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620"), ("max", "256")];
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let tree =
        fs::make_detached_fs("devpts", &options, attributes).at(Wall::Devpts, "terminals")?;
    fs::attach_in(tree, root, Path::new("/dev/pts")).at(Wall::Devpts, "/dev/pts")
}
