//! The network: a namespace with nothing in it but loopback, down unless asked for. It is made by the
//! launcher, ahead of time where there is time, because nothing else of a launch takes as long; and so
//! it belongs to the launcher's user namespace, where no guest could ever have a capability over it.

use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::UnshareFlags;

use crate::error::{At, Failure, Wall};
use crate::plan::PlanNetwork;
use crate::sys;

/// Where a network namespace says from which port on every process may listen.
const FIRST_FREE_PORT: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";

/// The network namespace that the next sandbox will be born into, if it is there already. The
/// launcher stands in it itself; each serves one sandbox.
#[derive(Default)]
pub(crate) struct Spare {
    fresh: bool,
}

impl Spare {
    /// Makes one ready. A failure shows when one is needed.
    pub(crate) fn prepare(&mut self) {
        self.fresh = self.fresh || create_network_namespace().is_ok();
    }

    /// Whether one is ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.fresh
    }

    /// Enters an unused network namespace, set up as the plan says, and uses it up.
    pub(crate) fn take(&mut self, network: PlanNetwork) -> Result<(), Failure> {
        if !std::mem::take(&mut self.fresh) {
            create_network_namespace().at(Wall::Network, "a network namespace")?;
        }
        match network {
            PlanNetwork::None => Ok(()),
            PlanNetwork::Loopback => {
                bring_up_loopback().at(Wall::Network, "loopback")?;
                // In a container whose `/proc/sys` is read-only, servers inside use higher ports.
                let _ = open_low_ports();
                Ok(())
            }
            PlanNetwork::Helper => {
                bring_up_loopback().at(Wall::Network, "loopback")?;
                open_low_ports().at(Wall::Network, "the ports below 1024 of its loopback")
            }
        }
    }
}

fn create_network_namespace() -> Result<(), Errno> {
    sys::unshare_namespaces(UnshareFlags::NEWNET)
}

/// Lets every process listen at every port. It concerns the new namespace alone.
fn open_low_ports() -> Result<(), Errno> {
    let file = open(FIRST_FREE_PORT, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, b"0").map(drop)
}

fn bring_up_loopback() -> Result<(), Errno> {
    let (family, kind) = (AddressFamily::INET, SocketType::DGRAM);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    sys::raise_loopback(socket.as_fd())
}
