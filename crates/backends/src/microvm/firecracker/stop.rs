//! Stopping a Firecracker process and everything in it by the kernel's job control (`SIGSTOP`, `SIGCONT`).
//!
//! Not by Firecracker's own pause: from 1.16 on a resume holds back the vsock until the guest acknowledges
//! that its connections were reset, and only a snapshot tells the guest so. After a plain pause the guest
//! could not be reached any more. A stopped process can be killed at once.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::time::sleep;

use super::api::{self, SocketDir};

/// How often it is looked whether every thread has come to a stop.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A process that can be stopped by its pidfd, even if its number is reused.
pub(super) struct StoppableProcess {
    pid: Pid,
    pidfd: OwnedFd,
}

impl StoppableProcess {
    /// The process that listens on the API socket.
    pub(super) async fn from_api_socket(sockets: &SocketDir) -> io::Result<Self> {
        let pid = find_socket_server(sockets).await?;
        let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        // It still serves, so that the number was not given to another process before it was opened.
        match find_socket_server(sockets).await? == pid {
            true => Ok(Self { pid, pidfd }),
            false => Err(io::Error::other("another process has taken its place")),
        }
    }

    /// Returns when every thread is stopped, or none is. The caller limits how long that may take.
    pub(super) async fn set_stopped(&self, stop: bool) -> io::Result<()> {
        pidfd_send_signal(&self.pidfd, if stop { Signal::STOP } else { Signal::CONT })?;
        while self.threads_stopped()?.iter().any(|stopped| *stopped != stop) {
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Of each thread, whether it is stopped.
    fn threads_stopped(&self) -> io::Result<Vec<bool>> {
        let mut all = Vec::new();
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid.as_raw_pid()))? {
            // One may end meanwhile.
            if let Ok(stat) = fs::read_to_string(thread?.path().join("stat")) {
                // The name is its own choice: the state stands behind its last bracket.
                let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
                all.push(state == Some('T'));
            }
        }
        // The descriptor tells whether the number still means it.
        let mut ended = [PollFd::new(&self.pidfd, PollFlags::IN)];
        match poll(&mut ended, Some(&Timespec::default()))? {
            0 => Ok(all),
            _ => Err(io::Error::other("it has ended")),
        }
    }
}

async fn find_socket_server(sockets: &SocketDir) -> io::Result<Pid> {
    Ok(socket_peercred(sockets.connect(api::API_SOCKET).await?)?.pid)
}
