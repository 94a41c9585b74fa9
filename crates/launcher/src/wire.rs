//! The messages between the owner and its launcher: one JSON text per packet, descriptors beside
//! it, both bounded. Only these two processes speak here; no guest ever holds an end.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg,
    sendmsg, socketpair,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::error::{Failure, Wall};

/// The launcher's inherited control socket.
pub const CONTROL_FD: RawFd = 3;
/// The launcher's inherited copy of the agent.
pub const AGENT_FD: RawFd = 4;
/// The most one message may have.
pub(crate) const MESSAGE_LIMIT: usize = 64 * 1024;
const FDS_LIMIT: usize = 3;

/// One wall, and what the kernel said when asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// The wall.
    pub wall: Wall,
    /// What was read back.
    pub evidence: String,
}

/// What comes back over a request's own socket. The launcher says `Begun` or `Failed`; the new process
/// itself then says `Proved` or `Failed`; and when the socket ends after `Proved`, its last holder has
/// been replaced by the agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum LaunchReply {
    Begun { pid: u32 },
    Proved(Vec<Proof>),
    Failed(Failure),
}

/// A sandbox whose agent has been started behind walls that were all read back.
#[derive(Debug)]
pub struct Launched {
    /// The agent's process id on the host.
    pub pid: u32,
    /// Becomes readable when the sandbox's first process has ended, and everything in it with it.
    pub pidfd: OwnedFd,
    /// Every wall, and the evidence for it.
    pub walls: Vec<Proof>,
}

/// A packet pair: what is sent arrives whole or not at all.
pub(crate) fn packet_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Sends one message with its descriptors.
pub(crate) fn send_message(
    socket: impl AsFd,
    text: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let socket = socket.as_fd();
    match send_packet(socket, text, fds) {
        Err(Errno::TOOMANYREFS) => {
            raise_open_files();
            send_packet(socket, text, fds)
        }
        sent => sent,
    }
}

fn send_packet(socket: BorrowedFd<'_>, text: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_LIMIT))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOBIG);
    }
    sendmsg(socket, &[IoSlice::new(text)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Raises this process's limit on open files as far as it may. By that limit the kernel judges whether too many
/// descriptors are on their way between all processes of this user: guests may have filled a lower one.
fn raise_open_files() {
    let hard = getrlimit(Resource::Nofile).maximum;
    // Refused only where the limit is already as it should be.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard });
}

/// Sends one reply. An error means that the peer is gone.
pub(crate) fn send_reply(
    socket: impl AsFd,
    what: &LaunchReply,
    pidfd: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let text = serde_json::to_vec(what).map_err(|_| Errno::INVAL)?;
    let fds: Vec<BorrowedFd<'_>> = pidfd.into_iter().collect();
    send_message(socket, &text, &fds)
}

/// One message received: nothing when the peer is gone.
pub(crate) struct Message {
    pub text: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// Receives one message. A longer one than allowed is an error, not a shorter message.
pub(crate) fn receive_message(
    socket: impl AsFd,
    flags: RecvFlags,
) -> Result<Option<Message>, Errno> {
    let socket = socket.as_fd();
    // Asked for first: a buffer of the largest size would cost more than the question.
    let peek = flags | RecvFlags::PEEK | RecvFlags::TRUNC;
    let (_, size) = recv(socket, &mut [0_u8; 0][..], peek)?;
    if size > MESSAGE_LIMIT {
        // Removed from the queue, with any descriptors it carries.
        recv(socket, &mut [0_u8; 0][..], flags | RecvFlags::TRUNC)?;
        return Err(Errno::MSGSIZE);
    }
    let mut text = vec![0; size];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_LIMIT))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut text)];
    let got = recvmsg(socket, &mut parts, &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    let fds = take_descriptors(&mut control);
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE);
    }
    text.truncate(got.bytes);
    Ok((got.bytes > 0).then_some(Message { text, fds }))
}

fn take_descriptors(control: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    fds
}
