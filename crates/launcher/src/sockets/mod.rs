//! Connecting to sockets, decided outside the guest (C-25): a path may lead to a socket on which a program of
//! the host listens, in a workspace or a mount, and neither permissions nor mounts hold the guest back from it.
//! So the filter asks about every `connect`, and a process of the launcher's connects in the guest's stead: by
//! descriptor, to the very inode it has judged, so that nothing can be swapped in between.
//!
//! Not needed where Landlock itself decides about such paths.

mod diag;
mod server;
mod waiting;
mod watch;

pub(crate) use diag::SocketDiag;
pub(crate) use watch::SocketWatch;

/// Whose sockets a guest is connected to, and as whom.
pub(crate) struct ConnectRules {
    pub guest: SocketGuest,
    /// Asks which sockets the host's programs have bound; none where the kernel does not tell.
    pub host: Option<SocketDiag>,
}

/// The guest's user on the host, which its peers see (`SO_PEERCRED`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketGuest {
    pub uid: u32,
    pub gid: u32,
}
