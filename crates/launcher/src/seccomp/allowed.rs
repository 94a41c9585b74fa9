//! System calls that programs need, in groups with the reason why each group is let through. A call
//! gets in here only if it acts on the caller's own memory, descriptors and processes, or on objects
//! that another wall has already decided about.

use libc::*;

use super::{ArgumentCheck, SyscallAction};

/// One reviewed group.
pub(super) struct SyscallGroup {
    /// Why it is let through.
    #[cfg_attr(not(test), allow(dead_code))]
    // read by people, and by the test that it is there
    pub reason: &'static str,
    /// System call numbers.
    pub calls: &'static [c_long],
}

const fn allowed_group(reason: &'static str, calls: &'static [c_long]) -> SyscallGroup {
    SyscallGroup { reason, calls }
}

/// Allowed with any arguments.
pub(super) const ALLOWED_SYSCALLS: &[SyscallGroup] = &[
    allowed_group(
        "bytes through descriptors the caller holds",
        &[
            SYS_read,
            SYS_write,
            SYS_pread64,
            SYS_pwrite64,
            SYS_readv,
            SYS_writev,
            SYS_preadv,
            SYS_pwritev,
            SYS_preadv2,
            SYS_pwritev2,
            SYS_lseek,
            SYS_sendfile,
            SYS_splice,
            SYS_tee,
            SYS_vmsplice,
            SYS_copy_file_range,
            SYS_readahead,
            SYS_fadvise64,
            SYS_sync_file_range,
        ],
    ),
    allowed_group(
        "descriptors: making, copying, closing",
        &[
            SYS_close,
            SYS_close_range,
            SYS_dup,
            SYS_dup3,
            SYS_fcntl,
            SYS_pipe2,
            SYS_flock,
            SYS_eventfd2,
        ],
    ),
    allowed_group(
        "opening files, which mounts, permissions and Landlock decide about",
        &[SYS_openat2, SYS_name_to_handle_at],
    ),
    allowed_group(
        "looking at files",
        &[
            SYS_fstat,
            SYS_newfstatat,
            SYS_statx,
            SYS_statfs,
            SYS_fstatfs,
            SYS_faccessat,
            SYS_faccessat2,
            SYS_readlinkat,
            SYS_getdents64,
            SYS_getcwd,
        ],
    ),
    allowed_group(
        "changing files and directories, which mounts, permissions and Landlock decide about",
        &[
            SYS_mkdirat,
            SYS_unlinkat,
            SYS_symlinkat,
            SYS_linkat,
            SYS_renameat,
            SYS_renameat2,
            SYS_truncate,
            SYS_ftruncate,
            SYS_fallocate,
            SYS_fchown,
            SYS_fchownat,
            SYS_utimensat,
            SYS_umask,
            SYS_chdir,
            SYS_fchdir,
        ],
    ),
    allowed_group(
        "extended attributes of files the caller may change",
        &[
            SYS_getxattr,
            SYS_lgetxattr,
            SYS_fgetxattr,
            SYS_listxattr,
            SYS_llistxattr,
            SYS_flistxattr,
            SYS_setxattr,
            SYS_lsetxattr,
            SYS_fsetxattr,
            SYS_removexattr,
            SYS_lremovexattr,
            SYS_fremovexattr,
        ],
    ),
    allowed_group("writing back", &[SYS_sync, SYS_syncfs, SYS_fsync, SYS_fdatasync, SYS_msync]),
    allowed_group(
        "watching files",
        &[SYS_inotify_init1, SYS_inotify_add_watch, SYS_inotify_rm_watch, SYS_fanotify_mark],
    ),
    allowed_group(
        "the caller's own memory",
        &[
            SYS_munmap,
            SYS_mremap,
            SYS_mprotect,
            SYS_madvise,
            SYS_mincore,
            SYS_brk,
            SYS_mlock,
            SYS_mlock2,
            SYS_munlock,
            SYS_mlockall,
            SYS_munlockall,
            SYS_membarrier,
            SYS_pkey_alloc,
            SYS_pkey_free,
            SYS_pkey_mprotect,
            SYS_remap_file_pages,
            SYS_mseal,
        ],
    ),
    allowed_group(
        "placement of the caller's memory on nodes",
        &[SYS_get_mempolicy, SYS_set_mempolicy, SYS_mbind],
    ),
    allowed_group(
        "processes: ending, waiting, executing",
        &[SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid],
    ),
    allowed_group(
        "who the caller is and who its relatives are",
        &[
            SYS_getpid,
            SYS_getppid,
            SYS_gettid,
            SYS_getpgid,
            SYS_setpgid,
            SYS_getsid,
            SYS_setsid,
            SYS_getuid,
            SYS_geteuid,
            SYS_getgid,
            SYS_getegid,
            SYS_getresuid,
            SYS_getresgid,
            SYS_getgroups,
            SYS_getcpu,
        ],
    ),
    allowed_group(
        "changing ids, of which only one is mapped",
        &[
            SYS_setuid,
            SYS_setgid,
            SYS_setreuid,
            SYS_setregid,
            SYS_setresuid,
            SYS_setresgid,
            SYS_setfsuid,
            SYS_setfsgid,
            SYS_setgroups,
        ],
    ),
    allowed_group("capabilities, of which there are none to gain", &[SYS_capget, SYS_capset]),
    allowed_group(
        "settings of the calling thread",
        &[
            SYS_prctl,
            SYS_set_tid_address,
            SYS_set_robust_list,
            SYS_get_robust_list,
            SYS_rseq,
            SYS_sched_yield,
        ],
    ),
    allowed_group("waiting on memory words", &[SYS_futex, SYS_futex_waitv]),
    allowed_group(
        "signals, which the pid namespace keeps inside",
        &[
            SYS_kill,
            SYS_tkill,
            SYS_tgkill,
            SYS_rt_sigaction,
            SYS_rt_sigprocmask,
            SYS_rt_sigreturn,
            SYS_rt_sigpending,
            SYS_rt_sigsuspend,
            SYS_rt_sigtimedwait,
            SYS_rt_sigqueueinfo,
            SYS_rt_tgsigqueueinfo,
            SYS_sigaltstack,
            SYS_signalfd4,
            SYS_restart_syscall,
        ],
    ),
    allowed_group(
        "processes by descriptor, which the pid namespace keeps inside",
        &[SYS_pidfd_open, SYS_pidfd_send_signal],
    ),
    allowed_group(
        "scheduling of the sandbox's own processes",
        &[
            SYS_sched_getaffinity,
            SYS_sched_setaffinity,
            SYS_sched_getscheduler,
            SYS_sched_setscheduler,
            SYS_sched_getparam,
            SYS_sched_setparam,
            SYS_sched_getattr,
            SYS_sched_setattr,
            SYS_sched_get_priority_max,
            SYS_sched_get_priority_min,
            SYS_sched_rr_get_interval,
            SYS_getpriority,
            SYS_setpriority,
            SYS_ioprio_get,
            SYS_ioprio_set,
        ],
    ),
    allowed_group(
        "limits and usage; the hard limits cannot be raised",
        &[SYS_prlimit64, SYS_getrlimit, SYS_setrlimit, SYS_getrusage, SYS_times],
    ),
    allowed_group(
        "reading clocks and waiting for them",
        &[
            SYS_clock_gettime,
            SYS_clock_getres,
            SYS_clock_nanosleep,
            SYS_nanosleep,
            SYS_gettimeofday,
            SYS_timer_create,
            SYS_timer_settime,
            SYS_timer_gettime,
            SYS_timer_getoverrun,
            SYS_timer_delete,
            SYS_timerfd_create,
            SYS_timerfd_settime,
            SYS_timerfd_gettime,
            SYS_getitimer,
            SYS_setitimer,
        ],
    ),
    allowed_group(
        "waiting for descriptors",
        &[
            SYS_ppoll,
            SYS_pselect6,
            SYS_epoll_create1,
            SYS_epoll_ctl,
            SYS_epoll_pwait,
            SYS_epoll_pwait2,
        ],
    ),
    allowed_group(
        "using sockets; which can be made is checked where they are made",
        &[
            SYS_bind,
            SYS_listen,
            SYS_accept,
            SYS_accept4,
            SYS_connect,
            SYS_getsockname,
            SYS_getpeername,
            SYS_getsockopt,
            SYS_setsockopt,
            SYS_sendto,
            SYS_recvfrom,
            SYS_sendmsg,
            SYS_recvmsg,
            SYS_sendmmsg,
            SYS_recvmmsg,
            SYS_shutdown,
        ],
    ),
    allowed_group(
        "System V and POSIX objects, which the ipc namespace keeps inside",
        &[
            SYS_shmat,
            SYS_shmdt,
            SYS_shmctl,
            SYS_semget,
            SYS_semop,
            SYS_semctl,
            SYS_semtimedop,
            SYS_msgget,
            SYS_msgsnd,
            SYS_msgrcv,
            SYS_msgctl,
            SYS_mq_open,
            SYS_mq_unlink,
            SYS_mq_timedsend,
            SYS_mq_timedreceive,
            SYS_mq_notify,
            SYS_mq_getsetattr,
        ],
    ),
    allowed_group("random bytes, and what the system is", &[SYS_getrandom, SYS_uname, SYS_sysinfo]),
    allowed_group(
        "further walls a program builds around itself",
        &[
            SYS_seccomp,
            SYS_landlock_create_ruleset,
            SYS_landlock_add_rule,
            SYS_landlock_restrict_self,
        ],
    ),
];

/// The same deeds under the older names that only this architecture has.
#[cfg(target_arch = "x86_64")]
pub(super) const ALLOWED_ARCH_SYSCALLS: &[SyscallGroup] = &[
    allowed_group(
        "older forms of calls allowed above",
        &[
            SYS_stat,
            SYS_lstat,
            SYS_access,
            SYS_readlink,
            SYS_getdents,
            SYS_mkdir,
            SYS_rmdir,
            SYS_unlink,
            SYS_symlink,
            SYS_link,
            SYS_rename,
            SYS_chown,
            SYS_lchown,
            SYS_utime,
            SYS_utimes,
            SYS_futimesat,
            SYS_dup2,
            SYS_pipe,
            SYS_eventfd,
            SYS_signalfd,
            SYS_inotify_init,
            SYS_poll,
            SYS_select,
            SYS_epoll_create,
            SYS_epoll_wait,
            SYS_getpgrp,
            SYS_time,
            SYS_alarm,
            SYS_pause,
        ],
    ),
    allowed_group("processes without namespaces: fork takes no flags", &[SYS_fork, SYS_vfork]),
    allowed_group("the thread pointer", &[SYS_arch_prctl]),
];

/// Architectures without older names.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const ALLOWED_ARCH_SYSCALLS: &[SyscallGroup] = &[];

/// Let through or not by their arguments.
pub(super) const CHECKED_SYSCALLS: &[(c_long, SyscallAction)] = &[
    (SYS_clone, SyscallAction::Look(ArgumentCheck::Clone)),
    (SYS_socket, SyscallAction::Look(ArgumentCheck::Socket)),
    (SYS_socketpair, SyscallAction::Look(ArgumentCheck::SocketPair)),
    (SYS_ioctl, SyscallAction::Look(ArgumentCheck::Ioctl)),
    (SYS_personality, SyscallAction::Look(ArgumentCheck::Personality)),
    (SYS_openat, SyscallAction::Look(ArgumentCheck::Opens(2))),
    (SYS_fchmod, SyscallAction::Look(ArgumentCheck::Mode(1))),
    (SYS_fchmodat, SyscallAction::Look(ArgumentCheck::Mode(2))),
    (SYS_fchmodat2, SyscallAction::Look(ArgumentCheck::Mode(2))),
    (SYS_mknodat, SyscallAction::Look(ArgumentCheck::Mode(2))),
    (SYS_mmap, SyscallAction::Look(ArgumentCheck::HugePages(3, MAP_HUGETLB as u32, ENOMEM))),
    (SYS_memfd_create, SyscallAction::Look(ArgumentCheck::HugePages(1, MFD_HUGETLB, EINVAL))),
    (SYS_shmget, SyscallAction::Look(ArgumentCheck::HugePages(2, SHM_HUGETLB as u32, ENOMEM))),
];

/// The same under the older names that only this architecture has.
#[cfg(target_arch = "x86_64")]
pub(super) const CHECKED_ARCH_SYSCALLS: &[(c_long, SyscallAction)] = &[
    (SYS_open, SyscallAction::Look(ArgumentCheck::Opens(1))),
    (SYS_creat, SyscallAction::Look(ArgumentCheck::Mode(1))),
    (SYS_chmod, SyscallAction::Look(ArgumentCheck::Mode(1))),
    (SYS_mknod, SyscallAction::Look(ArgumentCheck::Mode(1))),
];

/// Architectures without older names.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const CHECKED_ARCH_SYSCALLS: &[(c_long, SyscallAction)] = &[];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_group_has_a_reason_and_no_call_is_listed_twice() {
        let mut seen = BTreeSet::new();
        for group in ALLOWED_SYSCALLS.iter().chain(ALLOWED_ARCH_SYSCALLS) {
            assert!(!group.reason.is_empty());
            for call in group.calls {
                assert!(seen.insert(*call), "{call} is listed twice");
            }
        }
    }
}
