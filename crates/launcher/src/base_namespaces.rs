//! The ground every sandbox is built on, made once when the launcher starts: a mount namespace that
//! holds nothing but prepared roots, beside one that shows the host. A sandbox is cloned from the
//! first, so that no mount of the host is in it at any instant, and the copy is small.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::error::{At, Failure, Wall};
use crate::{fs, sys};

/// The directory of prepared roots, in their own mount namespace.
pub(crate) const ROOTS_DIR: &str = "/roots";
/// The directory where a sandbox puts its root together before it enters it.
pub(crate) const STAGE_DIR: &str = "/stage";
/// The directory where the sandbox's private writable places are made.
pub(crate) const SCRATCH_DIR: &str = "/scratch";
/// The directory where the sandbox's copy-on-write layer is made.
pub(crate) const LAYER_DIR: &str = "/layer";

/// The directory where the lower layer of a copy-on-write workspace is mounted.
pub(crate) const LOWER_DIR: &str = "/lower";
/// The directory where the one that holds such a workspace's changes is mounted.
pub(crate) const CHANGES_DIR: &str = "/beside";

/// The launcher's own namespaces, and what it knows about itself.
pub(crate) struct Ground {
    host: OwnedFd,
    roots: OwnedFd,
    /// This process's user, by the number that a mapping below it names.
    pub uid: u32,
    /// Likewise its group.
    pub gid: u32,
    /// Whether a plan may name another user of the host.
    pub privileged: bool,
    /// This process's own namespaces, which no sandbox may share.
    pub namespaces: Vec<(&'static str, String)>,
}

/// Every kind of namespace a sandbox gets, by its name under `/proc/self/ns`.
pub(crate) const NAMESPACE_KINDS: [&str; 8] =
    ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"];

impl Ground {
    /// Makes the namespaces. Leaves the process standing among the prepared roots.
    pub(crate) fn prepare() -> Result<Ground, Failure> {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let privileged = own_mounts(uid, gid)?;
        let host = this_mount_namespace().at(Wall::Ground, "the host's mount namespace")?;
        bare_namespace().at(Wall::Ground, "the namespace of prepared roots")?;
        let roots = this_mount_namespace().at(Wall::Ground, "the prepared roots")?;
        let namespaces = own_namespaces().at(Wall::Ground, "its namespaces")?;
        Ok(Ground { host, roots, uid, gid, privileged, namespaces })
    }

    /// Does something where the host's paths mean what they say, and comes back.
    pub(crate) fn on_host<T>(
        &self,
        work: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        enter_namespace(&self.host).at(Wall::Ground, "back to the host's mounts")?;
        let done = work();
        enter_namespace(&self.roots).at(Wall::Ground, "back to the prepared roots")?;
        done
    }
}

fn enter_namespace(namespace: &OwnedFd) -> Result<(), Errno> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))
}

fn this_mount_namespace() -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, "/proc/self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// A copy of the host's mounts that follows the host's changes and sends none back. Where the
/// process may not have one outright, a user namespace of its own gives it the right.
fn own_mounts(uid: u32, gid: u32) -> Result<bool, Failure> {
    let privileged = match sys::unshare_namespaces(UnshareFlags::NEWNS) {
        Ok(()) => true,
        Err(Errno::PERM) => {
            sys::unshare_namespaces(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
                .at(Wall::Ground, "a user namespace for the launcher")?;
            map_self(uid, gid).at(Wall::Ground, "the launcher's own identity")?;
            false
        }
        Err(errno) => return Err(Failure::new(Wall::Ground, errno, "a mount namespace")),
    };
    if privileged {
        // Membership in root's groups would otherwise be handed down to every sandbox.
        rustix::thread::set_thread_groups(&[]).at(Wall::Ground, "supplementary groups")?;
    }
    change_all(MountPropagationFlags::DOWNSTREAM).at(Wall::Ground, "mount propagation")?;
    Ok(privileged)
}

fn map_self(uid: u32, gid: u32) -> Result<(), Errno> {
    write_file("/proc/self/setgroups", "deny")?;
    write_file("/proc/self/gid_map", &format!("{gid} {gid} 1"))?;
    write_file("/proc/self/uid_map", &format!("{uid} {uid} 1"))
}

/// Writes a whole small text to a kernel file in one call, as the kernel wants its maps.
pub(crate) fn write_file(path: &str, text: &str) -> Result<(), Errno> {
    let file = rustix::fs::openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    match rustix::io::write(file, text.as_bytes())? == text.len() {
        true => Ok(()),
        false => Err(Errno::IO),
    }
}

/// Changes how all mounts pass on what happens to them.
pub(crate) fn change_all(kind: MountPropagationFlags) -> Result<(), Errno> {
    mount_change("/", kind | MountPropagationFlags::REC)
}

/// A second mount namespace whose only content is an empty tmpfs with a `/proc` in it: the kernel
/// lets a sandbox mount a fresh one only where an unmasked one can be seen.
fn bare_namespace() -> Result<(), Errno> {
    sys::unshare_namespaces(UnshareFlags::NEWNS)?;
    change_all(MountPropagationFlags::PRIVATE)?;
    let proc_tree = fs::clone_with(CWD, "/proc", fs::WRITABLE_MOUNT)?;
    let root = fs::make_tmpfs(1 << 20, "0755", fs::WRITABLE_MOUNT)?;
    for name in [ROOTS_DIR, STAGE_DIR, SCRATCH_DIR, LAYER_DIR, LOWER_DIR, CHANGES_DIR, "/proc"] {
        rustix::fs::mkdirat(&root, name.trim_start_matches('/'), Mode::from_raw_mode(0o755))?;
    }
    // Any directory that is surely there will do to stand on; this one is about to be left behind.
    fs::attach_mount(&root, fs::open_path("/proc")?)?;
    rustix::process::fchdir(&root)?;
    fs::enter_root()?;
    fs::attach_mount(&proc_tree, fs::open_path("/proc")?)
}

fn own_namespaces() -> Result<Vec<(&'static str, String)>, Errno> {
    let process = fs::open_path("/proc/self")?;
    let own =
        NAMESPACE_KINDS.iter().filter_map(|name| Some((*name, read_namespace_id(&process, name)?)));
    Ok(own.collect())
}

/// The identity of one of a process's namespaces; none where the kernel has no such kind.
pub(crate) fn read_namespace_id(process: &OwnedFd, name: &str) -> Option<String> {
    let link = rustix::fs::readlinkat(process, format!("ns/{name}"), Vec::new()).ok()?;
    link.into_string().ok()
}
