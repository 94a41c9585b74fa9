//! System calls that are refused by name, each with the reason. They would be refused anyway, not
//! being on the other list; naming them makes the refusal a promise that tests can hold us to.

use libc::*;

/// One refused call.
#[derive(Clone, Copy, Debug)]
pub struct Denied {
    /// Its name.
    pub name: &'static str,
    /// Its number on this architecture.
    pub number: c_long,
    /// What the caller gets.
    pub errno: i32,
    /// Why it is refused.
    pub reason: &'static str,
}

macro_rules! denied {
    ($($call:ident $errno:ident $reason:literal),* $(,)?) => {
        /// Refused by name.
        pub const DENIED_SYSCALLS: &[Denied] = &[$(Denied {
            name: stringify!($call),
            number: $call,
            errno: $errno,
            reason: $reason,
        }),*];
    };
}

denied! {
    SYS_clone3 ENOSYS "its flags lie in memory the filter cannot read; libraries fall back to clone",
    SYS_unshare EPERM "new namespaces give capabilities over kernel code few have looked at",
    SYS_setns EPERM "entering namespaces",
    SYS_mount EPERM "changing what the walls are made of",
    SYS_umount2 EPERM "likewise",
    SYS_pivot_root EPERM "likewise",
    SYS_chroot EPERM "likewise",
    SYS_open_tree EPERM "likewise",
    SYS_move_mount EPERM "likewise",
    SYS_fsopen EPERM "likewise",
    SYS_fsconfig EPERM "likewise",
    SYS_fsmount EPERM "likewise",
    SYS_fspick EPERM "likewise",
    SYS_mount_setattr EPERM "likewise",
    SYS_io_uring_setup EPERM "does other calls' work past this filter",
    SYS_io_uring_enter EPERM "likewise",
    SYS_io_uring_register EPERM "likewise",
    SYS_io_setup ENOSYS "takes from the few contexts that all of the host shares (fs.aio-max-nr)",
    SYS_io_destroy ENOSYS "likewise",
    SYS_io_submit ENOSYS "likewise",
    SYS_io_cancel ENOSYS "likewise",
    SYS_io_getevents ENOSYS "likewise",
    SYS_userfaultfd EPERM "stalls the kernel at moments an attacker chooses",
    SYS_bpf EPERM "programs in the kernel",
    SYS_perf_event_open EPERM "side channels, and a long record of holes",
    SYS_keyctl EPERM "keyrings are not held apart by namespaces",
    SYS_add_key EPERM "likewise",
    SYS_request_key EPERM "likewise",
    SYS_ptrace EPERM "ruling other processes, past what their own filters allow",
    SYS_process_vm_readv EPERM "other processes' memory",
    SYS_process_vm_writev EPERM "likewise",
    SYS_process_madvise EPERM "likewise",
    SYS_pidfd_getfd EPERM "other processes' descriptors",
    SYS_kcmp EPERM "compares kernel pointers",
    SYS_open_by_handle_at EPERM "opens files past the directories that lead to them",
    SYS_kexec_load EPERM "another kernel",
    SYS_kexec_file_load EPERM "likewise",
    SYS_init_module EPERM "kernel code",
    SYS_finit_module EPERM "likewise",
    SYS_delete_module EPERM "likewise",
    SYS_reboot EPERM "the host's life",
    SYS_swapon EPERM "the host's memory",
    SYS_swapoff EPERM "likewise",
    SYS_acct EPERM "the host's accounting",
    SYS_syslog EPERM "the kernel's log, with its addresses",
    SYS_quotactl EPERM "the host's quotas",
    SYS_settimeofday EPERM "the host's clock",
    SYS_clock_settime EPERM "likewise",
    SYS_clock_adjtime EPERM "likewise",
    SYS_adjtimex EPERM "likewise",
    SYS_sethostname EPERM "the sandbox's name is its owner's to give",
    SYS_setdomainname EPERM "likewise",
    SYS_vhangup EPERM "other sessions' terminals",
    SYS_fanotify_init EPERM "watching whole file systems",
    SYS_lookup_dcookie EPERM "profiling",
    SYS_migrate_pages EPERM "other processes' memory placement",
    SYS_move_pages EPERM "likewise",
    SYS_memfd_secret EPERM "memory the host cannot account for or move",
}
