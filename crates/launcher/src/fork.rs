//! A launcher without a program of its own: a copy of this process, which is there at once and gets
//! ready while its owner does something else. For an owner that comes and goes with one sandbox.
#![allow(unsafe_code)] // forking

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, chdir, setsid};
use rustix::thread::set_name;

use crate::client::Launcher;
use crate::error::{At, Failure, Wall};
use crate::sealed_memfd::copy_to_sealed_memfd;
use crate::server::{self, serve_over};
use crate::{sys, wire};

impl Launcher {
    /// Starts a launcher as a copy of this process, with a copy of `agent` that it seals itself.
    ///
    /// Refused in a process with more than one thread: what another one had locked at that instant
    /// would stay locked in the copy for ever.
    pub fn fork(agent: &[u8]) -> io::Result<Launcher> {
        if std::fs::read_dir("/proc/self/task")?.count() != 1 {
            return Err(io::Error::other("a process with several threads cannot be copied"));
        }
        let (ours, theirs) = wire::packet_pair()?;
        // SAFETY: there is one thread, so that the copy is a whole process; it never returns from here.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let served = become_one(theirs, agent);
                sys::exit_now(if served.is_ok() { 0 } else { 125 })
            }
            child => {
                let child = Pid::from_raw(child).ok_or_else(|| io::Error::other("no process"))?;
                Ok(Launcher::of(ours, child))
            }
        }
    }
}

/// Leaves behind what it has of its owner: session, directory, terminal, descriptors; and serves.
fn become_one(control: OwnedFd, agent: &[u8]) -> Result<(), Failure> {
    let wall = Wall::Request;
    setsid().at(wall, "a new session")?;
    set_name(c"stockade-launch").at(wall, "its name")?;
    chdir("/").at(wall, "the root directory")?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty()).at(wall, "/dev/null")?;
    for standard in 0..3 {
        sys::duplicate_onto(null.as_raw_fd(), standard, false).at(wall, "standard streams")?;
    }
    drop(null);
    let [control] = sys::keep_only([control]).at(wall, "closing")?;
    let agent = copy_to_sealed_memfd("stockade-agent", &mut &*agent)
        .map_err(|error| Failure::without_errno(Wall::Agent, error.to_string()))?;
    serve_over(control, agent, server::Mode::Once)
}
