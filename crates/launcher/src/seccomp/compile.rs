//! Turns the lists into a filter program. Numbers are gathered into ranges and found by halving:
//! the kernel runs a new filter once for every call there is to learn which are always allowed, so a
//! long chain of comparisons would cost every launch, and every checked call after it.

use std::collections::BTreeMap;

use libc::{self, sock_filter};

use super::allowed::{
    ALLOWED_ARCH_SYSCALLS, ALLOWED_SYSCALLS, CHECKED_ARCH_SYSCALLS, CHECKED_SYSCALLS,
};
use super::without_namespaces::{BARE_ARCH_SYSCALLS, BARE_SYSCALLS};
use super::{ArgumentCheck, DENIED_SYSCALLS, FilterKind, SyscallAction};

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xC000_00B7;

/// Numbers from here on belong to the x32 ABI, another way into the same kernel.
const FOREIGN_ABI: u32 = 0x4000_0000;
/// The number from which calls are new enough for programs to expect that they may be missing.
const FIRST_NEW_SYSCALL: u32 = 453;
/// A number that no call has reached yet.
const SYSCALL_NUMBER_LIMIT: u32 = 512;

const NR_OFFSET: u32 = 0;
const ARCH_OFFSET: u32 = 4;
const ARGS_OFFSET: u32 = 16;

const OP_LD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const OP_AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const OP_JEQ: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const OP_JGE: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const OP_JSET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const OP_JA: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const OP_RET: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

fn build_instruction(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

fn build_jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn return_allow() -> sock_filter {
    build_instruction(OP_RET, libc::SECCOMP_RET_ALLOW)
}

fn return_errno(errno: i32) -> sock_filter {
    build_instruction(OP_RET, libc::SECCOMP_RET_ERRNO | (errno as u32 & libc::SECCOMP_RET_DATA))
}

/// The whole filter, for a sandbox of this kind.
pub(crate) fn compile_filter(kind: FilterKind) -> Vec<sock_filter> {
    let mut program = vec![
        build_instruction(OP_LD, ARCH_OFFSET),
        build_jump(OP_JEQ, AUDIT_ARCH, 1, 0),
        build_instruction(OP_RET, libc::SECCOMP_RET_KILL_PROCESS),
        build_instruction(OP_LD, NR_OFFSET),
        build_jump(OP_JGE, FOREIGN_ABI, 0, 1),
        build_instruction(OP_RET, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    program.extend(compile_search_tree(&list_ranges(kind)));
    program
}

/// What happens to each call, by number.
fn list_actions(kind: FilterKind) -> BTreeMap<u32, SyscallAction> {
    let mut actions: BTreeMap<u32, SyscallAction> = BTreeMap::new();
    for group in ALLOWED_SYSCALLS.iter().chain(ALLOWED_ARCH_SYSCALLS) {
        actions.extend(group.calls.iter().map(|call| (*call as u32, SyscallAction::Allow)));
    }
    let looked_at = CHECKED_SYSCALLS.iter().chain(CHECKED_ARCH_SYSCALLS);
    actions.extend(looked_at.map(|(call, action)| (*call as u32, *action)));
    match kind {
        FilterKind::Namespaces => {}
        FilterKind::Asking => actions
            .extend(NOTIFY_CHECKS.map(|(call, check)| (call as u32, SyscallAction::Look(check)))),
        FilterKind::Bare => {
            let calls = BARE_SYSCALLS.iter().chain(BARE_ARCH_SYSCALLS);
            actions.extend(calls.map(|call| (call.number as u32, call.action)));
        }
    }
    // Last, so that a call on both lists is refused.
    actions.extend(
        DENIED_SYSCALLS.iter().map(|call| (call.number as u32, SyscallAction::Refuse(call.errno))),
    );
    actions
}

/// Where each range begins, and what is done from there on.
fn list_ranges(kind: FilterKind) -> Vec<(u32, SyscallAction)> {
    let actions = list_actions(kind);
    let mut ranges: Vec<(u32, SyscallAction)> = Vec::new();
    for number in 0..SYSCALL_NUMBER_LIMIT {
        let fallback = match number < FIRST_NEW_SYSCALL {
            true => SyscallAction::Refuse(libc::EPERM),
            // A call from the future: programs know how to do without one that is not there.
            false => SyscallAction::Refuse(libc::ENOSYS),
        };
        let action = actions.get(&number).copied().unwrap_or(fallback);
        if ranges.last().is_none_or(|(_, before)| *before != action) {
            ranges.push((number, action));
        }
    }
    ranges
}

fn compile_search_tree(ranges: &[(u32, SyscallAction)]) -> Vec<sock_filter> {
    match ranges {
        [] => vec![return_errno(libc::EPERM)],
        [(_, action)] => compile_leaf(*action),
        _ => {
            let (low, high) = ranges.split_at(ranges.len() / 2);
            let first = high.first().map_or(0, |range| range.0);
            let low = compile_search_tree(low);
            let mut code = compile_branch(first, low.len());
            code.extend(low);
            code.extend(compile_search_tree(high));
            code
        }
    }
}

/// Skips `distance` instructions where the number is at least `first`.
fn compile_branch(first: u32, distance: usize) -> Vec<sock_filter> {
    match u8::try_from(distance) {
        Ok(distance) => vec![build_jump(OP_JGE, first, distance, 0)],
        Err(_) => vec![build_jump(OP_JGE, first, 0, 1), build_instruction(OP_JA, distance as u32)],
    }
}

fn compile_leaf(action: SyscallAction) -> Vec<sock_filter> {
    match action {
        SyscallAction::Allow => vec![return_allow()],
        SyscallAction::Refuse(errno) => vec![return_errno(errno)],
        SyscallAction::Ask => vec![build_instruction(OP_RET, libc::SECCOMP_RET_USER_NOTIF)],
        SyscallAction::Look(ArgumentCheck::Clone) => check_clone(),
        SyscallAction::Look(ArgumentCheck::Socket) => check_socket(),
        SyscallAction::Look(ArgumentCheck::SocketPair) => socket_pair(),
        SyscallAction::Look(ArgumentCheck::Ioctl) => check_ioctl(),
        SyscallAction::Look(ArgumentCheck::Personality) => check_personality(),
        SyscallAction::Look(ArgumentCheck::StreamPair) => stream_pair(),
        SyscallAction::Look(ArgumentCheck::Itself) => check_own_pid(0),
        SyscallAction::Look(ArgumentCheck::ItsPriority(process)) => its_priority(process),
        SyscallAction::Look(ArgumentCheck::IoctlKeeps) => ioctl_keeps(),
        SyscallAction::Look(ArgumentCheck::SocketKeeps) => socket_keeps(),
        SyscallAction::Look(ArgumentCheck::Connect) => check_connect(),
        SyscallAction::Look(ArgumentCheck::Mode(index)) => plain_mode(index),
        SyscallAction::Look(ArgumentCheck::Opens(flags)) => opens_with_plain_mode(flags),
        SyscallAction::Look(ArgumentCheck::HugePages(flags, huge, errno)) => {
            without_huge_pages(flags, huge, errno)
        }
    }
}

/// The lower half of an argument; the kernel itself looks at no more of those checked here.
fn load_argument(index: u32) -> sock_filter {
    let high_first = u32::from(cfg!(target_endian = "big")) * 4;
    build_instruction(OP_LD, ARGS_OFFSET + 8 * index + high_first)
}

fn check_clone() -> Vec<sock_filter> {
    let namespaces = libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET;
    let masked = build_instruction(OP_AND, namespaces as u32);
    vec![
        load_argument(0),
        masked,
        build_jump(OP_JEQ, 0, 0, 1),
        return_allow(),
        return_errno(libc::EPERM),
    ]
}

/// Checks that are others where a process outside is asked about sockets that have a path. Sending
/// without connecting cannot be asked about, for its address lies in memory; so there are no
/// sockets that can.
const NOTIFY_CHECKS: [(libc::c_long, ArgumentCheck); 3] = [
    (libc::SYS_connect, ArgumentCheck::Connect),
    (libc::SYS_socket, ArgumentCheck::SocketKeeps),
    (libc::SYS_socketpair, ArgumentCheck::StreamPair),
];

/// An address that is longer than any with a path leads to no file.
fn check_connect() -> Vec<sock_filter> {
    let longest = size_of::<libc::sockaddr_un>() as u32;
    let asked = build_instruction(OP_RET, libc::SECCOMP_RET_USER_NOTIF);
    vec![load_argument(2), build_jump(OP_JGE, longest + 1, 1, 0), asked, return_allow()]
}

/// As [`check_socket`], and of local ones those alone that have to be connected first.
fn socket_keeps() -> Vec<sock_filter> {
    let local = [
        load_argument(1),
        build_instruction(OP_AND, 0xF), // the rest are flags
        build_jump(OP_JEQ, libc::SOCK_STREAM as u32, 2, 0),
        build_jump(OP_JEQ, libc::SOCK_SEQPACKET as u32, 1, 0),
        return_errno(libc::ESOCKTNOSUPPORT),
        return_allow(),
    ];
    let mut code =
        vec![load_argument(0), build_jump(OP_JEQ, libc::AF_UNIX as u32, 0, local.len() as u8)];
    code.extend(local);
    code.extend(check_socket());
    code
}

/// Local sockets; TCP and UDP, which have nowhere to go but loopback; and the route socket by which
/// programs list interfaces. Every other family or protocol would load kernel code for the asking.
fn check_socket() -> Vec<sock_filter> {
    let family = |family: i32, length: u8| build_jump(OP_JEQ, family as u32, 0, length);
    let mut code = vec![load_argument(0)];
    code.extend([family(libc::AF_UNIX, 1), return_allow()]);
    let netlink =
        [load_argument(2), build_jump(OP_JEQ, libc::NETLINK_ROUTE as u32, 0, 1), return_allow()];
    code.push(family(libc::AF_NETLINK, netlink.len() as u8 + 1));
    code.extend(netlink);
    code.push(return_errno(libc::EAFNOSUPPORT));
    code.extend([
        build_jump(OP_JEQ, libc::AF_INET as u32, 2, 0),
        build_jump(OP_JEQ, libc::AF_INET6 as u32, 1, 0),
    ]);
    code.push(return_errno(libc::EAFNOSUPPORT));
    code.extend(check_internet_socket());
    code
}

fn check_internet_socket() -> Vec<sock_filter> {
    vec![
        load_argument(1),
        build_instruction(OP_AND, 0xF), // the rest are flags
        build_jump(OP_JEQ, libc::SOCK_STREAM as u32, 2, 0),
        build_jump(OP_JEQ, libc::SOCK_DGRAM as u32, 1, 0),
        return_errno(libc::EAFNOSUPPORT),
        load_argument(2),
        build_jump(OP_JEQ, 0, 2, 0),
        build_jump(OP_JEQ, libc::IPPROTO_TCP as u32, 1, 0),
        build_jump(OP_JEQ, libc::IPPROTO_UDP as u32, 0, 1),
        return_allow(),
        return_errno(libc::EAFNOSUPPORT),
    ]
}

fn socket_pair() -> Vec<sock_filter> {
    let local = build_jump(OP_JEQ, libc::AF_UNIX as u32, 0, 1);
    vec![load_argument(0), local, return_allow(), return_errno(libc::EAFNOSUPPORT)]
}

/// A pair of connected local sockets. Not datagrams: those can still be sent to any name.
fn stream_pair() -> Vec<sock_filter> {
    vec![
        load_argument(0),
        build_jump(OP_JEQ, libc::AF_UNIX as u32, 0, 4),
        load_argument(1),
        build_instruction(OP_AND, 0xF), // the rest are flags
        build_jump(OP_JEQ, libc::SOCK_STREAM as u32, 2, 0),
        build_jump(OP_JEQ, libc::SOCK_SEQPACKET as u32, 1, 0),
        return_errno(libc::EAFNOSUPPORT),
        return_allow(),
    ]
}

/// The process named by this argument is the caller, by the number that always means it.
fn check_own_pid(index: u32) -> Vec<sock_filter> {
    vec![
        load_argument(index),
        build_jump(OP_JEQ, 0, 0, 1),
        return_allow(),
        return_errno(libc::EPERM),
    ]
}

/// The same where the first argument says of what the second is the number.
fn its_priority(process: u32) -> Vec<sock_filter> {
    let mut code =
        vec![load_argument(0), build_jump(OP_JEQ, process, 1, 0), return_errno(libc::EPERM)];
    code.extend(check_own_pid(1));
    code
}

/// As [`check_ioctl`], and nothing that changes a file's flags, for which reading it is enough.
fn ioctl_keeps() -> Vec<sock_filter> {
    const SET_FLAGS: u32 = 0x4008_6602;
    const SET_PROJECT: u32 = 0x401C_5820;
    let mut code = vec![
        load_argument(1),
        build_jump(OP_JEQ, SET_FLAGS, 1, 0),
        build_jump(OP_JEQ, SET_PROJECT, 0, 1),
        return_errno(libc::EPERM),
    ];
    code.extend(check_ioctl());
    code
}

/// Refuses set-user-ID and set-group-ID modes: such a file is an escape route when it is run on the host.
fn plain_mode(index: u32) -> Vec<sock_filter> {
    const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
    vec![
        load_argument(index),
        build_jump(OP_JSET, SET_ID, 1, 0),
        return_allow(),
        return_errno(libc::EPERM),
    ]
}

/// The mode counts only with these flags: without them its register holds an arbitrary value.
fn opens_with_plain_mode(flags: u32) -> Vec<sock_filter> {
    const CREATE_FLAGS: u32 = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;
    let mode = plain_mode(flags + 1);
    let mut code =
        vec![load_argument(flags), build_jump(OP_JSET, CREATE_FLAGS, 1, 0), return_allow()];
    code.extend(mode);
    code
}

/// Fails as where there are no huge pages, which programs that ask for them expect. Chromium tries `memfd_create` with
/// every flag there is, and breaks down where that is not answered by EINVAL.
fn without_huge_pages(flags: u32, huge: u32, errno: i32) -> Vec<sock_filter> {
    vec![load_argument(flags), build_jump(OP_JSET, huge, 1, 0), return_allow(), return_errno(errno)]
}

/// Requests that are refused: typing into the terminal, pasting into a console, loading line disciplines; and, by
/// the four that make subvolumes of btrfs, numbering inodes anew, by which sockets are told apart.
const REFUSED_IOCTLS: [u32; 7] = [
    libc::TIOCSTI as u32,
    libc::TIOCLINUX as u32,
    libc::TIOCSETD as u32,
    0x5000_9401, // BTRFS_IOC_SNAP_CREATE
    0x5000_940E, // BTRFS_IOC_SUBVOL_CREATE
    0x5000_9417, // BTRFS_IOC_SNAP_CREATE_V2
    0x5000_9418, // BTRFS_IOC_SUBVOL_CREATE_V2
];

fn check_ioctl() -> Vec<sock_filter> {
    let mut code = vec![load_argument(1)];
    for (at, request) in REFUSED_IOCTLS.into_iter().enumerate() {
        let to_refusal = (REFUSED_IOCTLS.len() - at) as u8;
        code.push(build_jump(OP_JEQ, request, to_refusal, 0));
    }
    code.extend([return_allow(), return_errno(libc::EPERM)]);
    code
}

/// Asking, the default, and the 32-bit and old-version names for the machine.
fn check_personality() -> Vec<sock_filter> {
    vec![
        load_argument(0),
        build_jump(OP_JEQ, u32::MAX, 4, 0),
        build_jump(OP_JEQ, 0, 3, 0),
        build_jump(OP_JEQ, 0x8, 2, 0),
        build_jump(OP_JEQ, 0x2_0000, 1, 0),
        return_errno(libc::EPERM),
        return_allow(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the filter answers to one system call, as the kernel would evaluate it.
    fn evaluate(program: &[sock_filter], number: i64, arguments: [u64; 6]) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            let skip = |found: bool| usize::from(if found { step.jt } else { step.jf });
            match step.code {
                OP_LD => {
                    loaded = match step.k {
                        NR_OFFSET => number as u32,
                        ARCH_OFFSET => AUDIT_ARCH,
                        offset => arguments[((offset - ARGS_OFFSET) / 8) as usize] as u32,
                    }
                }
                OP_AND => loaded &= step.k,
                OP_JEQ => at += skip(loaded == step.k),
                OP_JGE => at += skip(loaded >= step.k),
                OP_JSET => at += skip(loaded & step.k != 0),
                OP_JA => at += step.k as usize,
                OP_RET => return step.k,
                code => panic!("instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn refused_requests_are_refused_and_their_neighbours_are_not() {
        for kind in [FilterKind::Namespaces, FilterKind::Asking, FilterKind::Bare] {
            let filter = compile_filter(kind);
            let answer =
                |request: u32| evaluate(&filter, libc::SYS_ioctl, [0, request.into(), 0, 0, 0, 0]);
            for request in REFUSED_IOCTLS {
                let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
                assert_eq!(answer(request), refused, "{kind:?} {request:#x}");
                for other in [request - 1, request + 1] {
                    if !REFUSED_IOCTLS.contains(&other) {
                        assert_eq!(answer(other), libc::SECCOMP_RET_ALLOW, "{kind:?} {other:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn huge_pages_are_not_to_be_had_and_other_memory_is() {
        let huge = |index: usize, flag: i64| {
            let mut arguments = [0; 6];
            arguments[index] = flag as u64;
            arguments
        };
        let refused = |errno: i32| libc::SECCOMP_RET_ERRNO | errno as u32;
        for kind in [FilterKind::Namespaces, FilterKind::Asking, FilterKind::Bare] {
            let filter = compile_filter(kind);
            let plain = i64::from(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let pages = plain | i64::from(libc::MAP_HUGETLB | libc::MAP_HUGE_1GB);
            let answer = |number, arguments| evaluate(&filter, number, arguments);
            assert_eq!(answer(libc::SYS_mmap, huge(3, plain)), libc::SECCOMP_RET_ALLOW);
            assert_eq!(answer(libc::SYS_mmap, huge(3, pages)), refused(libc::ENOMEM), "{kind:?}");
            let sealable = i64::from(libc::MFD_ALLOW_SEALING);
            let of_huge = sealable | i64::from(libc::MFD_HUGETLB);
            let memfd = libc::SYS_memfd_create;
            assert_eq!(answer(memfd, huge(1, sealable)), libc::SECCOMP_RET_ALLOW);
            for flags in [of_huge, i64::from(u32::MAX)] {
                assert_eq!(answer(memfd, huge(1, flags)), refused(libc::EINVAL), "{kind:?}");
            }
            let shared = answer(libc::SYS_shmget, huge(2, i64::from(libc::SHM_HUGETLB)));
            assert_ne!(shared, libc::SECCOMP_RET_ALLOW, "{kind:?}");
        }
    }
}
