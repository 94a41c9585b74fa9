//! Which local sockets belong to a network namespace, by the inodes that they are bound to: asked of the kernel
//! over netlink (`sock_diag`), which tells of one namespace alone.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const REQUEST_DUMP: u16 = 0x301;
const NLMSG_DONE: u16 = 3;
const NLMSG_ERROR: u16 = 2;
const SHOW_VFS: u32 = 2;
const ATTRIBUTE_VFS: u16 = 1;
/// The header of a netlink message.
const NLMSG_HEADER_BYTES: usize = 16;
/// The part of a message about a socket before its attributes.
const DIAG_MSG_BYTES: usize = 16;

/// An inode by its file system's device, as the kernel has it, and the lower half of its number.
pub(super) type Bound = (u32, u32);

/// Asks about the namespace that this process was in when it was made.
#[derive(Debug)]
pub(crate) struct SocketDiag(OwnedFd);

impl SocketDiag {
    pub(crate) fn open() -> Result<SocketDiag, Errno> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        socket_with(family, kind, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG)).map(SocketDiag)
    }

    /// One that another process has opened.
    pub(crate) fn of(opened: OwnedFd) -> SocketDiag {
        SocketDiag(opened)
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Every inode that a local socket of the namespace is bound to.
    pub(super) fn bound(&self) -> Result<BTreeSet<Bound>, Errno> {
        send(&self.0, &build_request(), SendFlags::empty())?;
        let mut all = BTreeSet::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let (_, length) = recv(&self.0, &mut buffer[..], RecvFlags::empty())?;
            let Some(mut rest) = buffer.get(..length).filter(|rest| !rest.is_empty()) else {
                return Err(Errno::MSGSIZE);
            };
            while let Some((kind, body, next)) = split_message(rest) {
                match kind {
                    NLMSG_DONE => return Ok(all),
                    NLMSG_ERROR => return Err(parse_failure(body)),
                    _ => all.extend(bound_in(body)),
                }
                rest = next;
            }
        }
    }
}

impl AsFd for SocketDiag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn build_request() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(NLMSG_HEADER_BYTES + 24);
    bytes.extend_from_slice(&(NLMSG_HEADER_BYTES as u32 + 24).to_ne_bytes());
    bytes.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend_from_slice(&REQUEST_DUMP.to_ne_bytes());
    bytes.extend_from_slice(&[0; 8]); // sequence and port
    bytes.extend_from_slice(&[libc::AF_UNIX as u8, 0, 0, 0]);
    // Every state; no inode in particular.
    for field in [u32::MAX, 0, SHOW_VFS, u32::MAX, u32::MAX] {
        bytes.extend_from_slice(&field.to_ne_bytes());
    }
    bytes
}

/// The kind and the body of the first message, and what follows it.
fn split_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = read_u32(bytes, 0)? as usize;
    let kind = read_u16(bytes, 4)?;
    let body = bytes.get(NLMSG_HEADER_BYTES..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn parse_failure(body: &[u8]) -> Errno {
    let code = read_u32(body, 0).map_or(0, u32::cast_signed);
    Errno::from_raw_os_error(if code < 0 { -code } else { libc::EIO })
}

fn bound_in(body: &[u8]) -> Option<Bound> {
    let mut attributes = body.get(DIAG_MSG_BYTES..)?;
    while let (Some(length), Some(kind)) = (read_u16(attributes, 0), read_u16(attributes, 2)) {
        let length = usize::from(length);
        if kind == ATTRIBUTE_VFS {
            return Some((read_u32(attributes, 8)?, read_u32(attributes, 4)?));
        }
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
    None
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(field.try_into().ok()?))
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(field.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_socket_that_is_bound_is_listed_by_its_inode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let found = std::fs::metadata(&path).unwrap();
        let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
        let own = (major << 20 | minor, found.ino() as u32);
        let diag = SocketDiag::open().unwrap();
        assert!(diag.bound().unwrap().contains(&own));
        drop(listener);
        assert!(!diag.bound().unwrap().contains(&own));
    }
}
