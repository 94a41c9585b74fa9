//! Keeping an execution together on kernels without subreapers, such as gVisor's, where only the first
//! process gets orphans: each keeper is the first process of a pid namespace of its own. Making one takes a
//! user namespace, of which the keeper keeps nothing: it has one user, the agent's, and no capability.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities,
};

use super::sys::{self, Fork};

/// Says that each keeper gets a pid namespace, and which user it runs as.
#[derive(Debug, Clone, Copy)]
pub struct KeeperNamespace {
    uid: u32,
    gid: u32,
}

impl KeeperNamespace {
    /// With the ids of this process, unless a keeper can be a subreaper after all: tried by a process made
    /// for it, since the first one of a kernel gets the orphans anyway. It shares this one's memory: a copy
    /// takes such kernels longer than everything else here together.
    pub fn where_needed() -> io::Result<Option<Self>> {
        let mut kept = false;
        sys::fork_and_wait(&mut || {
            let own = rustix::process::getpid();
            kept = rustix::process::set_child_subreaper(Some(own)).is_ok();
        })?;
        // Gone already where its end was asked to go unnoticed.
        let _ = sys::reap_child(true);
        Ok((!kept).then(Self::own))
    }

    fn own() -> Self {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        Self { uid: uid.as_raw(), gid: gid.as_raw() }
    }

    /// Splits the process in two, the new one first in namespaces of its own.
    pub fn fork(self) -> io::Result<Fork> {
        sys::fork_apart()
    }

    /// In the new process: becomes the same user again, and gives up what it got with the namespace.
    pub fn restore_user(self) -> rustix::io::Result<()> {
        let Self { uid, gid } = self;
        // Its own maps can be written only while it is dumpable; no other process is there yet to abuse that.
        set_dumpable_behavior(DumpableBehavior::Dumpable)?;
        // Some kernels want it before the groups are mapped, and others have no such file.
        let _ = fs::write("/proc/self/setgroups", "deny");
        let map = |file: &str, id: u32| fs::write(file, format!("{id} {id} 1\n"));
        map("/proc/self/uid_map", uid)
            .and_then(|()| map("/proc/self/gid_map", gid))
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        for capability in CapabilitySet::all().iter() {
            // Those that a kernel does not know are not there to be had.
            let _ = remove_capability_from_bounding_set(capability);
        }
        let none = CapabilitySet::empty();
        set_capabilities(
            None,
            CapabilitySets { effective: none, permitted: none, inheritable: none },
        )
    }
}
