//! A seccomp filter that every program gets before its first instruction, beneath the walls of any backend:
//! no setuid or setgid files, no new namespaces, and none of the host's few contexts for asynchronous I/O or of
//! its huge pages (C-18). It holds also where another program makes the walls, such as a container engine, whose own filter
//! lets these through; and it takes `openat2` away, whose arguments no filter can look at.
//!
//! Installed by the agent, and so no wall against an attacker that takes the agent over.

use libc::{c_long, sock_filter};

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xC000_00B7;
/// Numbers from here on belong to another way into the same kernel.
const FOREIGN_ABI: u32 = 0x4000_0000;

const NR_OFFSET: u32 = 0;
const ARCH_OFFSET: u32 = 4;

const OP_LD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const OP_JEQ: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const OP_JGE: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const OP_JSET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const OP_RET: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Mode bits with which a file runs as its owner or its group.
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
/// Flags with which opening a file looks at the mode.
const CREATE_FLAGS: u32 = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;
const NAMESPACE_FLAGS: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// What happens to a call that is looked at.
#[derive(Clone, Copy)]
enum SyscallRule {
    Refuse(i32),
    /// Answered by this errno if any of these bits is set in that argument.
    Without(u32, u32, i32),
    /// Refused if it creates, by that argument, with a mode, in the next one, that sets ids.
    Opens(u32),
}

use SyscallRule::{Opens, Refuse, Without};

const SYSCALL_RULES: &[(c_long, SyscallRule)] = &[
    (libc::SYS_openat2, Refuse(libc::ENOSYS)),
    (libc::SYS_io_setup, Refuse(libc::ENOSYS)),
    (libc::SYS_clone3, Refuse(libc::ENOSYS)),
    (libc::SYS_unshare, Refuse(libc::EPERM)),
    (libc::SYS_setns, Refuse(libc::EPERM)),
    // Does the work of other calls past this filter, and is known to be missing on many hosts.
    (libc::SYS_io_uring_setup, Refuse(libc::ENOSYS)),
    (libc::SYS_clone, Without(0, NAMESPACE_FLAGS, libc::EPERM)),
    (libc::SYS_fchmod, Without(1, SET_ID, libc::EPERM)),
    (libc::SYS_fchmodat, Without(2, SET_ID, libc::EPERM)),
    (libc::SYS_fchmodat2, Without(2, SET_ID, libc::EPERM)),
    (libc::SYS_mknodat, Without(2, SET_ID, libc::EPERM)),
    (libc::SYS_openat, Opens(2)),
    // As where there are no huge pages: no memory limit counts those of the host's pool.
    (libc::SYS_mmap, Without(3, libc::MAP_HUGETLB as u32, libc::ENOMEM)),
    (libc::SYS_memfd_create, Without(1, libc::MFD_HUGETLB, libc::EINVAL)),
    (libc::SYS_shmget, Without(2, libc::SHM_HUGETLB as u32, libc::ENOMEM)),
];

/// The older names that only this architecture has.
#[cfg(target_arch = "x86_64")]
const ARCH_SYSCALL_RULES: &[(c_long, SyscallRule)] = &[
    (libc::SYS_chmod, Without(1, SET_ID, libc::EPERM)),
    (libc::SYS_mknod, Without(1, SET_ID, libc::EPERM)),
    (libc::SYS_creat, Without(1, SET_ID, libc::EPERM)),
    (libc::SYS_open, Opens(1)),
];

#[cfg(not(target_arch = "x86_64"))]
const ARCH_SYSCALL_RULES: &[(c_long, SyscallRule)] = &[];

/// The filter, made once: nothing can be allocated between the fork and the program.
pub struct Guard(Vec<sock_filter>);

impl Guard {
    /// The filter, where this process has given up gaining privileges: elsewhere there are no walls.
    pub fn where_walls_are() -> Option<Self> {
        rustix::thread::no_new_privs()
            .ok()
            .filter(|given_up| *given_up)
            .map(|_| Self(build_filter()))
    }

    /// As the kernel wants it.
    pub fn filter(&self) -> &[sock_filter] {
        &self.0
    }
}

fn build_filter() -> Vec<sock_filter> {
    let mut program = vec![
        load_word(ARCH_OFFSET),
        jump_if(OP_JEQ, AUDIT_ARCH, 1, 0),
        return_action(libc::SECCOMP_RET_KILL_PROCESS),
        load_word(NR_OFFSET),
        jump_if(OP_JGE, FOREIGN_ABI, 0, 1),
        return_action(libc::SECCOMP_RET_KILL_PROCESS),
    ];
    for (call, rule) in SYSCALL_RULES.iter().chain(ARCH_SYSCALL_RULES) {
        let code = compile_rule(*rule);
        program.push(jump_if(OP_JEQ, *call as u32, 0, code.len() as u8));
        program.extend(code);
    }
    program.push(return_allow());
    program
}

fn compile_rule(rule: SyscallRule) -> Vec<sock_filter> {
    match rule {
        Refuse(errno) => vec![return_errno(errno)],
        Without(index, bits, errno) => vec![
            load_word(argument_offset(index)),
            jump_if(OP_JSET, bits, 1, 0),
            return_allow(),
            return_errno(errno),
        ],
        Opens(flags) => vec![
            load_word(argument_offset(flags)),
            jump_if(OP_JSET, CREATE_FLAGS, 0, 2),
            load_word(argument_offset(flags + 1)),
            jump_if(OP_JSET, SET_ID, 1, 0),
            return_allow(),
            return_errno(libc::EPERM),
        ],
    }
}

/// Where the lower half of an argument lies; the kernel looks at no more of those that are checked here.
fn argument_offset(index: u32) -> u32 {
    16 + 8 * index + if cfg!(target_endian = "big") { 4 } else { 0 }
}

fn load_word(offset: u32) -> sock_filter {
    sock_filter { code: OP_LD, jt: 0, jf: 0, k: offset }
}

fn jump_if(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn return_action(answer: u32) -> sock_filter {
    sock_filter { code: OP_RET, jt: 0, jf: 0, k: answer }
}

fn return_allow() -> sock_filter {
    return_action(libc::SECCOMP_RET_ALLOW)
}

fn return_errno(errno: i32) -> sock_filter {
    return_action(libc::SECCOMP_RET_ERRNO | (errno as u32 & libc::SECCOMP_RET_DATA))
}
