//! A fresh `/proc` of the new pid namespace, read-only as a whole, with what tells about the host
//! masked; and the sandbox's own terminals.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::mount::MountAttrFlags;

use crate::base_namespaces::STAGE_DIR;
use crate::error::{At, Failure, Wall};
use crate::fs;
use crate::template::RootTemplate;

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
    pub path: String,
    directory: bool,
}

/// What of `/proc` is masked, for those who have another program make the walls: names that this host has, and all that
/// root alone may read, which a guest could be.
pub fn masked_proc_paths() -> Vec<String> {
    list_masks().into_iter().map(|mask| mask.path).collect()
}

/// What of the list this host has; looked up once.
pub(crate) fn list_masks() -> Vec<ProcMask> {
    let entries = list_entries();
    let listed = MASKED_ENTRIES.iter().filter_map(|(name, _)| {
        let directory = match entries.get(*name) {
            Some(entry) => entry.directory,
            None => is_directory(name)?,
        };
        Some(((*name).to_owned(), directory))
    });
    let mut masks: BTreeMap<String, bool> = listed.collect();
    let closed = entries.into_iter().filter(|(_, entry)| entry.roots_alone);
    masks.extend(closed.map(|(name, entry)| (name, entry.directory)));
    let mask =
        |(name, directory): (String, bool)| ProcMask { path: format!("/proc/{name}"), directory };
    masks.into_iter().map(mask).collect()
}

/// Whether a name that the listing lacks, such as one further below, is a directory.
fn is_directory(name: &str) -> Option<bool> {
    let mode = rustix::fs::lstat(format!("/proc/{name}")).ok()?.st_mode;
    Some(mode & libc::S_IFMT == libc::S_IFDIR)
}

/// One name in `/proc`.
struct ProcEntry {
    directory: bool,
    /// Whether its mode keeps a file from others than root.
    roots_alone: bool,
}

/// The names in `/proc`. Modes are asked of files alone: directories, which most names are on a host with
/// many processes, are told by the listing itself.
fn list_entries() -> BTreeMap<String, ProcEntry> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let described = entries.filter_map(|entry| {
        let kind = entry.file_type().ok()?;
        let closed =
            || entry.metadata().is_ok_and(|found| found.is_file() && found.mode() & 0o004 == 0);
        let roots_alone = kind.is_file() && closed();
        let name = entry.file_name().into_string().ok()?;
        Some((name, ProcEntry { directory: kind.is_dir(), roots_alone }))
    });
    described.collect()
}

/// Mounts and masks it. Comes before the old root is left: the kernel gives a fresh `/proc` only to
/// those who can still see a whole one.
pub(crate) fn set_up(
    root: &OwnedFd,
    template: &RootTemplate,
    masks: &[ProcMask],
) -> Result<(), Failure> {
    let tree =
        fs::make_detached_fs("proc", &[], fs::NOEXEC_MOUNT).at(Wall::Proc, "a fresh /proc")?;
    fs::attach_in(&tree, root, Path::new("/proc")).at(Wall::Proc, "/proc")?;
    // Of the prepared root, in which nothing of a guest's can lie: its /sys is an empty directory, and
    // /dev/null reads as an empty file.
    let (empty_directory, empty_file) =
        (format!("{}/sys", template.path), format!("{}/dev/null", template.path));
    for mask in masks {
        let cover = if mask.directory { &empty_directory } else { &empty_file };
        // By path, in one call: nothing but the kernel decides about what lies in the stage's /proc.
        rustix::mount::mount_bind_recursive(cover, format!("{STAGE_DIR}{}", mask.path))
            .at(Wall::Proc, &mask.path)?;
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
