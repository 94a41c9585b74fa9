//! The launcher's part: holds the listener of every sandbox's filter, and starts a process that serves it when
//! its guest connects for the first time. Most guests never do.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::{Pid, Signal, kill_process};

use super::{ConnectRules, server};
use crate::sys::{self, Cloned};
use crate::wire;

/// Everything that is waited for.
pub(crate) struct SocketWatch {
    epoll: OwnedFd,
    sandboxes: HashMap<Pid, ListenerState>,
}

/// What of one sandbox is waited for.
enum ListenerState {
    /// Its process to hand over the listener.
    Hand(OwnedFd, ConnectRules),
    /// Its guest to connect.
    Listener(OwnedFd, ConnectRules),
    /// Nothing: this process serves it.
    Served(Pid),
}

impl SocketWatch {
    pub(crate) fn new() -> Result<SocketWatch, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(SocketWatch { epoll, sandboxes: HashMap::new() })
    }

    /// From now on the listener of this sandbox is waited for.
    pub(crate) fn expect_listener(
        &mut self,
        sandbox: Pid,
        hand: OwnedFd,
        rules: ConnectRules,
    ) -> Result<(), Errno> {
        self.wait_for(sandbox, hand.as_fd())?;
        self.sandboxes.insert(sandbox, ListenerState::Hand(hand, rules));
        Ok(())
    }

    fn wait_for(&self, sandbox: Pid, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(sandbox.as_raw_nonzero().get().unsigned_abs().into());
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)
    }

    /// Deals with what has happened.
    pub(crate) fn serve(&mut self) {
        let mut events = Vec::with_capacity(64);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let buffer = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(&self.epoll, buffer, Some(&at_once)).is_err() {
            return;
        }
        for event in events {
            let (flags, data) = (event.flags, event.data);
            let number = i32::try_from(data.u64()).ok();
            if let Some(sandbox) = number.and_then(Pid::from_raw) {
                self.advance_sandbox(sandbox, flags.contains(epoll::EventFlags::IN));
            }
        }
    }

    /// Goes on with a sandbox. Without anything to be read, the other end is gone.
    fn advance_sandbox(&mut self, sandbox: Pid, readable: bool) {
        // Closed in any case: that takes it from what is waited for.
        match self.sandboxes.remove(&sandbox) {
            Some(ListenerState::Hand(hand, rules)) => {
                let listener = receive_fd(&hand);
                drop(hand);
                if let Some(listener) = listener
                    && self.wait_for(sandbox, listener.as_fd()).is_ok()
                {
                    self.sandboxes.insert(sandbox, ListenerState::Listener(listener, rules));
                }
            }
            // No process is left behind the filter: a server would have nothing to serve.
            Some(ListenerState::Listener(listener, _)) if !readable => drop(listener),
            // Where no process can be had, the listener is closed, and connecting fails.
            Some(ListenerState::Listener(listener, rules)) => {
                match server::start_server(&listener, rules) {
                    Ok(served) => {
                        drop(self.sandboxes.insert(sandbox, ListenerState::Served(served)))
                    }
                    Err(_) => drop(listener),
                }
            }
            Some(served @ ListenerState::Served(_)) => drop(self.sandboxes.insert(sandbox, served)),
            None => {}
        }
    }

    /// A sandbox has ended: the process that serves its sockets is killed too.
    pub(crate) fn forget_sandbox(&mut self, sandbox: Pid) {
        if let Some(ListenerState::Served(server)) = self.sandboxes.remove(&sandbox) {
            // It would end by itself too, once no guest process is left to serve.
            let _ = kill_process(server, Signal::KILL);
        }
    }

    /// A child of this process has ended: if it served a sandbox, that sandbox has no server any more.
    pub(crate) fn forget_child(&mut self, child: Pid) {
        let served = |state: &ListenerState| matches!(state, ListenerState::Served(server) if *server == child);
        self.sandboxes.retain(|_, state| !served(state));
    }

    /// Ends all serving processes.
    pub(crate) fn end_all(&mut self) {
        let sandboxes: Vec<Pid> = self.sandboxes.keys().copied().collect();
        sandboxes.into_iter().for_each(|sandbox| self.forget_sandbox(sandbox));
    }
}

impl AsFd for SocketWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn receive_fd(hand: &OwnedFd) -> Option<OwnedFd> {
    let message = wire::receive_message(hand, RecvFlags::DONTWAIT).ok()??;
    message.fds.into_iter().next()
}

/// A copy of this process that does something else until its end.
pub(super) fn fork_worker(work: impl FnOnce()) -> Result<Pid, Errno> {
    match sys::clone_into(0, None)? {
        Cloned::Parent { pid, .. } => Ok(pid),
        Cloned::Child => {
            work();
            sys::exit_now(0)
        }
    }
}
