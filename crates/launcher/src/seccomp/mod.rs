//! The system call filter: reviewed data (`allowed`, `denied`) and a compiler that turns it into
//! a program once, when the launcher starts. What no list names is refused.

mod allowed;
mod compile;
mod denied;
mod without_namespaces;

pub use denied::{DENIED_SYSCALLS, Denied};

pub(crate) use compile::compile_filter;

/// What else stands around the guest, which decides what the filter has to refuse itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilterKind {
    /// Namespaces keep processes, networks and names inside, and Landlock sockets that have a path.
    Namespaces,
    /// Namespaces, and a process outside that is asked about sockets that have a path.
    Asking,
    /// Nothing but Landlock does.
    Bare,
}

/// What the filter does with one system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyscallAction {
    /// The kernel carries it out.
    Allow,
    /// The call fails with this errno; the kernel does nothing.
    Refuse(i32),
    /// Its arguments decide.
    Look(ArgumentCheck),
    /// The process outside that holds the listener decides, and makes the call in the caller's stead.
    Ask,
}

/// Calls whose arguments decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgumentCheck {
    /// `clone`: no new namespaces.
    Clone,
    /// `socket`: families and protocols by allow-list.
    Socket,
    /// `socketpair`: local ones only.
    SocketPair,
    /// `ioctl`: nothing that types into or rules a terminal.
    Ioctl,
    /// `personality`: none that weakens the process.
    Personality,
    /// `socketpair`: connected for good.
    StreamPair,
    /// A call about a process: the caller itself only.
    Itself,
    /// A call about a process, a group or a user, a process being this: the caller itself only.
    ItsPriority(u32),
    /// `ioctl`: as above, and no change of a file's flags.
    IoctlKeeps,
    /// `socket`: as above, and no local one that could be sent from to any path.
    SocketKeeps,
    /// `connect`: the holder of the listener decides, where the address may have a path.
    Connect,
    /// A mode, in this argument, that does not make a file run as its owner or group.
    Mode(u32),
    /// The same of a call that creates by the flags in this argument, with a mode in the next one.
    Opens(u32),
    /// Memory that is mapped or made by the flags in this argument, without the one for huge pages: these come from
    /// a pool of the host's that no memory limit counts. Else it fails with this errno, as where there are none.
    HugePages(u32, u32, i32),
}
