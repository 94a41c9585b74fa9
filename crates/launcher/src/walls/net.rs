//! The network: a namespace with nothing in it but loopback, down unless asked for.

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::os::fd::AsFd;

use crate::error::{At, Failure, Wall};
use crate::plan::Network;
use crate::sys;

/// Brings loopback up where the plan says so.
pub(crate) fn set_up(network: Network) -> Result<(), Failure> {
    match network {
        Network::None => Ok(()),
        Network::Loopback => {
            let kind = (AddressFamily::INET, SocketType::DGRAM);
            let socket = socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None)
                .at(Wall::Network, "a socket")?;
            sys::raise_loopback(socket.as_fd()).at(Wall::Network, "loopback")
        }
    }
}
