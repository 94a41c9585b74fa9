//! The system call filter: reviewed data (`allowed`, `denied`) and a compiler that turns it into
//! a program once, when the launcher starts. What no list names is refused.

mod allowed;
mod compile;
mod denied;

pub use denied::{DENIED, Denied};

pub(crate) use compile::program;

/// What the filter does with one system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The kernel carries it out.
    Allow,
    /// The call fails with this errno; the kernel does nothing.
    Refuse(i32),
    /// Its arguments decide.
    Look(Check),
}

/// Calls whose arguments decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
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
}
