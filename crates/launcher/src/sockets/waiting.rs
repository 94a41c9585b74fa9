//! One connection in the making. Nothing here blocks: a guest that waits for its own peer must not keep this
//! process from another of its connections.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, connect, sockopt};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

use super::SocketGuest;
use super::server::name_of;
use crate::sys;

/// Interval until a listener with a full queue is tried again.
const RETRY_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// Interval of checks whether the caller is gone.
const CALLER_POLL_INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// What to connect, and to what.
pub(super) struct GuestConnect {
    /// The guest's socket, of which it holds a descriptor too.
    pub socket: OwnedFd,
    /// The address as the guest gave it.
    pub address: Vec<u8>,
    /// The inode that a path in it was found to name.
    pub target: Option<OwnedFd>,
    pub guest: SocketGuest,
}

/// A call that could not be answered yet.
pub(super) struct WaitingConnect {
    pub call: u64,
    attempt: GuestConnect,
    until: Until,
}

/// What it waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// Room in the queue of its peer.
    Room,
    /// The end of a connection under way.
    Connected,
}

pub(super) enum ConnectOutcome {
    Done(Result<(), Errno>),
    Waits(WaitingConnect),
}

impl GuestConnect {
    /// Begins, as the call does whose socket may not block.
    pub(super) fn begin(self, call: u64) -> ConnectOutcome {
        let flags = match fcntl_getfl(&self.socket) {
            Ok(flags) => flags,
            Err(errno) => return ConnectOutcome::Done(Err(errno)),
        };
        let blocks = !flags.contains(OFlags::NONBLOCK);
        match (self.connect(flags), blocks) {
            (Err(Errno::AGAIN), true) => self.wait_until(call, Until::Room),
            (Err(Errno::INPROGRESS | Errno::ALREADY), true) => {
                self.wait_until(call, Until::Connected)
            }
            (result, _) => ConnectOutcome::Done(result),
        }
    }

    fn wait_until(self, call: u64, until: Until) -> ConnectOutcome {
        ConnectOutcome::Waits(WaitingConnect { call, attempt: self, until })
    }

    fn connect(&self, flags: OFlags) -> Result<(), Errno> {
        fcntl_setfl(&self.socket, flags | OFlags::NONBLOCK)?;
        let connected = as_guest(self.guest, || match &self.target {
            Some(target) => connect(&self.socket, &SocketAddrUnix::new(name_of(target))?),
            None => sys::connect_socket(self.socket.as_fd(), &self.address),
        });
        fcntl_setfl(&self.socket, flags)?;
        connected
    }
}

impl WaitingConnect {
    /// What to wait for, if the kernel tells: it does not tell of room in the queue of a peer.
    pub(super) fn poll_fd(&self) -> Option<PollFd<'_>> {
        match self.until {
            Until::Room => None,
            Until::Connected => Some(PollFd::new(&self.attempt.socket, PollFlags::OUT)),
        }
    }

    /// When to look at it again though nothing happens.
    pub(super) fn interval(&self) -> Timespec {
        match self.until {
            Until::Room => RETRY_INTERVAL,
            Until::Connected => CALLER_POLL_INTERVAL,
        }
    }

    pub(super) fn try_again(self) -> ConnectOutcome {
        match self.until {
            Until::Room => self.attempt.begin(self.call),
            Until::Connected => match self.is_connected() {
                Ok(true) => ConnectOutcome::Done(Ok(())),
                Ok(false) => ConnectOutcome::Waits(self),
                Err(errno) => ConnectOutcome::Done(Err(errno)),
            },
        }
    }

    fn is_connected(&self) -> Result<bool, Errno> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut ready = [PollFd::new(&self.attempt.socket, PollFlags::OUT)];
        rustix::event::poll(&mut ready, Some(&at_once))?;
        if ready[0].revents().is_empty() {
            return Ok(false);
        }
        sockopt::socket_error(&self.attempt.socket)?.map(|()| true)
    }
}

/// Does something as the user that the guest is on the host, so that its peers are told the truth.
fn as_guest<T>(guest: SocketGuest, work: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let (guest_uid, guest_gid) = (Uid::from_raw(guest.uid), Gid::from_raw(guest.gid));
    let changes = (uid, gid) != (guest_uid, guest_gid);
    if changes {
        set_thread_res_gid(gid, guest_gid, gid)?;
        set_thread_res_uid(uid, guest_uid, uid)?;
    }
    let done = work();
    if changes {
        set_thread_res_uid(uid, uid, uid)?;
        set_thread_res_gid(gid, gid, gid)?;
    }
    done
}
