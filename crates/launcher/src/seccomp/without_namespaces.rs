//! What the filter refuses, or looks at, in addition where no namespace stands behind it: every call
//! that would reach past Landlock to files, processes, names or networks of the host.

use libc::*;

use super::{ArgumentCheck, SyscallAction};

/// One call that is treated otherwise.
pub(super) struct Otherwise {
    pub number: c_long,
    pub action: SyscallAction,
    /// Why it is.
    #[cfg_attr(not(test), allow(dead_code))]
    // read by people, and by the test that it is there
    pub reason: &'static str,
}

macro_rules! otherwise {
    ($($call:ident $action:expr, $reason:literal;)*) => {
        &[$(Otherwise { number: $call, action: $action, reason: $reason }),*]
    };
}

use SyscallAction::{Ask, Look, Refuse};

/// Calls of every architecture.
pub(super) const BARE_SYSCALLS: &[Otherwise] = otherwise! {
    SYS_socket Refuse(EAFNOSUPPORT), "the network here is the host's, and a local socket connects to any path";
    SYS_socketpair Look(ArgumentCheck::StreamPair), "a pair is connected for good; datagrams could be sent to names";
    SYS_connect Refuse(EPERM), "Landlock does not decide about sockets that have a path";
    SYS_bind Refuse(EPERM), "nobody could connect to it";
    SYS_fchmod Ask, "Landlock does not decide about modes; reading a file is enough to change its own";
    SYS_fchmodat Ask, "likewise, and not even that";
    SYS_fchmodat2 Ask, "likewise";
    SYS_utimensat Ask, "likewise, about times";
    SYS_fchown Refuse(EPERM), "likewise, about owners: there is nobody to give a file to";
    SYS_fchownat Refuse(EPERM), "likewise";
    SYS_setxattr Refuse(EOPNOTSUPP), "likewise, about extended attributes";
    SYS_lsetxattr Refuse(EOPNOTSUPP), "likewise";
    SYS_fsetxattr Refuse(EOPNOTSUPP), "likewise";
    SYS_removexattr Refuse(EOPNOTSUPP), "likewise";
    SYS_lremovexattr Refuse(EOPNOTSUPP), "likewise";
    SYS_fremovexattr Refuse(EOPNOTSUPP), "likewise";
    SYS_getxattr Refuse(EOPNOTSUPP), "reads from files that Landlock would not let be opened";
    SYS_lgetxattr Refuse(EOPNOTSUPP), "likewise";
    SYS_listxattr Refuse(EOPNOTSUPP), "likewise";
    SYS_llistxattr Refuse(EOPNOTSUPP), "likewise";
    SYS_inotify_init1 Refuse(ENOSYS), "instances are counted for all of the user's processes together, and of no use here";
    SYS_inotify_add_watch Refuse(EACCES), "tells the names in directories that cannot be listed";
    SYS_fanotify_mark Refuse(EACCES), "likewise";
    SYS_ioctl Look(ArgumentCheck::IoctlKeeps), "reading a file is enough to change its flags";
    SYS_prlimit64 Look(ArgumentCheck::Itself), "limits of the user's other processes are ways to end them";
    SYS_sched_setaffinity Look(ArgumentCheck::Itself), "the user's other processes";
    SYS_sched_setscheduler Look(ArgumentCheck::Itself), "likewise";
    SYS_sched_setparam Look(ArgumentCheck::Itself), "likewise";
    SYS_sched_setattr Look(ArgumentCheck::Itself), "likewise";
    SYS_setpriority Look(ArgumentCheck::ItsPriority(PRIO_PROCESS)), "likewise";
    SYS_ioprio_set Look(ArgumentCheck::ItsPriority(1)), "likewise";
    SYS_shmget Refuse(ENOSYS), "these objects are the host's, found by number";
    SYS_shmat Refuse(ENOSYS), "likewise";
    SYS_shmctl Refuse(ENOSYS), "likewise";
    SYS_semget Refuse(ENOSYS), "likewise";
    SYS_semop Refuse(ENOSYS), "likewise";
    SYS_semctl Refuse(ENOSYS), "likewise";
    SYS_semtimedop Refuse(ENOSYS), "likewise";
    SYS_msgget Refuse(ENOSYS), "likewise";
    SYS_msgsnd Refuse(ENOSYS), "likewise";
    SYS_msgrcv Refuse(ENOSYS), "likewise";
    SYS_msgctl Refuse(ENOSYS), "likewise";
    SYS_mq_open Refuse(ENOSYS), "likewise, found by name";
    SYS_mq_unlink Refuse(ENOSYS), "likewise";
};

/// The same deeds under the older names that only this architecture has.
#[cfg(target_arch = "x86_64")]
pub(super) const BARE_ARCH_SYSCALLS: &[Otherwise] = otherwise! {
    SYS_chmod Ask, "an older form of a call above";
    SYS_inotify_init Refuse(ENOSYS), "likewise";
    SYS_utime Refuse(ENOSYS), "likewise";
    SYS_utimes Refuse(ENOSYS), "likewise";
    SYS_futimesat Refuse(ENOSYS), "likewise";
    SYS_chown Refuse(EPERM), "likewise";
    SYS_lchown Refuse(EPERM), "likewise";
};

/// Architectures without older names.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const BARE_ARCH_SYSCALLS: &[Otherwise] = &[];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_call_has_a_reason_and_none_is_listed_twice() {
        let mut seen = BTreeSet::new();
        for call in BARE_SYSCALLS.iter().chain(BARE_ARCH_SYSCALLS) {
            assert!(!call.reason.is_empty());
            assert!(seen.insert(call.number), "{} is listed twice", call.number);
        }
    }
}
