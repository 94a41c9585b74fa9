//! One file per wall. Each builds its wall in the new process; the order is in [`crate::sandbox`].

pub(crate) mod caps;
pub(crate) mod cgroup;
pub(crate) mod fds;
pub(crate) mod identity;
pub(crate) mod inotify;
pub(crate) mod landlock;
pub(crate) mod net;
pub(crate) mod overlay;
pub(crate) mod parent;
pub(crate) mod proc;
pub(crate) mod rlimits;
pub(crate) mod root;
pub(crate) mod root_overlay;
pub(crate) mod scratch;
pub(crate) mod sources;
pub(crate) mod uts;
pub(crate) mod verify;
